"""The commands."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from transformers.utils import logging as transformers_logging

from draftlens import __version__
from draftlens.api import Engine
from draftlens.cli import options as opt
from draftlens.cli.bench import bench
from draftlens.cli.calibrate import calibrate
from draftlens.cli.demo import run_demo
from draftlens.cli.doctor import report, show_report
from draftlens.cli.evaluate import evaluate
from draftlens.cli.explain import explain
from draftlens.cli.loading import load_engine, read_media
from draftlens.cli.show import errors, print_json, result_json, show_stats, show_stream
from draftlens.cli.train_draft import register as register_train_draft
from draftlens.cli.verify import show_verification, verify_engine
from draftlens.cli.world import world
from draftlens.core.errors import DraftlensError
from draftlens.media.conversation import Conversation
from draftlens.models.zoo import EMBEDDED

app = typer.Typer(
    help="Vision-language models answer faster without changing what they say.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _answer(engine: Engine, chat: Conversation, as_json: bool, generation: dict[str, Any]) -> None:
    stream = engine.answer(engine.process([chat]), **generation)
    if as_json:
        print_json(result_json(stream.run()))
    else:
        show_stats(show_stream(stream, engine.pieces))


@app.command()
def demo(
    clip: Annotated[
        Path | None, typer.Argument(help="A clip; by default one from the package.")
    ] = None,
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = None,
    method: opt.MethodName = None,
    speculative_config: opt.SpeculativeConfig = None,
    frames: opt.Frames = 8,
    prompt: Annotated[str, typer.Option(help="What to ask about the clip.")] = opt.VIDEO_PROMPT,
    max_new_tokens: opt.MaxNewTokens = 320,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    limits: opt.MediaLimits = None,
    as_json: opt.AsJson = False,
) -> None:
    """Describe a clip twice, by stock generate and by draftlens, and compare."""
    path = clip or Path(str(files("draftlens") / "embedded" / "clips" / "shapes.mp4"))
    chosen, chat = (
        opt.method_of(method, speculative_config),
        read_media(as_json, limits, prompt, frames, video=path),
    )
    engine = load_engine(target, draft, chosen, device, dtype, as_json)
    run_demo(engine, engine.process([chat]), path, prompt, max_new_tokens, as_json)


@app.command()
def caption(
    clip: Annotated[Path, typer.Argument(help="A video file.")],
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = None,
    method: opt.MethodName = None,
    speculative_config: opt.SpeculativeConfig = None,
    frames: opt.Frames = 8,
    prompt: Annotated[str, typer.Option(help="What to ask about the clip.")] = opt.VIDEO_PROMPT,
    max_new_tokens: opt.MaxNewTokens = 256,
    sample: opt.Sample = False,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    seed: opt.Seed = None,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    limits: opt.MediaLimits = None,
    as_json: opt.AsJson = False,
) -> None:
    """Describe a clip."""
    generation = opt.sampling_of(sample, temperature, top_k, top_p, min_p, repetition_penalty)
    chosen, chat = (
        opt.method_of(method, speculative_config),
        read_media(as_json, limits, prompt, frames, video=clip),
    )
    engine = load_engine(target, draft, chosen, device, dtype, as_json)
    _answer(engine, chat, as_json, {"max_new_tokens": max_new_tokens, "seed": seed, **generation})


@app.command()
def ask(
    images: Annotated[list[Path], typer.Argument(help="One image or several.")],
    prompt: Annotated[str, typer.Option(help="The question.")],
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = None,
    method: opt.MethodName = None,
    speculative_config: opt.SpeculativeConfig = None,
    max_new_tokens: opt.MaxNewTokens = 256,
    sample: opt.Sample = False,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    seed: opt.Seed = None,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    limits: opt.MediaLimits = None,
    as_json: opt.AsJson = False,
) -> None:
    """Ask about one image or several."""
    generation = opt.sampling_of(sample, temperature, top_k, top_p, min_p, repetition_penalty)
    chosen, chat = (
        opt.method_of(method, speculative_config),
        read_media(as_json, limits, prompt, images=list(images)),
    )
    engine = load_engine(target, draft, chosen, device, dtype, as_json)
    _answer(engine, chat, as_json, {"max_new_tokens": max_new_tokens, "seed": seed, **generation})


@app.command()
def verify(
    media: Annotated[
        list[Path] | None, typer.Argument(help="A clip, or images with --images.")
    ] = None,
    images: Annotated[bool, typer.Option("--images", help="The files are images.")] = False,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = "",
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = None,
    method: opt.MethodName = None,
    speculative_config: opt.SpeculativeConfig = None,
    frames: opt.Frames = 8,
    max_new_tokens: opt.MaxNewTokens = 256,
    sample: opt.Sample = False,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    seed: opt.Seed = 0,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    limits: opt.MediaLimits = None,
    as_json: opt.AsJson = False,
) -> None:
    """Compare plain and accelerated answers token by token; exit status 1 if any differ in
    float32."""
    generation = opt.sampling_of(sample, temperature, top_k, top_p, min_p, repetition_penalty)
    chosen = opt.method_of(method, speculative_config)
    chats = _verify_chats(media, images, opt.prompt_of(prompt, images), frames, limits, as_json)
    engine = load_engine(target, draft, chosen, device, dtype, as_json)
    found = []
    for chat, name in chats:
        options = {"max_new_tokens": max_new_tokens, "seed": seed, **generation}
        found.append(verify_engine(engine, engine.process([chat]), name, options))
        if not as_json:
            show_verification(found[-1])
    if as_json:
        facts = [verification.facts() for verification in found]
        print_json(facts[0] if len(facts) == 1 else facts)
    if any(verification.failed for verification in found):
        raise typer.Exit(1)


def _verify_chats(
    media: list[Path] | None,
    images: bool,
    prompt: str,
    frames: int,
    limits: str | None,
    quiet: bool,
) -> list[tuple[Conversation, str]]:
    if not media:
        return [(read_media(quiet, limits, prompt), "text only")]
    if images:
        return [(read_media(quiet, limits, prompt, images=list(media)), ", ".join(map(str, media)))]
    return [(read_media(quiet, limits, prompt, frames, video=clip), str(clip)) for clip in media]


@app.command()
def doctor(
    target: Annotated[str | None, typer.Option("--target", "-t", help="A target to check.")] = None,
    draft: opt.Draft = None,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    as_json: opt.AsJson = False,
) -> None:
    """Say what this machine offers and whether a pair fits together; exit status 2 if it does
    not."""
    show_report(report(target, draft, device, dtype), as_json)


register_train_draft(app)
app.command()(evaluate)
app.command()(calibrate)
app.command()(explain)
app.command()(bench)
app.command()(world)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"draftlens {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:
    """Vision-language models answer faster without changing what they say."""


def main() -> None:
    """Run the command line. An error is one sentence and exit status 2; Ctrl-C is exit status
    130."""
    debug = "--debug" in sys.argv
    sys.argv = [
        word for word in sys.argv if word != "--debug"
    ]  # accepted anywhere, not only in front
    transformers_logging.set_verbosity_error()
    try:
        app()
    except DraftlensError as error:
        _fail(str(error), debug)
    except KeyboardInterrupt:
        errors.show_cursor()
        errors.print("\ninterrupted")
        raise SystemExit(130) from None
    except Exception as error:
        _fail(
            f"unexpected {type(error).__name__}: {error} (run with --debug for the traceback)",
            debug,
        )


def _fail(sentence: str, debug: bool) -> None:
    if debug:
        raise  # from inside an except block: the traceback is what was asked for
    errors.print(f"error: {' '.join(sentence.split())}", style="red", markup=False, soft_wrap=True)
    raise SystemExit(2)
