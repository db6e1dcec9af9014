"""How many columns a contact sheet has, and where everything on it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    def height(self) -> int:
        """Of all cards and the gaps between them."""
        return self.rows * self.card[1] + (self.rows - 1) * self.gap

    def corner(self, index: int) -> tuple[int, int]:
        """Where a card begins, from the top left of the grid."""
        row, column = divmod(index, self.columns)
        return column * (self.card[0] + self.gap), row * (self.card[1] + self.gap)


def fit(aspects: Sequence[float], heatmaps: bool = True) -> Layout:
    """The layout whose height comes nearest to that of a slide, with few empty places in its last row.

    Args:
        aspects: width / height of each picture.
        heatmaps: whether there are any.
    """
    count, aspect = len(aspects), median(aspects)
    wanted = 620 + min(8 * count, 520)

    def cost(layout: Layout) -> float:
        empty = layout.columns * layout.rows - count
        return abs(layout.height - wanted) / wanted + 1.5 * empty / count

    tried = [_layout(count, columns, beside, aspect) for columns in range(1, count + 1) for beside in (True, False)]
    return min((layout for layout in tried if heatmaps or not layout.beside), key=cost)


def _layout(count: int, columns: int, beside: bool, aspect: float) -> Layout:
    gap = GAP if columns <= 8 else 12
    card = (WIDTH - 2 * MARGIN - (columns - 1) * gap) / columns
    width = max(8, int((card - SEAM) / 2 if beside else card))
    return Layout(columns, -(-count // columns), beside, (width, max(8, round(width / aspect))), gap)
