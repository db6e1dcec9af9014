"""What belongs to one model: its state, its lock, and the arguments of its language model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Condition, Lock, get_ident
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from draftlens.core.errors import ConfigError, UnsupportedModelError

T = TypeVar("T")


class Slot(Generic[T]):
    """One kind of value, at most one per model. It must not hold its model, or neither is freed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"Slot({self._name!r})"

    def get(self, model: Any) -> T | None:
        value: T | None = _STATES.get(model, {}).get(self)
        return value

    def get_or_make(self, model: Any, make: Callable[[], T]) -> T:
        """The value of a model, made if it has none. Concurrent callers receive the same value."""
        state = _STATES.setdefault(model, {})
        value: T | None = state.get(self)
        if value is None:
            value = state.setdefault(self, make())
        return value

    def set(self, model: Any, value: T) -> None:
        _STATES.setdefault(model, {})[self] = value

    def drop(self, model: Any) -> None:
        _STATES.get(model, {}).pop(self, None)

    def values(self) -> list[T]:
        """The values of all models."""
        return [state[self] for state in list(_STATES.values()) if self in state]

    def clear(self) -> None:
        """Drop the values of all models."""
        for state in list(_STATES.values()):
            state.pop(self, None)


_STATES: WeakKeyDictionary[Any, dict[Slot[Any], Any]] = WeakKeyDictionary()


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


def capture_arguments(
    lock: PassLock, model: Any, decoder: nn.Module, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments with which `model` calls its language model `decoder`, which does not run. The
    lock must be held exclusively."""
    with lock.hooked(decoder, _stop_here, after=False):
        try:
            model(**inputs)
        except _Reached as reached:
            return reached.kwargs
    raise UnsupportedModelError(
        f"{type(model).__name__} did not call its {type(decoder).__name__}: it cannot be driven"
    )


class _Reached(Exception):  # noqa: N818 - not an error: it ends a forward that has served its purpose
    def __init__(self, kwargs: dict[str, Any]) -> None:
        self.kwargs = kwargs


def _stop_here(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if args:
        kwargs = {"input_ids": args[0], **kwargs}
    raise _Reached(kwargs)


def layers_of(decoder: Any, name: str, layers: Sequence[int]) -> Sequence[nn.Module]:
    """The layers of a language model, checked to be listed (else `UnsupportedModelError`) and to
    include `layers` (else `ConfigError`)."""
    modules: Sequence[nn.Module] | None = getattr(decoder, "layers", None)
    if modules is None:
        raise UnsupportedModelError(f"{name} does not list the layers of its decoder")
    if not 0 <= min(layers) <= max(layers) <= len(modules):
        raise ConfigError(f"{name} has layers 0 to {len(modules)}, not {list(layers)}")
    return modules


@contextmanager
def watched_layers(
    lock: PassLock,
    modules: Sequence[nn.Module],
    layers: Sequence[int],
    receive: Callable[[int, Tensor], None],
) -> Iterator[None]:
    """Pass hidden states of this thread's passes to `receive` (`Backbone.watching`)."""
    with lock.watching(), ExitStack() as hooks:
        for layer in layers:
            is_last = layer == len(modules)
            module = modules[-1] if is_last else modules[layer]
            hook = _after_layer(layer, receive) if is_last else _before_layer(layer, receive)
            hooks.enter_context(lock.hooked(module, hook, is_last))
        yield


def _before_layer(layer: int, receive: Callable[[int, Tensor], None]) -> Callable[..., None]:
    def hook(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        receive(layer, args[0] if args else kwargs["hidden_states"])

    return hook


def _after_layer(layer: int, receive: Callable[[int, Tensor], None]) -> Callable[..., None]:
    def hook(module: Any, args: tuple[Any, ...], output: Any) -> None:
        receive(layer, output[0] if isinstance(output, tuple) else output)

    return hook
