"""The options of `draftlens bench`, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from draftlens.cli import options as opt


@dataclass(frozen=True)
class ClipOptions:
    """Which clips are measured on."""

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
    ] = "world:8,64"
    clips: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of clips; with scenes, number of scenes of each length. The "
            "default is 4 with `world`, 5 with `focus` and its like, and all clips otherwise.",
        ),
    ] = None
    media: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the videos of a dataset; by default that of its annotations."
        ),
    ] = None


@dataclass(frozen=True)
class ContestantOptions:
    """Which ways of decoding take turns."""

    methods: Annotated[
        str,
        typer.Option(
            help="Names of decoding methods, separated by commas; `draftlens methods` lists them.",
            autocompletion=opt.complete_methods,
        ),
    ] = "plain,speculative,specvlm"
    method_json: Annotated[
        list[str] | None,
        typer.Option(
            help="Further methods with their names: JSON such as "
            '\'{"half": {"method": "specvlm", "prune_ratio": 0.5}}\'. Can be repeated.'
        ),
    ] = None
    methods_file: Annotated[
        Path | None,
        typer.Option(help="Further methods with their names, in a .json or .yaml file."),
    ] = None
    peers: Annotated[
        str,
        typer.Option(
            help="What to compare with, separated by commas: transformers' own decoding "
            "(`hf-generate`, always measured, and `hf-assisted`), and methods that drop visual "
            "tokens of the target and may change the answer (`fastv`, `pdrop`, `sparsevlm`, "
            "`dycoke-target`)."
        ),
    ] = "hf-generate,hf-assisted"
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the methods and the values to measure it with: "
            "`prune_ratio=0,0.5,0.9`, `weights=grid,bayes` or `tree=eagle,[[0],[1]]`. Can be "
            "repeated."
        ),
    ] = None


@dataclass(frozen=True)
class MeasuringOptions:
    """How often and how long is measured."""

    context: Annotated[
        str | None,
        typer.Option(
            help="Numbers of frames with which the time of one step of the draft is measured: "
            "`8,64,256`."
        ),
    ] = None
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            help="Numbers of prompts that are answered together: `1,4,16`. Reports latency and "
            "throughput of each, and the size at which drafting stops being faster."
        ),
    ] = None
    repeats: Annotated[
        int, typer.Option(min=1, help="Number of measurements of each method on each clip.")
    ] = 3
    frames: Annotated[
        int | None,
        typer.Option(
            "--frames", min=1, help="Number of frames to sample from each file; 8 by default."
        ),
    ] = None
    max_new_tokens: int = 256
    prompt: Annotated[
        str | None, typer.Option(help="Prompt for all clips, instead of those of the workload.")
    ] = None
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the order of measurements and of the scenes.")
    ] = 0


@dataclass(frozen=True)
class ReportOptions:
    """Where the measurements go."""

    out: Annotated[
        Path, typer.Option(help="Folder for the measurements, the report and the plots.")
    ] = Path("runs/bench")
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--restart",
            help="Continue the run in the folder, or delete it and start again.",
        ),
    ] = None
    plots: Annotated[
        bool, typer.Option("--plots/--no-plots", help="Draw plots of the results.")
    ] = True
