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
from draftlens.core.names import LAB_INSTALLATION

PACKAGE = "draftlens"


@dataclass(frozen=True)
class Entry:
    """A name, its location ``"module:attribute"``, its distribution, and why it cannot be used."""

    name: str
    location: str
    package: str = PACKAGE
    error: str | None = None


class Registry:
    """Maps a name to ``"module:attribute"``, imported on first use.

    Other packages add names by the entry point `group`; draftlens' own names take precedence.
    Broken entry points are skipped with a warning. `kind` is the word for an entry in messages;
    `lab` are names that the package draftlens-lab adds, for the error where it is missing.

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
        self._builtin[name] = location
        self._loaded.pop(name, None)

    def refresh(self) -> None:
        self.__dict__.pop("_points", None)
        self._loaded.clear()

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        if self.group is None:
            return {}
        return {point.name: point for point in entry_points(group=self.group)}

    def __getitem__(self, name: str) -> Any:
        """The implementation; raises ConfigError for an unknown name and for a failing import."""
        if not isinstance(name, str) or name not in self:
            if name in self._lab:
                raise ConfigError(
                    f"the {self.kind} {name!r} is part of the package draftlens-lab: "
                    f"{LAB_INSTALLATION}"
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
        """The registered name, else the own name, of a class or function; imports nothing."""
        module = getattr(implementation, "__module__", "")
        qualified = f"{module}:{getattr(implementation, '__qualname__', '')}"
        for name, location in self._locations().items():
            if location == qualified or self._loaded.get(name) is implementation:
                return name
        return str(getattr(implementation, "__name__", implementation))

    def entries(self) -> list[Entry]:
        """All names, sorted; broken ones carry their error."""
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
        """The usable names, sorted; a warning lists the others."""
        for entry in self.entries():
            if entry.error is None:
                yield entry.name
            else:
                warnings.warn(f"skipped: {entry.error}", stacklevel=2)

    def __contains__(self, name: object) -> bool:
        return name in self._builtin or name in self._points


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"
