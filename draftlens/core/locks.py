"""Locks and other objects that forks of the process must not use as they are."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from threading import RLock


class ForkAware(ABC):
    """An object that depends on threads or processes of the one that made it."""

    def __init__(self) -> None:
        _FORK_AWARE.add(self)

    @abstractmethod
    def leave_to_parent(self) -> None:
        """Called in a fork of the process, which has no thread but the one that forked."""


class ForkLock(ForkAware, AbstractContextManager[None]):
    """A lock that its holder may take again, and that is free in a fork of the process, where
    threads of the parent that held it do not exist."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = RLock()

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


_FORK_AWARE: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for member in list(_FORK_AWARE):
        member.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
