"""Boxes on a page, in points from its top left corner, and the order in which they are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

POINTS_PER_INCH = 72.0
"""A point is 1/72 inch, the unit of PDF."""


@dataclass(frozen=True)
class Box:
    """A rectangle on a page as it is shown, in points from the top left; right >= left, bottom >=
    top.

    Example:

        >>> Box(10, 20, 30, 25).padded(5).width
        30
    """

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def area(self) -> float:
        """Square points; 0 for a box without extent."""
        return max(self.width, 0.0) * max(self.height, 0.0)

    @property
    def middle(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def holds(self, point: tuple[float, float]) -> bool:
        across, down = point
        return self.left <= across <= self.right and self.top <= down <= self.bottom

    def padded(self, margin: float) -> Box:
        return Box(self.left - margin, self.top - margin, self.right + margin, self.bottom + margin)

    def within(self, other: Box) -> Box:
        """The part of the box that lies in another one; without extent if there is none."""
        left = min(max(self.left, other.left), other.right)
        top = min(max(self.top, other.top), other.bottom)
        right = max(min(self.right, other.right), left)
        bottom = max(min(self.bottom, other.bottom), top)
        return Box(left, top, right, bottom)

    def share_in(self, other: Box) -> float:
        """The share of the box that lies in another one, from 0 to 1."""
        if self.area == 0:
            return 0.0
        return self.within(other).area / self.area

    def scaled(self, factor: float) -> Box:
        return Box(self.left * factor, self.top * factor, self.right * factor, self.bottom * factor)

    def to_list(self, digits: int = 2) -> list[float]:
        edges = (self.left, self.top, self.right, self.bottom)
        return [round(edge, digits) for edge in edges]


NOWHERE = Box(0.0, 0.0, 0.0, 0.0)
"""The box of objects on no page."""


def around(boxes: Iterable[Box]) -> Box:
    """The smallest box that holds all of them; raises ValueError if there are none."""
    all_boxes = list(boxes)
    if not all_boxes:
        raise ValueError("there are no boxes")
    return Box(
        min(box.left for box in all_boxes),
        min(box.top for box in all_boxes),
        max(box.right for box in all_boxes),
        max(box.bottom for box in all_boxes),
    )


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
        columns = _by_height(boxes, columns)
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


def _by_height(boxes: Sequence[Box], columns: list[list[int]]) -> list[list[int]]:
    """Columns from top to bottom if they all lie below each other, as a running head at the right
    and a heading at the left do; else as they are."""
    spans = [
        (min(boxes[i].top for i in column), max(boxes[i].bottom for i in column))
        for column in columns
    ]
    order = sorted(range(len(columns)), key=lambda place: spans[place])
    are_apart = all(
        spans[upper][1] <= spans[lower][0] + _OVERLAP for upper, lower in pairwise(order)
    )
    return [columns[place] for place in order] if are_apart else columns


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


def on_grid(box: Box, page: Box, last: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a box as whole numbers from 0 to `last`, the page's edges."""
    edges = (
        box.left / page.width,
        box.top / page.height,
        box.right / page.width,
        box.bottom / page.height,
    )
    left, top, right, bottom = (round(min(max(edge, 0.0), 1.0) * last) for edge in edges)
    return left, top, right, bottom
