"""`draftlens bench`: a bar while it measures, tables when it is done, files all along."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from draftlens.api import Engine
from draftlens.cli import options as opt
from draftlens.cli.loading import load_models
from draftlens.cli.progress import Bar, progress_of
from draftlens.cli.show import errors, print_json, show_files, show_tables
from draftlens.core.errors import ConfigError
from draftlens.models.zoo import EMBEDDED

if TYPE_CHECKING:
    from draftlens.bench import Options, Store


def bench(
    target: opt.Target = EMBEDDED,
    draft: Annotated[
        str,
        typer.Option(
            "--draft",
            "-d",
            help="A smaller model of the same tokenizer; `auto`, or `none` for no draft.",
        ),
    ] = "auto",
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            "-w",
            help="`world:8,64` (lengths in frames), a video, image or folder of them, or `videodetailcaption`, "
            "`mvbench`, `mlvu`, `longvideobench` or `videomme` with `:` and annotations or a "
            "name on the Hub.",
        ),
    ] = "world:8,64",
    clips: Annotated[
        int | None, typer.Option(min=1, help="Most clips; of the world, scenes at each length.")
    ] = None,
    media: Annotated[Path | None, typer.Option(help="Folder with a dataset's videos.")] = None,
    methods: Annotated[
        str, typer.Option(help="Methods by name, with commas between.")
    ] = "plain,speculative,specvlm",
    method_json: Annotated[
        list[str] | None,
        typer.Option(
            help='More methods: JSON such as \'{"half": {"method": "specvlm", "prune_ratio": 0.5}}\'.'
        ),
    ] = None,
    methods_file: Annotated[
        Path | None, typer.Option(help="More methods, in a .json or .yaml file.")
    ] = None,
    peers: Annotated[
        str, typer.Option(help="The library's own ways; hf-generate is always there.")
    ] = ("hf-generate,hf-assisted"),
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="A field of methods and its values: `prune_ratio=0,0.5,0.9` or `tree=eagle,[[0],[1]]`."
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(help="Time the draft's step at these numbers of frames: `8,64,256`."),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Measurements of each clip by each method.")
    ] = 3,
    frames: Annotated[
        int | None,
        typer.Option(
            "--frames", min=1, help="Frames to sample from each file; 8 if none are named."
        ),
    ] = None,
    max_new_tokens: opt.MaxNewTokens = 256,
    prompt: Annotated[
        str | None, typer.Option(help="Asked of every clip, instead of its own.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order and of the world's scenes.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for measurements, report and plots.")] = Path(
        "runs/bench"
    ),
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--restart", help="Go on with the run in the folder, or begin again."
        ),
    ] = None,
    plots: Annotated[
        bool, typer.Option("--plots/--no-plots", help="Draw pictures of the figures.")
    ] = True,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    as_json: opt.AsJson = False,
) -> None:
    """Time methods and the library's own ways on the same clips, interleaved; exit status 1 if
    every clip failed."""
    from draftlens.bench import Options, Store, line_up  # takes a second to import
    from draftlens.bench.workloads import check, lengths_of

    options = Options(
        workload, clips, frames or Options.frames, prompt, media, names_of(methods),
        extra_of(method_json, methods_file), names_of(peers), sweep_of(sweep),
        lengths_of(context) if context else (), repeats, max_new_tokens, seed,
    )  # fmt: skip
    line_up(options)  # a bad name is told before minutes of loading
    check(options, out, frames)
    if plots and find_spec("matplotlib") is None:
        raise ConfigError(
            'plots need matplotlib: pip install "draftlens[bench]", or leave them out with --no-plots'
        )
    store = Store(out)
    store.check(resume)
    engine = Engine(*load_models(target, draft, device, dtype, as_json))
    summary = measure(engine, options, store, resume, as_json)
    _show(summary, save(summary, out, plots), out, as_json)
    if not summary["measurements"]:
        raise typer.Exit(1)


def measure(
    engine: Engine, options: Options, store: Store, resume: bool | None, quiet: bool
) -> dict[str, Any]:
    """Measure what is missing and sum up.

    Raises:
        ConfigError: there is nothing to measure, or the store holds another run.
    """
    from draftlens.bench import line_up, prepare, run, summarize

    plan = prepare(engine, line_up(options), options, store.folder)
    description = plan.description()
    store.begin(description, resume)
    try:
        with _bar(quiet) as bar:
            run(plan, store, bar)
    except KeyboardInterrupt:
        errors.print(
            f"\nstopped; {store.folder} keeps what is measured, and --resume goes on",
            soft_wrap=True,
        )
        raise
    groups = list(dict.fromkeys(clip.group for clip in plan.clips))
    return {"run": description, **summarize(store, plan.contestants, groups)}


def save(summary: Mapping[str, Any], out: Path, plots: bool) -> list[Path]:
    """Write the summary, the page and the plots; the plots written."""
    from draftlens.bench import markdown
    from draftlens.bench.store import PAGE, SUMMARY

    drawn: list[Path] = []
    if plots:
        from draftlens.bench.plots import plot

        drawn = plot(summary, out)
    (out / SUMMARY).write_text(
        json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (out / PAGE).write_text(markdown(summary, [file.name for file in drawn]), encoding="utf-8")
    return drawn


def names_of(given: str) -> tuple[str, ...]:
    """Names with commas between; none of the empty text."""
    return tuple(word.strip() for word in given.split(",") if word.strip())


def extra_of(texts: list[str] | None, file: Path | None) -> dict[str, Mapping[str, Any]]:
    """Methods by name from `--method-json` and `--methods-file`.

    Raises:
        ConfigError: something is no object of methods, or a name comes twice.
    """
    found: dict[str, Mapping[str, Any]] = {}
    sources = [("--method-json", text) for text in texts or []]
    if file is not None:
        try:
            sources.append((str(file), file.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the methods {file}: {error}") from error
    for source, text in sources:
        try:
            methods = (
                yaml.safe_load(text) if source.endswith((".yaml", ".yml")) else json.loads(text)
            )
        except (ValueError, yaml.YAMLError) as error:
            raise ConfigError(f"{source} is not valid: {' '.join(str(error).split())}") from error
        if not isinstance(methods, dict) or not all(
            isinstance(of, dict) for of in methods.values()
        ):
            raise ConfigError(
                f'{source} must hold an object such as {{"half": {{"method": "specvlm"}}}}'
            )
        twice = sorted(set(methods) & set(found))
        if twice:
            raise ConfigError(
                f"{', '.join(map(repr, twice))} is named twice: give each method a name of its own"
            )
        found |= methods
    return found


def sweep_of(texts: list[str] | None) -> dict[str, tuple[Any, ...]]:
    """Fields and their values, in YAML, from texts such as ``prune_ratio=0,0.5``; those of one
    field add up.

    Raises:
        ConfigError: one has no such form.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts or []:
        name, _, listed = (part.strip() for part in text.partition("="))
        try:
            values = yaml.safe_load(f"[{listed}]")
        except (ValueError, yaml.YAMLError):
            values = None
        if not name or not values:
            wanted = "a field and its values such as prune_ratio=0,0.5,0.9 or tree=eagle,[[0],[1]]"
            raise ConfigError(f"--sweep wants {wanted}, not {text!r}")
        found[name] = (*found.get(name, ()), *values)
    return found


@contextmanager
def _bar(quiet: bool) -> Iterator[Bar]:
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False)
    times = TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()
    # Drawn twice a second: drawing takes time from what is measured.
    with progress_of(quiet, *columns, *times, refresh_per_second=2) as progress:
        yield Bar(progress)


def _show(summary: Mapping[str, Any], drawn: list[Path], out: Path, as_json: bool) -> None:
    from draftlens.bench import tables
    from draftlens.bench.report import about
    from draftlens.bench.store import PAGE, SUMMARY

    if as_json:
        print_json(summary)
        return
    show_tables(tables(summary), about(summary))
    show_files(out, SUMMARY, PAGE, *(file.name for file in drawn))
