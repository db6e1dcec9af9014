"""The command `draftlens chat`."""

from __future__ import annotations

from typing import Annotated

import typer

from draftlens.cli import options as opt
from draftlens.cli.help import MODELS
from draftlens.cli.model_options import PLAIN, Loading
from draftlens.cli.option_groups import AnswerOptions, DecodingOptions

SystemPrompt = Annotated[
    str | None,
    typer.Option("--system", help="Text of a system message, for models that take one."),
]
CacheSize = Annotated[
    str,
    typer.Option(
        "--prompt-cache",
        help="Memory for what has been read, such as 2GB; 0 reads each turn anew.",
        rich_help_panel=MODELS,
    ),
]


def chat_command(
    media: Annotated[
        list[str] | None, typer.Argument(help="Video and image files or URLs for the first turn.")
    ] = None,
    *,
    decoding: DecodingOptions,
    frames: opt.Frames = 8,
    system: SystemPrompt = None,
    answers: AnswerOptions,
    prompt_cache: CacheSize = "2GB",
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    as_json: opt.AsJson = False,
) -> None:
    """Chat about clips and images; each turn reads only what is new.

    Questions are lines of the terminal or of standard input. Ctrl-C stops an answer, and Ctrl-D
    ends the chat. `/add FILE` adds a clip or an image to the next question.
    """
    bounds = opt.parse_limits(limits)
    names = media or []
    opt.check_media(names, bounds)
    decoding_config = decoding.parsed()
    generation = answers.generation
    from draftlens.cli.chat_loop import ChatLoop
    from draftlens.cli.loading import engine_of
    from draftlens.models.prompt_cache import PromptCache

    cache = PromptCache(prompt_cache)
    engine = engine_of(decoding_config, loading, as_json, calibrate)
    engine.attach(cache)
    chat = engine.chat(system=system, num_frames=frames, limits=bounds)
    ChatLoop(engine, chat, cache, generation, as_json).run(names)
