"""The grid of a contact sheet: its number of columns and the place of each card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

WIDTH = 1600
"""Width of the sheet in pixels."""
MARGIN = 72
"""Pixels to the left and right of the cards."""
ROOM = WIDTH - 2 * MARGIN
"""Width of all cards of a row and the gaps between them, at most."""
GAP = 22
"""Pixels between two cards."""
NARROW_GAP = 12
"""Pixels between two cards where there are more than 8 columns."""
SEAM = 5
"""Pixels between a picture and its heatmap."""
LABEL_HEIGHT = 30
"""Height of the line of text above a picture."""
MAX_HEIGHT = 2400
"""Height of all cards together, at most: on a higher sheet the legend is out of sight."""
MIN_SIDE = 8
"""Width and height of a picture's box, at least."""


@dataclass(frozen=True)
class Layout:
    """A grid of cards, each with a line of text, a picture and its heatmap.

    Args:
        beside: whether the heatmap is to the right of its picture; otherwise it is below.
        gap: pixels between cards.
    """

    columns: int
    rows: int
    beside: bool
    size: tuple[int, int]
    gap: int

    @property
    def card(self) -> tuple[int, int]:
        """Width and height of a card, its line of text included."""
        width, height = self.size
        if self.beside:
            return 2 * width + SEAM, height + LABEL_HEIGHT
        return width, 2 * height + SEAM + LABEL_HEIGHT

    @property
    def width(self) -> int:
        """Width of all columns and the gaps between them."""
        return self.columns * self.card[0] + (self.columns - 1) * self.gap

    @property
    def height(self) -> int:
        """Height of all rows and the gaps between them."""
        return self.rows * self.card[1] + (self.rows - 1) * self.gap

    def corner(self, index: int) -> tuple[int, int]:
        """Left and top of a card, from the top left corner of the grid."""
        row, column = divmod(index, self.columns)
        return column * (self.card[0] + self.gap), row * (self.card[1] + self.gap)


def fit(aspects: Sequence[float], heatmaps: bool = True) -> Layout:
    """Return the layout with the height nearest to that of a slide and a well-filled last row.

    If the cards would be higher than `MAX_HEIGHT`, the pictures are made smaller.
    """
    count = len(aspects)
    aspect = median(aspects)
    ideal_height = 620 + min(8 * count, 520)

    def cost(layout: Layout) -> float:
        empty = layout.columns * layout.rows - count
        return abs(layout.height - ideal_height) / ideal_height + 1.5 * empty / count

    candidates = []
    for columns in range(1, count + 1):
        if heatmaps:
            candidates.append(_layout(count, columns, True, aspect))
        candidates.append(_layout(count, columns, False, aspect))
    fitting = [layout for layout in candidates if layout.width <= ROOM]
    return _limit_height(min(fitting, key=cost), aspect)


def fit_inside(aspect: float, box: tuple[int, int]) -> tuple[int, int]:
    """Return width and height of the largest picture of an aspect inside a box."""
    width, height = box
    if aspect >= width / height:
        return width, max(1, round(width / aspect))
    return max(1, round(height * aspect)), height


def axis_top(shares: Sequence[float]) -> float:
    """Return the upper end of an axis of shares.

    It is the largest share, at least 1%; above 5% it is rounded up to a multiple of 5%.
    """
    largest = max(shares)
    if largest < 0.05:
        return max(0.01, largest)
    return min(1.0, ceil(largest * 20) / 20)


def _layout(count: int, columns: int, beside: bool, aspect: float) -> Layout:
    gap = GAP if columns <= 8 else NARROW_GAP
    rows = -(-count // columns)
    card_width = (ROOM - (columns - 1) * gap) / columns
    if beside:
        card_width = (card_width - SEAM) / 2
    width = max(MIN_SIDE, int(card_width))
    height = max(MIN_SIDE, round(width / aspect))
    return Layout(columns, rows, beside, (width, height), gap)


def _limit_height(layout: Layout, aspect: float) -> Layout:
    excess = layout.height - MAX_HEIGHT
    if excess <= 0:
        return layout
    pictures_per_column = layout.rows * (1 if layout.beside else 2)
    height = max(MIN_SIDE, layout.size[1] - ceil(excess / pictures_per_column))
    width = max(MIN_SIDE, round(height * aspect))
    return replace(layout, size=(width, height))
