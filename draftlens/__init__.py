"""draftlens: vision-language models answer faster without changing what they say."""

from draftlens.api import SpeculativeGenerate, generate, stream
from draftlens.config import PlainDecoding, SpeculativeDecoding, from_dict
from draftlens.errors import (
    ConfigError,
    DraftlensError,
    IncompatiblePairError,
    InputError,
    MediaError,
    UnsupportedModelError,
)
from draftlens.types import Chunk, Result

__version__ = "0.1.0"

__all__ = [
    "Chunk",
    "ConfigError",
    "DraftlensError",
    "IncompatiblePairError",
    "InputError",
    "MediaError",
    "PlainDecoding",
    "Result",
    "SpeculativeDecoding",
    "SpeculativeGenerate",
    "UnsupportedModelError",
    "from_dict",
    "generate",
    "stream",
]
