"""Work in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Value = TypeVar("Value")


def start_in_background(make: Callable[[], Value]) -> Callable[[], Value]:
    """Call a function in a thread of its own, from now on.

    Args:
        make: the function. It shares no state with what the caller does meanwhile.

    Returns:
        A function that waits for the value and returns it. It raises what `make` raises, and may be
        called several times or never.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix="draftlens-beside")
    future = executor.submit(make)
    executor.shutdown(wait=False)
    return future.result
