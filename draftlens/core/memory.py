"""Memory of the process."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def trim_memory() -> None:
    """Hand unused memory of the C library back to the system, where it can (glibc)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
