"""Methods as frozen dataclasses: the same keys in Python, in JSON and in YAML."""

from draftlens.methods.base import (
    METHODS,
    Method,
    MethodLike,
    Models,
    draft_use,
    from_dict,
    has_option,
    name_of,
    resolve,
    to_dict,
    with_option,
    with_prefill,
)
from draftlens.methods.hsd import HSD
from draftlens.methods.lookup import Lookup
from draftlens.methods.parallelvlm import ParallelVLM
from draftlens.methods.plain import PlainDecoding
from draftlens.methods.speculative import SpeculativeDecoding
from draftlens.methods.specvlm import SpecVLM
from draftlens.methods.tabed import TABED

__all__ = [
    "HSD",
    "METHODS",
    "TABED",
    "Lookup",
    "Method",
    "MethodLike",
    "Models",
    "ParallelVLM",
    "PlainDecoding",
    "SpecVLM",
    "SpeculativeDecoding",
    "draft_use",
    "from_dict",
    "has_option",
    "name_of",
    "resolve",
    "to_dict",
    "with_option",
    "with_prefill",
]
