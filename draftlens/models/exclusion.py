"""Which passes of one model may run side by side."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, get_ident
from typing import Any


class PassLock:
    """A lock with shared and exclusive holders.

    Plain forwards share a model. A pass that sets hooks on the model or changes its attention is
    exclusive: it waits for the passes that run and holds up others while it lasts. A thread that
    holds the lock exclusively may take it again.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._shared: dict[int, int] = {}
        self._owner: int | None = None
        self._depth = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Run beside other shared holders."""
        thread = get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._owner in (None, thread))
            self._shared[thread] = self._shared.get(thread, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._shared[thread] -= 1
                if not self._shared[thread]:
                    del self._shared[thread]
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Run alone."""
        thread = get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._may_own(thread))
            self._owner = thread
            self._depth += 1
        try:
            yield
        finally:
            with self._changed:
                self._depth -= 1
                if not self._depth:
                    self._owner = None
                self._changed.notify_all()

    def _may_own(self, thread: int) -> bool:
        return self._owner in (None, thread) and not (self._shared.keys() - {thread})


_LOCKS: weakref.WeakKeyDictionary[Any, PassLock] = weakref.WeakKeyDictionary()


def lock_of(model: Any) -> PassLock:
    """The lock of a model; the same object for the same model."""
    return _LOCKS.setdefault(model, PassLock())
