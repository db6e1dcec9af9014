"""Names for implementations that are imported on first use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from draftlens.core.checks import shown
from draftlens.core.errors import ConfigError

PACKAGE = "draftlens"


@dataclass(frozen=True)
class Entry:
    """One name of a registry.

    Args:
        name: the name that users write.
        location: ``"module:attribute"``.
        package: the distribution that provides it.
        error: why it cannot be used, or None.
    """

    name: str
    location: str
    package: str = PACKAGE
    error: str | None = None


class Registry:
    """Maps a name to ``"module:attribute"``, imported on first use.

    Other packages add names through the entry point group of the registry. Names of draftlens win
    over names of other packages. An entry point that cannot be imported is named by a warning and
    skipped.

    Args:
        kind: the word for an entry in error messages, such as ``"pruner"``.
        entries: name to location.
        group: entry point group, or None if other packages cannot add names.
        lab: names that the package draftlens-lab adds, for the refusal where it is missing.

    Example:

        >>> from draftlens.pruning import PRUNERS
        >>> "uniform" in PRUNERS
        True
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, str],
        group: str | None = None,
        lab: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self.group = group
        self._lab = tuple(lab)
        self._builtin = dict(entries)
        self._loaded: dict[str, Any] = {}

    def register(self, name: str, location: str) -> None:
        """Add ``name`` for ``"module:attribute"``; an existing name is replaced."""
        self._builtin[name] = location
        self._loaded.pop(name, None)

    def refresh(self) -> None:
        """Look for the entry points of installed packages again."""
        self.__dict__.pop("_points", None)
        self._loaded.clear()

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        """Entry points of other packages by name."""
        if self.group is None:
            return {}
        return {point.name: point for point in entry_points(group=self.group)}

    def __getitem__(self, name: str) -> Any:
        """The implementation called `name`.

        Raises:
            ConfigError: there is no such name (the message lists those that exist), or its package
                cannot be imported.
        """
        if not isinstance(name, str) or name not in self:
            if name in self._lab:
                raise ConfigError(
                    f"the {self.kind} {name!r} is part of the package draftlens-lab: "
                    "pip install draftlens-lab"
                )
            names = ", ".join(sorted({*self._builtin, *self._points}))
            raise ConfigError(f"unknown {self.kind} {shown(name)}; known: {names}")
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> Any:
        if name in self._builtin:
            module, _, attribute = self._builtin[name].partition(":")
            return getattr(import_module(module), attribute)
        point = self._points[name]
        try:
            return point.load()
        except Exception as error:  # a foreign package may raise anything when it is imported
            raise ConfigError(
                f"{self.kind} {name!r} of package {_package(point)} cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error

    def name_of(self, implementation: object) -> str:
        """The name under which a class or function is registered; its own name if it is not.

        The comparison is by location, so nothing is imported.
        """
        module = getattr(implementation, "__module__", "")
        qualified = f"{module}:{getattr(implementation, '__qualname__', '')}"
        for name, location in self._locations().items():
            if location == qualified or self._loaded.get(name) is implementation:
                return name
        return str(getattr(implementation, "__name__", implementation))

    def entries(self) -> list[Entry]:
        """All names with their locations and packages, sorted; broken ones carry their error."""
        entries = [Entry(name, location) for name, location in self._builtin.items()]
        for name, point in self._points.items():
            if name in self._builtin:
                continue
            error = None
            try:
                self[name]
            except ConfigError as failure:
                error = str(failure)
            entries.append(Entry(name, point.value, _package(point), error))
        return sorted(entries, key=lambda entry: entry.name)

    def _locations(self) -> dict[str, str]:
        foreign = {name: point.value for name, point in self._points.items()}
        return {**foreign, **self._builtin}

    def __iter__(self) -> Iterator[str]:
        """The names that can be used, sorted; a warning names those that cannot."""
        for entry in self.entries():
            if entry.error is None:
                yield entry.name
            else:
                warnings.warn(f"skipped: {entry.error}", stacklevel=2)

    def __contains__(self, name: object) -> bool:
        return name in self._builtin or name in self._points


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"
