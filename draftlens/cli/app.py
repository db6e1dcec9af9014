"""The commands of `draftlens`.

What takes long to import is imported by the commands that need it, so that `--help` and the refusal
of a wrong option are quick.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated

import typer

from draftlens.cli import options as opt
from draftlens.cli.chat import chat_command
from draftlens.cli.help import example
from draftlens.cli.methods import methods
from draftlens.cli.model_options import PLAIN, Loading, takes_models
from draftlens.cli.option_groups import (
    AnswerOptions,
    DecodingOptions,
    FolderOptions,
    SeededAnswerOptions,
    takes_groups,
)
from draftlens.cli.pairs import pairs
from draftlens.cli.parse import parse_command
from draftlens.cli.plugins import add_commands
from draftlens.cli.serve import serve_command
from draftlens.core.names import AUTO
from draftlens.core.version import __version__

_DESCRIPTION = "Speculative decoding for vision-language models: faster, with the same output."

app = typer.Typer(
    help=_DESCRIPTION,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command(**example("demo"))
@takes_models
@takes_groups
def demo(
    clip: Annotated[
        str | None, typer.Argument(help="Video file or URL; by default a clip from the package.")
    ] = None,
    *,
    decoding: DecodingOptions,
    frames: opt.Frames = 8,
    prompt: opt.ClipPrompt = opt.VIDEO_PROMPT,
    max_new_tokens: opt.MaxNewTokens = 320,
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    as_json: opt.AsJson = False,
) -> None:
    """Compare draftlens with `generate` of transformers on a clip.

    Both answer the same prompt. A table then compares their speed and their answers.
    """
    if clip is not None:
        opt.check_media([clip], opt.parse_limits(limits))
    from draftlens.cli.demo import run_demo
    from draftlens.cli.loading import engine_of, read_media

    path = clip or str(files("draftlens") / "embedded" / "clips" / "shapes.mp4")
    decoded = decoding.parsed()
    chat = read_media(as_json, limits, prompt, frames, video=path)
    engine = engine_of(decoded, loading, as_json, calibrate)
    run_demo(engine, engine.process([chat]), path, prompt, max_new_tokens, as_json)


@app.command(**example("caption shapes.mp4 --frames 16"))
@takes_models
@takes_groups
def caption(
    clips: Annotated[
        list[str],
        typer.Argument(help="Video file or URL; with --out any number of files and folders."),
    ],
    *,
    decoding: DecodingOptions,
    frames: opt.Frames = 8,
    prompt: opt.ClipPrompt = opt.VIDEO_PROMPT,
    answers: AnswerOptions,
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    folder: FolderOptions,
    as_json: opt.AsJson = False,
) -> None:
    """Describe a clip, or answer a prompt about it; with --out, about every clip of the folders.

    With --out, each line of the file is the answer about one clip as JSON. A clip that cannot be
    read is reported there and skipped.
    """
    bounds = opt.parse_limits(limits)
    if folder.out is None:
        opt.check_media(clips, bounds)
    from draftlens.cli.answer import Answering, Question, answer

    question = Question(clips, "video", prompt, frames, bounds)
    answering = Answering(
        question, decoding.parsed(), answers.generation, loading, calibrate, as_json
    )
    answer(answering, folder)


@app.command("ask", **example('ask shapes.png --prompt "Describe the image."'))
@takes_models
@takes_groups
def ask_command(
    images: Annotated[
        list[str],
        typer.Argument(
            help="One or more image files or URLs; with --out, files and folders whose images are "
            "asked about one by one."
        ),
    ],
    *,
    prompt: Annotated[str, typer.Option(help="Prompt for the images.")],
    decoding: DecodingOptions,
    answers: AnswerOptions,
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    folder: FolderOptions,
    as_json: opt.AsJson = False,
) -> None:
    """Answer a prompt about one or more images; with --out, about each image of the folders."""
    bounds = opt.parse_limits(limits)
    if folder.out is None:
        opt.check_media(images, bounds)
    from draftlens.cli.answer import Answering, Question, answer

    question = Question(images, "image", prompt, 1, bounds)
    answering = Answering(
        question, decoding.parsed(), answers.generation, loading, calibrate, as_json
    )
    answer(answering, folder)


@app.command(**example("verify shapes.mp4"))
@takes_models
@takes_groups
def verify(
    media: Annotated[
        list[str] | None,
        typer.Argument(
            help="Video files, or images with --images. Without any, the prompt is text only."
        ),
    ] = None,
    *,
    images: opt.Images = False,
    prompt: opt.MediaPrompt = "",
    decoding: DecodingOptions,
    frames: opt.Frames = 8,
    answers: SeededAnswerOptions,
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    as_json: opt.AsJson = False,
) -> None:
    """Check that speculative decoding does not change the answers.

    Greedy answers are compared with those of `generate` in transformers, and sampled answers with
    those of plain decoding, token by token. The exit status is 1 if a token differs in float32.
    """
    opt.check_media(media or [], opt.parse_limits(limits))
    from draftlens.cli.loading import engine_of
    from draftlens.cli.verify import read_prompts, verify_all

    decoding_config = decoding.parsed()
    text = opt.prompt_or_default(prompt, images)
    prompts = read_prompts(media or [], images, text, frames, limits, as_json)
    engine = engine_of(decoding_config, loading, as_json, calibrate)
    if not verify_all(engine, prompts, answers.generation, as_json):
        raise typer.Exit(1)


@app.command(**example("doctor"))
@takes_models
def doctor(
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", help="Target model to check: a folder, a Hub id, or `embedded`."
        ),
    ] = None,
    draft: opt.Draft = AUTO,
    loading: Loading = PLAIN,
    as_json: opt.AsJson = False,
) -> None:
    """Show the environment, and check a target and its draft.

    The exit status is 2 if the two cannot be used together.
    """
    from draftlens.cli.doctor import collect_facts, show_facts

    show_facts(collect_facts(target, draft, loading), as_json)


app.command(**example("methods"))(methods)
app.command(**example("pairs"))(pairs)
app.command("parse", **example("parse PAPER.pdf -o out/"))(
    takes_models(takes_groups(parse_command))
)
app.command("chat", **example("chat shapes.mp4"))(takes_models(takes_groups(chat_command)))
app.command("serve", **example("serve --port 8000"))(takes_models(takes_groups(serve_command)))
add_commands(app)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"draftlens {__version__}")
        raise typer.Exit


@app.callback(help=_DESCRIPTION)
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Print results and errors only: no figures, no progress."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print all messages of the log.")
    ] = False,
) -> None:
    """Options of all commands."""
    from draftlens.cli.logs import show_logs

    show_logs(quiet, verbose)
