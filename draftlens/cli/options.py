"""Options that several commands share, and the values that they are parsed to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlens.cli import catalogue
from draftlens.cli.help import ANSWER, MANY_FILES, MODELS
from draftlens.core.errors import ConfigError
from draftlens.core.files import parse_json
from draftlens.core.names import AUTO, EMBEDDED
from draftlens.core.names import IMAGE_PROMPT as IMAGE_PROMPT
from draftlens.core.names import VIDEO_PROMPT as VIDEO_PROMPT

if TYPE_CHECKING:
    from draftlens.media import Limits
    from draftlens.methods.base import Method


def completes(find: Callable[[], Iterable[str]]) -> Callable[[str], Sequence[str]]:
    """What a shell offers for the value of an option: those of `find` that begin as typed. Of
    values separated by commas, the last one is completed."""

    def complete(incomplete: str) -> Sequence[str]:
        typed, comma, start = incomplete.rpartition(",")
        return [f"{typed}{comma}{name}" for name in find() if name.startswith(start)]

    return complete


complete_methods = completes(lambda: catalogue.names("methods"))
complete_pruners = completes(lambda: catalogue.names("pruners"))


def _targets() -> list[str]:
    from draftlens.models.known_pairs import PAIRS

    return list(dict.fromkeys([EMBEDDED, *(pair.target for pair in PAIRS)]))


def _drafts() -> list[str]:
    from draftlens.models.known_pairs import PAIRS

    return list(dict.fromkeys([AUTO, "none", *(pair.draft for pair in PAIRS)]))


Target = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        help="Target model: a folder or a Hub id of a vision-language model, or `embedded` for "
        "the pair in the package.",
        rich_help_panel=MODELS,
        autocompletion=completes(_targets),
    ),
]
Draft = Annotated[
    str,
    typer.Option(
        "--draft",
        "-d",
        help="Draft model: a smaller model with the same tokenizer, `auto` for the one known for "
        "the target (`draftlens pairs`), or `none`.",
        rich_help_panel=MODELS,
        autocompletion=completes(_drafts),
    ),
]
MethodName = Annotated[
    str | None,
    typer.Option(
        "--method",
        "-m",
        help="Decoding method: `plain`, `lookup`, `speculative`, `specvlm`, `parallelvlm`, "
        "`tabed`, `hsd` or `mixed` (`draftlens methods`). The default is `speculative` with a "
        "draft, `lookup` where no draft is known, and `plain` with --draft none.",
        rich_help_panel=MODELS,
        autocompletion=complete_methods,
    ),
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        help='Decoding method and its options: JSON such as \'{"tree": "eagle"}\' or '
        '\'{"method": "tabed", "views": ["multimodal", "text"]}\', or the path of a .json or '
        ".yaml file.",
        rich_help_panel=MODELS,
    ),
]
ScheduleName = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="Order of drafting and verifying: `serial`, or `parallel`, in which "
        "draft and target work at the same time. The default is that of the method.",
        rich_help_panel=MODELS,
        autocompletion=completes(lambda: catalogue.names("schedules")),
    ),
]
Prefill = Annotated[
    str | None,
    typer.Option(
        help="How the target reads prompts: a name, or JSON with its options, such as "
        '\'{"name": "full"}\'. `draftlens methods` lists them; those for long videos are faster, '
        "and most are approximate.",
        rich_help_panel=MODELS,
        autocompletion=completes(lambda: catalogue.names("prefills")),
    ),
]
Frames = Annotated[
    int, typer.Option("--frames", min=1, help="Number of frames to sample from each clip.")
]
MaxNewTokens = Annotated[
    int,
    typer.Option(min=1, help="Maximum number of tokens in an answer.", rich_help_panel=ANSWER),
]
Sample = Annotated[
    bool,
    typer.Option(
        "--sample",
        help="Sample tokens instead of choosing the most likely one.",
        rich_help_panel=ANSWER,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Sampling temperature; implies --sample. 0 is greedy decoding.",
        rich_help_panel=ANSWER,
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Sample from the k most likely tokens; implies --sample.",
        rich_help_panel=ANSWER,
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Sample from the most likely tokens that together have this probability (nucleus "
        "sampling); implies --sample.",
        rich_help_panel=ANSWER,
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Sample from the tokens with at least this share of the highest probability; implies "
        "--sample.",
        rich_help_panel=ANSWER,
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(
        min=0.001, help="Penalty for repeated tokens; 1 is no penalty.", rich_help_panel=ANSWER
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="Seed of the sampling noise.", rich_help_panel=ANSWER)
]
AllowLongPrompt = Annotated[
    bool,
    typer.Option(
        "--allow-long-prompt",
        help="Also answer prompts with more positions than the target was trained for.",
        rich_help_panel=ANSWER,
    ),
]
MediaLimits = Annotated[
    str | None,
    typer.Option(
        "--limits",
        help="Limits on the size of media files: JSON such as '{\"max_bytes\": 1000000}'.",
    ),
]
ClipPrompt = Annotated[str, typer.Option(help="Prompt for the clip.")]
MediaPrompt = Annotated[
    str,
    typer.Option(
        help="Prompt for the media; by default a request for a description.", show_default=False
    ),
]
Images = Annotated[bool, typer.Option("--images", help="Read the files as images.")]
Calibrate = Annotated[
    bool,
    typer.Option(
        help="Measure the time of forwards when a pair is first loaded, for about two seconds.",
        rich_help_panel=MODELS,
    ),
]
Compile = Annotated[
    str,
    typer.Option(
        metavar="ENGINE",
        help=f"What computes decode forwards: {', '.join(catalogue.names('passes'))}, or `auto` "
        "for what suits the model. Without a value, they are compiled first, and the code is kept "
        "on disk.",
        rich_help_panel=MODELS,
        autocompletion=completes(lambda: [AUTO, *catalogue.names("passes")]),
    ),
]
Answers = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="File for the answers: one JSON line for each file.",
        rich_help_panel=MANY_FILES,
    ),
]
Resume = Annotated[
    bool | None,
    typer.Option(
        "--resume/--restart",
        help="With --out: continue the answers in the file, or discard them.",
        rich_help_panel=MANY_FILES,
    ),
]
BatchSize = Annotated[
    int,
    typer.Option(
        "--batch",
        min=1,
        help="With --out: number of files that are answered together.",
        rich_help_panel=MANY_FILES,
    ),
]
ClipSeconds = Annotated[
    float,
    typer.Option(
        min=0.1,
        help="With --out: time limit for reading one file, in seconds.",
        rich_help_panel=MANY_FILES,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]


def prompt_or_default(prompt: str, images: bool) -> str:
    """Return the prompt, or a request for a description if it is empty."""
    if prompt:
        return prompt
    return IMAGE_PROMPT if images else VIDEO_PROMPT


def parse_method(
    name: str | None,
    config: str | None,
    default: str | None = None,
    schedule: str | None = None,
) -> Method | str | None:
    """Return the method from the values of `--method`, `--speculative-config` and `--schedule`.

    Args:
        default: the method's name if neither names one; None for that of the library.
    """
    if config is None and schedule is None:
        return name or default
    options = {} if config is None else _read_config(config)
    for option, value in (("method", name), ("schedule", schedule)):
        if value is not None and options.setdefault(option, value) != value:
            raise ConfigError(
                f"--{option} {value} and the configuration's {option} {options[option]!r} "
                f"contradict each other"
            )
    if default is not None:
        options.setdefault("method", default)
    from draftlens.methods.base import from_dict

    return from_dict(options)


def parse_prefill(text: str | None) -> Any:
    """Return the prefill from the value of `--prefill`: a name, or a JSON object with `name`."""
    if text is None:
        return None
    from draftlens.prefill.base import make_prefill

    is_object = text.lstrip().startswith("{")
    return make_prefill(parse_text(text, "--prefill") if is_object else text)


def check_media(names: Iterable[str | Path], limits: Limits) -> None:
    """Refuse files that cannot be read, before torch is imported."""
    from draftlens.media.files import check_file, is_url

    for name in map(str, names):
        if not is_url(name) and not Path(name).is_dir():
            check_file(name, limits)


def read_text(path: Path, noun: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {noun} {path}: {error}") from error


def parse_compile(value: str) -> bool | str:
    """Return the option `compile` of a word."""
    return {"yes": True, "no": False}.get(value, value)


def parse_text(text: str, source: str) -> Any:
    """Return the values of a text: YAML if `source` ends with .yaml or .yml, otherwise JSON."""
    import yaml

    try:
        if source.endswith((".yaml", ".yml")):
            return yaml.safe_load(text)
        return parse_json(text)
    except RecursionError:
        raise ConfigError(f"{source} is not valid: it is nested too deeply") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{source} is not valid: {' '.join(str(error).split())}") from error


def _read_config(config: str) -> dict[str, Any]:
    if config.lstrip().startswith("{"):
        source = "--speculative-config"
        text = config
    else:
        source = config
        text = read_text(Path(config), "configuration")
    options = parse_text(text, source)
    if not isinstance(options, dict):
        raise ConfigError(f"{source} must hold an object with a method and its options")
    return options


def parse_limits(text: str | None, defaults: Limits | None = None) -> Limits:
    """Return the limits on media from the value of `--limits`; others keep their defaults."""
    from draftlens.media import Limits

    values = _parse_numbers(text or "{}")
    names = [field.name for field in fields(Limits)]
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise ConfigError(
            f"--limits does not know {', '.join(map(repr, unknown))}; known: {', '.join(names)}"
        )
    return replace(defaults or Limits(), **values)


def _parse_numbers(text: str) -> dict[str, Any]:
    try:
        values = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"--limits is not valid: {error}") from error
    is_numeric = isinstance(values, dict) and all(
        isinstance(value, int | float) for value in values.values()
    )
    if not is_numeric:
        raise ConfigError("--limits is not valid: it must be an object of numbers")
    numbers: dict[str, Any] = values
    return numbers


def sampling_options(
    sample: bool,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float | None,
) -> dict[str, Any]:
    """Return the options of `generate` for sampling; temperature 0 means greedy decoding."""
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    sampling = {name: value for name, value in options.items() if value is not None}
    generation: dict[str, Any] = {"do_sample": False}
    if temperature != 0 and (sample or sampling):
        generation = {"do_sample": True, **sampling}
    if repetition_penalty is not None:
        generation["repetition_penalty"] = repetition_penalty
    from draftlens.options import checked_options

    checked_options(generation)  # before anything is read or loaded
    return generation
