"""Readers of printed text: the text layer of a PDF, or optical character recognition."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from math import sqrt
from typing import Any, Protocol

import numpy as np
from PIL import Image

from draftlens.core.errors import ConfigError
from draftlens.core.options import Registry, make
from draftlens.documents.reading.blocks import with_blocks
from draftlens.documents.reading.geometry import POINTS_PER_INCH, Box, reading_order
from draftlens.documents.reading.page import Page, Piece, Reading

TEXT_LAYER = "text-layer"
TESSERACT = "tesseract"
RAPIDOCR = "rapidocr"

READERS = Registry(
    "reader",
    {
        TEXT_LAYER: "draftlens.documents.reading.readers:TextLayerReader",
        TESSERACT: "draftlens.documents.reading.tesseract:TesseractReader",
        RAPIDOCR: "draftlens.documents.reading.readers:RapidOcrReader",
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


@contextmanager
def without_reports() -> Iterator[None]:
    """Suppress log messages below errors inside the block."""
    previous = logging.root.manager.disable
    logging.disable(max(previous, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(previous)


@cache
def absent(modules: tuple[str, ...]) -> str | None:
    """The first module that cannot be imported, with the reason, or None. A present module may lack
    a system library, as OpenCV on machines without a display."""
    for name in modules:
        try:
            import_module(name)
        except (ImportError, OSError) as error:
            return f"{name} ({error})"
    return None


_MOST_UNREADABLE = 0.1
"""Share of unreadable characters above which the text layer is not trusted."""


@dataclass(frozen=True)
class TextLayerReader:
    """The text layer of a PDF page, read in some milliseconds. Pictures have none."""

    def missing(self) -> str | None:
        return None

    def read(self, page: Page) -> Reading:
        layer = page.text_layer()
        if layer is None:
            return Reading(TEXT_LAYER, (), "the file is a picture")
        if not layer.num_characters:
            return Reading(TEXT_LAYER, (), "the page has no characters")
        fault = None
        share = layer.num_unreadable / layer.num_characters
        if share > _MOST_UNREADABLE:
            fault = f"{share:.0%} of its characters stand for nothing that is printed"
        return Reading(TEXT_LAYER, layer.pieces, fault)


NEEDS = ("rapidocr", "onnxruntime", "cv2")
"""Modules that the reader imports; rapidocr itself does not declare onnxruntime."""

_THREADS = "EngineConfig.onnxruntime.intra_op_num_threads"
_INTER_THREADS = "EngineConfig.onnxruntime.inter_op_num_threads"


@dataclass(frozen=True)
class RapidOcrReader:
    """RapidOCR with the models in its package, loaded with the first page, in one thread. Raises
    ConfigError unless `dpi` is positive."""

    dpi: float = READING_DPI

    def __post_init__(self) -> None:
        if not self.dpi > 0:
            raise ConfigError("the dpi of rapidocr must be positive")

    def missing(self) -> str | None:
        needed = absent(NEEDS)
        return f"{needed}: pip install 'draftlens[ocr]'" if needed else None

    def read(self, page: Page) -> Reading:
        needed = self.missing()
        if needed:
            raise ConfigError(f"reader 'rapidocr' needs {needed}")
        picture = reading_picture(page, self.dpi)
        # It reads files and addresses, too: it is handed nothing but arrays.
        blue_first = np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])
        output = self._engine(blue_first)
        if output.boxes is None or output.txts is None:
            return Reading(RAPIDOCR, ())
        scale = page.box.width / picture.width
        return Reading(
            RAPIDOCR, tuple(lines_of_rapidocr(output.boxes, output.txts, output.scores, scale))
        )

    @cached_property
    def _engine(self) -> Any:
        from rapidocr import RapidOCR

        with without_reports():
            return RapidOCR(params={_THREADS: 1, _INTER_THREADS: 1, "Global.log_level": "error"})


def lines_of_rapidocr(
    corners: Any, texts: Sequence[str], scores: Sequence[float], scale: float
) -> list[Piece]:
    """Printed lines in reading order, from four corners of each in pixels, ``[N, 4, 2]``; `scale`
    is points per pixel."""
    boxes = []
    for points in np.asarray(corners, dtype=float):
        left, top = points.min(0)
        right, bottom = points.max(0)
        boxes.append(Box(left, top, right, bottom).scaled(scale))
    order = reading_order(boxes)
    lines = [
        Piece(texts[index], boxes[index], line, 0, float(scores[index]))
        for line, index in enumerate(order)
    ]
    return with_blocks(lines)
