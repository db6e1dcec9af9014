"""Image files as documents: scans and photographs, one page for each frame of a TIFF."""

from __future__ import annotations

import threading
from pathlib import Path

from PIL import Image

from draftlens.documents.reading.geometry import POINTS_PER_INCH, Box
from draftlens.documents.reading.page import PageFacts
from draftlens.media import Limits
from draftlens.media.files import check_file
from draftlens.media.image import read_facts
from draftlens.media.limits import refusal
from draftlens.media.reader import MediaReader, ReadRequest

A4_HEIGHT = 842.0
"""Long side, in points, of a picture without a stated resolution."""

_LEAST_DPI = 50.0
_MOST_DPI = 2400.0
"""Resolutions of scanners; others, such as the 1 of many files, count as not stated."""


class PictureDocument:
    """An image file; raises MediaError if its header cannot be
    read. `reader` is closed by the caller; None for one of its own."""

    def __init__(
        self,
        path: str | Path,
        limits: Limits | None = None,
        reader: MediaReader | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.source = check_file(path, self.limits)
        facts = read_facts(self.source, self.limits)
        self.num_pages = facts.num_pages
        self._dpi = scanned_dpi(facts.dpi)
        self._own_reader = None if reader else MediaReader(self.limits.max_page_s)
        self._reader = reader or self._own_reader
        self._lock = threading.Lock()

    def page(self, number: int) -> PicturePage:
        if not 1 <= number <= self.num_pages:
            name = f"{self.source}, page {number}"
            raise refusal(name, f"the file has {self.num_pages} pages")
        request = ReadRequest("image", self.source, limits=self.limits, frame=number - 1)
        with self._lock:
            if self._reader is None:
                raise refusal(self.source, "the document was closed")
            picture = self._reader.read(request)
        return PicturePage(self.source, number, picture, self._dpi)

    def close(self) -> None:
        with self._lock:
            self._reader = None
            if self._own_reader is not None:
                self._own_reader.close()


class PicturePage:
    """One picture (`documents.reading.page.Page`).

    Args:
        source: its file, or a word for it.
        number: of the page, from 1.
        image: upright, RGB.
        dpi: pixels an inch; None if unknown, then its long side counts as that of an A4 page.
    """

    def __init__(
        self, source: str, number: int, image: Image.Image, dpi: float | None = None
    ) -> None:
        self.source = source
        self.number = number
        self._image = image
        self._dpi = dpi or max(image.size) * POINTS_PER_INCH / A4_HEIGHT
        scale = POINTS_PER_INCH / self._dpi
        self.box = Box(0.0, 0.0, image.width * scale, image.height * scale)

    def picture(self, dpi: float) -> Image.Image:
        factor = min(dpi / self._dpi, 1.0)
        width = max(round(self._image.width * factor), 1)
        height = max(round(self._image.height * factor), 1)
        if (width, height) == self._image.size:
            return self._image
        return self._image.resize((width, height), Image.Resampling.LANCZOS)

    def text_layer(self) -> None:
        """A picture has none."""

    def facts(self) -> PageFacts:
        return PageFacts()


def scanned_dpi(dpi: float | None) -> float | None:
    """A resolution if it is that of a scanner, else None."""
    if dpi is None or not _LEAST_DPI <= dpi <= _MOST_DPI:
        return None
    return dpi
