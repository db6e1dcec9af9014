"""What this process keeps for a model: its lock, its caches, its workers. All of it ends with the
model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class Slot(Generic[T]):
    """One kind of value, of which each model has at most one.

    No value may hold its model: neither would ever be freed.

    Args:
        name: for debuggers.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"Slot({self._name!r})"

    def get(self, model: Any) -> T | None:
        """The value of a model; None if it has none."""
        value: T | None = _STATES.get(model, {}).get(self)
        return value

    def get_or_make(self, model: Any, make: Callable[[], T]) -> T:
        """The value of a model, which is made if it has none. Threads that call this at the same
        time receive the same value."""
        state = _STATES.setdefault(model, {})
        value: T | None = state.get(self)
        if value is None:
            value = state.setdefault(self, make())
        return value

    def set(self, model: Any, value: T) -> None:
        """Give a model a value, in place of the one that it has."""
        _STATES.setdefault(model, {})[self] = value

    def drop(self, model: Any) -> None:
        """Drop the value of a model, if it has one."""
        _STATES.get(model, {}).pop(self, None)

    def values(self) -> list[T]:
        """The values of all models."""
        return [state[self] for state in list(_STATES.values()) if self in state]

    def clear(self) -> None:
        """Drop the values of all models."""
        for state in list(_STATES.values()):
            state.pop(self, None)


_STATES: WeakKeyDictionary[Any, dict[Slot[Any], Any]] = WeakKeyDictionary()
