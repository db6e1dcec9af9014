"""Speculative decoding for vision-language models: faster, with the same output."""

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
    TABED,
    Lookup,
    ParallelVLM,
    PlainDecoding,
    SpeculativeDecoding,
    SpecVLM,
    from_dict,
)

__version__ = "0.1.0"

__all__ = [
    "TABED",
    "Chunk",
    "ConfigError",
    "DraftlensError",
    "Engine",
    "HostError",
    "IncompatiblePairError",
    "InputError",
    "Inputs",
    "Lookup",
    "MediaError",
    "ParallelVLM",
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
    "stream",
]
