"""Files of JSON lines that survive interruptions: every line is whole, or cut off by the next run.

A line is written by a single call of the system, so a process that is killed leaves at most one
incomplete line, the last. What the system has taken survives the end of the process; only a
failing machine can lose it, and `fsync` bounds by how much.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from draftlens.core.errors import ConfigError

SYNC_SECONDS = 1.0
"""Longest work, in seconds, that a failure of the machine may cost."""


def read_lines(path: Path) -> list[Any]:
    """The values of all whole lines; an incomplete last line is cut off the file.

    Args:
        path: the file; it need not exist.

    Raises:
        ConfigError: a whole line is no JSON; the message names it.
        OSError: the file cannot be read.
    """
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    values = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            values.append(json.loads(line))
        except ValueError as error:
            raise ConfigError(f"line {number} of {path} is damaged: {error}") from error
    return values


class LineWriter:
    """Appends JSON values to a file, one a line.

    Args:
        path: the file; it is created if it does not exist.
        sync_seconds: time after which what is written is forced onto the disk, with the next line;
            0 forces every line.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, sync_seconds: float = SYNC_SECONDS) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._sync_seconds = sync_seconds
        self._synced = time.monotonic()

    def write(self, value: Any) -> None:
        """Append a value. It survives the end of this process, however that comes.

        Raises:
            OSError: the disk is full or fails; the error names the file.
        """
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
        content = line.encode("utf-8")
        written = 0
        try:
            while written < len(content):  # a disk that is nearly full takes a part
                written += os.write(self._file, content[written:])
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        if time.monotonic() - self._synced >= self._sync_seconds:
            self.sync()

    def sync(self) -> None:
        """Force what is written onto the disk."""
        os.fsync(self._file)
        self._synced = time.monotonic()

    def close(self) -> None:
        """Force what is written onto the disk and close the file."""
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
            if error is None:  # else the first failure says more
                raise
