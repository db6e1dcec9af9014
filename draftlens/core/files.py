"""Files of results and caches: atomic writes, and locks against concurrent runs."""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from draftlens.core.errors import ConfigError
from draftlens.core.text import printable

Value = TypeVar("Value")


def cache_folder() -> Path:
    """``draftlens`` in the user's cache folder; holds everything that is measured once and kept."""
    import platformdirs  # on first use: the command line's help does not need it

    return Path(platformdirs.user_cache_dir("draftlens", appauthor=False))


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically (`whole_file`)."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file ending in ``.part`` in the same, existing folder, which the block writes and which
    then takes the place of `path`: that always holds either its old or all of its new content. Each
    writer has a name of its own; the file is removed where the block fails."""
    part = path.with_name(f"{path.name[:200]}.{secrets.token_hex(8)}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    """Write a JSON file atomically (`write_text`); `indent` None writes one line."""
    write_text(path, to_json(value, indent) + "\n")


def to_json(
    value: Any, indent: int | None = None, separators: tuple[str, str] | None = None
) -> str:
    """JSON with escapes for bytes of file names that are not UTF-8, as `parse_json` reads it."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, separators=separators)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def parse_json(text: str | bytes) -> Any:
    """JSON values of a text. Raises ValueError for invalid or too deeply nested JSON."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_cache(path: Path, make: Callable[[Any], Value]) -> Value | None:
    """`make` of the JSON values of a cache file; None if the file is absent or damaged."""
    try:
        return make(parse_json(path.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return None


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Keep other runs from writing to `path`, a file or folder, until the block ends.

    The lock file, in the folder or next to the file, names the process that writes; locks of ended
    processes do not count. Raises ConfigError if another run writes, or the lock cannot be written.
    """
    from filelock import SoftFileLock, Timeout  # on first use, as above

    if path.exists() and not path.is_dir() and not path.is_file():
        yield  # such as /dev/stdout: nothing stays there
        return
    lock = SoftFileLock(_lock_file(path), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        owner = f"process {lock.pid}" if lock.pid is not None else "another process"
        raise ConfigError(
            f"{owner} is writing to {path}: wait until it ends, or write to another place "
            f"(its lock is {lock.lock_file})"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot write to {path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def _lock_file(path: Path) -> Path:
    if path.is_dir():
        return path / ".draftlens.lock"
    return path.with_name(f".{path.name}.lock")


def private_folder(path: Path) -> Path:
    """A folder for executable content, made for this user alone, or checked with `check_private`.
    Missing parents are made and not checked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    check_private(path)
    return path


def check_private(path: Path) -> None:
    """Raise PermissionError if a user other than this one and root owns or may write `path`."""
    facts = path.stat()
    if not {path.lstat().st_uid, facts.st_uid} <= {0, os.geteuid()}:  # a link has an owner, too
        raise PermissionError(f"{path} belongs to another user: remove it")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} may be written by other users: run chmod go-w on it")


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


def name_fields(name: str, key: str = "file") -> dict[str, str]:
    r"""A file's name in a line, under a key that the line begins with. One that is not UTF-8 has
    its bytes beside it, in hexadecimal.

    Example:

        >>> name_fields("a.pdf"), name_fields("\udce4.pdf")["file_bytes"]
        ({'file': 'a.pdf'}, 'e42e706466')
    """
    text = printable(name)
    return {key: text} if text == name else {key: text, _bytes_key(key): os.fsencode(name).hex()}


def name_in(line: Mapping[str, Any], key: str = "file") -> Any:
    """The name that `name_fields` has written."""
    try:
        return os.fsdecode(bytes.fromhex(line[_bytes_key(key)]))
    except (KeyError, TypeError, ValueError):
        return line.get(key)


def _bytes_key(key: str) -> str:
    return f"{key}_bytes"


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
