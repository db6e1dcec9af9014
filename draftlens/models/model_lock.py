"""Which passes of one model may run concurrently."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Condition, Lock, get_ident
from typing import Any

import torch
from torch import nn

from draftlens.models.model_state import Slot


class PassLock:
    """A lock with shared and exclusive holders.

    Plain forwards share a model. A pass that sets hooks for all threads, or changes the attention
    of the model, is exclusive: it waits for running passes and blocks others. A thread that holds
    the lock exclusively may take it again. Two threads that hold it shared must not both request it
    exclusively, which would deadlock, but for `between_passes`. The lock `hooks` is held while a
    shared holder sets or removes hooks that ignore the passes of other threads.
    """

    def __init__(self) -> None:
        self.hooks = Lock()
        self._changed = Condition()
        self._holders: dict[int, int] = {}
        self._owner: int | None = None
        self._depth = 0
        self._watching: dict[int, int] = {}
        self._hooks: list[Hook] = []
        self._shared = _Shared(self)
        self._exclusive = _Exclusive(self)

    def shared(self) -> AbstractContextManager[None]:
        return self._shared

    def exclusive(self) -> AbstractContextManager[None]:
        return self._exclusive

    @contextmanager
    def between_passes(self) -> Iterator[None]:
        """Hold the lock exclusively, and nothing shared meanwhile: for a thread whose pass has not
        begun to compute, since passes of other threads come in between."""
        thread = get_ident()
        with self._changed:
            count = self._holders.pop(thread, 0)
            self._changed.notify_all()
        try:
            with self._exclusive:
                yield
        finally:
            for _ in range(count):
                self.take_shared()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this thread has hooks that its own passes must call, they run the modules."""
        thread = get_ident()
        self._watching[thread] = self._watching.get(thread, 0) + 1
        try:
            yield
        finally:
            self._watching[thread] -= 1
            if not self._watching[thread]:
                del self._watching[thread]

    @contextmanager
    def hooked(self, module: nn.Module, function: Callable[..., Any], after: bool) -> Iterator[Any]:
        """Call a function before or `after` each forward of a module by this thread; its signature
        is that of `register_forward_pre_hook` with `with_kwargs`, or `register_forward_hook`. A
        fork by another thread drops it."""
        thread = get_ident()

        def in_this_thread(*given: Any) -> Any:
            # Forwards of other threads go on, also those of the caller, and torch may call it
            # without keywords in them until it is wholly registered.
            return function(*given) if get_ident() == thread else None

        hook = Hook(module, in_this_thread)
        self._hooks.append(hook)  # before it is set, since a fork may come between
        try:
            with self.hooks:
                if after:
                    module.register_forward_hook(in_this_thread)
                else:
                    module.register_forward_pre_hook(in_this_thread, with_kwargs=True)
            yield
        finally:
            with self.hooks:
                hook.remove()
            self._hooks.remove(hook)

    def is_watching(self) -> bool:
        return bool(self._watching) and get_ident() in self._watching

    def take_shared(self) -> None:
        thread = get_ident()
        with self._changed:
            while self._owner not in (None, thread):
                self._changed.wait()
            self._holders[thread] = self._holders.get(thread, 0) + 1

    def release_shared(self) -> None:
        thread = get_ident()
        with self._changed:
            self._holders[thread] -= 1
            if not self._holders[thread]:
                del self._holders[thread]
                self._changed.notify_all()

    def take_exclusive(self) -> None:
        thread = get_ident()
        with self._changed:
            while not self._may_own(thread):
                self._changed.wait()
            self._owner = thread
            self._depth += 1

    def release_exclusive(self) -> None:
        with self._changed:
            self._depth -= 1
            if not self._depth:
                self._owner = None
                self._changed.notify_all()

    def leave_to_parent(self) -> None:
        """In a fork only the forking thread exists: drop what other threads held."""
        thread = get_ident()
        self.hooks = Lock()
        self._changed = Condition()
        self._holders = {
            holder: count for holder, count in self._holders.items() if holder == thread
        }
        self._watching = {
            holder: count for holder, count in self._watching.items() if holder == thread
        }
        for hook in self._hooks:
            if hook.thread != thread:
                hook.remove()
        self._hooks = [hook for hook in self._hooks if hook.thread == thread]
        if self._owner != thread:
            self._owner = None
            self._depth = 0

    def _may_own(self, thread: int) -> bool:
        return self._owner in (None, thread) and not (self._holders.keys() - {thread})


class Hook:
    """A function registered on a module by this thread (the same object)."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        self.thread = get_ident()
        self._module = module
        self._function = function

    def remove(self) -> None:
        # By its function: a fork may come before `register` has returned a handle.
        for hooks in (self._module._forward_pre_hooks, self._module._forward_hooks):
            for key in [key for key, function in hooks.items() if function is self._function]:
                del hooks[key]
                self._module._forward_pre_hooks_with_kwargs.pop(key, None)


class _Shared(AbstractContextManager[None]):
    """`PassLock.shared`, stateless, so that one object serves all passes."""

    def __init__(self, lock: PassLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.take_shared()

    def __exit__(self, *_: object) -> None:
        self._lock.release_shared()


class _Exclusive(AbstractContextManager[None]):
    """`PassLock.exclusive`, stateless."""

    def __init__(self, lock: PassLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.take_exclusive()

    def __exit__(self, *_: object) -> None:
        self._lock.release_exclusive()


_LOCK = Slot[PassLock]("lock of passes")


def _leave_to_parent() -> None:
    locks = _LOCK.values()
    for lock in locks:
        lock.leave_to_parent()
    if locks:
        # A fork has no OpenMP threads; parallel operations would wait for them forever.
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_leave_to_parent)


def lock_of(model: Any) -> PassLock:
    return _LOCK.get_or_make(model, PassLock)
