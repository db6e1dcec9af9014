"""Fingerprints of the files that a run reads: they change when a file is replaced, and computing
them does not read the files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from draftlens.models.known_pairs import path_of

MODEL_SUFFIXES = frozenset({".safetensors", ".bin", ".json", ".jinja", ".model", ".txt"})
"""Suffixes of the files that `from_pretrained` reads: weights, configurations, processors,
vocabularies."""


def fingerprint(files: Sequence[Path]) -> str:
    """Total size of the files, time of the latest change, and a checksum of all sizes and times.

    A missing file counts as empty and changed in 1970.
    """
    facts = [_size_and_time(file) for file in files]
    size = sum(file_size for file_size, _ in facts)
    seconds = max(nanoseconds for _, nanoseconds in facts) // 10**9
    checksum = hashlib.sha256(repr(facts).encode()).hexdigest()[:8]
    return f"{size} bytes, {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}, {checksum}"


def model_files(name: str, role: str) -> dict[str, str]:
    """Fingerprints of a model's files.

    Returns:
        Name to fingerprint; empty for a model on the Hub, which its name identifies.
    """
    files = sorted(Path(path_of(name, role)).glob("*"))
    model_files = [file for file in files if file.suffix in MODEL_SUFFIXES and file.is_file()]
    return {file.name: fingerprint([file]) for file in model_files}


def _size_and_time(file: Path) -> tuple[int, int]:
    """Size in bytes and time of the last change in nanoseconds."""
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
