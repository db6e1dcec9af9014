"""Reads the next page in a thread while the current one is answered."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")

_END = object()


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; a thread makes the next one while the consumer works on the current one.

    At most one item is made ahead. The iterator's exceptions are raised in its turn; a consumer
    that stops early waits for the item that is being made.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftlens-pages") as pool:
        future = pool.submit(next, items, _END)
        while True:
            item = future.result()
            if item is _END:
                return
            future = pool.submit(next, items, _END)
            yield item  # type: ignore[misc]
