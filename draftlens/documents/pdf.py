"""PDF files, by pdfium.

pdfium is not thread-safe, not even across documents: everything here holds one lock. Its objects
are closed by hand, because the finalizers of pypdfium2 would run in any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

from PIL import Image

from draftlens.core.errors import ConfigError, MediaError
from draftlens.core.locks import ForkLock
from draftlens.documents.characters import read_characters
from draftlens.documents.geometry import POINTS_PER_INCH, Box
from draftlens.documents.page import TextLayer
from draftlens.media.files import check_file
from draftlens.media.limits import Limits, check_pixels, refusal

PDFIUM_LOCK = ForkLock()
"""Held by every call of pdfium."""

PASSWORD = 4
"""pdfium's error for a missing or wrong password (`FPDF_ERR_PASSWORD`)."""

FORMAT = 3
"""pdfium's error for a file that is no PDF or is damaged (`FPDF_ERR_FORMAT`)."""

SECURITY = 5
"""pdfium's error for a kind of encryption that it does not know (`FPDF_ERR_SECURITY`)."""


def pdfium() -> Any:
    """The module `pypdfium2`.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pypdfium2
    except ImportError as error:
        raise ConfigError("PDF files need pypdfium2: pip install 'draftlens[documents]'") from error
    return pypdfium2


class PdfDocument:
    """An open PDF file; see `documents.page.Document`.

    Args:
        path: the file.
        password: opens it; None if it needs none.
        limits: bounds on the size of the file and of its rendered pages.

    Raises:
        MediaError: the file cannot be read: it is missing, damaged, needs a password, or has no
            pages.
        ConfigError: pypdfium2 is not installed.
    """

    def __init__(
        self, path: str | Path, password: str | None = None, limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.source = check_file(path, self.limits)
        module = pdfium()
        with PDFIUM_LOCK:
            try:
                self._pdf = module.PdfDocument(self.source, password=password)
            except module.PdfiumError as error:
                raise _explain(self.source, error, password) from error
            self.num_pages: int = len(self._pdf)
            if self.num_pages < 1:
                self._pdf.close()
                raise refusal(self.source, "it has no pages")
            self._show_forms()

    def _show_forms(self) -> None:
        """Let what is filled into forms be rendered."""
        try:
            self._pdf.init_forms()
        except pdfium().PdfiumError:
            pass  # a damaged form: the page is shown without it

    def page(self, number: int) -> PdfPage:
        """See `Document.page`."""
        name = page_name(self.source, number)
        if not 1 <= number <= self.num_pages:
            raise refusal(name, f"the file has {self.num_pages} pages")
        with self.opened(number) as page:
            width, height = page.get_size()
        if not (width > 0 and height > 0):
            raise refusal(name, f"its size is {width:g} x {height:g} points")
        return PdfPage(self, number, Box(0.0, 0.0, width, height))

    @contextmanager
    def opened(self, number: int) -> Iterator[Any]:
        """pdfium's own page, open until the block ends; the lock is held meanwhile.

        Raises:
            MediaError: the page cannot be loaded.
        """
        name = page_name(self.source, number)
        with PDFIUM_LOCK:
            try:
                page = self._pdf[number - 1]
            except pdfium().PdfiumError as error:
                stated = f"the file states {self.num_pages} pages, and this one is missing"
                raise refusal(name, f"{stated} or damaged") from error
            try:
                yield page
            finally:
                page.close()

    def close(self) -> None:
        """See `Document.close`."""
        with PDFIUM_LOCK:
            self._pdf.close()


class PdfPage:
    """One page of a PDF file; see `documents.page.Page`.

    It holds nothing of pdfium: each question opens the page and closes it again, so that memory
    does not grow with the number of pages.
    """

    def __init__(self, document: PdfDocument, number: int, box: Box) -> None:
        self._document = document
        self.source = document.source
        self.number = number
        self.box = box

    def picture(self, dpi: float) -> Image.Image:
        """See `Page.picture`."""
        name = page_name(self.source, self.number)
        scale = dpi / POINTS_PER_INCH
        width = ceil(self.box.width * scale)
        height = ceil(self.box.height * scale)
        check_pixels(name, width, height, self._document.limits)
        with self._document.opened(self.number) as page:
            try:
                bitmap = page.render(scale=scale, rev_byteorder=True)
            except (pdfium().PdfiumError, ValueError, RuntimeError) as error:
                raise refusal(name, f"it cannot be rendered ({error})") from error
            # The bitmap's memory is freed with it, so the image must be a copy.
            image: Image.Image = bitmap.to_pil().convert("RGB").copy()
            bitmap.close()
        return image

    def text_layer(self) -> TextLayer:
        """See `Page.text_layer`."""
        with self._document.opened(self.number) as page:
            try:
                return read_characters(page, self.box)
            except pdfium().PdfiumError as error:
                name = page_name(self.source, self.number)
                raise refusal(name, f"its characters cannot be read ({error})") from error


def page_name(source: str, number: int) -> str:
    """How messages name a page."""
    return f"{source}, page {number}"


def _explain(source: str, error: Any, password: str | None) -> MediaError:
    """The refusal for an error of pdfium."""
    code = getattr(error, "err_code", None)
    if code == PASSWORD and password is None:
        return refusal(source, "it needs a password (--password, or password=...)")
    if code == PASSWORD:
        return refusal(source, "the password is wrong")
    if code == SECURITY:
        return refusal(source, "it is encrypted in a way that pdfium does not know")
    if code == FORMAT:
        return refusal(source, "it is damaged, or no PDF: pdfium finds no valid structure")
    return refusal(source, f"pdfium cannot open it ({error})")
