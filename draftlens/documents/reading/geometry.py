"""Boxes on a page, in points from its top left corner."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
