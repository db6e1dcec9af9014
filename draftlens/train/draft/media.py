"""The files that training data name: all there, and those looked at can be opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from draftlens.errors import MediaError, TrainingDataError
from draftlens.media import Limits, load_image
from draftlens.media.files import check_file
from draftlens.media.source import open_source
from draftlens.train.draft.data import TrainingData

OPENED = 64
"""Files that are opened before training; all of a large set would take hours."""

T = TypeVar("T")


def check_media(data: TrainingData) -> int:
    """See that every file is there and can be read, and open some of them.

    Returns:
        The number of different files.

    Raises:
        TrainingDataError: names the entry, its line and the file.
    """
    limits = Limits()
    seen: dict[Path, tuple[str, str]] = {}
    for entry in data.entries:
        for kind, path in entry.media(data.root):
            if path not in seen:
                seen[path] = kind, entry.place
                _check(entry.place, path, limits)
    for path, (kind, place) in spread(list(seen.items()), OPENED):
        _check(place, path, limits, kind)
    return len(seen)


def _check(place: str, path: Path, limits: Limits, kind: str | None = None) -> None:
    try:
        if kind is None:
            check_file(path, limits)
        elif kind == "image":
            load_image(path, limits=limits)
        else:
            with open_source(str(path), limits):  # the header only: nothing is decoded
                pass
    except MediaError as error:
        raise TrainingDataError(f"{place}: {error}") from error


def spread(items: Sequence[T], most: int) -> list[T]:
    """At most `most` items, evenly spread."""
    count = min(most, len(items))
    return [items[index * len(items) // count] for index in range(count)]
