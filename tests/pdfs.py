"""Small PDF files with known words, made by reportlab."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pypdfium2")
pytest.importorskip("reportlab")

from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfgen.canvas import Canvas

WIDTH, HEIGHT = 300.0, 400.0
"""Points of a page."""

LEFT = ("The mill stands by", "the river and grinds", "rye for seven vil-", "lages in the valley.")
RIGHT = (
    "A second column says",
    "that 1482 sacks were",
    "carried over the old",
    "bridge in one year.",
)


def write(
    path: Path,
    pages: Sequence[Callable[[Canvas], None]],
    size: tuple[float, float] = (WIDTH, HEIGHT),
    **options: Any,
) -> Path:
    """A file with one page for each function that draws one."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, pagesize=size, invariant=1, **options)
    for draw in pages:
        draw(canvas)
        canvas.showPage()
    canvas.save()
    path.write_bytes(buffer.getvalue())
    return path


def lines(canvas: Canvas, left: float, top: float, words: Sequence[str], size: float = 10) -> None:
    """Printed lines below each other; `top` is measured from the page's top."""
    canvas.setFont("Helvetica", size)
    for number, line in enumerate(words):
        canvas.drawString(left, HEIGHT - top - size - number * size * 1.2, line)


def columns(canvas: Canvas) -> None:
    """A title over two columns."""
    lines(canvas, 30, 30, ["Of mills and bridges"], 18)
    lines(canvas, 30, 80, LEFT)
    lines(canvas, 165, 80, RIGHT)


def rotated(degrees: int) -> Callable[[Canvas], None]:
    """The same page with /Rotate."""

    def draw(canvas: Canvas) -> None:
        if degrees % 180:  # reportlab states the size of the page as it is shown
            canvas.setPageSize((HEIGHT, WIDTH))
        canvas.setPageRotation(degrees)
        columns(canvas)

    return draw


def blank(canvas: Canvas) -> None:
    """Nothing."""


def encrypted(path: Path, password: str) -> Path:
    """A file that needs a password."""
    return write(path, [columns], encrypt=StandardEncryption(password))


def without_pages(path: Path) -> Path:
    """A file whose tree of pages is empty."""
    body = (
        b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
        b"2 0 obj<</Type/Pages/Kids[]/Count 0>>endobj\n"
        b"trailer<</Root 1 0 R>>\n%%EOF\n"
    )
    path.write_bytes(body)
    return path


def stating(path: Path, count: int) -> Path:
    """A file with one page that states more."""
    body = (
        b"%%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
        b"2 0 obj<</Type/Pages/Kids[3 0 R]/Count %d>>endobj\n"
        b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 100]>>endobj\n"
        b"trailer<</Root 1 0 R>>\n%%%%EOF\n" % count
    )
    path.write_bytes(body)
    return path
