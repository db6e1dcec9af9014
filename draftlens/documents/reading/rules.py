"""Horizontal and vertical lines that are drawn on a PDF page, by pdfium."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from pypdfium2 import raw

from draftlens.documents.reading.characters import turn_of
from draftlens.documents.reading.geometry import Box, around

_FORM_DEPTH = 3
_MOST_PATHS = 5_000
_MOST_SEGMENTS = 2_000
"""Drawn objects of a page, and parts of one, of which drawings have more than tables."""

_THICK = 3.0
_LONG = 8.0
"""Points of the thickest line and of the shortest."""


def read_rules(page: Any, width: float) -> tuple[Box, ...]:
    """The lines of pdfium's page, with its lock held; it is shown `width` points wide."""
    turn = turn_of(page, width)
    boxes = []
    paths = page.get_objects([raw.FPDF_PAGEOBJ_PATH], max_depth=_FORM_DEPTH)
    for number, path in enumerate(paths):
        if number == _MOST_PATHS:
            return ()
        matrix = path.get_matrix()
        for points in _figures(path):
            placed = [matrix.on_point(*point) for point in points]
            corners = around(Box(x, y, x, y) for x, y in placed)
            box = turn.box(corners.left, corners.top, corners.right, corners.bottom)
            short, long = sorted((box.width, box.height))
            if short <= _THICK and long >= _LONG:
                boxes.append(box)
            elif len(points) > _CORNERS:
                boxes += _sides(box)
    return tuple(boxes)


_CORNERS = 3
"""Points of a figure above which it may be a rectangle, whose sides are lines."""


def _sides(box: Box) -> list[Box]:
    return [
        Box(box.left, box.top, box.right, box.top),
        Box(box.left, box.bottom, box.right, box.bottom),
        Box(box.left, box.top, box.left, box.bottom),
        Box(box.right, box.top, box.right, box.bottom),
    ]


def _figures(path: Any) -> Iterator[list[tuple[float, float]]]:
    """The points of the figures of a path, without those that have curves."""
    count = min(raw.FPDFPath_CountSegments(path), _MOST_SEGMENTS)
    points: list[tuple[float, float]] = []
    is_straight = True
    for place in range(count):
        segment = raw.FPDFPath_GetPathSegment(path, place)
        kind = raw.FPDFPathSegment_GetType(segment)
        across, up = ctypes.c_float(), ctypes.c_float()
        raw.FPDFPathSegment_GetPoint(segment, across, up)
        if kind == raw.FPDF_SEGMENT_MOVETO:
            if len(points) > 1 and is_straight:
                yield points
            points, is_straight = [], True
        points.append((across.value, up.value))
        is_straight &= kind != raw.FPDF_SEGMENT_BEZIERTO
    if len(points) > 1 and is_straight:
        yield points
