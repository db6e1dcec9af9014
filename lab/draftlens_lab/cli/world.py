"""`draftlens world` and `draftlens lmms-task`: export the procedural world as data for training or
evaluating models, and as tasks of lmms-eval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from draftlens.cli.options import option


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
    """How many samples of each kind are written.

    Args:
        clips: Number of clips with dialogues.
        pictures: Number of pictures with dialogues.
        pairs: Number of dialogues about two pictures that differ in one detail.
        talks: Number of dialogues without media.
        focus: Number of clips of 4 to 16 shots with questions about a part of them.
        needles: Number of such clips with a needle in one frame.
        chats: Number of such clips with chats of two turns.
        spots: Number of longer dialogues about two pictures.
    """

    clips: int = option(20, min=0)
    pictures: int = option(20, min=0)
    pairs: int = option(10, min=0)
    talks: int = option(10, min=0)
    focus: int = option(0, min=0)
    needles: int = option(0, min=0)
    chats: int = option(0, min=0)
    spots: int = option(0, min=0)

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
    """Which samples of the world are written, and how.

    Args:
        split: Splits to write.
        held_out: Number of test samples per training sample, with --split both.
        start: Number of samples to skip, for example those of an earlier export.
        format: Format to write: JSON in the layout of LLaVA, or a folder for
            `datasets.load_dataset`.
    """

    split: Split = Split.BOTH
    held_out: float = option(0.1, min=0.0)
    start: int = option(0, min=0)
    format: Format = Format.LLAVA


@dataclass(frozen=True)
class SizeOptions:
    """The size of clips and pictures.

    Args:
        frames: Number of frames of a clip.
        rate: Frames per second of a clip.
        side: Width and height of frames and pictures in pixels, an even number.
    """

    frames: int = option(96, min=1)
    rate: int = option(24, min=1)
    side: int = option(256, min=16)


def world_command(
    out: Path,
    *,
    counts: SampleCounts,
    parts: PartOptions,
    size: SizeOptions,
    as_json: bool = False,
) -> None:
    """Write clips and pictures with dialogues about them.

    The scenes are those of the procedural world, in which the right answer to every question is
    known.

    Args:
        out: Folder to write to; it must be new or empty.
    """
    from rich.progress import TimeRemainingColumn

    from draftlens.cli.progress import count_bar
    from draftlens_lab.world.export import export_datasets, export_llava, seeds_of

    export = export_llava if parts.format is Format.LLAVA else export_datasets
    seeds = seeds_of(counts.by_kind, parts.split.value, parts.held_out, parts.start)
    with count_bar("writing samples", as_json, TimeRemainingColumn()) as on_sample:
        entries = export(
            out, seeds, frames=size.frames, rate=size.rate, side=size.side, on_sample=on_sample
        )
    _show_written(out, entries, "entries", as_json)


def lmms_task(
    out: Path,
    *,
    samples: Annotated[int, typer.Option(min=1)] = 20,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    size: SizeOptions,
    as_json: bool = False,
) -> None:
    """Write tasks for lmms-eval about held-out scenes.

    The scenes are those of the procedural world. The tasks need no network, and any model of
    lmms-eval can be scored on them: `lmms-eval --include_path OUT --tasks draftlens_world`.

    Args:
        out: Folder to write to; it must be new or empty.
        samples: Number of samples of each family of questions and captions.
        seed: Seed of the held-out scenes.
    """
    from rich.progress import TimeRemainingColumn

    from draftlens.cli.progress import count_bar
    from draftlens_lab.lmms.tasks import write_tasks
    from draftlens_lab.world.entries import MediaFormat

    media = MediaFormat(size.frames, size.rate, size.side)
    with count_bar("writing samples", as_json, TimeRemainingColumn()) as on_sample:
        counts = write_tasks(out, samples, media, seed, on_sample)
    _show_written(out, counts, "samples", as_json)


def _show_written(out: Path, counts: Mapping[str, int], noun: str, as_json: bool) -> None:
    from draftlens.cli.show import console, print_json, say

    if as_json:
        print_json({"folder": str(out), **counts})
        return
    written = [f"{count} {noun} to {name}" for name, count in counts.items() if count]
    say(f"{out}: {', '.join(written)}", on=console)
