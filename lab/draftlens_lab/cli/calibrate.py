"""`draftlens calibrate`: finds the attention mass (λ) or layer (L) of a pruner, or the best pruner,
for a pair of models and a task."""

from __future__ import annotations

from typing import Annotated

import typer

from draftlens.cli import options as opt
from draftlens.cli.options import PLAIN, Loading
from draftlens.core.names import AUTO, EMBEDDED


def calibrate_command(
    media: list[str],
    *,
    images: bool = False,
    target: str = EMBEDDED,
    draft: str = AUTO,
    speculative_config: str | None = None,
    pruners: Annotated[str, typer.Option(autocompletion=opt.complete_pruners)] = "",
    frames: int = 8,
    prompt: str = "",
    max_new_tokens: int = 256,
    loading: Loading = PLAIN,
    limits: str | None = None,
    as_json: bool = False,
) -> None:
    """Find the best share of method specvlm's pruner, the best attention_mass of pruner specvlm,
    the best layer of pruner uv, or the best pruner.

    The share of pruner attention-sampled is that of the attention in a token's chance to be kept;
    0, 0.25, 0.5, 0.75 and 1 are tried. The attention_mass (λ) of pruner specvlm is the share of
    attention that the most attended of the kept tokens hold; values from 0 to 1 are tried in steps
    of 0.1. The layer (L) of the pruners uv and uv-sampled is the one after which the target's
    hidden states are compared; 5, 10, 15 and 20 are tried, as far as the target is deep enough. All
    clips are answered with every value. The best value has the longest mean acceptance length.

    Args:
        media: Two to four video files, or images with --images.
        images: Read the files as images, each with a prompt of its own.
        pruners: Compare these pruners instead, such as `specvlm,uv,uniform`, each with its default
            options.
    """
    bounds = opt.parse_limits(limits)
    opt.check_media(media, bounds)
    from draftlens.cli.loading import engine_of, read_files
    from draftlens_lab.bench.calibrate import subject_of
    from draftlens_lab.cli.calibrate_run import calibrate_with_bar, check_method, print_calibration

    names = [name.strip() for name in pruners.split(",") if name.strip()]
    method = check_method(opt.parse_method("specvlm", speculative_config), names)
    text = opt.prompt_or_default(prompt, images)
    chats = [read_files(as_json, bounds, text, frames, [file], images) for file in media]
    decoding = {"target": target, "draft": draft, "method": method, "calibrate": False}
    engine = engine_of(decoding, loading, as_json)
    subject = subject_of(method, engine.target.backbone.text_config.num_hidden_layers, names)
    calibration = calibrate_with_bar(engine, chats, method, subject, max_new_tokens, as_json)
    print_calibration(subject, calibration, method, as_json)
