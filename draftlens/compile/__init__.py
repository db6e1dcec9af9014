"""Decode forwards as compiled code ([compiled](../../docs/compiled.md))."""

from __future__ import annotations

from draftlens.compile.switch import (
    BY_MODULES,
    INT8,
    QUANTIZING,
    Compile,
    PassEngine,
    attach,
    check_compile,
    check_quantization,
    choice_of,
    compile_usual,
    describe_passes,
    library_of,
)

__all__ = [
    "BY_MODULES",
    "INT8",
    "QUANTIZING",
    "Compile",
    "PassEngine",
    "attach",
    "check_compile",
    "check_quantization",
    "choice_of",
    "compile_usual",
    "describe_passes",
    "library_of",
]
