"""Files of JSON lines that survive interruptions.

Each line is written by a single system call, so a killed process leaves at most one incomplete
line, the last, which the next run cuts off. Only a failure of the machine can lose written lines;
`fsync` bounds how many.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from draftlens.core.errors import ConfigError
from draftlens.core.files import parse_json, to_json

SYNC_SECONDS = 1.0
"""Longest work, in seconds, that a failure of the machine may lose."""

_SEPARATORS = (",", ":")


def read_lines(path: Path, first_key: str) -> list[dict[str, Any]]:
    """Values of all complete lines, which must be objects that begin with `first_key`; empty if
    there is no file. Raises ConfigError, which names the line, for any other line, and OSError."""
    if not path.is_file():  # a device, such as /dev/full, may have no end
        return []
    if not begins_with(path, first_key):  # before a whole film is read
        raise _foreign(path, 1, first_key)
    *lines, rest = path.read_bytes().split(b"\n")
    values = []
    for number, line in enumerate(lines, start=1):
        try:
            value = parse_json(line)
        except ValueError as error:
            raise ConfigError(f"line {number} of {path} is damaged: {error}") from error
        if not isinstance(value, dict) or next(iter(value), None) != first_key:
            raise _foreign(path, number, first_key)
        values.append(value)
    if not _may_begin(rest, first_key):
        raise _foreign(path, len(lines) + 1, first_key)
    return values


def begins_with(path: Path, first_key: str) -> bool:
    """Whether the first line, complete or not, is an object that begins with a key."""
    with path.open("rb") as file:
        return _may_begin(file.read(len(_beginning(first_key))), first_key)


def cut_incomplete_line(path: Path) -> None:
    """Cut off an incomplete last line; the file need not exist."""
    content = path.read_bytes() if path.is_file() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _beginning(first_key: str) -> bytes:
    return to_json({first_key: 0}, separators=_SEPARATORS).encode().removesuffix(b"0}")


def _may_begin(line: bytes, first_key: str) -> bool:
    beginning = _beginning(first_key)
    return line.startswith(beginning) or beginning.startswith(line)


def _foreign(path: Path, number: int, first_key: str) -> ConfigError:
    return ConfigError(
        f"{path} was written by something else and is left as it is: its line {number} is no "
        f"object that begins with {first_key!r}"
    )


class LineWriter:
    """Appends JSON values to a file, one a line, and syncs the file with the first line after
    `sync_seconds` (0: with every line). Raises OSError, which names the file."""

    def __init__(self, path: Path, sync_seconds: float = SYNC_SECONDS) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._sync_seconds = sync_seconds
        self._synced = time.monotonic()

    def write(self, value: Any) -> None:
        content = (to_json(value, separators=_SEPARATORS) + "\n").encode("utf-8")
        written = 0
        try:
            while written < len(content):  # a disk that is nearly full takes a part
                written += os.write(self._file, content[written:])
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        if time.monotonic() - self._synced >= self._sync_seconds:
            self.sync()

    def sync(self) -> None:
        os.fsync(self._file)
        self._synced = time.monotonic()

    def close(self) -> None:
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except OSError:
            if error is None:  # else the first failure is the informative one
                raise
