"""Values on disk, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch

Value = TypeVar("Value")


def load_or_make(
    folder: Path | None, name: str, type_: type[Value], make: Callable[[], Value]
) -> Value:
    """The value that an earlier run stored under a name, or a new one.

    Args:
        folder: holds the values; None to store nothing.
        name: of the value, the stem of its file.
        type_: a dataclass of tensors, texts, numbers and tuples of these.
        make: makes the value.
    """
    if folder is None:
        return make()
    path = folder / f"{name}.pt"
    if path.exists():
        return type_(**torch.load(path))
    value = make()
    content: dict[str, Any] = {
        field.name: getattr(value, field.name)
        for field in fields(value)  # type: ignore[arg-type]
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    torch.save(content, unfinished)
    os.replace(unfinished, path)
    return value
