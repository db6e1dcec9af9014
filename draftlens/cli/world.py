"""`draftlens world`: the procedural world as data to train or measure other models on."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TimeRemainingColumn

from draftlens.cli.options import AsJson
from draftlens.cli.progress import count_bar
from draftlens.cli.show import console, print_json


class Split(StrEnum):
    """What to export."""

    BOTH, TRAIN, TEST = "both", "train", "test"


class Format(StrEnum):
    """How to write it."""

    LLAVA, DATASETS = "llava", "datasets"


def world(
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    clips: Annotated[int, typer.Option(min=0, help="Clips with dialogues.")] = 20,
    pictures: Annotated[int, typer.Option(min=0, help="Pictures with dialogues.")] = 20,
    pairs: Annotated[
        int, typer.Option(min=0, help="Pairs of pictures that differ in one thing.")
    ] = 10,
    talks: Annotated[int, typer.Option(min=0, help="Dialogues about nothing to be seen.")] = 10,
    split: Annotated[
        Split, typer.Option(help="Training data, held-out test data, or both.")
    ] = Split.BOTH,
    held_out: Annotated[
        float,
        typer.Option(min=0.0, help="With --split both: test samples for each training sample."),
    ] = 0.1,
    start: Annotated[
        int, typer.Option(min=0, help="Samples to leave out: another export goes on from there.")
    ] = 0,
    format: Annotated[
        Format, typer.Option(help="JSON as LLaVA's, or a folder for load_dataset.")
    ] = Format.LLAVA,
    frames: Annotated[int, typer.Option(min=1, help="Frames of a clip.")] = 96,
    rate: Annotated[int, typer.Option(min=1, help="Frames a second.")] = 24,
    side: Annotated[
        int, typer.Option(min=16, help="Pixels a side of frames and pictures; even.")
    ] = 256,
    as_json: AsJson = False,
) -> None:
    """Write clips and pictures of the procedural world with dialogues in which every answer is the
    right one."""
    from draftlens.world.export import (  # not needed by other commands
        export_datasets,
        export_llava,
        seeds_of,
    )

    export = export_llava if format is Format.LLAVA else export_datasets
    counts = {"clip": clips, "picture": pictures, "pair": pairs, "talk": talks}
    seeds = seeds_of(counts, split.value, held_out, start)
    with count_bar("writing samples", as_json, TimeRemainingColumn()) as on_sample:
        written = export(out, seeds, frames=frames, rate=rate, side=side, on_sample=on_sample)
    if as_json:
        print_json({"folder": str(out), **written})
    else:
        said = ", ".join(f"{count} entries to {name}" for name, count in written.items() if count)
        console.print(f"{out}: {said}", markup=False, soft_wrap=True)
