"""Pipelines: from a page to its regions with their texts, from which drafts are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Protocol

from draftlens.core.errors import ConfigError, MediaError
from draftlens.documents.reading.assign import (
    ordered,
    regions_of_blocks,
    with_tables,
    with_texts,
    with_whole_lines,
    without_captions_inside,
    words_outside,
)
from draftlens.documents.reading.headings import Headings
from draftlens.documents.reading.layouts import Layout, make_layout
from draftlens.documents.reading.page import Page, PageFacts, Reading, Region
from draftlens.documents.reading.readers import (
    RAPIDOCR,
    READERS,
    TESSERACT,
    TEXT_LAYER,
    Reader,
    make_reader,
)
from draftlens.documents.reading.structure import prepared, structured
from draftlens.documents.reading.trust import collapsed, fault_of
from draftlens.media.limits import refusal

Phase = Callable[[str], AbstractContextManager[None]]
"""Measures a phase: `render`, `layout` or `read`; see `core.stats.Clock.phase`."""

AUTO = "auto"
NONE = "none"

OCR_BY_PREFERENCE = (TESSERACT, RAPIDOCR)
"""Readers of pictures, the faster one first."""

_NO_OCR = "no OCR engine is installed: apt install tesseract-ocr, or pip install 'draftlens[ocr]'"

_LAYOUT_BY_PREFERENCE = ("rapid-layout", "blocks")


def untimed(phase: str) -> AbstractContextManager[None]:
    return nullcontext()


class LayoutPipeline(Protocol):
    """Reads pages. With a target its texts are drafts and change no answer; without one they are
    the answer."""

    def read(self, page: Page, phase: Phase = untimed) -> Sequence[Region]:
        """The regions of a page with their texts, in reading order.

        Args:
            page: any.
            phase: measures the phases `layout` and `read`; optional for a pipeline.

        Raises:
            DraftlensError: the page cannot be read.
        """
        ...


class StandardPipeline:
    """A layout and one or several readers.

    Args:
        readers: `"auto"`, or names or objects of readers. `"auto"` takes the text layer of a page
            unless it is not trusted, and then the first installed reader of pictures.
        layout: `"auto"` for the best that is installed, or a name or an object.
        alone: whether the texts are the answer rather than drafts. A page without a trusted text
            layer that no reader of pictures can read is then an error.
        ocr: the reader of pictures of `"auto"`; None for the first one that is installed.

    Attributes:
        reads_pictures: whether `"auto"` may use a reader of pictures.

    Raises:
        ConfigError: a name is unknown, or something has to be installed first.
    """

    def __init__(
        self, readers: Any = AUTO, layout: Any = AUTO, alone: bool = False, ocr: Any = None
    ) -> None:
        self._alone = alone
        self._automatic = isinstance(readers, str) and readers == AUTO
        self._readers: list[Reader] = []
        self._named_ocr = None if ocr is None else _installed_reader(ocr)
        if self._automatic:
            self._readers = [make_reader(TEXT_LAYER)]
        elif not (isinstance(readers, str) and readers == NONE):
            self._readers = [_installed_reader(choice) for choice in _several(readers)]
        self.reads_pictures = True
        self._layout = _installed_layout(layout)
        self._distrusted: set[str] = set()
        self._source = ""
        self._headings = Headings()

    @cached_property
    def _ocr(self) -> Reader | None:
        """The reader of pictures, which most files do not need and which is slow to import."""
        return self._named_ocr or installed_ocr()

    def read(self, page: Page, phase: Phase = untimed) -> list[Region]:
        regions: list[Region] = []
        if self._layout.sees:
            with phase("layout"):
                regions = self._layout.find(page, ())
        with phase("read"):
            readings = self._readings(page, regions)
        pieces = readings[0].pieces if readings else ()
        if not regions:
            with phase("layout"):
                regions = self._layout.find(page, pieces)
        if readings and self._layout.sees:
            regions = with_whole_lines(regions, readings[0])
        facts = PageFacts()
        if readings and self._alone:
            facts = page.facts()
            regions = prepared(regions, readings[0], facts, page.box)
        if readings:
            regions = without_captions_inside(regions, readings[0])
            regions = with_tables(regions, readings[0], self._layout.sees)
            regions = [*regions, *regions_of_blocks(words_outside(readings[0], regions), page.box)]
        if not (readings and self._alone):
            return with_texts(ordered(regions), readings)
        if self._source != page.source:
            self._source, self._headings = page.source, Headings()
        parts = structured(ordered(regions), readings[0], facts, self._headings)
        return with_texts(parts, readings[1:])

    def _readings(self, page: Page, regions: Sequence[Region]) -> list[Reading]:
        """The readings, the most trusted first, without empty ones."""
        if self._automatic:
            readings = self._automatic_readings(page, regions)
        else:
            readings = [reader.read(page) for reader in self._readers]
            faults = [reading.fault for reading in readings if not reading.pieces]
            if self._alone and len(faults) == len(readings) and all(faults):
                raise refusal(f"{page.source}, page {page.number}", str(faults[0]))
        return [reading for reading in readings if reading.pieces]

    def _automatic_readings(self, page: Page, regions: Sequence[Region]) -> list[Reading]:
        stated = self._readers[0].read(page)
        fault = fault_of(stated, regions, page.box)
        if fault is None and page.source not in self._distrusted:
            return [stated]
        if self._alone:
            return [self._recognized(page, stated, fault)]
        if self._ocr is None or not self.reads_pictures:
            return [stated]
        try:
            return [self._ocr.read(page), stated]
        except MediaError:
            return [stated]

    def _recognized(self, page: Page, stated: Reading, fault: str | None) -> Reading:
        """The reading of a page, if its text layer cannot be the answer."""
        if self._ocr is not None:
            return self._ocr.read(page)
        cause = f"{fault}, and {_NO_OCR}"
        if stated.pieces:
            cause += "; the drafter text-layer takes the text layer as it is"
        raise refusal(f"{page.source}, page {page.number}", cause)

    def observe(self, source: str, used_share: float, num_tokens: int) -> None:
        """Stop using a file's text layer for `"auto"` after an answer of `num_tokens` tokens if
        only `used_share` of them came from drafts (`trust.collapsed`)."""
        if not self._automatic or not collapsed(used_share, num_tokens):
            return
        if source in self._distrusted:
            # Reading the pictures has not helped either: it is not paid for again.
            self.reads_pictures = False
        self._distrusted.add(source)


def installed_ocr() -> Reader | None:
    """The first reader of pictures that is installed, or None."""
    for name in OCR_BY_PREFERENCE:
        reader = make_reader(name)
        if reader.missing() is None:
            return reader
    return None


def parse_readers(text: str) -> str | tuple[str, ...]:
    """Readers from text such as `auto`, `none` or `text-layer,tesseract`; raises ConfigError for an
    unknown name."""
    if text in (AUTO, NONE):
        return text
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in READERS:
            choices = ", ".join([AUTO, NONE, *READERS])
            raise ConfigError(f"unknown reader {name!r}; known: {choices}")
    return names


def _several(readers: Any) -> Sequence[Any]:
    if isinstance(readers, str | Mapping) or not isinstance(readers, Sequence):
        return [readers]
    if not readers:
        raise ConfigError("name at least one reader, or 'none'")
    return readers


def _installed_reader(choice: Any) -> Reader:
    reader = make_reader(choice)
    needed = reader.missing()
    if needed:
        name = choice["name"] if isinstance(choice, Mapping) else choice
        raise ConfigError(f"reader {name!r} needs {needed}")
    return reader


def _installed_layout(choice: Any) -> Layout:
    if choice != AUTO:
        layout = make_layout(choice)
        needed = layout.missing()
        if needed:
            raise ConfigError(f"layout {choice!r} needs {needed}")
        return layout
    for name in _LAYOUT_BY_PREFERENCE:
        layout = make_layout(name)
        if layout.missing() is None:
            return layout
    return make_layout("page")
