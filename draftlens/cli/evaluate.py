"""`draftlens evaluate`: measures models on held-out scenes, with a report and plots."""

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
from draftlens.cli.progress import ProgressBar, progress_bars
from draftlens.cli.show import error_console, print_json, show_files, show_tables
from draftlens.core.errors import ConfigError
from draftlens.models.zoo import EMBEDDED

if TYPE_CHECKING:
    from draftlens.evaluate import Evaluation

REPORT = "evaluate.json"
PAGE = "evaluate.md"


def evaluate(
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = None,
    clips: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of held-out clips, of held-out pictures, and of questions of each family.",
        ),
    ] = 100,
    frames: Annotated[
        str,
        typer.Option(
            help="Numbers of frames of a clip: the usual one, then those of long input, separated "
            "by commas."
        ),
    ] = "8,64,256",
    out: Annotated[Path, typer.Option(help="Folder for the report and the plots.")] = Path(
        "runs/evaluate"
    ),
    plots: Annotated[
        bool, typer.Option("--plots/--no-plots", help="Draw plots of the results.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the held-out scenes.")] = 0,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure the accuracy of a model on held-out scenes.

    The scenes are those of the procedural world. With a draft, the agreement between the draft and
    the target is measured too.
    """
    from draftlens.evaluate import Evaluation, Options  # takes seconds to import

    options = Options(clips, parse_frames(frames), seed)
    _check_matplotlib()
    make_folder(out)
    target_model, draft_model = load_models(target, draft, device, dtype, as_json)
    report = _run(Evaluation(target_model, draft_model, options), out, as_json)
    plot_files = _plot(report, out) if plots else []
    if as_json:
        print_json(report)
        return
    _show(report)
    show_files(out, REPORT, PAGE, *(file.name for file in plot_files))


def _show(report: Mapping[str, Any]) -> None:
    from draftlens.evaluate import about, tables

    show_tables(tables(report), about(report))


def parse_frames(text: str) -> tuple[int, ...]:
    """Return the numbers of frames from the value of `--frames`, in its order.

    Raises:
        ConfigError: they are not different whole numbers of at least 1, separated by commas.
    """
    words = [word.strip() for word in text.split(",")]
    numbers = [int(word) for word in words if word.isascii() and word.isdigit()]
    is_valid = len(numbers) == len(words) == len(set(numbers)) and min(numbers) >= 1
    if not is_valid:
        raise ConfigError(f"--frames wants different numbers such as 8,64,256, not {text!r}")
    return tuple(numbers)


class SavingBar(ProgressBar):
    """A bar that also saves the finished part of the report.

    Args:
        progress: rich's progress bars.
        out: the folder of the report.
    """

    def __init__(self, progress: Progress, out: Path) -> None:
        super().__init__(progress)
        self.out = out

    def saved(self, report: Mapping[str, Any]) -> None:
        """Write the report, which has a further finished section."""
        from draftlens.evaluate import markdown, save

        save(report, self.out / REPORT)
        (self.out / PAGE).write_text(markdown(report), encoding="utf-8")


@contextmanager
def _bar(out: Path, quiet: bool) -> Iterator[SavingBar]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("remaining:"),
        TimeRemainingColumn(),
    )
    with progress_bars(quiet, *columns, speed_estimate_period=300) as progress:
        yield SavingBar(progress, out)


def _run(evaluation: Evaluation, out: Path, quiet: bool) -> dict[str, Any]:
    # A report of an earlier run could be mistaken for that of this run.
    (out / REPORT).unlink(missing_ok=True)
    try:
        with _bar(out, quiet) as bar:
            return evaluation.run(bar)
    except KeyboardInterrupt:
        message = "stopped"
        if (out / REPORT).exists():
            message += f"; what was finished is in {out / REPORT}"
        error_console.print(f"\n{message}", markup=False, soft_wrap=True)
        raise


def _plot(report: Mapping[str, Any], out: Path) -> list[Path]:
    from draftlens.evaluate.plots import plot

    return plot(report, out)


def _check_matplotlib() -> None:
    """Raise `ConfigError` without matplotlib.

    It is needed even without plots, because the letters in the clips are drawn in its fonts.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(
            'evaluate draws clips and plots with matplotlib: pip install "draftlens[train]"'
        )
