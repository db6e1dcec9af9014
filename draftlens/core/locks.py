"""A lock that forks of the process can use."""

from __future__ import annotations

import os
import weakref
from contextlib import AbstractContextManager
from threading import RLock


class ForkLock(AbstractContextManager[None]):
    """A lock that its holder may take again, and that is free in a fork of the process, where
    threads of the parent that held it do not exist."""

    def __init__(self) -> None:
        self._lock = RLock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def leave_to_parent(self) -> None:
        """In a fork: free the lock unless the thread that forked holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = RLock()


_LOCKS: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for lock in list(_LOCKS):
        lock.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
