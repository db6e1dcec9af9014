"""`draftlens calibrate`: which λ suits a pair and a task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlens.cli import options as opt
from draftlens.cli.loading import load_engine, read_media
from draftlens.cli.progress import progress_of
from draftlens.cli.show import console, print_json, table
from draftlens.core.errors import ConfigError
from draftlens.methods import SpecVLM, resolve
from draftlens.models.zoo import EMBEDDED

if TYPE_CHECKING:
    from draftlens.bench.calibrate import Calibration

BAR = 30
"""Characters of the longest bar: with its mark, the table fits a terminal of 80."""


def calibrate(
    media: Annotated[
        list[Path], typer.Argument(help="Two to four clips, or images with --images.")
    ],
    images: Annotated[
        bool, typer.Option("--images", help="The files are images, one prompt each.")
    ] = False,
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = None,
    speculative_config: opt.SpeculativeConfig = None,
    frames: opt.Frames = 8,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = "",
    max_new_tokens: opt.MaxNewTokens = 256,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    limits: opt.MediaLimits = None,
    as_json: opt.AsJson = False,
) -> None:
    """Find the attention_mass (λ) with which a pruned draft agrees most, on a few clips."""
    from draftlens.bench.calibrate import MASSES
    from draftlens.bench.calibrate import calibrate as run

    method = _method(opt.method_of("specvlm", speculative_config))
    shown: list[dict[str, Any]] = [
        {"images": [file]} if images else {"video": file} for file in media
    ]
    asked = opt.prompt_of(prompt, images)
    chats = [read_media(as_json, limits, asked, frames, **one) for one in shown]
    engine = load_engine(target, draft, method, device, dtype, as_json)
    with progress_of(as_json) as progress:
        task = progress.add_task("answering", total=len(MASSES) * len(media))
        clips = [engine.process([chat]) for chat in chats]
        found = run(engine, clips, method, MASSES, max_new_tokens, lambda: progress.advance(task))
    if as_json:
        best = winner(found)
        print_json(
            {"attention_mass": best, "masses": found.masses, "mean_acceptance_length": found.curve}
        )
        return
    _show(found)


def winner(found: Calibration) -> float | None:
    """The best mass, or None where all are equally good."""
    return found.best if min(found.curve) < max(found.curve) else None


def _show(found: Calibration) -> None:
    best, curve = winner(found), found.curve
    longest = max(curve) or 1.0  # answers of one token accept nothing
    rows = [
        [
            f"{mass:.1f}",
            f"{value:.2f}",
            "#" * round(BAR * value / longest) + (" <" if mass == best else ""),
        ]
        for mass, value in zip(found.masses, curve, strict=True)
    ]
    table("", ["attention_mass", "mean acceptance length", ""], rows)
    why = (
        "all did equally well"
        if any(curve)
        else "the answers ended with their first token, so nothing was drafted"
    )
    said = f"no attention_mass is best: {why}" if best is None else f"attention_mass {best:.1f}"
    console.print(said, markup=False, soft_wrap=True)


def _method(chosen: Any) -> SpecVLM:
    """The method to calibrate.

    Raises:
        ConfigError: it is another, or `draftlens.bench.calibrate.check` refuses it.
    """
    from draftlens.bench.calibrate import check

    method = resolve(chosen, True)
    if not isinstance(method, SpecVLM):
        raise ConfigError(
            "calibrate chooses the attention_mass of method specvlm with pruner specvlm"
        )
    check(method)
    return method
