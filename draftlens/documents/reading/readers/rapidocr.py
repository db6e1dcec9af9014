"""RapidOCR: detection and recognition by small networks, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from draftlens.core.errors import ConfigError
from draftlens.documents.reading.blocks import with_blocks
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.libraries import absent, without_reports
from draftlens.documents.reading.order import reading_order
from draftlens.documents.reading.page import Page
from draftlens.documents.reading.readers.base import READING_DPI, reading_picture
from draftlens.documents.reading.values import Piece, Reading

SOURCE = "rapidocr"
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
            return Reading(SOURCE, ())
        scale = page.box.width / picture.width
        return Reading(
            SOURCE, tuple(lines_of_rapidocr(output.boxes, output.txts, output.scores, scale))
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
