"""Runs one function in a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Value = TypeVar("Value")


def start_in_background(make: Callable[[], Value]) -> Callable[[], Value]:
    """Start `make` in a thread and return a function that waits for its value.

    That function raises what `make` raises, and may be called several times or never. `make` shares
    no state with what the caller does meanwhile.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix="draftlens-beside")
    future = executor.submit(make)
    executor.shutdown(wait=False)
    return future.result
