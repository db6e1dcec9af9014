"""Small PDF files with known words, made by reportlab, and damaged ones, made of bytes."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pypdfium2")
pytest.importorskip("reportlab")

from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

__all__ = ["Canvas", "ImageReader"]

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


PARAGRAPH = (
    "In one year the mill grinds rye for seven villages and oats",
    "for three. The sacks were carried over the old bridge, as a",
    "letter of 1482 says, and in spring the river took it away.",
    "It was built again in stone.",
)


def paragraph(canvas: Canvas) -> None:
    """Four lines, of which rapid-layout cuts off first words."""
    canvas.setFont("Times-Roman", 10)
    for number, line in enumerate(PARAGRAPH):
        canvas.drawString(30, HEIGHT - 140 - number * 11, line)


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


CATALOG = b"<</Type/Catalog/Pages 2 0 R>>"
ONE_PAGE = b"<</Type/Pages/Kids[3 0 R]/Count 1>>"
FORM = b"/Type/XObject/Subtype/Form/BBox[0 0 200 100]/Resources"


def of_objects(path: Path, objects: Sequence[bytes]) -> Path:
    """A file of objects that are numbered from 1; the first is its catalog."""
    content = b"%PDF-1.7\n"
    places = []
    for number, body in enumerate(objects, start=1):
        places.append(b"%010d 00000 n \n" % len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    size = len(objects) + 1
    content += b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, b"".join(places))
    start = content.rindex(b"xref\n")
    content += b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (size, start)
    path.write_bytes(content)
    return path


def stream(content: bytes, entries: bytes = b"") -> bytes:
    """A compressed stream object."""
    packed = zlib.compress(content)
    head = b"<<%s/Filter/FlateDecode/Length %d>>" % (entries, len(packed))
    return b"%sstream\n%s\nendstream" % (head, packed)


def page(resources: bytes = b"", content: int = 4) -> bytes:
    """A page object."""
    box = b"/MediaBox[0 0 200 100]"
    return b"<</Type/Page/Parent 2 0 R%s/Resources<<%s>>/Contents %d 0 R>>" % (
        box,
        resources,
        content,
    )


def printed(path: Path) -> Path:
    """A page with one word."""
    word = stream(b"BT /F 12 Tf 20 40 Td (word) Tj ET")
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    return of_objects(path, [CATALOG, ONE_PAGE, page(b"/Font<</F 5 0 R>>"), word, font])


def nested(path: Path, depth: int, calls: int) -> Path:
    """A page of forms, each of which shows the next one several times."""
    objects = [CATALOG, ONE_PAGE, page(b"/XObject<</X 5 0 R>>"), stream(b"/X Do")]
    for number in range(6, depth + 6):
        entries = FORM + b"<</XObject<</X %d 0 R>>>>" % number
        objects.append(stream(b"/X Do " * calls, entries))
    objects.append(stream(b"0 0 9 9 re f", FORM + b"<<>>"))
    return of_objects(path, objects)


def recursive(path: Path, num_pages: int = 1) -> Path:
    """Pages of two forms that show themselves and each other."""
    first = 4 + num_pages
    both = b"/XObject<</X %d 0 R/Y %d 0 R>>" % (first, first + 1)
    kids = b" ".join(b"%d 0 R" % number for number in range(3, 3 + num_pages))
    pages = b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, num_pages)
    form = FORM + b"<<" + both + b">>"
    return of_objects(
        path,
        [
            CATALOG,
            pages,
            *[page(both, first - 1)] * num_pages,
            stream(b"/X Do /Y Do " * 20),
            stream(b"/X Do /Y Do " * 20, form),
            stream(b"/Y Do /X Do " * 20, form),
        ],
    )


def huge_picture(path: Path, side: int) -> Path:
    """A page with a white picture of `side` times `side` pixels."""
    entries = b"/Type/XObject/Subtype/Image/Width %d/Height %d/ColorSpace/DeviceGray" % (side, side)
    picture = stream(b"\xff" * (side * -(-side // 8)), entries + b"/BitsPerComponent 1")
    shown = stream(b"200 0 0 100 0 0 cm /P Do")
    return of_objects(path, [CATALOG, ONE_PAGE, page(b"/XObject<</P 5 0 R>>"), shown, picture])


def flate_bomb(path: Path, size: int) -> Path:
    """A page whose content is a thousand times as large as the file."""
    drawing = b"0 0 1 1 re f\n"
    content = stream(drawing * (size // len(drawing)))
    return of_objects(path, [CATALOG, ONE_PAGE, page(), content])
