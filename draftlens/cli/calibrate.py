"""`draftlens calibrate`: finds the attention mass (λ) for a pair of models and a task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlens.cli import options as opt
from draftlens.cli.loading import load_engine, read_files
from draftlens.cli.progress import progress_bars
from draftlens.cli.show import console, print_json, table
from draftlens.methods import Method, resolve
from draftlens.models.zoo import EMBEDDED

if TYPE_CHECKING:
    from draftlens.bench.calibrate import Calibration

BAR_WIDTH = 30
"""Characters of the longest bar; with its mark, the table fits into a terminal of 80 columns."""


def calibrate(
    media: Annotated[
        list[Path], typer.Argument(help="Two to four video files, or images with --images.")
    ],
    images: Annotated[
        bool,
        typer.Option("--images", help="Read the files as images, each with a prompt of its own."),
    ] = False,
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = None,
    speculative_config: opt.SpeculativeConfig = None,
    frames: opt.Frames = 8,
    prompt: opt.MediaPrompt = "",
    max_new_tokens: opt.MaxNewTokens = 256,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    limits: opt.MediaLimits = None,
    as_json: opt.AsJson = False,
) -> None:
    """Find the best attention_mass of method specvlm.

    The attention_mass (λ) is the share of attention that the most attended of the kept tokens
    hold. All clips are answered with every value from 0 to 1 in steps of 0.1. The best value has
    the longest mean acceptance length.
    """
    from draftlens.bench.calibrate import MASSES
    from draftlens.bench.calibrate import calibrate as run

    method = _check_method(opt.parse_method("specvlm", speculative_config))
    text = opt.prompt_or_default(prompt, images)
    chats = [read_files(as_json, limits, text, frames, [file], images) for file in media]
    engine = load_engine(target, draft, method, device, dtype, as_json, calibrate=False)
    with progress_bars(as_json) as progress:
        task = progress.add_task("answering", total=len(MASSES) * len(media))
        clips = [engine.process([chat]) for chat in chats]
        calibration = run(
            engine, clips, method, MASSES, max_new_tokens, lambda: progress.advance(task)
        )
    if as_json:
        _print_json(calibration)
    else:
        _show(calibration)


def best_mass(calibration: Calibration) -> float | None:
    """Return the best mass, or None if all masses are equally good."""
    curve = calibration.curve
    return calibration.best if min(curve) < max(curve) else None


def _print_json(calibration: Calibration) -> None:
    print_json(
        {
            "attention_mass": best_mass(calibration),
            "masses": calibration.masses,
            "mean_acceptance_length": calibration.curve,
        }
    )


def _show(calibration: Calibration) -> None:
    best = best_mass(calibration)
    curve = calibration.curve
    longest = max(curve) or 1.0  # 0 if all answers have a single token
    rows = []
    for mass, length in zip(calibration.masses, curve, strict=True):
        bar = "#" * round(BAR_WIDTH * length / longest)
        mark = " <" if mass == best else ""
        rows.append([f"{mass:.1f}", f"{length:.2f}", bar + mark])
    table("", ["attention_mass", "mean acceptance length", ""], rows)
    if best is not None:
        message = f"attention_mass {best:.1f}"
    elif any(curve):
        message = "no attention_mass is best: all did equally well"
    else:
        message = (
            "no attention_mass is best: the answers ended with their first token, so nothing was "
            "drafted"
        )
    console.print(message, markup=False, soft_wrap=True)


def _check_method(method: Any) -> Method:
    """Return the method to calibrate.

    Raises:
        ConfigError: it is not `specvlm`, or `draftlens.bench.calibrate.check` refuses it.
    """
    from draftlens.bench.calibrate import check

    resolved = resolve(method, True)
    check(resolved)
    return resolved
