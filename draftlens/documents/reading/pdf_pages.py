"""All pages of a PDF file as pictures, by one request to the reading process."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from draftlens.documents.reading.geometry import POINTS_PER_INCH
from draftlens.documents.reading.pdf_file import EncryptedError, PdfFile
from draftlens.media.files import check_file, local_copy
from draftlens.media.limits import Limits
from draftlens.media.reader import MediaRequest

DPI = 150.0
LONG_SIDE = 1600
"""Pixels of a page's longer side above which its resolution is lower."""


@dataclass(frozen=True)
class PdfPages(MediaRequest):
    """The request; its answer is the pages, or why not, as a clause without names.

    Args:
        source: path or address.
        limits: `max_output_bytes` bounds all pages together.
        max_pages: of the document.
    """

    source: str
    limits: Limits
    max_pages: int

    @property
    def name(self) -> str:
        return self.source

    @property
    def max_memory(self) -> int:
        return self.limits.max_page_bytes + self.limits.max_output_bytes

    def answer(self) -> list[Image.Image] | str:
        """Raises MediaError for a damaged file."""
        with local_copy(self.source, self.limits) as path:
            try:
                file = PdfFile(check_file(path, self.limits), None, self.limits)
            except EncryptedError:
                return "needs a password"
            if file.count() > self.max_pages:
                return f"has {file.count()} pages, and at most {self.max_pages} are taken"
            return self._pictures(file)

    def _pictures(self, file: PdfFile) -> list[Image.Image] | str:
        pictures: list[Image.Image] = []
        remaining_bytes = self.limits.max_output_bytes
        for number in range(1, file.count() + 1):
            dpi = min(DPI, LONG_SIDE * POINTS_PER_INCH / max(file.size(number)))
            pictures.append(file.picture(number, dpi))
            remaining_bytes -= 3 * pictures[-1].width * pictures[-1].height
            if remaining_bytes < 0:
                return "has too many pixels"
        return pictures
