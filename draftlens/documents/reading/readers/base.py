"""The protocol of readers."""

from __future__ import annotations

from math import sqrt
from typing import Any, Protocol

from PIL import Image

from draftlens.core.options import Registry, make
from draftlens.documents.reading.geometry import POINTS_PER_INCH
from draftlens.documents.reading.page import Page
from draftlens.documents.reading.values import Reading

READERS = Registry(
    "reader",
    {
        "text-layer": "draftlens.documents.reading.readers.text_layer:TextLayerReader",
        "tesseract": "draftlens.documents.reading.readers.tesseract:TesseractReader",
        "rapidocr": "draftlens.documents.reading.readers.rapidocr:RapidOcrReader",
    },
    group="draftlens.readers",
)

READING_DPI = 150.0
"""Pixels per inch for layout and optical character recognition; at 72 the layout takes a page of
two columns for one figure."""


MOST_PIXELS = 30_000_000
"""Bound on the pixels of that picture; larger pages are rendered with fewer pixels per inch."""


def reading_picture(page: Page, dpi: float) -> Image.Image:
    """The RGB picture of a page for layout and optical character recognition, at `dpi` or less.

    Raises:
        MediaError: the page cannot be rendered.
    """
    inches = page.box.area / POINTS_PER_INCH**2
    return page.picture(min(dpi, sqrt(MOST_PIXELS / inches)))


class Reader(Protocol):
    """Reads the words of a page.

    Its class has no required arguments; the fields of a dataclass are its options.
    """

    def missing(self) -> str | None:
        """What has to be installed first, as words for the user, or None."""
        ...

    def read(self, page: Page) -> Reading:
        """The words or printed lines of a page with their boxes.

        Raises:
            MediaError: the page cannot be rendered or read.
            ConfigError: something has to be installed first.
        """
        ...


def make_reader(choice: Any) -> Reader:
    """A reader from its name, from a mapping of its name and options, or from itself.

    Raises:
        ConfigError: the name or an option is unknown, or a value makes no sense.
    """
    reader: Reader = make(READERS, choice, "read")
    return reader
