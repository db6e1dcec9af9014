"""Options that several commands share, and what they become."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from draftlens.core.errors import ConfigError
from draftlens.media import Limits
from draftlens.methods import Method, from_dict

Target = Annotated[
    str,
    typer.Option(
        "--target", "-t", help="Folder or Hub id of a vision-language model, or `embedded`."
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        "-d",
        help="A smaller model of the same tokenizer; `auto` takes the one known for the target, `none` none.",
    ),
]
MethodName = Annotated[
    str | None, typer.Option("--method", "-m", help="`plain`, `speculative` or `specvlm`.")
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        help='The method and its options: JSON such as \'{"tree": "eagle"}\', or a .json or .yaml file.'
    ),
]
Frames = Annotated[int, typer.Option("--frames", min=1, help="Frames to sample from the clip.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")]
Sample = Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the best.")]
Temperature = Annotated[
    float | None, typer.Option(min=0.0, help="Sampling temperature; implies --sample.")
]
TopK = Annotated[
    int | None, typer.Option(min=1, help="Draw among the k likeliest; implies --sample.")
]
TopP = Annotated[
    float | None, typer.Option(min=0.0, max=1.0, help="Nucleus sampling; implies --sample.")
]
MinP = Annotated[
    float | None, typer.Option(min=0.0, max=1.0, help="Min-p sampling; implies --sample.")
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(min=0.001, help="Above 1, repeating becomes less likely.")
]
Seed = Annotated[int | None, typer.Option(help="Of the sampling noise.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1, ... or `auto` to spread a large model.")
]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or auto.")]
MediaLimits = Annotated[
    str | None,
    typer.Option(
        "--limits", help="What media are too large: JSON such as '{\"max_bytes\": 1000000}'."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

VIDEO_PROMPT, IMAGE_PROMPT = "Describe the video.", "Describe the image."


def prompt_of(prompt: str, images: bool) -> str:
    """What to ask; by default for a description."""
    return prompt or (IMAGE_PROMPT if images else VIDEO_PROMPT)


def method_of(name: str | None, config: str | None) -> Method | str | None:
    """The method that `--method` and `--speculative-config` name together.

    Raises:
        ConfigError: they contradict each other, or the configuration cannot be read.
    """
    if config is None:
        return name
    options = _read_config(config)
    if name is not None and options.setdefault("method", name) != name:
        raise ConfigError(
            f"--method {name} and the configuration's method {options['method']!r} contradict "
            f"each other"
        )
    return from_dict(options)


def _read_config(config: str) -> dict[str, Any]:
    text, source = config, "--speculative-config"
    if not config.lstrip().startswith("{"):
        source = config
        try:
            text = Path(config).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the configuration {config}: {error}") from error
    try:
        options = yaml.safe_load(text) if source.endswith((".yaml", ".yml")) else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{source} is not valid: {' '.join(str(error).split())}") from error
    if not isinstance(options, dict):
        raise ConfigError(f"{source} must hold an object with a method and its options")
    return options


def limits_of(given: str | None) -> Limits:
    """The limits on media that `--limits` sets, the others at their defaults.

    Raises:
        ConfigError: it is no JSON object of known limits with positive numbers.
    """
    known = [field.name for field in fields(Limits)]
    try:
        chosen = json.loads(given or "{}")
        if not isinstance(chosen, dict) or not all(
            isinstance(value, int | float) for value in chosen.values()
        ):
            raise ValueError("it must be an object of numbers")
    except ValueError as error:
        raise ConfigError(f"--limits is not valid: {error}") from error
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        raise ConfigError(
            f"--limits does not know {', '.join(map(repr, unknown))}; known: {', '.join(known)}"
        )
    return Limits(**chosen)


def sampling_of(
    sample: bool,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float | None,
) -> dict[str, Any]:
    """Options for `generate`; temperature 0 means greedy."""
    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    chosen = {name: value for name, value in drawing.items() if value is not None}
    do_sample = temperature != 0 and (sample or bool(chosen))
    penalty = {} if repetition_penalty is None else {"repetition_penalty": repetition_penalty}
    return {"do_sample": do_sample, **(chosen if do_sample else {}), **penalty}
