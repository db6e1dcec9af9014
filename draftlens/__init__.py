"""Speculative decoding for vision-language models: faster, with the same output."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from draftlens.core.version import __version__ as __version__

if TYPE_CHECKING:
    from draftlens.api import Engine, Inputs, Stream, generate, load, stream
    from draftlens.core.errors import (
        ConfigError,
        DraftlensError,
        HostError,
        IncompatiblePairError,
        InputError,
        MediaError,
        TrainingDataError,
        UnsupportedModelError,
    )
    from draftlens.core.result import Chunk, Result
    from draftlens.custom_generate import SpeculativeGenerate
    from draftlens.draft.view_memory import ViewMemory
    from draftlens.methods import (
        HSD,
        TABED,
        Lookup,
        ParallelVLM,
        PlainDecoding,
        SpeculativeDecoding,
        SpecVLM,
        from_dict,
    )
    from draftlens.parsing import DocumentParser, ParsedPage, ParseSettings, parse


__all__ = [
    "HSD",
    "TABED",
    "Chunk",
    "ConfigError",
    "DocumentParser",
    "DraftlensError",
    "Engine",
    "HostError",
    "IncompatiblePairError",
    "InputError",
    "Inputs",
    "Lookup",
    "MediaError",
    "ParallelVLM",
    "ParseSettings",
    "ParsedPage",
    "PlainDecoding",
    "Result",
    "SpecVLM",
    "SpeculativeDecoding",
    "SpeculativeGenerate",
    "Stream",
    "TrainingDataError",
    "UnsupportedModelError",
    "ViewMemory",
    "from_dict",
    "generate",
    "load",
    "parse",
    "stream",
]

_HOMES = {
    "draftlens.api": ("Engine", "Inputs", "Stream", "generate", "load", "stream"),
    "draftlens.core.errors": (
        "ConfigError",
        "DraftlensError",
        "HostError",
        "IncompatiblePairError",
        "InputError",
        "MediaError",
        "TrainingDataError",
        "UnsupportedModelError",
    ),
    "draftlens.core.result": ("Chunk", "Result"),
    "draftlens.custom_generate": ("SpeculativeGenerate",),
    "draftlens.draft.view_memory": ("ViewMemory",),
    "draftlens.methods": (
        "HSD",
        "TABED",
        "Lookup",
        "ParallelVLM",
        "PlainDecoding",
        "SpecVLM",
        "SpeculativeDecoding",
        "from_dict",
    ),
    "draftlens.parsing": ("DocumentParser", "ParseSettings", "ParsedPage", "parse"),
}
"""The module of each public name. They are imported on first use, because torch and transformers
take seconds, which the help of the command line and the readers of clips do not need."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
