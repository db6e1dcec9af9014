"""Measures, reports and plots what `draftlens bench` names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
import yaml
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from draftlens.cli import options as opt
from draftlens.cli.loading import load_models, make_folder
from draftlens.cli.options import Loading
from draftlens.cli.progress import ProgressBar, ProgressLines, is_hidden, progress_bars
from draftlens.cli.show import error_console, print_json, show_files
from draftlens.core.errors import ConfigError
from draftlens.core.files import only_writer
from draftlens.engine import Engine
from draftlens_lab.bench import (
    BenchOptions,
    Store,
    bench_page,
    bench_tables,
    line_up,
    prepare,
    run,
    summarize,
)
from draftlens_lab.bench.batches import measure_batches
from draftlens_lab.bench.plots import bench_plots
from draftlens_lab.bench.report import about_run
from draftlens_lab.bench.spec_bench import write_answers
from draftlens_lab.bench.store import PAGE, SPEC_BENCH, SUMMARY
from draftlens_lab.bench.workloads import check_workload
from draftlens_lab.cli.bench_options import (
    ClipOptions,
    ContestantOptions,
    MeasuringOptions,
    ReportOptions,
)
from draftlens_lab.cli.report_tables import show_tables
from draftlens_lab.measure.options import frame_counts
from draftlens_lab.measure.progress import ProgressListener


def measure_and_save(
    options: BenchOptions, report: ReportOptions, models: tuple[str, str, Loading], as_json: bool
) -> None:
    """Measure what the folder of the report lacks, and write and print the report.

    Args:
        models: names of target and draft, and how they are loaded.
    """
    store = Store(report.out)
    store.check(report.resume)
    make_folder(report.out)
    with only_writer(report.out):
        _measure_and_save(store, options, report, models, as_json)


def _measure_and_save(
    store: Store,
    options: BenchOptions,
    report: ReportOptions,
    models: tuple[str, str, Loading],
    as_json: bool,
) -> None:
    engine = Engine(*load_models(*models, as_json))
    engine.calibrate()
    summary = measure(engine, options, store, report.resume, as_json)
    plot_files = save_report(summary, report.out, report.plots)
    if as_json:
        print_json(summary)
    else:
        _show(summary, plot_files, report.out)
    if not summary["measurements"]:
        raise typer.Exit(1)


def options_of(
    clips: ClipOptions, contestants: ContestantOptions, measuring: MeasuringOptions
) -> BenchOptions:
    return BenchOptions(
        workload=clips.workload,
        clips=clips.clips,
        frames=measuring.frames or BenchOptions.frames,
        prompt=measuring.prompt,
        media=clips.media,
        methods=split_names(contestants.methods),
        extra=further_methods(contestants.method_json, contestants.methods_file),
        peers=split_names(contestants.peers),
        sweep=sweep_of(contestants.sweep),
        context=frame_counts(measuring.context) if measuring.context else (),
        repeats=measuring.repeats,
        max_new_tokens=measuring.max_new_tokens,
        seed=measuring.seed,
        batch_sizes=batch_sizes(measuring.batch_sizes),
    )


def check_options(
    options: BenchOptions, measuring: MeasuringOptions, report: ReportOptions
) -> None:
    """Refuse a run that cannot begin or end, before the models are loaded."""
    line_up(options)
    check_workload(options, report.out, measuring.frames)
    if report.plots:
        _check_matplotlib()


def _check_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise ConfigError("plots need matplotlib: pip install matplotlib, or use --no-plots")


def measure(
    engine: Engine, options: BenchOptions, store: Store, resume: bool | None, quiet: bool
) -> dict[str, Any]:
    """Measure what is missing in a store and return the summary of the run."""
    plan = prepare(engine, line_up(options), options, store.folder)
    description = plan.description()
    store.begin(description, resume)
    try:
        with _bar(quiet) as bar:
            run(plan, store, bar)
        if options.batch_sizes:
            with _bar(quiet) as bar:
                measure_batches(plan, store, bar)
    except KeyboardInterrupt:
        error_console.print(
            f"\nstopped; {store.folder} keeps what is measured, and --resume goes on",
            soft_wrap=True,
        )
        raise
    write_answers(store, [clip.name for clip in plan.clips], engine.text_decoder)
    groups = list(dict.fromkeys(clip.group for clip in plan.clips))
    return {"run": description, **summarize(store, plan.contestants, groups)}


def save_report(summary: Mapping[str, Any], out: Path, plots: bool) -> list[Path]:
    """Write the summary, the report and, if `plots` is True, the plots; return their files."""
    plot_files: list[Path] = []
    if plots:
        plot_files = bench_plots(summary, out)
    text = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
    (out / SUMMARY).write_text(text, encoding="utf-8")
    report = bench_page(summary, [file.name for file in plot_files])
    (out / PAGE).write_text(report, encoding="utf-8")
    return plot_files


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a text, separated by commas; the empty text has none."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def batch_sizes(text: str | None) -> tuple[int, ...]:
    """Return the numbers of `--batch-sizes`, in order."""
    words = split_names(text or "")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigError(f"--batch-sizes are whole numbers such as 1,4,16, not {text!r}")
    return tuple(sorted({int(word) for word in words}))


def further_methods(texts: list[str] | None, file: Path | None) -> dict[str, Mapping[str, Any]]:
    """Return methods by name from the values of `--method-json` and `--methods-file`."""
    sources = [("--method-json", text) for text in texts or []]
    if file is not None:
        sources.append((str(file), opt.read_text(file, "methods")))
    methods: dict[str, Mapping[str, Any]] = {}
    for source, text in sources:
        parsed = _parse_methods(text, source)
        duplicates = sorted(set(parsed) & set(methods))
        if duplicates:
            names = ", ".join(map(repr, duplicates))
            raise ConfigError(f"{names} is named twice: give each method a name of its own")
        methods |= parsed
    return methods


def _parse_methods(text: str, source: str) -> dict[str, Mapping[str, Any]]:
    methods = opt.parse_text(text, source)
    if isinstance(methods, dict) and all(isinstance(value, dict) for value in methods.values()):
        return methods
    raise ConfigError(f'{source} must hold an object such as {{"half": {{"method": "specvlm"}}}}')


def sweep_of(texts: list[str] | None) -> dict[str, tuple[Any, ...]]:
    """Return options and their values from texts such as ``prune_ratio=0,0.5``.

    Values are YAML. Several texts for the same option add up.
    """
    sweep: dict[str, tuple[Any, ...]] = {}
    for text in texts or []:
        name, _, value_text = text.partition("=")
        name = name.strip()
        values = _parse_values(value_text.strip())
        if not name or not values:
            raise ConfigError(
                "--sweep needs a field and its values such as prune_ratio=0,0.5,0.9 or "
                f"tree=eagle,[[0],[1]], not {text!r}"
            )
        sweep[name] = (*sweep.get(name, ()), *values)
    return sweep


def _parse_values(text: str) -> list[Any] | None:
    """The values in a YAML list without its brackets; None if it is not valid."""
    try:
        values: list[Any] | None = yaml.safe_load(f"[{text}]")
    except (ValueError, yaml.YAMLError):
        return None
    return values


@contextmanager
def _bar(quiet: bool) -> Iterator[ProgressListener]:
    if is_hidden(quiet) and not quiet:
        yield ProgressLines()
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TextColumn("remaining:"),
        TimeRemainingColumn(),
    )
    # Two refreshes per second, because drawing takes time from what is measured.
    with progress_bars(quiet, *columns, refresh_per_second=2) as progress:
        yield ProgressBar(progress)


def _show(summary: Mapping[str, Any], plot_files: list[Path], out: Path) -> None:
    show_tables(bench_tables(summary), about_run(summary))
    show_files(out, SUMMARY, PAGE, SPEC_BENCH, *(file.name for file in plot_files))
