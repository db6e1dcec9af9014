"""How many columns a contact sheet has, and where everything on it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

WIDTH = 1600
"""Pixels from edge to edge."""
MARGIN = 72
GAP = 22
"""Between cards."""
SEAM = 5
"""Between a picture and its heatmap."""
LABEL = 30
"""Height of the line above a picture."""
ROOM = WIDTH - 2 * MARGIN
"""For cards, from the left to the right."""
TALLEST = 2400
"""Of all cards together, at most: whoever scrolls further has lost the legend."""
LEAST = 8
"""Pixels of a picture's box, each way."""


@dataclass(frozen=True)
class Layout:
    """A grid of cards, each a line of text, a picture and its heatmap.

    Args:
        columns, rows: of cards.
        beside: whether the heatmap stands to the right of its picture; below it otherwise.
        size: width and height of each picture's box.
        gap: pixels between cards.
    """

    columns: int
    rows: int
    beside: bool
    size: tuple[int, int]
    gap: int

    @property
    def card(self) -> tuple[int, int]:
        """Width and height of a card, its line included."""
        width, height = self.size
        if self.beside:
            return 2 * width + SEAM, height + LABEL
        return width, 2 * height + SEAM + LABEL

    @property
    def width(self) -> int:
        """Of all cards and the gaps between them."""
        return self.columns * self.card[0] + (self.columns - 1) * self.gap

    @property
    def height(self) -> int:
        """Of all cards and the gaps between them."""
        return self.rows * self.card[1] + (self.rows - 1) * self.gap

    def corner(self, index: int) -> tuple[int, int]:
        """Where a card begins, from the top left of the grid."""
        row, column = divmod(index, self.columns)
        return column * (self.card[0] + self.gap), row * (self.card[1] + self.gap)


def fit(aspects: Sequence[float], heatmaps: bool = True) -> Layout:
    """The layout whose height comes nearest to that of a slide, with few empty places in its last
    row.

    Where even that is very high, its pictures are made smaller.

    Args:
        aspects: width / height of each picture.
        heatmaps: whether there are any.
    """
    count, aspect = len(aspects), median(aspects)
    wanted = 620 + min(8 * count, 520)

    def cost(layout: Layout) -> float:
        empty = layout.columns * layout.rows - count
        return abs(layout.height - wanted) / wanted + 1.5 * empty / count

    tried = [
        _layout(count, columns, beside, aspect)
        for columns in range(1, count + 1)
        for beside in (True, False)
    ]
    fitting = (
        layout for layout in tried if layout.width <= ROOM and (heatmaps or not layout.beside)
    )
    return _bounded(min(fitting, key=cost), aspect)


def _layout(count: int, columns: int, beside: bool, aspect: float) -> Layout:
    gap = GAP if columns <= 8 else 12
    card = (ROOM - (columns - 1) * gap) / columns
    width = max(LEAST, int((card - SEAM) / 2 if beside else card))
    return Layout(
        columns, -(-count // columns), beside, (width, max(LEAST, round(width / aspect))), gap
    )


def _bounded(layout: Layout, aspect: float) -> Layout:
    """The same with smaller pictures, if it is higher than `TALLEST`."""
    excess = layout.height - TALLEST
    if excess <= 0:
        return layout
    stacked = layout.rows * (1 if layout.beside else 2)
    height = max(LEAST, layout.size[1] - ceil(excess / stacked))
    return replace(layout, size=(max(LEAST, round(height * aspect)), height))
