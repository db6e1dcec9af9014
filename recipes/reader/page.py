"""Pages as PDF files with known Markdown: drawn by reportlab, rendered by pypdfium2.

A point of the PDF is a pixel of the picture. Every character that is drawn is remembered with its
place and with the place of its text in the Markdown, so labels cost nothing.
"""

import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pypdfium2
import reportlab
from numpy.typing import NDArray
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

BULLET = "\u2022"
MIDDLE = 0.25  # of the size: height of the middle of a line of text above its baseline
NOT_SAID = -1  # what the Markdown leaves out

FAMILIES = {
    "sans": ("Helvetica", "Helvetica-Bold", "Helvetica-Oblique"),
    "serif": ("Times-Roman", "Times-Bold", "Times-Italic"),
    "mono": ("Courier", "Courier-Bold", "Courier-Oblique"),
    "vera": ("Vera", "VeraBd", "VeraIt"),
}
EMBEDDED_FAMILY = "vera"


@dataclass(frozen=True)
class Glyph:
    """A character on a page.

    Args:
        character: the character.
        x, y: its middle in pixels from the left and from the top. The height is the same for all
            characters of a line.
        place: index in the page's Markdown, or `NOT_SAID`.
    """

    character: str
    x: float
    y: float
    place: int


@dataclass(frozen=True)
class Region:
    """A block of a page, such as a paragraph or a table.

    Args:
        kind: ``title``, ``heading``, ``paragraph``, ``bullets``, ``numbered``, ``table``, ``head``
            or ``foot``.
        box: left, top, right and bottom in pixels from the top left.
        start, end: its part of the Markdown; both `NOT_SAID` if the Markdown leaves it out.
    """

    kind: str
    box: tuple[float, float, float, float]
    start: int
    end: int


@dataclass(frozen=True)
class Page:
    """A page with its truth.

    Args:
        pdf: a PDF file of one page.
        markdown: the text that a reader is to write.
        width, height: size in pixels, which are points of the PDF.
        glyphs: all characters except spaces, in the order of the file.
        regions: all blocks, in the order of the file.
    """

    pdf: bytes
    markdown: str
    width: int
    height: int
    glyphs: tuple[Glyph, ...]
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class Face:
    """A font at a size in pixels."""

    font: str
    size: float

    def width(self, text: str) -> float:
        """Width of a text in pixels."""
        return self.size * _unit_width(text, self.font)


class Writer:
    """Draws a page and writes its Markdown at the same time.

    Args:
        width, height: of the page in pixels.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.markdown = ""
        self._file = io.BytesIO()
        # Without the invariant mode, each file would hold the time at which it was made.
        self._canvas = Canvas(self._file, pagesize=(width, height), invariant=1, pageCompression=0)
        self._glyphs: list[Glyph] = []
        self._regions: list[Region] = []

    def markup(self, text: str) -> None:
        """Write Markdown that stands for nothing visible."""
        self.markdown += text

    def say(self, text: str, x: float, baseline: float, face: Face) -> None:
        """Draw a text and write it as Markdown.

        Args:
            text: the text.
            x: its left end in pixels.
            baseline: its baseline in pixels from the top.
            face: its font.
        """
        self._draw(text, x, baseline, face, len(self.markdown))
        self.markdown += text

    def say_bullet(self, x: float, baseline: float, face: Face) -> None:
        """Draw a bullet, which is a hyphen in Markdown."""
        self._draw(BULLET, x, baseline, face, len(self.markdown))
        self.markdown += "-"

    def stamp(self, text: str, x: float, baseline: float, face: Face) -> None:
        """Draw a text that the Markdown leaves out."""
        self._draw(text, x, baseline, face, NOT_SAID)

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a thin straight line between two points in pixels from the top left."""
        self._canvas.setLineWidth(0.7)
        self._canvas.line(x1, self.height - y1, x2, self.height - y2)

    def region(self, kind: str, box: tuple[float, float, float, float], start: int) -> None:
        """Note that a block is complete, whose Markdown begins at ``start``, or `NOT_SAID`."""
        end = NOT_SAID if start == NOT_SAID else len(self.markdown)
        self._regions.append(Region(kind, box, start, end))

    def page(self) -> Page:
        """The finished page; nothing can be drawn afterwards."""
        self._canvas.showPage()
        self._canvas.save()
        return Page(
            self._file.getvalue(),
            self.markdown,
            self.width,
            self.height,
            tuple(self._glyphs),
            tuple(self._regions),
        )

    def _draw(self, text: str, x: float, baseline: float, face: Face, place: int) -> None:
        self._canvas.setFont(face.font, face.size)
        self._canvas.drawString(x, self.height - baseline, text)
        middle = baseline - MIDDLE * face.size
        for offset, character in enumerate(text):
            advance = face.width(character)
            if character != " ":
                said = NOT_SAID if place == NOT_SAID else place + offset
                self._glyphs.append(Glyph(character, x + advance / 2, middle, said))
            x += advance


def register_fonts() -> None:
    """Make the fonts that come as files known to reportlab; the others are built in."""
    folder = Path(reportlab.__file__).parent / "fonts"
    for font in FAMILIES[EMBEDDED_FAMILY]:
        if font not in pdfmetrics.getRegisteredFontNames():
            pdfmetrics.registerFont(TTFont(font, str(folder / f"{font}.ttf")))


def render(page: Page, scale: float = 1.0) -> NDArray[np.uint8]:
    """The picture of a page, ``[H, W]``, 0 for black and 255 for white.

    Args:
        page: the page.
        scale: pixels of the picture per pixel of the page.
    """
    document = pypdfium2.PdfDocument(page.pdf)
    try:
        bitmap = document[0].render(scale=scale, grayscale=True)
        picture: NDArray[np.uint8] = bitmap.to_numpy().copy()
    finally:
        document.close()
    return picture.reshape(picture.shape[0], picture.shape[1])


@cache
def _unit_width(text: str, font: str) -> float:
    """Width of a text at size 1. Reportlab does not kern, so it is the sum of its characters'."""
    return float(pdfmetrics.stringWidth(text, font, 1.0))


register_fonts()
