"""The order of reading: columns from left to right, each from top to bottom."""

from __future__ import annotations

from collections.abc import Sequence

from draftlens.documents.reading.geometry import Box

_OVERLAP = 2.0
"""Points by which neighbouring boxes may overlap and still count as apart."""


def reading_order(boxes: Sequence[Box]) -> list[int]:
    """Indices of boxes in the order in which they are read.

    The page is cut between columns where a vertical line meets no box, and into bands where a
    horizontal line meets none. Neighbouring bands that have a column gap in common are read as
    columns together, so that paragraphs that begin at the same height are not read across.

    Example:

        >>> left, right, title = Box(0, 30, 40, 90), Box(50, 30, 90, 90), Box(0, 0, 90, 20)
        >>> reading_order([right, left, title])
        [2, 1, 0]
    """
    return _order(boxes, list(range(len(boxes))))


def _order(boxes: Sequence[Box], indices: list[int]) -> list[int]:
    if len(indices) < 2:
        return indices
    columns = _cut(indices, [(boxes[i].left, boxes[i].right) for i in indices])
    if len(columns) > 1:
        return [index for column in columns for index in _order(boxes, column)]
    bands = _cut(indices, [(boxes[i].top, boxes[i].bottom) for i in indices])
    if len(bands) == 1:
        return sorted(indices, key=lambda index: (boxes[index].top, boxes[index].left))
    ordered: list[int] = []
    first = 0
    while first < len(bands):
        count = _bands_with_columns(boxes, bands[first:])
        group = [index for band in bands[first : first + count] for index in band]
        ordered += _order(boxes, group)
        first += count
    return ordered


def _bands_with_columns(boxes: Sequence[Box], bands: Sequence[list[int]]) -> int:
    """How many of the first bands have a column gap in common; 1 if there is none."""
    for count in range(len(bands), 1, -1):
        group = [index for band in bands[:count] for index in band]
        if len(_cut(group, [(boxes[i].left, boxes[i].right) for i in group])) > 1:
            return count
    return 1


def _cut(indices: Sequence[int], spans: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Indices in groups between which no span reaches, in ascending order of the spans."""
    order = sorted(range(len(indices)), key=lambda place: spans[place])
    groups: list[list[int]] = []
    end = float("-inf")
    for place in order:
        start, stop = spans[place]
        if groups and start < end - _OVERLAP:
            groups[-1].append(indices[place])
        else:
            groups.append([indices[place]])
        end = max(end, stop)
    return groups
