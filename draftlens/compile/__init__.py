"""Decode forwards as compiled code ([compiled](../../docs/compiled.md))."""

from __future__ import annotations

from draftlens.compile.switch import (
    Compile,
    attach,
    check_compile,
    compile_usual,
    describe_passes,
    library_of,
)

__all__ = ["Compile", "attach", "check_compile", "compile_usual", "describe_passes", "library_of"]
