"""Which files a run is made from: enough to notice that one was replaced, without reading it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from draftlens.models.zoo import path_of

LOADED = frozenset({".safetensors", ".bin", ".json", ".jinja", ".model", ".txt"})
"""Suffixes of what `from_pretrained` reads: weights, configurations, processors, vocabularies."""


def fingerprint(files: Sequence[Path]) -> str:
    """Size and time of change of files together, and a checksum of their sizes and times to the
    nanosecond.

    What is not there counts as empty and of 1970.
    """
    facts = [_size_and_time(file) for file in files]
    size, newest = sum(size for size, _ in facts), max(time for _, time in facts)
    checksum = hashlib.sha256(repr(facts).encode()).hexdigest()[:8]
    return f"{size} bytes, {datetime.fromtimestamp(newest // 10**9, UTC):%Y-%m-%d %H:%M:%S}, {checksum}"


def model_files(name: str, role: str) -> dict[str, str]:
    """Fingerprints of the files of a model in a folder; none of one on the Hub, which its name
    stands for.

    Args:
        name, role: as for `models.zoo.path_of`.
    """
    files = sorted(Path(path_of(name, role)).glob("*"))
    return {
        file.name: fingerprint([file]) for file in files if file.suffix in LOADED and file.is_file()
    }


def _size_and_time(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
