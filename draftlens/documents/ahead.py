"""The next item while this one is worked on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")

_END = object()


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; while the consumer works on one, a thread makes the next.

    Never more than one item waits, so memory does not grow. Where the iterator raises, the error
    comes in its turn. A consumer that stops early waits for the item that is being made.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftlens-pages") as pool:
        future = pool.submit(next, items, _END)
        while True:
            item = future.result()
            if item is _END:
                return
            future = pool.submit(next, items, _END)
            yield item  # type: ignore[misc]
