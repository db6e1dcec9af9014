"""Files of results and caches: written whole, by one run at a time, and read without surprises."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from draftlens.core.errors import ConfigError

Kept = TypeVar("Kept")


def cache_folder() -> Path:
    """The folder of everything that draftlens measures once and keeps: ``draftlens`` in the user's
    cache folder."""
    import platformdirs  # on first use: the help of the command line needs none of it

    return Path(platformdirs.user_cache_dir("draftlens", appauthor=False))


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically.

    The text goes to a file with the suffix ``.part`` first, which then replaces `path`. After an
    interruption `path` holds either its old content or all of the new one.

    Args:
        path: the file; its folder must exist.
        text: the whole content.

    Raises:
        OSError: the file cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    """Write a JSON file atomically, see `write_text`.

    Args:
        path: the file; its folder must exist.
        value: JSON values.
        indent: spaces of each level; None writes one line.

    Raises:
        OSError: the file cannot be written.
        TypeError: `value` holds something that JSON cannot represent.
    """
    write_text(path, to_json(value, indent) + "\n")


def to_json(
    value: Any, indent: int | None = None, separators: tuple[str, str] | None = None
) -> str:
    """JSON that UTF-8 can hold: the bytes of file names that are not UTF-8 become JSON escapes, and
    come back by `parse_json`.

    Args:
        value: JSON values.
        indent, separators: as for `json.dumps`.

    Raises:
        TypeError: `value` holds something that JSON cannot represent.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, separators=separators)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def parse_json(text: str | bytes) -> Any:
    """The JSON values of a text.

    Raises:
        ValueError: it is no JSON, or nested more deeply than the parser can follow.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_cache(path: Path, make: Callable[[Any], Kept]) -> Kept | None:
    """What a JSON file of the cache holds; None if it is absent or damaged: it is made anew.

    Args:
        path: the file.
        make: from its JSON values to what they stand for.
    """
    try:
        return make(parse_json(path.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return None


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Keep other runs from writing to the same file or folder until the block ends.

    A lock file says which process writes: inside of a folder, or beside a file. That of a process
    which has ended does not count.

    Args:
        path: a folder, or a file, which need not exist; its folder is made.

    Raises:
        ConfigError: another run writes to it, or the lock file cannot be written.
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
    """A folder for files whose content is run: made for this user alone, or checked.

    Its parent is made, too, if need be, and not checked.

    Raises:
        OSError: it cannot be made.
        PermissionError: as `check_private`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    check_private(path)
    return path


def check_private(path: Path) -> None:
    """Refuse a file or folder that another user owns or may write, the superuser apart.

    Raises:
        PermissionError: names the path, and what would help.
        OSError: there is none.
    """
    facts = path.stat()
    if not {path.lstat().st_uid, facts.st_uid} <= {0, os.geteuid()}:  # a link has an owner, too
        raise PermissionError(f"{path} belongs to another user: remove it")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} may be written by other users: run chmod go-w on it")
