"""Optional libraries, and their log messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module


@contextmanager
def without_reports() -> Iterator[None]:
    """Suppress log messages below errors inside the block."""
    previous = logging.root.manager.disable
    logging.disable(max(previous, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(previous)


@cache
def absent(modules: tuple[str, ...]) -> str | None:
    """The first of some modules that cannot be imported, with the reason, or None. A module may be
    present and lack a system library, as OpenCV on machines without a display."""
    for name in modules:
        try:
            import_module(name)
        except (ImportError, OSError) as error:
            return f"{name} ({error})"
    return None
