"""PDF files, read in a process that is killed if a page takes too much time or memory."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image

from draftlens.core.errors import ConfigError
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import PageFacts, TextLayer
from draftlens.media.files import check_file
from draftlens.media.limits import Limits, refusal
from draftlens.media.reader import LostReaderError, MediaReader

MOST_LOST = 3
"""Crashes of the reading process after which the file is given up."""

NEEDS = ("pypdfium2", "pikepdf")


class PdfDocument:
    """A PDF file.

    `limits` bound the file, its rendered pages, and time and memory for each. `reader` is closed by
    the caller; None for one of its own.

    Raises:
        MediaError: the file is missing, damaged, needs a password, or has no pages.
        ConfigError: a library is not installed.
    """

    def __init__(
        self,
        path: str | Path,
        password: str | None = None,
        limits: Limits | None = None,
        reader: MediaReader | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.source = check_file(path, self.limits)
        check_installed()
        self._password = password
        self._own_reader = None if reader else MediaReader(self.limits.max_page_s)
        self._reader = reader or self._own_reader
        self._lock = threading.Lock()
        self._lost = 0
        try:
            self.num_pages: int = self.ask("count")
        except BaseException:
            self.close()
            raise

    def page(self, number: int) -> PdfPage:
        if not 1 <= number <= self.num_pages:
            cause = f"the file has {self.num_pages} pages"
            raise refusal(f"{self.source}, page {number}", cause)
        width, height = self.ask("size", number)
        return PdfPage(self, number, Box(0.0, 0.0, width, height))

    def ask(self, method: str, *arguments: Any) -> Any:
        """The value of a method of `pdf_file.PdfFile`; raises MediaError if it refuses, or if the
        process did not answer."""
        # It needs pypdfium2, which may be absent where this module is imported.
        from draftlens.documents.reading.pdf_file import PdfQuestion

        question = PdfQuestion(self.source, self._password, self.limits, method, arguments)
        with self._lock:
            if self._reader is None:
                raise refusal(question.name, "the document was closed")
            if self._lost >= MOST_LOST:
                cause = f"the file is given up after {MOST_LOST} readings that did not end well"
                raise refusal(question.name, cause)
            try:
                return self._reader.read(question)
            except LostReaderError:
                self._lost += 1
                raise

    def close(self) -> None:
        with self._lock:
            self._reader = None
            if self._own_reader is not None:
                self._own_reader.close()


class PdfPage:
    """One page of a PDF file (`documents.reading.page.Page`)."""

    def __init__(self, document: PdfDocument, number: int, box: Box) -> None:
        self._document = document
        self.source = document.source
        self.number = number
        self.box = box

    def picture(self, dpi: float) -> Image.Image:
        image: Image.Image = self._document.ask("picture", self.number, dpi)
        return image

    def text_layer(self) -> TextLayer:
        layer: TextLayer = self._document.ask("text_layer", self.number, self.box)
        return layer

    def facts(self) -> PageFacts:
        found: PageFacts = self._document.ask("facts", self.number)
        return found


def check_installed() -> None:
    """Raise ConfigError if a library that reads PDF files is missing."""
    for name in NEEDS:
        if find_spec(name) is None:
            raise ConfigError(f"PDF files need {name}: pip install 'draftlens[documents]'")
