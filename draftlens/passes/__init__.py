"""Engines of decode forwards, by the option `compile` ([compiled](../../docs/compiled.md))."""

from __future__ import annotations

from draftlens.passes.base import (
    BY_MODULES,
    PASSES,
    Choice,
    Compile,
    PassEngine,
    attach,
    attach_engine,
    attach_for_call,
    check_compile,
    chosen,
    engine_of,
)
from draftlens.passes.quantization import check_quantization, quantizations_of
from draftlens.passes.structure import describe_passes

__all__ = [
    "BY_MODULES",
    "PASSES",
    "Choice",
    "Compile",
    "PassEngine",
    "attach",
    "attach_engine",
    "attach_for_call",
    "check_compile",
    "check_quantization",
    "chosen",
    "describe_passes",
    "engine_of",
    "quantizations_of",
]
