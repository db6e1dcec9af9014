"""The options of `draftlens bench`, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftlens.cli.options import complete_methods, option


@dataclass(frozen=True)
class ClipOptions:
    """Which clips are measured on.

    Args:
        workload: Clips to measure on: `world:8,64` for scenes of 8 and of 64 frames; `focus:16,64`,
            `needle:64`, `chat:16,64` or `pairs` for questions about a part of what is seen;
            `picture`, `story`, `second`, `recall`, `aside` or `talk` for pictures and chats; a
            video, an image or a folder of them; or a dataset (`videodetailcaption`, `mvbench`,
            `mlvu`, `longvideobench` or `videomme`), followed by `:` and its annotation file or its
            name on the Hub.
        clips: Maximum number of clips; with scenes, number of scenes of each length. The default is
            4 with `world`, 5 with `focus` and its like, and all clips otherwise.
        media: Folder with the videos of a dataset; by default that of its annotations.
    """

    workload: str = option("world:8,64", "--workload", "-w")
    clips: int | None = option(None, min=1)
    media: Path | None = None


@dataclass(frozen=True)
class ContestantOptions:
    """Which ways of decoding take turns.

    Args:
        methods: Names of decoding methods, separated by commas; `draftlens methods` lists them.
        method_json: Further methods with their names: JSON such as
            '{"half": {"method": "specvlm", "prune_ratio": 0.5}}'. Can be repeated.
        methods_file: Further methods with their names, in a .json or .yaml file.
        peers: What to compare with, separated by commas: transformers' own decoding (`hf-generate`,
            always measured, and `hf-assisted`), and methods that drop visual tokens of the target
            and may change the answer (`fastv`, `pdrop`, `sparsevlm`, `dycoke-target`).
        sweep: An option of the methods and the values to measure it with:
            `prune_ratio=0,0.5,0.9`, `weights=grid,bayes` or `tree=eagle,[[0],[1]]`. Can be
            repeated.
    """

    methods: str = option("plain,speculative,specvlm", autocompletion=complete_methods)
    method_json: list[str] | None = None
    methods_file: Path | None = None
    peers: str = "hf-generate,hf-assisted"
    sweep: list[str] | None = None


@dataclass(frozen=True)
class MeasuringOptions:
    """How often and how long is measured.

    Args:
        context: Numbers of frames with which the time of one step of the draft is measured:
            `8,64,256`.
        batch_sizes: Numbers of prompts that are answered together: `1,4,16`. Reports latency and
            throughput of each, and the size at which drafting stops being faster.
        repeats: Number of measurements of each method on each clip.
        frames: Number of frames to sample from each file; 8 by default.
        prompt: Prompt for all clips, instead of those of the workload.
        seed: Seed of the order of measurements and of the scenes.
    """

    context: str | None = None
    batch_sizes: str | None = None
    repeats: int = option(3, min=1)
    frames: int | None = option(None, min=1)
    max_new_tokens: int = 256
    prompt: str | None = None
    seed: int = option(0, min=0)


@dataclass(frozen=True)
class ReportOptions:
    """Where the measurements go.

    Args:
        out: Folder for the measurements, the report and the plots.
        resume: Continue the run in the folder, or delete it and start again.
        plots: Draw plots of the results.
    """

    out: Path = Path("runs/bench")
    resume: bool | None = option(None, "--resume/--restart")
    plots: bool = option(True, "--plots/--no-plots")
