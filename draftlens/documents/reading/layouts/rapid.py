"""rapid-layout: regions by a small network, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from draftlens.core.errors import ConfigError
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.libraries import absent, without_reports
from draftlens.documents.reading.page import Page
from draftlens.documents.reading.readers.base import READING_DPI, reading_picture
from draftlens.documents.reading.values import Piece, Region

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
