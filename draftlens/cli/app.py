"""The commands of `draftlens`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
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
from draftlens.cli.doctor import collect_facts, show_facts
from draftlens.cli.evaluate import evaluate
from draftlens.cli.explain import explain
from draftlens.cli.loading import load_engine, read_media
from draftlens.cli.methods import methods
from draftlens.cli.show import error_console, print_json, result_json, show_stats, show_stream
from draftlens.cli.train_draft import register as register_train_draft
from draftlens.cli.verify import Verification, show_verification, verify_engine
from draftlens.cli.world import world
from draftlens.core.errors import DraftlensError
from draftlens.media.conversation import Conversation
from draftlens.models.zoo import EMBEDDED

_DESCRIPTION = "Speculative decoding for vision-language models: faster, with the same output."

app = typer.Typer(
    help=_DESCRIPTION,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _answer(engine: Engine, chat: Conversation, as_json: bool, generation: dict[str, Any]) -> None:
    """Answer a prompt and print the answer."""
    stream = engine.answer(engine.process([chat]), **generation)
    if as_json:
        print_json(result_json(stream.run()))
    else:
        show_stats(show_stream(stream, engine.pieces))


@app.command()
def demo(
    clip: Annotated[
        Path | None, typer.Argument(help="Video file; by default a clip from the package.")
    ] = None,
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = None,
    method: opt.MethodName = None,
    speculative_config: opt.SpeculativeConfig = None,
    prefill: opt.Prefill = None,
    hosts: opt.Hosts = None,
    frames: opt.Frames = 8,
    prompt: Annotated[str, typer.Option(help="Prompt for the clip.")] = opt.VIDEO_PROMPT,
    max_new_tokens: opt.MaxNewTokens = 320,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    as_json: opt.AsJson = False,
) -> None:
    """Compare draftlens with `generate` of transformers on a clip.

    Both answer the same prompt. A table then compares their speed and their answers.
    """
    path = clip or Path(str(files("draftlens") / "embedded" / "clips" / "shapes.mp4"))
    decoding = opt.parse_method(method, speculative_config)
    reading = opt.parse_prefill(prefill)
    chat = read_media(as_json, limits, prompt, frames, video=path)
    engine = load_engine(target, draft, decoding, device, dtype, as_json, calibrate, reading, hosts)
    run_demo(engine, engine.process([chat]), path, prompt, max_new_tokens, as_json)


@app.command()
def caption(
    clip: Annotated[Path, typer.Argument(help="Video file.")],
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = None,
    method: opt.MethodName = None,
    speculative_config: opt.SpeculativeConfig = None,
    prefill: opt.Prefill = None,
    hosts: opt.Hosts = None,
    frames: opt.Frames = 8,
    prompt: Annotated[str, typer.Option(help="Prompt for the clip.")] = opt.VIDEO_PROMPT,
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
    calibrate: opt.Calibrate = True,
    as_json: opt.AsJson = False,
) -> None:
    """Describe a clip, or answer a prompt about it."""
    sampling = opt.sampling_options(sample, temperature, top_k, top_p, min_p, repetition_penalty)
    decoding = opt.parse_method(method, speculative_config)
    reading = opt.parse_prefill(prefill)
    chat = read_media(as_json, limits, prompt, frames, video=clip)
    engine = load_engine(target, draft, decoding, device, dtype, as_json, calibrate, reading, hosts)
    _answer(engine, chat, as_json, {"max_new_tokens": max_new_tokens, "seed": seed, **sampling})


@app.command()
def ask(
    images: Annotated[list[Path], typer.Argument(help="One or more image files.")],
    prompt: Annotated[str, typer.Option(help="Prompt for the images.")],
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = None,
    method: opt.MethodName = None,
    speculative_config: opt.SpeculativeConfig = None,
    prefill: opt.Prefill = None,
    hosts: opt.Hosts = None,
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
    calibrate: opt.Calibrate = True,
    as_json: opt.AsJson = False,
) -> None:
    """Answer a prompt about one or more images."""
    sampling = opt.sampling_options(sample, temperature, top_k, top_p, min_p, repetition_penalty)
    decoding = opt.parse_method(method, speculative_config)
    reading = opt.parse_prefill(prefill)
    chat = read_media(as_json, limits, prompt, images=list(images))
    engine = load_engine(target, draft, decoding, device, dtype, as_json, calibrate, reading, hosts)
    _answer(engine, chat, as_json, {"max_new_tokens": max_new_tokens, "seed": seed, **sampling})


@app.command()
def verify(
    media: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Video files, or images with --images. Without any, the prompt is text only."
        ),
    ] = None,
    images: opt.Images = False,
    prompt: opt.MediaPrompt = "",
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = None,
    method: opt.MethodName = None,
    speculative_config: opt.SpeculativeConfig = None,
    prefill: opt.Prefill = None,
    hosts: opt.Hosts = None,
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
    calibrate: opt.Calibrate = True,
    as_json: opt.AsJson = False,
) -> None:
    """Check that speculative decoding does not change the answers.

    Greedy answers are compared with those of `generate` in transformers, and sampled answers with
    those of plain decoding, token by token. The exit status is 1 if a token differs in float32.
    """
    sampling = opt.sampling_options(sample, temperature, top_k, top_p, min_p, repetition_penalty)
    generation = {"max_new_tokens": max_new_tokens, "seed": seed, **sampling}
    decoding = opt.parse_method(method, speculative_config)
    reading = opt.parse_prefill(prefill)
    text = opt.prompt_or_default(prompt, images)
    prompts = _read_prompts(media, images, text, frames, limits, as_json)
    engine = load_engine(target, draft, decoding, device, dtype, as_json, calibrate, reading, hosts)
    verifications = []
    for item in prompts:
        inputs = engine.process([item.chat])
        verification = verify_engine(engine, inputs, item.name, generation)
        verifications.append(verification)
        if not as_json:
            show_verification(verification)
    if as_json:
        _print_verifications(verifications)
    if any(verification.failed for verification in verifications):
        raise typer.Exit(1)


@dataclass(frozen=True)
class _NamedPrompt:
    """A prompt with its media, and the name of the media."""

    name: str
    chat: Conversation


def _read_prompts(
    media: list[Path] | None,
    images: bool,
    prompt: str,
    frames: int,
    limits: str | None,
    quiet: bool,
) -> list[_NamedPrompt]:
    """One prompt for each clip, or one for all images, or one without media."""
    if not media:
        return [_NamedPrompt("text only", read_media(quiet, limits, prompt))]
    if images:
        name = ", ".join(str(file) for file in media)
        return [_NamedPrompt(name, read_media(quiet, limits, prompt, images=list(media)))]
    return [
        _NamedPrompt(str(clip), read_media(quiet, limits, prompt, frames, video=clip))
        for clip in media
    ]


def _print_verifications(verifications: list[Verification]) -> None:
    """Print one JSON object for one verification, and a list for several."""
    reports = [verification.to_dict() for verification in verifications]
    print_json(reports[0] if len(reports) == 1 else reports)


@app.command()
def doctor(
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", help="Target model to check: a folder, a Hub id, or `embedded`."
        ),
    ] = None,
    draft: opt.Draft = None,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show the environment, and check a target and its draft.

    The exit status is 2 if the two cannot be used together.
    """
    show_facts(collect_facts(target, draft, device, dtype), as_json)


register_train_draft(app)
app.command()(evaluate)
app.command()(calibrate)
app.command()(explain)
app.command()(bench)
app.command()(world)
app.command()(methods)


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
) -> None:
    """Options of all commands."""


def main() -> None:
    """Run the command line.

    An error is printed as one sentence, with exit status 2. Ctrl-C leads to exit status 130.
    """
    debug = "--debug" in sys.argv
    # --debug is accepted anywhere on the command line, not only before the command.
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    transformers_logging.set_verbosity_error()
    try:
        app()
    except DraftlensError as error:
        if debug:
            raise
        _exit_with_error(str(error))
    except KeyboardInterrupt:
        error_console.show_cursor()
        error_console.print("\ninterrupted")
        raise SystemExit(130) from None
    except Exception as error:
        if debug:
            raise
        name = type(error).__name__
        _exit_with_error(f"unexpected {name}: {error} (run with --debug for the traceback)")


def _exit_with_error(sentence: str) -> None:
    line = f"error: {' '.join(sentence.split())}"
    error_console.print(line, style="red", markup=False, soft_wrap=True)
    raise SystemExit(2)
