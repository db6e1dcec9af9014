"""The commands of `draftlens`.

What takes long to import is imported by the commands that need it, so that `--help` and the refusal
of a wrong option are quick.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated

import typer

from draftlens.cli import options as opt
from draftlens.cli.bench import bench
from draftlens.cli.calibrate import calibrate
from draftlens.cli.evaluate import evaluate
from draftlens.cli.explain import explain
from draftlens.cli.methods import methods
from draftlens.cli.model_options import PLAIN, Loading, takes_models
from draftlens.cli.pairs import pairs
from draftlens.cli.parse import parse
from draftlens.cli.train_draft import register as register_train_draft
from draftlens.cli.world import world
from draftlens.core.names import AUTO, EMBEDDED
from draftlens.core.version import __version__

_DESCRIPTION = "Speculative decoding for vision-language models: faster, with the same output."

app = typer.Typer(
    help=_DESCRIPTION,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command()
@takes_models
def demo(
    clip: Annotated[
        str | None, typer.Argument(help="Video file or URL; by default a clip from the package.")
    ] = None,
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = AUTO,
    method: opt.MethodName = None,
    speculative_config: opt.SpeculativeConfig = None,
    prefill: opt.Prefill = None,
    hosts: opt.Hosts = None,
    frames: opt.Frames = 8,
    prompt: Annotated[str, typer.Option(help="Prompt for the clip.")] = opt.VIDEO_PROMPT,
    max_new_tokens: opt.MaxNewTokens = 320,
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    compile: opt.Compile = "no",
    as_json: opt.AsJson = False,
) -> None:
    """Compare draftlens with `generate` of transformers on a clip.

    Both answer the same prompt. A table then compares their speed and their answers.
    """
    from draftlens.cli.demo import run_demo
    from draftlens.cli.loading import load_engine, note_strangers, read_media

    path = clip or str(files("draftlens") / "embedded" / "clips" / "shapes.mp4")
    decoding = opt.parse_method(method, speculative_config)
    reading = opt.parse_prefill(prefill)
    compiling = opt.parse_compile(compile)
    chat = read_media(as_json, limits, prompt, frames, video=path)
    note_strangers(target, [path])
    engine = load_engine(
        target, draft, decoding, loading, as_json, calibrate, reading, hosts, compiling
    )
    run_demo(engine, engine.process([chat]), path, prompt, max_new_tokens, as_json)


@app.command()
@takes_models
def caption(
    clips: Annotated[
        list[str],
        typer.Argument(help="Video file or URL; with --out any number of files and folders."),
    ],
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = AUTO,
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
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    compile: opt.Compile = "no",
    out: opt.Answers = None,
    resume: opt.Resume = None,
    batch: opt.BatchSize = 4,
    clip_seconds: opt.ClipSeconds = 60.0,
    as_json: opt.AsJson = False,
) -> None:
    """Describe a clip, or answer a prompt about it; with --out, about every clip of the folders.

    With --out, each line of the file is the answer about one clip as JSON. A clip that cannot be
    read is reported there and skipped.
    """
    from draftlens.cli.answer import Answering, answer_each, answer_one

    sampling = opt.sampling_options(sample, temperature, top_k, top_p, min_p, repetition_penalty)
    answering = Answering(
        names=clips,
        kind="video",
        prompt=prompt,
        frames=frames,
        target=target,
        draft=draft,
        method=opt.parse_method(method, speculative_config),
        loading=loading,
        calibrate=calibrate,
        compile=opt.parse_compile(compile),
        prefill=opt.parse_prefill(prefill),
        hosts=hosts,
        generation={"max_new_tokens": max_new_tokens, "seed": seed, **sampling},
        limits=opt.parse_limits(limits),
        quiet=as_json,
    )
    if out is None:
        answer_one(answering)
    else:
        answer_each(answering, out, resume, batch, clip_seconds)


@app.command()
@takes_models
def ask(
    images: Annotated[
        list[str],
        typer.Argument(
            help="One or more image files or URLs; with --out, files and folders whose images are "
            "asked about one by one."
        ),
    ],
    prompt: Annotated[str, typer.Option(help="Prompt for the images.")],
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = AUTO,
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
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    compile: opt.Compile = "no",
    out: opt.Answers = None,
    resume: opt.Resume = None,
    batch: opt.BatchSize = 4,
    clip_seconds: opt.ClipSeconds = 60.0,
    as_json: opt.AsJson = False,
) -> None:
    """Answer a prompt about one or more images; with --out, about each image of the folders."""
    from draftlens.cli.answer import Answering, answer_each, answer_one

    sampling = opt.sampling_options(sample, temperature, top_k, top_p, min_p, repetition_penalty)
    answering = Answering(
        names=images,
        kind="image",
        prompt=prompt,
        frames=1,
        target=target,
        draft=draft,
        method=opt.parse_method(method, speculative_config),
        loading=loading,
        calibrate=calibrate,
        compile=opt.parse_compile(compile),
        prefill=opt.parse_prefill(prefill),
        hosts=hosts,
        generation={"max_new_tokens": max_new_tokens, "seed": seed, **sampling},
        limits=opt.parse_limits(limits),
        quiet=as_json,
    )
    if out is None:
        answer_one(answering)
    else:
        answer_each(answering, out, resume, batch, clip_seconds)


@app.command()
@takes_models
def verify(
    media: Annotated[
        list[str] | None,
        typer.Argument(
            help="Video files, or images with --images. Without any, the prompt is text only."
        ),
    ] = None,
    images: opt.Images = False,
    prompt: opt.MediaPrompt = "",
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = AUTO,
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
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    compile: opt.Compile = "no",
    as_json: opt.AsJson = False,
) -> None:
    """Check that speculative decoding does not change the answers.

    Greedy answers are compared with those of `generate` in transformers, and sampled answers with
    those of plain decoding, token by token. The exit status is 1 if a token differs in float32.
    """
    from draftlens.cli.loading import load_engine, note_strangers
    from draftlens.cli.verify import read_prompts, verify_all

    sampling = opt.sampling_options(sample, temperature, top_k, top_p, min_p, repetition_penalty)
    generation = {"max_new_tokens": max_new_tokens, "seed": seed, **sampling}
    decoding = opt.parse_method(method, speculative_config)
    reading = opt.parse_prefill(prefill)
    compiling = opt.parse_compile(compile)
    text = opt.prompt_or_default(prompt, images)
    prompts = read_prompts(media or [], images, text, frames, limits, as_json)
    note_strangers(target, media or [])
    engine = load_engine(
        target, draft, decoding, loading, as_json, calibrate, reading, hosts, compiling
    )
    if not verify_all(engine, prompts, generation, as_json):
        raise typer.Exit(1)


@app.command()
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


register_train_draft(app)
app.command()(takes_models(evaluate))
app.command()(takes_models(calibrate))
app.command()(takes_models(explain))
app.command()(takes_models(bench))
app.command()(world)
app.command()(methods)
app.command()(pairs)
app.command()(takes_models(parse))


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
        bool, typer.Option("--quiet", "-q", help="Print errors, but no warnings.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print what is done.")] = False,
) -> None:
    """Options of all commands."""
    from draftlens.cli.logs import show_logs

    show_logs(quiet, verbose)
