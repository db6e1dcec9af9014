"""Runs and saves the evaluation of `draftlens evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from draftlens.cli.loading import load_models, make_folder
from draftlens.cli.options import Loading
from draftlens.cli.progress import SavingBar, progress_bars
from draftlens.cli.show import print_json, say, show_files
from draftlens.core.files import only_writer
from draftlens_lab.cli.report_tables import show_tables
from draftlens_lab.evaluate import (
    Evaluation,
    EvaluationOptions,
    about_evaluation,
    evaluation_page,
    evaluation_tables,
    save_evaluation,
)
from draftlens_lab.evaluate.plots import evaluation_plots

REPORT = "evaluate.json"
PAGE = "evaluate.md"


def evaluate_models(
    models: tuple[str, str, Loading], options: EvaluationOptions, out: Path, quiet: bool
) -> dict[str, Any]:
    """Measure target and draft (`models`: their names, and how they are loaded)."""
    make_folder(out)
    target, draft = load_models(*models, quiet)
    with only_writer(out):
        return _run(Evaluation(target, draft, options), out, quiet)


def show_report(report: Mapping[str, Any], out: Path, plots: bool, as_json: bool) -> None:
    plot_files = evaluation_plots(report, out) if plots else []
    if as_json:
        print_json(report)
        return
    show_tables(evaluation_tables(report), about_evaluation(report))
    show_files(out, REPORT, PAGE, *(file.name for file in plot_files))


@contextmanager
def _bar(out: Path, quiet: bool) -> Iterator[SavingBar]:
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
    # A report of an earlier run could be mistaken for that of this run.
    (out / REPORT).unlink(missing_ok=True)
    try:
        with _bar(out, quiet) as bar:
            return evaluation.run(bar)
    except KeyboardInterrupt:
        message = "stopped"
        if (out / REPORT).exists():
            message += f"; what was finished is in {out / REPORT}"
        say(f"\n{message}")
        raise
