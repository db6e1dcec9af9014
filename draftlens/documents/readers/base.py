"""The seam of all readers."""

from __future__ import annotations

from typing import Any, Protocol

from draftlens.core.options import make
from draftlens.core.registry import Registry
from draftlens.documents.page import Page
from draftlens.documents.values import Reading

READERS = Registry(
    "reader",
    {
        "text-layer": "draftlens.documents.readers.text_layer:TextLayerReader",
        "tesseract": "draftlens.documents.readers.tesseract:TesseractReader",
        "rapidocr": "draftlens.documents.readers.rapidocr:RapidOcrReader",
    },
    group="draftlens.readers",
)

READING_DPI = 150.0
"""Pixels an inch that layout and optical character recognition need; at 72 a page of two columns is
one figure to them."""


class Reader(Protocol):
    """Reads the words of a page.

    Its class has no required arguments; the fields of a dataclass are its options.
    """

    def missing(self) -> str | None:
        """What has to be installed before the reader can work, in words for the user; None if
        nothing is missing."""
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
