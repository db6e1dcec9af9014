"""Writing files so that a reader, or the next run, never meets a half-written one."""

from __future__ import annotations

import json
import os
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
