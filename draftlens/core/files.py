"""Writing files so that a reader, or the next run, never meets a half-written one."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any


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
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


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
