"""`draftlens world` and `draftlens lmms-task`: export the procedural world as data for training or
evaluating models, and as tasks of lmms-eval."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Split(StrEnum):
    """The splits to export."""

    BOTH = "both"
    TRAIN = "train"
    TEST = "test"


class Format(StrEnum):
    """The format of the export."""

    LLAVA = "llava"
    DATASETS = "datasets"


@dataclass(frozen=True)
class SampleCounts:
    """How many samples of each kind are written."""

    clips: Annotated[int, typer.Option(min=0, help="Number of clips with dialogues.")] = 20
    pictures: Annotated[int, typer.Option(min=0, help="Number of pictures with dialogues.")] = 20
    pairs: Annotated[
        int,
        typer.Option(
            min=0, help="Number of dialogues about two pictures that differ in one detail."
        ),
    ] = 10
    talks: Annotated[int, typer.Option(min=0, help="Number of dialogues without media.")] = 10
    focus: Annotated[
        int,
        typer.Option(
            min=0, help="Number of clips of 4 to 16 shots with questions about a part of them."
        ),
    ] = 0
    needles: Annotated[
        int, typer.Option(min=0, help="Number of such clips with a needle in one frame.")
    ] = 0
    chats: Annotated[
        int, typer.Option(min=0, help="Number of such clips with chats of two turns.")
    ] = 0
    spots: Annotated[
        int, typer.Option(min=0, help="Number of longer dialogues about two pictures.")
    ] = 0

    @property
    def by_kind(self) -> dict[str, int]:
        """The numbers by the names that the world has for these kinds."""
        return {
            "clip": self.clips,
            "picture": self.pictures,
            "pair": self.pairs,
            "talk": self.talks,
            "focus": self.focus,
            "needle": self.needles,
            "chat": self.chats,
            "spot": self.spots,
        }


@dataclass(frozen=True)
class PartOptions:
    """Which samples of the world are written, and how."""

    split: Annotated[Split, typer.Option(help="Splits to write.")] = Split.BOTH
    held_out: Annotated[
        float,
        typer.Option(
            min=0.0, help="Number of test samples per training sample, with --split both."
        ),
    ] = 0.1
    start: Annotated[
        int,
        typer.Option(
            min=0, help="Number of samples to skip, for example those of an earlier export."
        ),
    ] = 0
    format: Annotated[
        Format,
        typer.Option(
            help="Format to write: JSON in the layout of LLaVA, or a folder for "
            "`datasets.load_dataset`."
        ),
    ] = Format.LLAVA


@dataclass(frozen=True)
class SizeOptions:
    """The size of clips and pictures."""

    frames: Annotated[int, typer.Option(min=1, help="Number of frames of a clip.")] = 96
    rate: Annotated[int, typer.Option(min=1, help="Frames per second of a clip.")] = 24
    side: Annotated[
        int,
        typer.Option(
            min=16, help="Width and height of frames and pictures in pixels, an even number."
        ),
    ] = 256


def world_command(
    out: Annotated[Path, typer.Argument(help="Folder to write to; it must be new or empty.")],
    *,
    counts: SampleCounts,
    parts: PartOptions,
    size: SizeOptions,
    as_json: bool = False,
) -> None:
    """Write clips and pictures with dialogues about them.

    The scenes are those of the procedural world, in which the right answer to every question is
    known.
    """
    from rich.progress import TimeRemainingColumn

    from draftlens.cli.progress import count_bar
    from draftlens.cli.show import console, print_json
    from draftlens_lab.world.export import export_datasets, export_llava, seeds_of

    export = export_llava if parts.format is Format.LLAVA else export_datasets
    seeds = seeds_of(counts.by_kind, parts.split.value, parts.held_out, parts.start)
    with count_bar("writing samples", as_json, TimeRemainingColumn()) as on_sample:
        entries = export(
            out, seeds, frames=size.frames, rate=size.rate, side=size.side, on_sample=on_sample
        )
    if as_json:
        print_json({"folder": str(out), **entries})
        return
    written = [f"{count} entries to {name}" for name, count in entries.items() if count]
    console.print(f"{out}: {', '.join(written)}", markup=False, soft_wrap=True)


def lmms_task(
    out: Annotated[Path, typer.Argument(help="Folder to write to; it must be new or empty.")],
    *,
    samples: Annotated[
        int,
        typer.Option(min=1, help="Number of samples of each family of questions and captions."),
    ] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the held-out scenes.")] = 0,
    size: SizeOptions,
    as_json: bool = False,
) -> None:
    """Write tasks for lmms-eval about held-out scenes.

    The scenes are those of the procedural world. The tasks need no network, and any model of
    lmms-eval can be scored on them: `lmms-eval --include_path OUT --tasks draftlens_world`.
    """
    from rich.progress import TimeRemainingColumn

    from draftlens.cli.progress import count_bar
    from draftlens.cli.show import console, print_json
    from draftlens_lab.lmms.tasks import write_tasks
    from draftlens_lab.world.entries import MediaFormat

    media = MediaFormat(size.frames, size.rate, size.side)
    with count_bar("writing samples", as_json, TimeRemainingColumn()) as on_sample:
        counts = write_tasks(out, samples, media, seed, on_sample)
    if as_json:
        print_json({"folder": str(out), **counts})
        return
    written = [f"{count} samples to {name}" for name, count in counts.items()]
    console.print(f"{out}: {', '.join(written)}", markup=False, soft_wrap=True)
