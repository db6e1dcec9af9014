"""Options of loading and what they become in transformers; processors of models of text only."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

import torch
from transformers import BitsAndBytesConfig
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils import logging

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.core.names import UNQUANTIZED
from draftlens.models.inspection import ATTENTION


@contextmanager
def bars_for_an_audience() -> Iterator[None]:
    """Hide the bars of transformers and of the Hub inside the block, except in a terminal or a
    notebook: in a file each step of a bar would be a line."""
    has_audience = sys.stderr.isatty() or "ipykernel" in sys.modules
    if has_audience or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


READ = ("input_ids", "attention_mask")


class TextProcessor:
    """Tokenizer and chat template of a language model, in the form of a processor. Without a
    padding token any other pads: the mask hides it. `template` is a processor with the fallback for
    a missing chat template; raises `UnsupportedModelError` if there is none."""

    image_processor = None
    video_processor = None

    def __init__(self, tokenizer: Any, template: Any, name: str) -> None:
        has_template = bool(tokenizer.chat_template)
        if not has_template and template is None:
            raise UnsupportedModelError(f"{name} has no tokenizer with a chat template")
        self.tokenizer = tokenizer
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
        self._template = None if has_template else template

    @property
    def chat_template(self) -> Any:
        return (self._template or self.tokenizer).chat_template

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, Any]],
        tokenize: bool = False,
        **options: Any,
    ) -> str:
        """The text of a chat. Contents are strings, or items, of which `text` items are used;
        `options` are those of the tokenizer's method."""
        assert not tokenize
        # Templates of language models take strings.
        contents = _joined if self._template is None else _texts
        chat = [{**message, "content": contents(message)} for message in messages]
        text: str = (self._template or self.tokenizer).apply_chat_template(
            chat, tokenize=False, **options
        )
        return text

    def __call__(
        self, text: Sequence[str], return_tensors: str = "pt", padding: bool = False
    ) -> dict[str, Any]:
        """Token ids and attention mask, int64 ``[B, L]``, of texts made by the chat template."""
        start = self.tokenizer.bos_token
        has_start = bool(start) and all(chat.startswith(start) for chat in text)
        encoded = self.tokenizer(
            list(text),
            return_tensors=return_tensors,
            padding=padding,
            add_special_tokens=not has_start,
        )
        return {name: encoded[name] for name in READ}


def _texts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [item for item in content if item["type"] == "text"]


def _joined(message: dict[str, Any]) -> str:
    return "".join(item["text"] for item in _texts(message))


DTYPES = ("auto", "float32", "bfloat16", "float16")

DTYPE_WORDS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("fp32", "float"), "float32")
    | dict.fromkeys(("fp16", "half"), "float16")
    | {"bf16": "bfloat16"}
)
"""Aliases of dtypes."""

PACKAGES: Mapping[str, str] = MappingProxyType(
    {"4bit": "bitsandbytes", "8bit": "bitsandbytes", "int8": "torchao", "int4": "torchao"}
)
"""By quantization: `4bit` (NF4) and `8bit` of bitsandbytes, `int8` and `int4` of torchao (weights
only)."""

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Device maps of accelerate."""

DRAFT_PREFIX = "draft_"

_INHERITED = ("device", "dtype", "attn_implementation", "cache_dir")
"""Options that a draft takes from its target unless it has its own."""


@dataclass(frozen=True)
class LoadOptions:
    """How to load a model.

    Args:
        device: such as `cpu` or `cuda:0`, or `auto` to spread the model with accelerate; by default
            a GPU if there is one, else the CPU.
        dtype: one of `DTYPES`, another word for it such as `bf16`, or a torch dtype; by default
            float32 on the CPU and the checkpoint's dtype elsewhere.
        revision: branch, tag or commit on the Hub.
        trust_remote_code: whether code of the checkpoint may be run.
        quantization: one of `PACKAGES`, a mapping as in the `quantization_config` of a
            checkpoint, or a configuration of transformers. A checkpoint that is quantized already
            needs none, which is also written "none".
        attn_implementation: `sdpa` or `eager`.
        device_map: one of `DEVICE_MAPS`, or a mapping of modules to devices, instead of `device`.
        cache_dir: folder of downloads, instead of that of huggingface_hub.

    Raises:
        ConfigError: a value is unknown, or two contradict each other.

    Example:

        >>> LoadOptions(dtype="bf16") == LoadOptions(dtype=torch.bfloat16)
        True
    """

    device: str | None = None
    dtype: Any = None
    revision: str | None = None
    trust_remote_code: bool = False
    quantization: Any = None
    attn_implementation: str = "sdpa"
    device_map: Any = None
    cache_dir: str | Path | None = None

    def __post_init__(self) -> None:
        if self.device is not None:
            object.__setattr__(self, "device", str(self.device) or None)
        object.__setattr__(self, "dtype", _dtype_name(self.dtype))
        if self.attn_implementation not in ATTENTION:
            raise ConfigError(
                f"attention implementation {self.attn_implementation!r} takes no tree mask; "
                f"known: {', '.join(ATTENTION)}"
            )
        if not isinstance(self.trust_remote_code, bool):
            raise ConfigError(
                f"trust_remote_code must be true or false, not {self.trust_remote_code!r}"
            )
        if self.device_map is not None and self.device is not None:
            raise ConfigError(
                f"device {self.device!r} and a device_map contradict each other: name one of them"
            )
        if not isinstance(self.device_map, Mapping) and self.device_map not in (None, *DEVICE_MAPS):
            raise ConfigError(
                f"unknown device_map {self.device_map!r}; known: {', '.join(DEVICE_MAPS)}, or a "
                "mapping of modules to devices"
            )
        if isinstance(self.quantization, str | bool) and self.quantization in (UNQUANTIZED, False):
            object.__setattr__(self, "quantization", None)
        _check_quantization(self.quantization)

    @property
    def placed_on(self) -> str:
        if self.device_map is not None:
            return "auto"
        if self.device:
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    def source_arguments(self) -> dict[str, Any]:
        """The arguments of every `from_pretrained`: where to read from, and which code may run."""
        arguments: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
        if self.revision is not None:
            arguments["revision"] = self.revision
        if self.cache_dir is not None:
            arguments["cache_dir"] = str(self.cache_dir)
        return arguments

    def model_arguments(self) -> dict[str, Any]:
        """The further arguments of a model's `from_pretrained`. On a device other than the CPU,
        weights are read straight onto it, so that main memory need not hold the model.

        Raises:
            ConfigError: the package that quantizes is not installed, or refuses the values.
        """
        device = self.placed_on
        device_map: Any = {"cpu": None, "auto": "auto"}.get(device, {"": device})
        arguments: dict[str, Any] = {
            "dtype": self.dtype or ("float32" if device == "cpu" else "auto"),
            "attn_implementation": self.attn_implementation,
            "device_map": device_map if self.device_map is None else self.device_map,
        }
        if self.quantization is not None:
            arguments["quantization_config"] = _quantization_config(self.quantization)
        return arguments


class LoadWords(TypedDict, total=False):
    """Options of `load` beside `device` and `dtype`: those of `LoadOptions` for the target and,
    with the prefix `draft_`, for the draft."""

    torch_dtype: Any
    revision: str | None
    trust_remote_code: bool
    quantization: Any
    attn_implementation: str
    device_map: Any
    cache_dir: str | Path | None
    draft_device: str | None
    draft_dtype: Any
    draft_torch_dtype: Any
    draft_revision: str | None
    draft_trust_remote_code: bool
    draft_quantization: Any
    draft_attn_implementation: str
    draft_device_map: Any
    draft_cache_dir: str | Path | None


@dataclass(frozen=True)
class PairOptions:
    target: LoadOptions = field(default_factory=LoadOptions)
    draft: LoadOptions = field(default_factory=LoadOptions)


def pair_options(words: Mapping[str, Any]) -> PairOptions:
    """The options of a target and of its draft from words; None leaves an option out.

    A draft is loaded like its target where it has no option of its own, except for revision,
    quantization and a mapping of modules to devices, which belong to one checkpoint, and for
    `trust_remote_code`, which is granted to each checkpoint separately.

    Args:
        words: names of `LoadOptions`, with the prefix `draft_` for the draft; `torch_dtype` is
            another name for `dtype`.

    Raises:
        ConfigError: a name or value is unknown, or two contradict each other.

    Example:

        >>> options = pair_options({"dtype": "bf16", "revision": "v2", "draft_device": "cpu"})
        >>> options.draft.dtype, options.draft.revision, options.draft.device
        ('bfloat16', None, 'cpu')
    """
    target: dict[str, Any] = {}
    draft: dict[str, Any] = {}
    for word, value in words.items():
        if value is not None:
            options = draft if word.startswith(DRAFT_PREFIX) else target
            _add(options, word.removeprefix(DRAFT_PREFIX), value, word)
    inherited = {name: target[name] for name in _INHERITED if name in target}
    if isinstance(target.get("device_map"), str):
        inherited["device_map"] = target["device_map"]
    if "device" in draft:
        inherited.pop("device_map", None)
    if "device_map" in draft:
        inherited.pop("device", None)
    return PairOptions(LoadOptions(**target), LoadOptions(**{**inherited, **draft}))


def _add(options: dict[str, Any], name: str, value: Any, word: str) -> None:
    """Add an option; raise `ConfigError` if it is unknown or present with another value."""
    name = "dtype" if name == "torch_dtype" else name
    option_names = [item.name for item in fields(LoadOptions)]
    if name not in option_names:
        names = ", ".join(option_names)
        raise ConfigError(
            f"there is no option {word!r}; a model is loaded with {names}, and its draft with the "
            f"same names after {DRAFT_PREFIX!r}"
        )
    if name in options and options[name] != value:
        raise ConfigError(f"{name} and torch_dtype contradict each other: name one of them")
    options[name] = value


def _dtype_name(dtype: Any) -> str | None:
    """The name of a dtype; None for the default. Raises `ConfigError`."""
    if dtype is None or dtype == "":
        return None
    word = str(dtype).removeprefix("torch.")
    name = DTYPE_WORDS.get(word, word)
    if name not in DTYPES:
        raise ConfigError(f"unknown dtype {word!r}; known: {', '.join(DTYPES)}")
    return name


def _check_quantization(quantization: Any) -> None:
    if quantization is None or hasattr(quantization, "quant_method"):
        return
    names = ", ".join(PACKAGES)
    if isinstance(quantization, str):
        if quantization not in PACKAGES:
            raise ConfigError(f"unknown quantization {quantization!r}; known: {names}")
        return
    if not isinstance(quantization, Mapping):
        raise ConfigError(
            f"a quantization is one of {names}, a mapping with quant_method or a configuration of "
            f"transformers, not {quantization!r}"
        )
    named = {"quant_method", "load_in_4bit", "load_in_8bit"}
    if named.isdisjoint(quantization):
        raise ConfigError(f"a mapping for quantization needs quant_method: {dict(quantization)!r}")


def _quantization_config(quantization: Any) -> Any:
    """transformers' quantization config. Raises `ConfigError`: no package, or refused values."""
    if not isinstance(quantization, (str, Mapping)):
        return quantization
    try:
        if not isinstance(quantization, str):
            return AutoQuantizationConfig.from_dict(dict(quantization))
        import_module(PACKAGES[quantization])
        if quantization == "4bit":
            return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
        if quantization == "8bit":
            return BitsAndBytesConfig(load_in_8bit=True)
        from torchao import quantization as torchao
        from transformers import TorchAoConfig

        kinds = {"int8": "Int8WeightOnlyConfig", "int4": "Int4WeightOnlyConfig"}
        return TorchAoConfig(getattr(torchao, kinds[quantization])())
    except ImportError as error:
        if isinstance(quantization, str):
            package = PACKAGES[quantization]
        else:
            package = str(quantization.get("quant_method", "bitsandbytes"))
        remedy = f"pip install {package}" if package in PACKAGES.values() else str(error)
        raise ConfigError(
            f"quantization {quantization!r} needs a package that is not installed: {remedy}"
        ) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"quantization {quantization!r} is refused: {error}") from error
