"""`draftlens lmms-task`: writes the procedural world as tasks of lmms-eval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftlens.cli.options import AsJson
from draftlens_lab.cli.world import SizeOptions


def lmms_task(
    out: Annotated[Path, typer.Argument(help="Folder to write to; it must be new or empty.")],
    *,
    samples: Annotated[
        int,
        typer.Option(min=1, help="Number of samples of each family of questions and captions."),
    ] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the held-out scenes.")] = 0,
    size: SizeOptions,
    as_json: AsJson = False,
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
