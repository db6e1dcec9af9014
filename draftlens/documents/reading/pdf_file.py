"""PDF files by pdfium, inside the process that reads them.

Everything here runs in one thread of that process: pdfium is not thread-safe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from math import ceil
from typing import Any, ClassVar

import pypdfium2
from PIL import Image
from pypdfium2 import raw

from draftlens.core.errors import MediaError
from draftlens.documents.reading.characters import read_characters
from draftlens.documents.reading.damage import content_damage
from draftlens.documents.reading.geometry import POINTS_PER_INCH, Box
from draftlens.documents.reading.page import PageFacts, Piece, TextLayer
from draftlens.documents.reading.rules import read_rules
from draftlens.documents.reading.running import Line, lines_at_edges, repeated
from draftlens.media.limits import Limits, check_pixels, over_limit, refusal
from draftlens.media.reader import MediaRequest

PASSWORD = 4
"""pdfium's error for a missing or wrong password (`FPDF_ERR_PASSWORD`)."""

FORMAT = 3
"""pdfium's error for a file that is no PDF or is damaged (`FPDF_ERR_FORMAT`)."""

SECURITY = 5
"""pdfium's error for an unknown kind of encryption (`FPDF_ERR_SECURITY`)."""

SUCCESS = 0
"""pdfium's error where it opens a file and finds nothing in it (`FPDF_ERR_SUCCESS`)."""

_NEIGHBOURS = (-2, -1, 1, 2)
"""Pages, counted from one, whose edges are compared with its own: left and right pages differ."""

_MOST_BOOKMARKS = 10_000

_FORM_DEPTH = 5
"""Depth of nested forms that are searched for pictures."""


class EncryptedError(MediaError):
    """A file needs a password, another one, or an unknown way to decrypt it."""


class PdfFile:
    """An open PDF file; raises MediaError if it is damaged, needs a password, or has no pages."""

    def __init__(self, path: str, password: str | None, limits: Limits) -> None:
        self._path = path
        self._password = password
        self._limits = limits
        self._edges: dict[int, tuple[Line, ...]] = {}
        self._sizes: Counter[float] = Counter()
        try:
            self._pdf = pypdfium2.PdfDocument(path, password=password)
        except pypdfium2.PdfiumError as error:
            raise _explain(path, error, password) from error
        if len(self._pdf) < 1:
            raise refusal(path, "it has no pages")
        with suppress(pypdfium2.PdfiumError):  # of a damaged form: the page is shown without it
            self._pdf.init_forms()  # shows what is filled into forms

    def count(self) -> int:
        """Pages that the file states."""
        return len(self._pdf)

    def size(self, number: int) -> tuple[float, float]:
        """Width and height of a page as it is shown, in points."""
        with self._page(number) as page:
            width, height = page.get_size()
        if not (width > 0 and height > 0):
            raise refusal(
                page_name(self._path, number), f"its size is {width:g} x {height:g} points"
            )
        return width, height

    def picture(self, number: int, dpi: float) -> Image.Image:
        """A page as an RGB image; raises MediaError if it has too many pixels, cannot be rendered,
        or is empty because of damage."""
        name = page_name(self._path, number)
        with self._page(number) as page:
            scale = dpi / POINTS_PER_INCH
            width, height = (ceil(points * scale) for points in page.get_size())
            check_pixels(name, width, height, self._limits)
            try:
                image: Image.Image = (
                    page.render(scale=scale, rev_byteorder=True).to_pil().convert("RGB")
                )
            except (pypdfium2.PdfiumError, ValueError, RuntimeError) as error:
                raise refusal(name, f"it cannot be rendered ({error})") from error
            lowest, highest = image.convert("L").getextrema()
            damage = self._damage(page, number) if lowest == highest else None
        if damage is not None:
            raise refusal(name, f"nothing is on it, and it is damaged: {damage}")
        return image

    def text_layer(self, number: int, shown: Box) -> TextLayer:
        with self._page(number) as page:
            try:
                layer = read_characters(page, shown)
            except pypdfium2.PdfiumError as error:
                name = page_name(self._path, number)
                raise refusal(name, f"its characters cannot be read ({error})") from error
        if number not in self._edges:
            self._edges[number] = lines_at_edges(layer.pieces, shown)
            for piece in layer.pieces:
                self._sizes[round(piece.size, 1)] += len(piece.text)
        return layer

    def facts(self, number: int) -> PageFacts:
        others = [self._edge_lines(number + step) for step in _NEIGHBOURS]
        running = repeated(self._edge_lines(number), [line for lines in others for line in lines])
        with self._page(number) as page:
            rules = read_rules(page, self.size(number)[0])
        [(size, _)] = self._sizes.most_common(1) or [(0.0, 0)]
        return PageFacts(self._bookmarks.get(number, ()), running, rules, size)

    def _edge_lines(self, number: int) -> tuple[Line, ...]:
        if number not in self._edges:
            with suppress(MediaError):
                if 1 <= number <= self.count():
                    self.text_layer(number, Box(0.0, 0.0, *self.size(number)))
        return self._edges.setdefault(number, ())

    @cached_property
    def _bookmarks(self) -> dict[int, tuple[tuple[str, int], ...]]:
        """Titles and levels by page."""
        pages: dict[int, tuple[tuple[str, int], ...]] = {}
        for title, level, number in islice(self._outline(), _MOST_BOOKMARKS):
            pages[number] = (*pages.get(number, ()), (title, level))
        return pages

    def _outline(self) -> Iterator[tuple[str, int, int]]:
        with suppress(pypdfium2.PdfiumError, ValueError, RecursionError):
            for bookmark in self._pdf.get_toc():
                target = bookmark.get_dest()
                place = None if target is None else target.get_index()
                if place is not None:
                    yield bookmark.get_title(), bookmark.level + 1, place + 1

    def _page(self, number: int) -> closing[Any]:
        """pdfium's page until the block ends, to bound the memory. Raises MediaError."""
        try:
            return closing(self._pdf[number - 1])
        except pypdfium2.PdfiumError as error:
            stated = f"the file states {len(self._pdf)} pages, and this one is missing"
            raise refusal(page_name(self._path, number), f"{stated} or damaged") from error

    def _damage(self, page: Any, number: int) -> str | None:
        """Why an empty page may have shown something, as a clause; None if it is blank. Raises
        MediaError for one with a picture of too many pixels, of which pdfium may show none."""
        for picture in page.get_objects([raw.FPDF_PAGEOBJ_IMAGE], max_depth=_FORM_DEPTH):
            try:
                width, height = picture.get_px_size()
                if width * height > self._limits.max_pixels:
                    figure = f"a picture on it has {width}x{height} = {width * height} pixels"
                    limit = str(self._limits.max_pixels)
                    raise over_limit(page_name(self._path, number), figure, limit, "max_pixels")
                picture.get_bitmap().close()
            except pypdfium2.PdfiumError:
                return "a picture on it cannot be decoded"
        if raw.FPDFPage_CountObjects(page):
            return None  # such as white paths
        if not raw.FPDF_DocumentHasValidCrossReferenceTable(self._pdf):
            return "the file's table of objects is damaged"
        return content_damage(self._path, self._password, number)


@dataclass(frozen=True)
class PdfQuestion(MediaRequest):
    """A call of a method of `PdfFile` for the reading process; a
    page's number is the first argument."""

    kinds: ClassVar[tuple[type[Any], ...]] = (TextLayer, Piece, Box, PageFacts)

    path: str
    password: str | None = field(repr=False)
    limits: Limits
    method: str
    arguments: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return page_name(self.path, self.arguments[0]) if self.arguments else self.path

    @property
    def max_memory(self) -> int:
        """Memory that the reading may take, in bytes."""
        return self.limits.max_page_bytes

    def answer(self) -> Any:
        file = _opened(self.path, self.password, self.limits)
        return getattr(file, self.method)(*self.arguments)


@lru_cache(maxsize=1)
def _opened(path: str, password: str | None, limits: Limits) -> PdfFile:
    """Cached: the file of the last question stays open."""
    return PdfFile(path, password, limits)


def page_name(source: str, number: int) -> str:
    return f"{source}, page {number}"


def _explain(source: str, error: Any, password: str | None) -> MediaError:
    code = getattr(error, "err_code", None)
    if code in (PASSWORD, SECURITY):
        cause = "it is encrypted in a way that pdfium does not know"
        if code == PASSWORD:
            needs = "it needs a password (--password, or password=...)"
            cause = needs if password is None else "the password is wrong"
        return EncryptedError(str(refusal(source, cause)))
    if code == FORMAT:
        return refusal(source, "it is damaged, or no PDF: pdfium finds no valid structure")
    if code == SUCCESS:
        return refusal(source, "it is damaged, or has no pages: pdfium finds none")
    return refusal(source, f"pdfium cannot open it ({error})")
