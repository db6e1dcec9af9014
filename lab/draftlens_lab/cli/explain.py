"""`draftlens explain`: the visual tokens kept for the draft, as a contact sheet and a page, or
the views of the prompt, as a chart and a page; and a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftlens.cli import options as opt
from draftlens.cli.options import PLAIN, Loading
from draftlens.core.names import AUTO, EMBEDDED


def explain(
    media: list[Path],
    *,
    images: bool = False,
    target: str = EMBEDDED,
    draft: str = AUTO,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            rich_help_panel=opt.MODELS,
            autocompletion=opt.complete_methods,
        ),
    ] = None,
    speculative_config: str | None = None,
    frames: int = 8,
    prompt: str = "",
    max_new_tokens: int = 320,
    out: Path = Path("explain"),
    compare: Annotated[bool, typer.Option("--compare/--no-compare")] = True,
    loading: Loading = PLAIN,
    limits: str | None = None,
    calibrate: bool = True,
    as_json: bool = False,
) -> None:
    """Show the visual tokens kept for the draft, or the views' proposals, and a timeline.

    Writes pictures and an HTML page. With `specvlm`, a contact sheet and the page show the kept
    parts of each frame and what the pruner ranks them by, or else the attention of the target; the
    page also shows which tokens of the answer the draft supplied. With `tabed`, a chart and the
    page show, token by token, the weights of the views and which of them would have proposed the
    token. With other methods the page shows the tokens that the draft supplied; `auto` is the
    method that a call without a name takes, and `plain` has the timeline of the target alone.
    Another chart shows what target and draft did at each moment. With --draft none the target
    drafts for itself where the method can.

    Args:
        media: One video file, or image files with --images.
        method: Decoding method: `specvlm` or `parallelvlm`, which prune visual tokens, `tabed`,
            whose draft reads the prompt in several views, or another one. The default is
            `specvlm`.
        out: Folder for the pictures (PNG) and the page (HTML).
        compare: Measure plain decoding for comparison.
    """
    bounds = opt.parse_limits(limits)
    opt.check_media(media, bounds)
    from draftlens.cli.loading import engine_of, make_folder, read_files
    from draftlens.cli.progress import spinner
    from draftlens_lab.cli.explain_files import (
        answer_subject,
        outputs_of,
        print_answer,
        pruning_subject,
        views_subject,
        write,
    )
    from draftlens_lab.explain import has_views, prunes

    named = opt.parse_method(method, speculative_config, default="specvlm")
    if has_views(named):
        subject = views_subject()
    else:
        subject = pruning_subject() if prunes(named) else answer_subject()
    decoding = subject.prepare(named)
    outputs = outputs_of(media, images, out, subject.suffix)
    text = opt.prompt_or_default(prompt, images)
    chat = read_files(as_json, bounds, text, frames, media, images)
    make_folder(out)
    options = {"target": target, "draft": draft, "method": decoding, "calibrate": calibrate}
    engine = engine_of(options, loading, as_json)
    answering = {"method": named, "compare": compare, "max_new_tokens": max_new_tokens}
    with spinner("answering", as_json):
        answer = subject.trace(engine, chat, outputs.title, **answering)
    with spinner("drawing", as_json):
        write(subject, answer, outputs)
    print_answer(subject, answer, outputs, as_json)
