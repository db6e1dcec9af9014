"""Speculative decoding for vision-language models: faster, with the same output."""

from draftlens.api import Engine, Inputs, Stream, generate, load, stream
from draftlens.core.errors import (
    ConfigError,
    DraftlensError,
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

__version__ = "0.1.0"

__all__ = [
    "HSD",
    "TABED",
    "Chunk",
    "ConfigError",
    "DocumentParser",
    "DraftlensError",
    "Engine",
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
