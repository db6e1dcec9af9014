"""Runs that can go on where they were interrupted: what an earlier run wrote about itself, and how
it differs from the one that is about to begin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.files import parse_json

ABSENT = object()
"""Represents a value that only one of two runs has."""


@dataclass(frozen=True)
class Difference:
    """A value of two runs that is not the same.

    Args:
        path: keys that lead to the value, separated by points.
        before: the value of the earlier run, or `ABSENT`.
        now: the value of this run, or `ABSENT`.
    """

    path: str
    before: Any
    now: Any


def read_description(path: Path) -> Any:
    """What an earlier run wrote about itself, as JSON values.

    Raises:
        ConfigError: the file cannot be read, or is damaged.
    """
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
    """The differences between two descriptions, in the order of their keys.

    Args:
        before, now: JSON values. Objects are compared key by key, anything else as a whole.
        path: keys that lead to the values, separated by points.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            key_path = f"{path}.{key}" if path else key
            yield from differences(before.get(key, ABSENT), now.get(key, ABSENT), key_path)
    elif before != now:
        yield Difference(path, before, now)
