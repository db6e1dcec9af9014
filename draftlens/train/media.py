"""The files that training data name: all there, and those looked at can be opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from draftlens.core.errors import MediaError, TrainingDataError
from draftlens.media import Limits, load_image
from draftlens.media.files import check_file
from draftlens.media.source import open_source
from draftlens.train.data import TrainingData

OPENED = 64
"""Files that are opened before training; all of a large set would take hours."""

ENDS = 4096
"""Bytes at either end of a file that tell, with its size, if it is still the same: to read all
would take hours."""

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


def media_digest(data: TrainingData) -> str:
    """SHA-256 of name, size, first and last bytes of every file, in hex.

    Raises:
        TrainingDataError: a file cannot be read.
    """
    digest = sha256()
    for name in sorted({name for entry in data.entries for name in (*entry.images, *entry.videos)}):
        try:
            with open(data.root / name, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogatepass"))
                for start in (0, max(0, size - ENDS)):
                    file.seek(start)
                    digest.update(file.read(ENDS))
        except OSError as error:
            raise TrainingDataError(
                f"cannot read {data.root / name}: {error.strerror or error}"
            ) from error
    return digest.hexdigest()


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
