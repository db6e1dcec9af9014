"""Damage of PDF pages that pdfium ignores, found by pikepdf."""

from __future__ import annotations

import io
import re
import zlib
from pathlib import Path
from typing import Any

import pikepdf

_OPERATOR = re.compile(r"[A-Za-z]{1,3}\*?|d[01]|['\"]|INLINE IMAGE")
"""Operators of a page's content."""

_FAILURES = (pikepdf.PdfError, zlib.error, ValueError, TypeError, LookupError, AttributeError)


def content_damage(path: str, password: str | None, number: int) -> str | None:
    """The damage of a page's content, as a clause, or None. `path` is a PDF file that pdfium opens;
    `number` counts from 1."""
    try:
        with pikepdf.open(_readable(path), password=password or "") as pdf:
            pdf.get_warnings()  # what concerns the whole file, such as spaces in its table
            return _damage_of(pdf, pdf.pages[number - 1])
    except _FAILURES:
        return "it cannot be found in the file"


def _readable(path: str) -> Any:
    """The path, or the content of a file whose name is not UTF-8, which pikepdf cannot open."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return io.BytesIO(Path(path).read_bytes())
    return path


def _damage_of(pdf: Any, page: Any) -> str | None:
    try:
        for stream in _streams(page):
            stream.read_bytes()
            if stream.get("/Filter") == "/FlateDecode":
                _check_flate(stream.read_raw_bytes())
        operators = [str(entry.operator) for entry in pikepdf.parse_content_stream(page)]
    except _FAILURES:
        return "its content cannot be decoded"
    if not all(map(_OPERATOR.fullmatch, operators)):
        return "its content holds no operators of PDF"
    if pdf.get_warnings():
        return "its content is not where the file says"
    return None


def _streams(page: Any) -> list[Any]:
    content = page.obj.get("/Contents")
    if content is None:
        return []
    return list(content) if isinstance(content, pikepdf.Array) else [content]


def _check_flate(content: bytes) -> None:
    """Decode up to the checksum, which readers ignore.

    Raises:
        zlib.error: it is incorrect.
    """
    decoder = zlib.decompressobj()
    decoder.decompress(content)
    if not decoder.eof:
        raise zlib.error("the end is missing")
