"""Compares the description of an earlier run with that of the run that would continue it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.files import parse_json

ABSENT = object()
"""A value that is missing in one of two runs."""


@dataclass(frozen=True)
class Difference:
    """A value that differs between two runs; `path` joins its keys with points."""

    path: str
    before: Any
    now: Any


def read_description(path: Path) -> Any:
    """JSON values written by an earlier run. Raises ConfigError for an unreadable file."""
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}, which an earlier run wrote: {error}") from error
    except ValueError as error:
        raise ConfigError(
            f"cannot read {path}, which an earlier run wrote: it is damaged ({error}); --restart "
            "begins again"
        ) from error


def differences(before: Any, now: Any, path: str = "") -> Iterator[Difference]:
    """Differences of two JSON values in key order; all but objects are compared as a whole."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            key_path = f"{path}.{key}" if path else key
            yield from differences(before.get(key, ABSENT), now.get(key, ABSENT), key_path)
    elif before != now:
        yield Difference(path, before, now)
