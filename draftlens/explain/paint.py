"""Colours, letters and cells: what both the sheet and the page are made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from draftlens.explain.views import Mask, Scores, View

INK, MUTED, FAINT, LINE, PAPER = "#15171c", "#636873", "#9a9fa8", "#dfddd6", "#faf9f6"
KEPT = "#ffb000"
"""Around what the draft saw."""
RAMP = ("#0d0b24", "#3a1463", "#7b1f74", "#bd3a68", "#ee6a4c", "#fdae5f", "#fdf0b5")
"""Attention from low to high, of evenly rising lightness."""
NOTHING = "#e6e4de"
"""Where no token stands or no score is known."""
BLANK = "#c3c6cd"
"""In place of a picture whose cells have no known place."""
DARK, GREY = 0.27, 0.75
"""Brightness of what the draft did not see, and how much of its colour is taken."""

Pixels = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Scale:
    """One colour scale for all views: logarithmic, in units of the mean cell's attention.

    Args:
        low, high: what the ends of the ramp stand for; beyond them colours do not change.
    """

    low: float
    high: float

    @classmethod
    def of(cls, views: Sequence[View]) -> Scale | None:
        """From the 1st to the 99th percentile of all cells, at least from 0.67 to 1.5; None if no
        score is known."""
        scores = np.concatenate([view.scores[np.isfinite(view.scores)] for view in views])
        if not len(scores):
            return None
        low, high = (float(q) for q in np.quantile(scores, [0.01, 0.99]))
        high = max(high, 1.5)
        return cls(min(max(low, high / 1000), 0.67), high)

    def place(self, scores: Scores) -> Scores:
        """Places on the ramp, 0 to 1; NaN stays."""
        inside = np.clip(scores, self.low, self.high)
        return np.asarray(np.log(inside / self.low) / np.log(self.high / self.low), np.float32)


def rgb(colour: str) -> Pixels:
    """float32 ``[3]``, 0 to 255."""
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], np.float32)


def ramp(places: Scores) -> Pixels:
    """Colours float32 ``[..., 3]`` of places on the ramp, 0 to 1; NOTHING for NaN."""
    stops = np.stack([rgb(colour) for colour in RAMP])
    at = np.nan_to_num(places) * (len(stops) - 1)
    channels = [np.interp(at, np.arange(len(stops)), stops[:, channel]) for channel in range(3)]
    return np.where(np.isfinite(places)[..., None], np.stack(channels, -1), rgb(NOTHING)).astype(
        np.float32
    )


@cache
def font(size: int) -> Any:
    """Pillow's own typeface, so that no system needs to have one; it knows ASCII and a little
    more."""
    return ImageFont.load_default(size=size)


def plain(text: str) -> str:
    """What of a text the typeface can show, a question mark for each other character."""
    return "".join(c if " " <= c <= "~" or c in "·…" else "?" for c in text)


def fitting(text: str, size: int, width: float) -> str:
    """The text, its end cut off where it is wider than `width` pixels; nothing where not even dots
    have room."""
    text = plain(text)
    if font(size).getlength(text) <= width:
        return text
    fits = bisect_right(
        range(len(text)), width, key=lambda end: font(size).getlength(text[:end] + "…")
    )
    return text[: fits - 1].rstrip() + "…" if fits else ""


def under(view: View, size: tuple[int, int]) -> Pixels:
    """The picture alone, float32 ``[h, w, 3]``."""
    if view.image is None:
        return np.broadcast_to(rgb(BLANK), (size[1], size[0], 3)).astype(np.float32)
    smooth = Image.Resampling.LANCZOS
    return np.asarray(view.image.convert("RGB").resize(size, smooth), np.float32)


def spread(cells: Any, size: tuple[int, int]) -> Any:
    """Values of cells ``[H, W, ...]`` at each of a picture's pixels ``[h, w, ...]``."""
    rows = np.arange(size[1]) * cells.shape[0] // size[1]
    columns = np.arange(size[0]) * cells.shape[1] // size[0]
    return cells[rows][:, columns]


def lit(view: View, size: tuple[int, int]) -> Image.Image:
    """The picture with the kept cells as they are and all others dark."""
    pixels = under(view, size)
    grey = pixels @ np.array([0.299, 0.587, 0.114], np.float32)
    dim = (pixels * (1 - GREY) + grey[..., None] * GREY) * DARK + 10
    return outlined(np.where(spread(view.kept, size)[..., None], pixels, dim), view.kept)


def heat(view: View, size: tuple[int, int], scale: Scale) -> Image.Image:
    """The target's attention to each cell, the kept ones outlined."""
    return outlined(spread(ramp(scale.place(view.scores)), size), view.kept, "#ffffff")


def outlined(pixels: Pixels, kept: Mask, colour: str = KEPT) -> Image.Image:
    """A line along every edge between kept cells and others."""
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    draw, (rows, columns) = ImageDraw.Draw(image), kept.shape
    cell = min(image.width / columns, image.height / rows)
    thick = 1 if cell < 14 else 2 if cell < 60 else 3
    xs = [-(-column * image.width // columns) for column in range(columns + 1)]
    ys = [-(-row * image.height // rows) for row in range(rows + 1)]
    for row, column in np.argwhere(kept):
        left, top, right, bottom = xs[column], ys[row], xs[column + 1] - 1, ys[row + 1] - 1
        if right < left or bottom < top:
            continue  # cells smaller than a pixel: this one has none
        sides = (
            (row, column - 1, (left, top, left + thick - 1, bottom)),
            (row, column + 1, (right - thick + 1, top, right, bottom)),
            (row - 1, column, (left, top, right, top + thick - 1)),
            (row + 1, column, (left, bottom - thick + 1, right, bottom)),
        )
        for beside, along, box in sides:
            outside = not (0 <= beside < rows and 0 <= along < columns)
            if outside or not kept[beside, along]:
                draw.rectangle(box, fill=colour)
    return image
