"""Options of measurements: parsing them from text and writing them as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlens.core.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def frame_counts(text: str) -> tuple[int, ...]:
    """Parse numbers of frames such as ``"8,64"``.

    Returns:
        The numbers in the order of the text.
    """
    words = [word.strip() for word in text.split(",")]
    is_valid = all(word.isascii() and word.isdigit() for word in words)
    numbers = tuple(int(word) for word in words) if is_valid else ()
    if not numbers or min(numbers) < 1 or len(set(numbers)) != len(numbers):
        raise ConfigError(
            f"numbers of frames are different whole numbers such as 8,64, not {text!r}"
        )
    return numbers


def options_to_json(options: DataclassInstance) -> dict[str, Any]:
    """Convert a dataclass of options to JSON values: paths to text, tuples to lists."""
    return {name: _json_value(value) for name, value in asdict(options).items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_json_value(item) for item in value]
    return value
