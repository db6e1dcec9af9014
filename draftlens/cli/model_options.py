"""The options of how models are loaded, which all commands share that load some."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from draftlens.cli.help import LOADING
from draftlens.cli.options import completes
from draftlens.core.names import AUTO, EMBEDDED, READER

Loading = Mapping[str, Any]
"""The options of `draftlens.load` beside names and method, as they were given."""

PLAIN: Loading = MappingProxyType({})

NO_DRAFT = "none"
"""Value of `--draft` for no draft, even where the target's name is that of a pair."""

_NO_HUB_NAMES = (EMBEDDED, READER, AUTO, NO_DRAFT)

MODEL_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "device": (
            str | None,
            "Device: cpu, cuda, cuda:1, ..., or `auto` to spread a large model over several "
            "devices. The default is a GPU if there is one.",
        ),
        "dtype": (
            str | None,
            "Data type: float32, bfloat16 (or bf16), float16, or `auto` for that of the "
            "checkpoint. The default is float32 on the CPU and `auto` on other devices.",
        ),
        "revision": (str | None, "Branch, tag or commit on the Hub."),
        "trust_remote_code": (
            bool,
            "Run the code of this checkpoint; set for each model.",
        ),
        "quantization": (
            str | None,
            "Quantization: 4bit or 8bit (bitsandbytes), int8 or int4 (torchao; int8 of a draft "
            "needs none with an engine of --compile that has it), or JSON as in the "
            "`quantization_config` of a checkpoint. Quantized checkpoints need none.",
        ),
        "attn_implementation": (str | None, "Attention implementation: sdpa or eager."),
        "device_map": (
            str | None,
            "Placement by accelerate instead of --device: auto, balanced, sequential, or JSON of "
            "modules and devices.",
        ),
        "cache_dir": (str | None, "Folder of downloads."),
    }
)
"""Type and help of each option, by its name in `draftlens.models.loading.LoadOptions`."""

_VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "device": ("cpu", "cuda", "auto"),
        "dtype": ("auto", "float32", "bfloat16", "float16"),
        "quantization": ("4bit", "8bit", "int8", "int4"),
        "attn_implementation": ("sdpa", "eager"),
        "device_map": ("auto", "balanced", "balanced_low_0", "sequential"),
    }
)
"""Values that a shell offers."""


def takes_models(command: Callable[..., None]) -> Callable[..., None]:
    """A command with `MODEL_OPTIONS` for the target, and with the prefix `draft-` for the draft, in
    place of its parameter `loading`."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name == "loading":
            parameters += _parameters()
        else:
            # typer passes everything by name.
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def with_loading(**values: Any) -> None:
        loading = {name: _parsed(values.pop(name)) for name in model_option_names()}
        check_names(values.get("target"), values.get("draft"), loading)
        command(loading=loading, **values)

    with_loading.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_loading


def model_option_names() -> list[str]:
    """The names of all options, those of the target first."""
    return [*MODEL_OPTIONS, *(f"draft_{name}" for name in MODEL_OPTIONS)]


def check_names(target: str | None, draft: str | None, loading: Loading) -> None:
    """Refuse models that are neither on the Hub nor in its local cache, before torch is imported.

    Folders are looked at when the models are loaded.
    """
    for role, prefix, name in (("target", "", target), ("draft", "draft_", draft)):
        if name is None or name in _NO_HUB_NAMES or Path(name).exists():
            continue
        from draftlens.core.hub import check_hub, is_cached, is_local

        revision = loading[f"{prefix}revision"]
        cache_dir = loading[f"{prefix}cache_dir"] or loading["cache_dir"]
        if not is_local(name) and not is_cached(name, revision, cache_dir):
            check_hub(name, role, revision)


def _parameters() -> list[inspect.Parameter]:
    parameters = []
    for name, (kind, help_text) in MODEL_OPTIONS.items():
        parameters.append(_parameter(name, kind, help_text))
    for name, (kind, _) in MODEL_OPTIONS.items():
        parameters.append(_parameter(f"draft_{name}", kind, f"The same for the draft: {name}."))
    return parameters


def _parameter(name: str, kind: Any, help_text: str) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    values = _VALUES.get(name.removeprefix("draft_"), ())
    if kind is bool:
        # None leaves the option out.
        kind = bool | None
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            kind,
            typer.Option(
                flag,
                help=help_text,
                rich_help_panel=LOADING,
                autocompletion=completes(lambda: values),
            ),
        ],
    )


def _parsed(value: Any) -> Any:
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise typer.BadParameter(f"{value!r} is not valid JSON: {error}") from error
