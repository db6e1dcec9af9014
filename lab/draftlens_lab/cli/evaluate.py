"""`draftlens evaluate`: measures models on held-out scenes, with a report and plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlens.cli import options as opt
from draftlens.cli.model_options import PLAIN, Loading
from draftlens.core.errors import ConfigError
from draftlens.core.names import AUTO, EMBEDDED

if TYPE_CHECKING:
    from draftlens.cli.progress import SavingBar
    from draftlens_lab.evaluate import Evaluation

REPORT = "evaluate.json"
PAGE = "evaluate.md"


def evaluate(
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = AUTO,
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
    loading: Loading = PLAIN,
    as_json: opt.AsJson = False,
) -> None:
    """Measure the accuracy of a model on held-out scenes.

    The scenes are those of the procedural world. With a draft, the agreement between the draft and
    the target is measured too.
    """
    from draftlens.cli.loading import load_models, make_folder
    from draftlens.cli.show import print_json, show_files
    from draftlens.core.files import only_writer
    from draftlens_lab.evaluate import Evaluation, EvaluationOptions

    options = EvaluationOptions(clips, parse_frames(frames), seed)
    _check_matplotlib()
    make_folder(out)
    target_model, draft_model = load_models(target, draft, loading, as_json)
    with only_writer(out):
        report = _run(Evaluation(target_model, draft_model, options), out, as_json)
    plot_files = _plot(report, out) if plots else []
    if as_json:
        print_json(report)
        return
    _show(report)
    show_files(out, REPORT, PAGE, *(file.name for file in plot_files))


def _show(report: Mapping[str, Any]) -> None:
    from draftlens.cli.show import show_tables
    from draftlens_lab.evaluate import about_evaluation, evaluation_tables

    show_tables(evaluation_tables(report), about_evaluation(report))


def parse_frames(text: str) -> tuple[int, ...]:
    """Return the numbers of frames from the value of `--frames`, in its order."""
    words = [word.strip() for word in text.split(",")]
    numbers = [int(word) for word in words if word.isascii() and word.isdigit()]
    is_valid = len(numbers) == len(words) == len(set(numbers)) and min(numbers) >= 1
    if not is_valid:
        raise ConfigError(f"--frames wants different numbers such as 8,64,256, not {text!r}")
    return tuple(numbers)


@contextmanager
def _bar(out: Path, quiet: bool) -> Iterator[SavingBar]:
    from rich.progress import (
        BarColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from draftlens.cli.progress import SavingBar, progress_bars
    from draftlens_lab.evaluate import evaluation_page, save_evaluation

    def save_report(report: Mapping[str, Any]) -> None:
        save_evaluation(report, out / REPORT)
        (out / PAGE).write_text(evaluation_page(report), encoding="utf-8")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("remaining:"),
        TimeRemainingColumn(),
    )
    with progress_bars(quiet, *columns, speed_estimate_period=300) as progress:
        yield SavingBar(progress, save_report)


def _run(evaluation: Evaluation, out: Path, quiet: bool) -> dict[str, Any]:
    from draftlens.cli.show import error_console

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
    from draftlens_lab.evaluate.plots import evaluation_plots

    return evaluation_plots(report, out)


def _check_matplotlib() -> None:
    """Raise `ConfigError` without matplotlib.

    It is needed even without plots, because the letters in the clips are drawn in its fonts.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(
            'evaluate draws clips and plots with matplotlib: pip install "draftlens-lab"'
        )
