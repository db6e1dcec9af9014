"""Runs one function in a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Value = TypeVar("Value")


def start_in_background(make: Callable[[], Value]) -> Callable[[], Value]:
    """Start `make` in a thread; the returned function waits for its value, or raises its exception,
    any number of times. `make` must not share state with the caller."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="draftlens-beside")
    future = executor.submit(make)
    executor.shutdown(wait=False)
    return future.result
