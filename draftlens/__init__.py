"""Speculative decoding for vision-language models: faster, with the same output."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from draftlens.core.version import __version__ as __version__

if TYPE_CHECKING:
    from draftlens.chat import Chat
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
    from draftlens.core.forms import Form
    from draftlens.core.result import Chunk, Result, TokenLogprob
    from draftlens.documents.entry import parse
    from draftlens.documents.results import ParsedPage
    from draftlens.documents.run import DocumentParser
    from draftlens.documents.settings import ParseSettings
    from draftlens.engine import Engine
    from draftlens.hf_generate.custom_generate import SpeculativeGenerate
    from draftlens.inputs import Inputs
    from draftlens.load_engine import load
    from draftlens.methods.automatic import Automatic
    from draftlens.methods.base import PlainDecoding, from_dict
    from draftlens.methods.hsd.config import HSD
    from draftlens.methods.lookup.config import Lookup
    from draftlens.methods.mixed.config import Mixed
    from draftlens.methods.parallelvlm.config import ParallelVLM
    from draftlens.methods.speculative import SpeculativeDecoding
    from draftlens.methods.specvlm.config import SpecVLM
    from draftlens.methods.tabed.config import TABED
    from draftlens.models.prompt_cache import PromptCache
    from draftlens.streaming import Stream, generate, stream


__all__ = [
    "HSD",
    "TABED",
    "Automatic",
    "Chat",
    "Chunk",
    "ConfigError",
    "DocumentParser",
    "DraftlensError",
    "Engine",
    "Form",
    "HostError",
    "IncompatiblePairError",
    "InputError",
    "Inputs",
    "Lookup",
    "MediaError",
    "Mixed",
    "ParallelVLM",
    "ParseSettings",
    "ParsedPage",
    "PlainDecoding",
    "PromptCache",
    "Result",
    "SpecVLM",
    "SpeculativeDecoding",
    "SpeculativeGenerate",
    "Stream",
    "TokenLogprob",
    "TrainingDataError",
    "UnsupportedModelError",
    "from_dict",
    "generate",
    "load",
    "parse",
    "stream",
]

_HOMES = {
    "draftlens.chat": ("Chat",),
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
    "draftlens.core.forms": ("Form",),
    "draftlens.core.result": (
        "Chunk",
        "Result",
        "TokenLogprob",
    ),
    "draftlens.documents.entry": ("parse",),
    "draftlens.documents.results": ("ParsedPage",),
    "draftlens.documents.run": ("DocumentParser",),
    "draftlens.documents.settings": ("ParseSettings",),
    "draftlens.engine": ("Engine",),
    "draftlens.hf_generate.custom_generate": ("SpeculativeGenerate",),
    "draftlens.inputs": ("Inputs",),
    "draftlens.load_engine": ("load",),
    "draftlens.methods.automatic": ("Automatic",),
    "draftlens.methods.base": (
        "PlainDecoding",
        "from_dict",
    ),
    "draftlens.methods.hsd.config": ("HSD",),
    "draftlens.methods.lookup.config": ("Lookup",),
    "draftlens.methods.mixed.config": ("Mixed",),
    "draftlens.methods.parallelvlm.config": ("ParallelVLM",),
    "draftlens.methods.speculative": ("SpeculativeDecoding",),
    "draftlens.methods.specvlm.config": ("SpecVLM",),
    "draftlens.methods.tabed.config": ("TABED",),
    "draftlens.models.prompt_cache": ("PromptCache",),
    "draftlens.streaming": ("Stream", "generate", "stream"),
}
"""The module of each public name, imported on first use: torch and transformers take seconds to
import, and the command line's help and the readers of clips do not need them."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
