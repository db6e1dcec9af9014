"""`draftlens evaluate`: a bar while it measures, tables when it is done, files all along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from draftlens.cli import options as opt
from draftlens.cli.loading import load_models, make_folder
from draftlens.cli.progress import Bar, progress_of
from draftlens.cli.show import errors, print_json, show_files, show_tables
from draftlens.core.errors import ConfigError
from draftlens.models.zoo import EMBEDDED

if TYPE_CHECKING:
    from draftlens.evaluate import Evaluation

REPORT, PAGE = "evaluate.json", "evaluate.md"


def evaluate(
    target: opt.Target = EMBEDDED,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            "-d",
            help="A smaller model of the same tokenizer; `auto`, or `none` for no draft.",
        ),
    ] = None,
    clips: Annotated[
        int, typer.Option(min=1, help="Held-out clips, pictures, and questions of each family.")
    ] = 100,
    frames: Annotated[
        str, typer.Option(help="Frames of a clip: the usual number, then those of long input.")
    ] = ("8,64,256"),
    out: Annotated[Path, typer.Option(help="Folder for the report and the plots.")] = Path(
        "runs/evaluate"
    ),
    plots: Annotated[
        bool, typer.Option("--plots/--no-plots", help="Draw pictures of the figures.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Other seeds take other held-out scenes.")] = 0,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure a model or a pair on held-out scenes of the procedural world."""
    from draftlens.evaluate import Evaluation, Options  # takes seconds to import

    options = Options(clips, frames_of(frames), seed)
    _check_matplotlib()
    make_folder(out)
    big, small = load_models(target, draft, device, dtype, as_json)
    report = _run(Evaluation(big, small, options), out, as_json)
    drawn = _plot(report, out) if plots else []
    if as_json:
        print_json(report)
        return
    _show(report)
    show_files(out, REPORT, PAGE, *(file.name for file in drawn))


def _show(report: Mapping[str, Any]) -> None:
    from draftlens.evaluate import about, tables

    show_tables(tables(report), about(report))


def frames_of(given: str) -> tuple[int, ...]:
    """The numbers of frames that `--frames` names, in order.

    Raises:
        ConfigError: they are no different whole numbers of at least 1 with commas between.
    """
    words = [word.strip() for word in given.split(",")]
    numbers = tuple(int(word) for word in words if word.isascii() and word.isdigit())
    if len(numbers) != len(words) or min(numbers) < 1 or len(set(numbers)) != len(numbers):
        raise ConfigError(f"--frames wants different numbers such as 8,64,256, not {given!r}")
    return numbers


class SavingBar(Bar):
    """A bar that also saves what is finished.

    Args:
        progress: draws it.
        out: where the report goes.
    """

    def __init__(self, progress: Progress, out: Path) -> None:
        super().__init__(progress)
        self.out = out

    def saved(self, report: Mapping[str, Any]) -> None:
        """See `draftlens.evaluate.run.Watcher`."""
        from draftlens.evaluate import markdown, save

        save(report, self.out / REPORT)
        (self.out / PAGE).write_text(markdown(report), encoding="utf-8")


@contextmanager
def _bar(out: Path, quiet: bool) -> Iterator[SavingBar]:
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn()
    times = TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()
    with progress_of(quiet, *columns, *times, speed_estimate_period=300) as progress:
        yield SavingBar(progress, out)


def _run(evaluation: Evaluation, out: Path, quiet: bool) -> dict[str, Any]:
    (out / REPORT).unlink(missing_ok=True)  # an earlier one would pass for this one's
    try:
        with _bar(out, quiet) as bar:
            return evaluation.run(bar)
    except KeyboardInterrupt:
        kept = f"; what was finished is in {out / REPORT}" if (out / REPORT).exists() else ""
        errors.print(f"\nstopped{kept}", markup=False, soft_wrap=True)
        raise


def _plot(report: Mapping[str, Any], out: Path) -> list[Path]:
    from draftlens.evaluate.plots import plot

    return plot(report, out)


def _check_matplotlib() -> None:
    """The world's letters are drawn in fonts that matplotlib carries, so it is needed even without
    plots."""
    if find_spec("matplotlib") is None:
        raise ConfigError(
            'evaluate draws clips and plots with matplotlib: pip install "draftlens[train]"'
        )
