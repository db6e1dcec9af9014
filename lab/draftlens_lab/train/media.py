"""Checks and digests of the media files that training data name."""

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
from draftlens_lab.train.data import TrainingData

NUM_OPENED = 64
"""Number of files to open before training. Opening all files of a large data set takes hours."""

END_BYTES = 4096
"""Bytes at each end of a file that its digest covers. Reading whole files takes hours."""

T = TypeVar("T")


def check_media(data: TrainingData) -> int:
    """Check that every file exists and can be read, and open a sample of the files.

    Returns:
        The number of distinct files.
    """
    limits = Limits()
    uses: dict[Path, tuple[str, str]] = {}  # kind and entry of the first use of each file
    for entry in data.entries:
        for kind, path in entry.media(data.root):
            if path in uses:
                continue
            uses[path] = (kind, entry.place)
            try:
                check_file(path, limits)
            except MediaError as error:
                raise TrainingDataError(f"{entry.place}: {error}") from error
    for path, (kind, place) in evenly_spaced(list(uses.items()), NUM_OPENED):
        try:
            _open(kind, path, limits)
        except MediaError as error:
            raise TrainingDataError(f"{place}: {error}") from error
    return len(uses)


def media_digest(data: TrainingData) -> str:
    """SHA-256 of the name, the size and the first and last bytes of every file, in hexadecimal."""
    names: set[str] = set()
    for entry in data.entries:
        names.update(entry.images, entry.videos)
    digest = sha256()
    for name in sorted(names):
        path = data.root / name
        try:
            digest.update(_file_summary(path, name))
        except OSError as error:
            raise TrainingDataError(f"cannot read {path}: {error.strerror or error}") from error
    return digest.hexdigest()


def evenly_spaced(items: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the items, evenly spaced."""
    count = min(limit, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def _open(kind: str, path: Path, limits: Limits) -> None:
    if kind == "image":
        load_image(path, limits=limits)
    else:
        with open_source(str(path), limits):
            pass


def _file_summary(path: Path, name: str) -> bytes:
    """Name, size, first bytes and last bytes of a file."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(END_BYTES)
        file.seek(max(0, size - END_BYTES))
        tail = file.read(END_BYTES)
    return f"{name}\0{size}\0".encode("utf-8", "surrogatepass") + head + tail
