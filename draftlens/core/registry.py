"""Names for things that are loaded only when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from draftlens.core.errors import ConfigError


class Registry:
    """Maps a name to ``"module:attribute"``, imported on first use.

    A name that is not known raises `ConfigError` with the names that are.
    """

    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def register(self, name: str, target: str) -> None:
        """Add ``name`` for ``"module:attribute"``; an existing name is replaced."""
        self._entries[name] = target

    def __getitem__(self, name: str) -> Any:
        try:
            module, _, attribute = self._entries[name].partition(":")
        except (KeyError, TypeError):  # TypeError: of a list, say
            raise ConfigError(
                f"unknown {self.kind} {name!r}; known: {', '.join(sorted(self._entries))}"
            ) from None
        return getattr(import_module(module), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return name in self._entries
