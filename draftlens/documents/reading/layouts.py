"""Layouts: the regions of a page, by its words or by a small network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from draftlens.core.errors import ConfigError
from draftlens.core.options import Registry, make
from draftlens.documents.reading.geometry import Box, around
from draftlens.documents.reading.page import Page, Piece, Region
from draftlens.documents.reading.readers import (
    READING_DPI,
    absent,
    reading_picture,
    without_reports,
)

LAYOUTS = Registry(
    "layout",
    {
        "rapid-layout": "draftlens.documents.reading.layouts:RapidLayout",
        "blocks": "draftlens.documents.reading.layouts:BlockLayout",
        "page": "draftlens.documents.reading.layouts:WholePage",
    },
    group="draftlens.layouts",
)


class Layout(Protocol):
    """Finds the regions of a page.

    Its class has no required arguments; the fields of a dataclass are its options.
    """

    sees: bool
    """Whether it uses the picture of the page, which can show that a text layer is incomplete."""

    def missing(self) -> str | None:
        """What has to be installed first, as words for the user, or None."""
        ...

    def find(self, page: Page, pieces: Sequence[Piece]) -> list[Region]:
        """The regions of a page, without texts and in any order.

        Args:
            page: any.
            pieces: what a reader has found on it; empty if none has read it yet.

        Raises:
            MediaError: the page cannot be rendered.
            ConfigError: something has to be installed first.
        """
        ...


def make_layout(choice: Any) -> Layout:
    """A layout from its name, from a mapping of its name and options, or from itself.

    Raises:
        ConfigError: the name or an option is unknown, or a value makes no sense.
    """
    layout: Layout = make(LAYOUTS, choice, "find")
    return layout


_TITLE = 1.25
"""A block with lines of this many times the usual height is a title."""

_LONGEST_TITLE = 200
"""Longest title, in characters."""


@dataclass(frozen=True)
class BlockLayout:
    """Blocks of lines, from the reader. Tall ones are titles."""

    sees = False

    def missing(self) -> str | None:
        return None

    def find(self, page: Page, pieces: Sequence[Piece]) -> list[Region]:
        """The whole page if nothing was read on it."""
        if not pieces:
            return WholePage().find(page, pieces)
        blocks: dict[int, list[Piece]] = {}
        for piece in pieces:
            blocks.setdefault(piece.block, []).append(piece)
        usual = median(piece.box.height for piece in pieces)
        return [_region(block, usual, page.box) for block in blocks.values()]


@dataclass(frozen=True)
class WholePage:
    sees = False

    def missing(self) -> str | None:
        return None

    def find(self, page: Page, pieces: Sequence[Piece]) -> list[Region]:
        return [Region(page.box, "text")]


def _region(pieces: Sequence[Piece], usual_height: float, whole: Box) -> Region:
    height = median(piece.box.height for piece in pieces)
    length = sum(len(piece.text) + 1 for piece in pieces)
    is_title = height > _TITLE * usual_height and length <= _LONGEST_TITLE
    box = around(piece.box for piece in pieces).within(whole)
    return Region(box, "title" if is_title else "text")


NEEDS = ("rapid_layout", "onnxruntime", "cv2")
"""Modules that the layout imports; rapid-layout itself does not declare onnxruntime."""

KIND_OF = {
    "text": "text",
    "title": "title",
    "figure": "figure",
    "figure_caption": "caption",
    "table": "table",
    "table_caption": "caption",
    "header": "header",
    "footer": "footer",
    "reference": "text",
    "equation": "formula",
}
"""Kinds of regions by the labels of the packaged model (CDLA)."""

MODEL = "layout_cdla.onnx"
"""The only model inside the package; all others would be downloaded."""

_THREADS = {"intra_op_num_threads": 1, "inter_op_num_threads": 1}

_SAME = 0.8
"""A region is dropped if this share lies in a region of higher confidence."""


@dataclass(frozen=True)
class RapidLayout:
    """Regions by rapid-layout with the model in its package, in one thread.

    Args:
        dpi: of its picture.
        confidence: lowest confidence of a region, from 0 to 1.

    Raises:
        ConfigError: a value is out of range.
    """

    dpi: float = READING_DPI
    confidence: float = 0.4

    sees = True

    def __post_init__(self) -> None:
        if not (self.dpi > 0 and 0 <= self.confidence <= 1):
            raise ConfigError("rapid-layout needs positive dpi, and a confidence from 0 to 1")

    def missing(self) -> str | None:
        needed = absent(NEEDS)
        if needed:
            return f"{needed}: pip install 'draftlens[documents]'"
        if not _model_path().exists():
            return f"its model {MODEL}, which this version does not hold"
        return None

    def find(self, page: Page, pieces: Sequence[Piece]) -> list[Region]:
        needed = self.missing()
        if needed:
            raise ConfigError(f"layout 'rapid-layout' needs {needed}")
        picture = reading_picture(page, self.dpi)
        # It reads files and addresses, too: it is handed nothing but arrays.
        blue_first = np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])
        detections = self._engine(blue_first)
        if detections.boxes is None or detections.class_names is None or detections.scores is None:
            return []
        scale = page.box.width / picture.width
        regions = []
        for edges, label, score in zip(
            detections.boxes, detections.class_names, detections.scores, strict=True
        ):
            box = Box(*map(float, edges)).scaled(scale).within(page.box)
            kind = KIND_OF.get(str(label), "text")
            if box.area:
                regions.append(Region(box, kind, score=float(score)))
        return without_doubles(regions)

    @cached_property
    def _engine(self) -> Any:
        import rapid_layout

        with without_reports():
            return rapid_layout.RapidLayout(
                model_type="pp_layout_cdla",
                model_dir_or_path=str(_model_path()),
                engine_cfg=_THREADS,
                conf_thresh=self.confidence,
            )


def without_doubles(regions: Sequence[Region]) -> list[Region]:
    """Regions without those inside a region of higher confidence."""
    distinct: list[Region] = []
    for region in sorted(regions, key=lambda region: -region.score):
        if all(region.box.share_in(confident.box) < _SAME for confident in distinct):
            distinct.append(region)
    return distinct


def _model_path() -> Path:
    return Path(str(files("rapid_layout") / "models" / MODEL))
