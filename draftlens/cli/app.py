"""The commands of `draftlens`.

What takes long to import is imported by the commands that need it, so that `--help` and the refusal
of a wrong option are quick.
"""

from __future__ import annotations

import json
import logging
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Annotated, Any

import typer

from draftlens.cli import options as opt
from draftlens.cli.help import example, takes_options
from draftlens.cli.options import (
    PLAIN,
    AnswerOptions,
    DecodingOptions,
    FolderOptions,
    Loading,
    SeededAnswerOptions,
)
from draftlens.cli.parse import parse_command
from draftlens.cli.serve import serve_command
from draftlens.core.errors import ConfigError
from draftlens.core.names import AUTO, LAB_INSTALLATION
from draftlens.core.version import __version__

_DESCRIPTION = "Speculative decoding for vision-language models: faster, with the same output."

COMMANDS = "draftlens.commands"
"""Entry points of this group are functions that add commands to the application."""

LAB_COMMANDS = (
    *("bench", "calibrate", "evaluate", "explain", "lmms-task", "train-draft", "world"),
)
"""Commands of the package `draftlens-lab`."""

_log = logging.getLogger("draftlens")

app = typer.Typer(
    help=_DESCRIPTION,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command(**example("demo"))
@takes_options
def demo(
    clip: str | None = None,
    *,
    decoding: DecodingOptions,
    frames: int = 8,
    prompt: str = opt.VIDEO_PROMPT,
    max_new_tokens: int = 320,
    loading: Loading = PLAIN,
    limits: str | None = None,
    as_json: bool = False,
) -> None:
    """Compare draftlens with `generate` of transformers on a clip.

    Both answer the same prompt. A table then compares their speed and their answers.

    Args:
        clip: Video file or URL; by default a clip from the package.
        prompt: Prompt for the clip.
    """
    bounds = opt.parse_limits(limits)
    opt.check_media([] if clip is None else [clip], bounds)
    from draftlens.cli.demo import run_demo
    from draftlens.cli.loading import engine_of, read_media

    path = clip or str(files("draftlens") / "embedded" / "clips" / "shapes.mp4")
    parsed = decoding.parsed()
    chat = read_media(as_json, bounds, prompt, frames, video=path)
    engine = engine_of(parsed, loading, as_json)
    run_demo(engine, engine.process([chat]), path, prompt, max_new_tokens, as_json)


@app.command(**example("caption shapes.mp4 --frames 16"))
@takes_options
def caption(
    clips: list[str],
    *,
    decoding: DecodingOptions,
    frames: int = 8,
    prompt: str = opt.VIDEO_PROMPT,
    answers: AnswerOptions,
    loading: Loading = PLAIN,
    limits: str | None = None,
    folder: FolderOptions,
    as_json: bool = False,
) -> None:
    """Describe a clip, or answer a prompt about it; with --out, about every clip of the folders.

    With --out, each line of the file is the answer about one clip as JSON. A clip that cannot be
    read is reported there and skipped.

    Args:
        clips: Video file or URL; with --out any number of files and folders.
        prompt: Prompt for the clip.
    """
    bounds = opt.parse_limits(limits)
    if folder.out is None:
        opt.check_media(clips, bounds)
    from draftlens.cli.answer import Answering

    asked = (clips, "video", prompt, frames, bounds)
    Answering(*asked, decoding.parsed(), answers.generation, loading, as_json).run(folder)


@app.command("ask", **example('ask shapes.png --prompt "Describe the image."'))
@takes_options
def ask_command(
    images: list[str],
    *,
    prompt: str = opt.IMAGE_PROMPT,
    decoding: DecodingOptions,
    answers: AnswerOptions,
    loading: Loading = PLAIN,
    limits: str | None = None,
    folder: FolderOptions,
    as_json: bool = False,
) -> None:
    """Answer a prompt about one or more images; with --out, about each image of the folders.

    Args:
        images: One or more image files or URLs; with --out, files and folders whose images are
            asked about one by one.
        prompt: Prompt for the images.
    """
    bounds = opt.parse_limits(limits)
    if folder.out is None:
        opt.check_media(images, bounds)
    from draftlens.cli.answer import Answering

    asked = (images, "image", prompt, 1, bounds)
    Answering(*asked, decoding.parsed(), answers.generation, loading, as_json).run(folder)


@app.command(**example("verify shapes.mp4"))
@takes_options
def verify(
    media: list[str] | None = None,
    *,
    images: bool = False,
    prompt: str = "",
    decoding: DecodingOptions,
    frames: int = 8,
    answers: SeededAnswerOptions,
    loading: Loading = PLAIN,
    limits: str | None = None,
    as_json: bool = False,
) -> None:
    """Check that speculative decoding does not change the answers.

    Greedy answers are compared with those of `generate` in transformers, and sampled answers with
    those of plain decoding, token by token. The exit status is 1 if a token differs in float32.

    Args:
        media: Video files, or images with --images. Without any, the prompt is text only.
    """
    bounds = opt.parse_limits(limits)
    names = media or []
    opt.check_media(names, bounds)
    from draftlens.cli.loading import engine_in_full
    from draftlens.cli.verify import read_prompts, verify_all

    parsed = decoding.parsed()
    text = opt.prompt_or_default(prompt, images)
    prompts = read_prompts(names, images, text, frames, bounds, as_json)
    engine = engine_in_full(parsed, loading, as_json)
    if not verify_all(engine, prompts, answers.generation, as_json):
        raise typer.Exit(1)


@app.command(**example("doctor"))
@takes_options
def doctor(
    *,
    target: Annotated[str | None, typer.Option("--target", "-t")] = None,
    draft: str = AUTO,
    plan: str | None = None,
    memory: str | None = None,
    loading: Loading = PLAIN,
    as_json: bool = False,
) -> None:
    """Show the environment, and check a target and its draft.

    The exit status is 2 if the two cannot be used together. With --plan nothing is loaded but
    configurations, and the memory of the models is shown.

    Args:
        target: Target model to check: a folder, a Hub id, or `embedded`.
        plan: Target model whose memory, and that of its draft, is computed without its weights.
        memory: With --plan: memory of the device, such as 24GB.
    """
    if plan is not None:
        from draftlens.cli.plan import memory_facts, show_memory

        named = None if draft == opt.NO_DRAFT else draft
        show_memory(memory_facts(plan, named, memory), memory, as_json)
        return
    if memory is not None:
        raise ConfigError("--memory needs a model: name one with --plan")
    from draftlens.cli.doctor import collect_facts, show_facts

    show_facts(collect_facts(target, draft, loading), as_json)


@app.command(**example("methods"))
@takes_options
def methods(*, as_json: bool = False) -> None:
    """List the decoding methods, the pruners, the views and weights of `tabed`, the prefills,
    the schedules and the engines of passes, with the defaults of their options and where they
    come from.

    Other packages add some by the entry points `draftlens.methods`, `draftlens.pruners`,
    `draftlens.prefills`, `draftlens.views`, `draftlens.weights` and `draftlens.passes`. An entry
    that cannot be imported is listed with its error.
    """
    from draftlens.cli.catalogue import listed
    from draftlens.cli.show import print_json, table

    def shown(options: dict[str, Any]) -> str:
        texts = (json.dumps(value, ensure_ascii=False).strip('"') for value in options.values())
        return ", ".join(map("=".join, zip(options, texts, strict=True))) or "none"

    kinds = listed()
    if as_json:
        print_json(kinds)
        return
    for title, rows in kinds.items():
        cells = [
            (row["name"], row["package"], row["error"] or shown(row["options"])) for row in rows
        ]
        table(title, ("name", "package", "options and defaults"), cells)


@app.command(**example("pairs"))
@takes_options
def pairs(*, as_json: bool = False) -> None:
    """List the pairs of models that --draft auto finds, and how each was checked.

    Copies of a target are recognized by their configuration: local folders, quantized variants,
    tuned models of the same size.
    """
    from draftlens.cli.show import console, print_json, say
    from draftlens.models.known_pairs import PAIRS

    if as_json:
        names = ("target", "draft", "checked")
        print_json([{name: getattr(pair, name) for name in names} for pair in PAIRS])
        return
    # No table: names are copied from here, and narrow terminals would break them.
    for checked in dict.fromkeys(pair.checked for pair in PAIRS):
        console.print(f"{checked}:", style="bold")
        for pair in PAIRS:
            if pair.checked == checked:
                line = f"  --target {pair.target} --draft {pair.draft}"
                say(line, on=console, highlight=False)
    console.print("tokenizers and vocabularies are compared whenever a pair is loaded", style="dim")


app.command("parse", **example("parse PAPER.pdf -o out/"))(takes_options(parse_command))


@app.command("chat", **example("chat shapes.mp4"))
@takes_options
def chat_command(
    media: list[str] | None = None,
    *,
    decoding: DecodingOptions,
    frames: int = 8,
    system: str | None = None,
    answers: AnswerOptions,
    prompt_cache: Annotated[str, typer.Option(rich_help_panel=opt.MODELS)] = "2GB",
    loading: Loading = PLAIN,
    limits: str | None = None,
    as_json: bool = False,
) -> None:
    """Chat about clips and images; each turn reads only what is new.

    Questions are lines of the terminal or of standard input. Ctrl-C stops an answer, and Ctrl-D
    ends the chat. `/add FILE` adds a clip or an image to the next question.

    Args:
        media: Video and image files or URLs for the first turn.
        system: Text of a system message, for models that take one.
        prompt_cache: Memory for what has been read, such as 2GB; 0 reads each turn anew.
    """
    bounds = opt.parse_limits(limits)
    names = media or []
    opt.check_media(names, bounds)
    parsed = decoding.parsed()
    generation = answers.generation
    from draftlens.cli.chat_loop import ChatLoop
    from draftlens.cli.loading import engine_of
    from draftlens.models.prompt_cache import PromptCache

    cache = PromptCache(prompt_cache)
    engine = engine_of(parsed, loading, as_json)
    engine.attach(cache)
    chat = engine.chat(system=system, num_frames=frames, limits=bounds)
    ChatLoop(engine, chat, cache, generation, as_json).run(names)


app.command("serve", **example("serve --port 8000"))(takes_options(serve_command))


def add_commands(app: typer.Typer) -> None:
    """Add the commands of installed packages; those of a missing lab name its package."""
    for point in entry_points(group=COMMANDS):
        try:
            point.load()(app)
        except Exception as error:  # a foreign package may raise anything
            _log.warning("commands of %s are left out: %s", point.value, error)
    registered = {command.name for command in app.registered_commands}
    for name in LAB_COMMANDS:
        if name not in registered:
            _add_missing(app, name)


def _add_missing(app: typer.Typer, name: str) -> None:
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

    @app.command(name, hidden=True, context_settings=settings)
    def missing() -> None:
        raise ConfigError(
            f"the command {name!r} is part of the package draftlens-lab: {LAB_INSTALLATION}"
        )


add_commands(app)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"draftlens {__version__}")
        raise typer.Exit


class _Lines(logging.Handler):
    """The log on the error stream."""

    def emit(self, record: logging.LogRecord) -> None:
        from draftlens.cli.show import say  # a wrong option is refused without it

        say(record.getMessage(), style="yellow" if record.levelno >= logging.WARNING else "dim")


@app.callback(help=_DESCRIPTION)
@takes_options
def common(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
    debug: bool = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v")] = False,
) -> None:
    """Options of all commands.

    Args:
        version: Print the version and exit.
        debug: Show the traceback of an error.
        quiet: Print results and errors only: no figures, no progress.
        verbose: Print all messages of the log.
    """
    _log.handlers = [_Lines()]
    _log.propagate = False
    _log.setLevel(logging.ERROR if quiet else logging.DEBUG if verbose else logging.WARNING)
