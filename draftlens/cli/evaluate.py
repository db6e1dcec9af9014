"""`draftlens evaluate`: a bar while it measures, tables when it is done, files all along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers.utils import logging as transformers_logging

from draftlens.cli import options as opt
from draftlens.cli.show import console, errors, print_json, table, working
from draftlens.cli.threads import settle_threads
from draftlens.errors import ConfigError
from draftlens.load import Loaded, load_model, load_pair
from draftlens.models.zoo import EMBEDDED

if TYPE_CHECKING:
    from draftlens.train.evaluate import Evaluation

NO_DRAFT = "none"
REPORT, PAGE = "evaluate.json", "evaluate.md"


def evaluate(
    target: opt.Target = EMBEDDED,
    draft: Annotated[
        str | None,
        typer.Option("--draft", "-d", help="A smaller model of the same tokenizer; `auto`, or `none` for no draft."),
    ] = None,
    clips: Annotated[int, typer.Option(min=1, help="Held-out clips, pictures, and questions of each family.")] = 100,
    frames: Annotated[str, typer.Option(help="Frames of a clip: the usual number, then those of long input.")] = (
        "8,64,256"
    ),
    out: Annotated[Path, typer.Option(help="Folder for the report and the plots.")] = Path("runs/evaluate"),
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw pictures of the figures.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Other seeds take other held-out scenes.")] = 0,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure a model or a pair on held-out scenes of the procedural world."""
    from draftlens.train.evaluate import Evaluation, Options  # takes seconds to import

    options = Options(clips, frames_of(frames), seed)
    _check_matplotlib()
    _check_folder(out)
    big, small = _load(target, draft, device, dtype, as_json)
    report = _run(Evaluation(big, small, options), out, as_json)
    drawn = _plot(report, out) if plots else []
    if as_json:
        print_json(report)
        return
    _show(report)
    names = ", ".join([REPORT, PAGE, *(file.name for file in drawn)])
    console.print(f"{out} holds {names}", markup=False, soft_wrap=True)


def _show(report: Mapping[str, Any]) -> None:
    from draftlens.train.evaluate import about, tables

    for found in tables(report):
        table(found.title, found.columns, found.rows)
        if found.note:
            console.print(f"  {found.note}", style="dim")
        console.print()
    console.print(about(report), markup=False, style="dim")


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


class Bar:
    """A bar with the time left, which also saves what is finished.

    Args:
        progress: draws it.
        out: where the report goes.
    """

    def __init__(self, progress: Progress, out: Path) -> None:
        self.progress, self.out = progress, out
        self.task = progress.add_task("preparing", total=None)

    def plan(self, work: float) -> None:
        """See `draftlens.train.evaluate.run.Watcher`; so the rest."""
        self.progress.update(self.task, total=work)

    def begin(self, section: str) -> None:
        self.progress.update(self.task, description=section)

    def done(self, work: float) -> None:
        self.progress.advance(self.task, work)

    def saved(self, report: Mapping[str, Any]) -> None:
        from draftlens.train.evaluate import markdown, save

        save(report, self.out / REPORT)
        (self.out / PAGE).write_text(markdown(report), encoding="utf-8")


@contextmanager
def _bar(out: Path, quiet: bool) -> Iterator[Bar]:
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    times = TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()
    hidden = quiet or not errors.is_terminal
    with Progress(*columns, *times, console=errors, transient=True, disable=hidden, speed_estimate_period=300) as bar:
        yield Bar(bar, out)


def _run(evaluation: Evaluation, out: Path, quiet: bool) -> dict[str, Any]:
    (out / REPORT).unlink(missing_ok=True)  # an earlier one would pass for this one's
    try:
        with _bar(out, quiet) as bar:
            return evaluation.run(bar)
    except KeyboardInterrupt:
        kept = f"; what was finished is in {out / REPORT}" if (out / REPORT).exists() else ""
        errors.print(f"\nstopped{kept}", markup=False, soft_wrap=True)
        raise


def _load(
    target: str, draft: str | None, device: str | None, dtype: str | None, quiet: bool
) -> tuple[Loaded, Loaded | None]:
    if quiet or target == EMBEDDED:
        transformers_logging.disable_progress_bar()
    with working(f"loading {target}", quiet):
        if draft == NO_DRAFT:
            pair: tuple[Loaded, Loaded | None] = load_model(target, "target", device, dtype), None
        else:
            pair = load_pair(target, draft, device, dtype)
    settle_threads(pair[0].backbone.model)
    return pair


def _plot(report: Mapping[str, Any], out: Path) -> list[Path]:
    from draftlens.train.evaluate.plots import plot

    return plot(report, out)


def _check_matplotlib() -> None:
    """The world's letters are drawn in fonts that matplotlib carries, so it is needed even without plots."""
    if find_spec("matplotlib") is None:
        raise ConfigError('evaluate draws clips and plots with matplotlib: pip install "draftlens[train]"')


def _check_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to the folder {out}: {error.strerror or error}") from error
