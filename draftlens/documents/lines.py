"""One line for each document of an output folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftlens.core.files import (
    LineWriter,
    cut_incomplete_line,
    name_in,
    read_lines,
    to_json,
    write_text,
)

LINES = "documents.jsonl"
"""File of an output folder with a line for each document."""

FIRST_KEY = "file"


class DocumentLines:
    """Appends a line for each document that ends; at the end each document has its last line only.

    Raises:
        ConfigError: the file holds something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        read_lines(path, FIRST_KEY)
        cut_incomplete_line(path)
        self._writer = LineWriter(path)

    def write(self, line: Mapping[str, Any]) -> None:
        """`line` begins with what `name_fields` makes of the document's name. Raises OSError."""
        self._writer.write(line)

    def close(self) -> None:
        """Raises OSError."""
        self._writer.close()
        lines = {name_in(line): line for line in read_lines(self._path, FIRST_KEY)}
        written = "".join(f"{to_json(line, separators=(',', ':'))}\n" for line in lines.values())
        write_text(self._path, written)
