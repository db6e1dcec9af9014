"""`draftlens bench`: measures the speed of methods, with a report and plots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlens.cli import options as opt
from draftlens.cli.model_options import PLAIN, Loading
from draftlens.core.errors import ConfigError
from draftlens.core.names import EMBEDDED

if TYPE_CHECKING:
    from draftlens.api import Engine
    from draftlens.bench import Options, Store
    from draftlens.measure.progress import ProgressListener


def bench(
    target: opt.Target = EMBEDDED,
    draft: Annotated[
        str,
        typer.Option(
            "--draft",
            "-d",
            help="Draft model: a smaller model with the same tokenizer, `auto` for the one known "
            "for the target, or `none`.",
        ),
    ] = "auto",
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            "-w",
            help="Clips to measure on: `world:8,64` for scenes of 8 and of 64 frames; "
            "`focus:16,64`, `needle:64`, `chat:16,64` or `pairs` for questions about a part of "
            "what is seen; `picture`, `story`, `second`, `recall`, `aside` or `talk` for pictures "
            "and chats; a video, an image or a folder of them; or a dataset "
            "(`videodetailcaption`, `mvbench`, `mlvu`, `longvideobench` or `videomme`), followed "
            "by `:` and its annotation file or its name on the Hub.",
        ),
    ] = "world:8,64",
    clips: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of clips; with scenes, number of scenes of each length. The "
            "default is 4 with `world`, 5 with `focus` and its like, and all clips otherwise.",
        ),
    ] = None,
    media: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the videos of a dataset; by default that of its annotations."
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Names of decoding methods, separated by commas: `plain`, `speculative`, "
            "`specvlm`, `parallelvlm`, `tabed`."
        ),
    ] = "plain,speculative,specvlm",
    method_json: Annotated[
        list[str] | None,
        typer.Option(
            help="Further methods with their names: JSON such as "
            '\'{"half": {"method": "specvlm", "prune_ratio": 0.5}}\'. Can be repeated.'
        ),
    ] = None,
    methods_file: Annotated[
        Path | None,
        typer.Option(help="Further methods with their names, in a .json or .yaml file."),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(
            help="What to compare with, separated by commas: transformers' own decoding "
            "(`hf-generate`, always measured, and `hf-assisted`), and methods that drop visual "
            "tokens of the target and may change the answer (`fastv`, `pdrop`, `sparsevlm`, "
            "`dycoke-target`)."
        ),
    ] = "hf-generate,hf-assisted",
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the methods and the values to measure it with: "
            "`prune_ratio=0,0.5,0.9`, `weights=grid,bayes` or `tree=eagle,[[0],[1]]`. Can be "
            "repeated."
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            help="Numbers of frames with which the time of one step of the draft is measured: "
            "`8,64,256`."
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Number of measurements of each method on each clip.")
    ] = 3,
    frames: Annotated[
        int | None,
        typer.Option(
            "--frames", min=1, help="Number of frames to sample from each file; 8 by default."
        ),
    ] = None,
    max_new_tokens: opt.MaxNewTokens = 256,
    prompt: Annotated[
        str | None, typer.Option(help="Prompt for all clips, instead of those of the workload.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the order of measurements and of the scenes.")
    ] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder for the measurements, the report and the plots.")
    ] = Path("runs/bench"),
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--restart",
            help="Continue the run in the folder, or delete it and start again.",
        ),
    ] = None,
    plots: Annotated[
        bool, typer.Option("--plots/--no-plots", help="Draw plots of the results.")
    ] = True,
    loading: Loading = PLAIN,
    as_json: opt.AsJson = False,
) -> None:
    """Measure the speed of decoding methods on the same clips.

    All methods take turns on each clip, next to the decoding of transformers. The exit status is
    1 if every clip failed.
    """
    from draftlens.api import Engine
    from draftlens.bench import Options, Store, line_up
    from draftlens.bench.workloads import check
    from draftlens.cli.loading import load_models
    from draftlens.cli.show import print_json
    from draftlens.measure.options import frame_counts

    options = Options(
        workload=workload,
        clips=clips,
        frames=frames or Options.frames,
        prompt=prompt,
        media=media,
        methods=split_names(methods),
        extra=further_methods(method_json, methods_file),
        peers=split_names(peers),
        sweep=sweep_of(sweep),
        context=frame_counts(context) if context else (),
        repeats=repeats,
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    line_up(options)  # reports a wrong name before a long load
    check(options, out, frames)
    if plots:
        _check_matplotlib()
    store = Store(out)
    store.check(resume)
    engine = Engine(*load_models(target, draft, loading, as_json))
    engine.calibrate()
    summary = measure(engine, options, store, resume, as_json)
    plot_files = save(summary, out, plots)
    if as_json:
        print_json(summary)
    else:
        _show(summary, plot_files, out)
    if not summary["measurements"]:
        raise typer.Exit(1)


def _check_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise ConfigError(
            'plots need matplotlib: pip install "draftlens[bench]", or use --no-plots'
        )


def measure(
    engine: Engine, options: Options, store: Store, resume: bool | None, quiet: bool
) -> dict[str, Any]:
    """Measure what is missing in a store and return the summary of the run.

    Raises:
        ConfigError: there is nothing to measure, or the store holds a different run.
    """
    from draftlens.bench import line_up, prepare, run, summarize
    from draftlens.cli.show import error_console

    plan = prepare(engine, line_up(options), options, store.folder)
    description = plan.description()
    store.begin(description, resume)
    try:
        with _bar(quiet) as bar:
            run(plan, store, bar)
    except KeyboardInterrupt:
        error_console.print(
            f"\nstopped; {store.folder} keeps what is measured, and --resume goes on",
            soft_wrap=True,
        )
        raise
    groups = list(dict.fromkeys(clip.group for clip in plan.clips))
    return {"run": description, **summarize(store, plan.contestants, groups)}


def save(summary: Mapping[str, Any], out: Path, plots: bool) -> list[Path]:
    """Write the summary, the report and, if `plots` is True, the plots; return their files."""
    from draftlens.bench import markdown
    from draftlens.bench.store import PAGE, SUMMARY

    plot_files: list[Path] = []
    if plots:
        from draftlens.bench.plots import plot

        plot_files = plot(summary, out)
    text = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
    (out / SUMMARY).write_text(text, encoding="utf-8")
    report = markdown(summary, [file.name for file in plot_files])
    (out / PAGE).write_text(report, encoding="utf-8")
    return plot_files


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a text, separated by commas; the empty text has none."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def further_methods(texts: list[str] | None, file: Path | None) -> dict[str, Mapping[str, Any]]:
    """Return methods by name from the values of `--method-json` and `--methods-file`.

    Raises:
        ConfigError: a value is not an object of methods, or two methods have the same name.
    """
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

    Raises:
        ConfigError: a text does not have this form.
    """
    sweep: dict[str, tuple[Any, ...]] = {}
    for text in texts or []:
        name, _, value_text = text.partition("=")
        name = name.strip()
        values = _parse_values(value_text.strip())
        if not name or not values:
            raise ConfigError(
                "--sweep wants a field and its values such as prune_ratio=0,0.5,0.9 or "
                f"tree=eagle,[[0],[1]], not {text!r}"
            )
        sweep[name] = (*sweep.get(name, ()), *values)
    return sweep


def _parse_values(text: str) -> list[Any] | None:
    """The values in a YAML list without its brackets; None if it is not valid."""
    import yaml

    try:
        values: list[Any] | None = yaml.safe_load(f"[{text}]")
    except (ValueError, yaml.YAMLError):
        return None
    return values


@contextmanager
def _bar(quiet: bool) -> Iterator[ProgressListener]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from draftlens.cli.progress import ProgressBar, ProgressLines, is_hidden, progress_bars

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
    from draftlens.bench import tables
    from draftlens.bench.report import about
    from draftlens.bench.store import PAGE, SUMMARY
    from draftlens.cli.show import show_files, show_tables

    show_tables(tables(summary), about(summary))
    show_files(out, SUMMARY, PAGE, *(file.name for file in plot_files))
