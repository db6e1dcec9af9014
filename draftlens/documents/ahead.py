"""Reads the next page in a thread while the current one is answered."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")

_END = object()


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; a thread makes the next while the consumer works on one.

    At most one item waits, so memory does not grow. An exception of the iterator is raised in its
    turn. A consumer that stops early waits for the item that is being made.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftlens-pages") as pool:
        future = pool.submit(next, items, _END)
        while True:
            item = future.result()
            if item is _END:
                return
            future = pool.submit(next, items, _END)
            yield item  # type: ignore[misc]
