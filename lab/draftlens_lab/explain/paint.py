"""Colours, text and cells: the drawing that the contact sheet and the HTML page share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from draftlens_lab.explain.views import Mask, Scores, View
from draftlens_lab.measure import palette

INK = palette.INK
MUTED = palette.MUTED
PAPER = palette.PAPER
FAINT = "#9a9fa8"
LINE = "#dfddd6"
KEPT = palette.YELLOW
"""Colour of the line around kept cells."""
KEPT_IN_HEATMAP = "#ffffff"
"""Colour of the line around kept cells of a heatmap."""
RAMP = ("#0d0b24", "#3a1463", "#7b1f74", "#bd3a68", "#ee6a4c", "#fdae5f", "#fdf0b5")
"""Colours of attention from low to high, evenly spaced in lightness."""
NO_SCORE = "#e6e4de"
"""Colour of cells without a token or without a score."""
NO_PICTURE = "#c3c6cd"
"""Colour of views with cells that have no place in a picture."""
PRUNED_BRIGHTNESS = 0.27
PRUNED_GREY = 0.75
"""Share of the colour that pruned cells lose, 0 to 1."""

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)

Pixels = np.ndarray[Any, np.dtype[np.float32]]
_Box = tuple[int, int, int, int]  # left, top, right and bottom


@dataclass(frozen=True)
class Scale:
    """The colour scale that all views share: logarithmic, relative to the mean of all cells."""

    low: float
    high: float

    @classmethod
    def of(cls, views: Sequence[View]) -> Scale | None:
        """Return the scale from the 1st to the 99th percentile of all cells.

        It spans at least 0.67 to 1.5. The result is None if no score is known.
        """
        scores = np.concatenate([view.scores[np.isfinite(view.scores)] for view in views])
        if not len(scores):
            return None
        low, high = (float(quantile) for quantile in np.quantile(scores, [0.01, 0.99]))
        high = max(high, 1.5)
        low = max(low, high / 1000)
        return cls(min(low, 0.67), high)

    def place(self, scores: Scores) -> Scores:
        """Return positions on the ramp, 0 to 1, in the shape of `scores`; NaN stays NaN."""
        clipped = np.clip(scores, self.low, self.high)
        positions = np.log(clipped / self.low) / np.log(self.high / self.low)
        return np.asarray(positions, np.float32)


def rgb(colour: str) -> Pixels:
    """Return a colour such as `#ffb000` as float32 ``[3]``, 0 to 255."""
    channels = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return np.array(channels, np.float32)


def ramp(positions: Scores) -> Pixels:
    """Return colours float32 ``[..., 3]`` for positions on the ramp, 0 to 1; NO_SCORE for NaN."""
    stops = np.stack([rgb(colour) for colour in RAMP])
    indices = np.arange(len(stops))
    scaled = np.nan_to_num(positions) * (len(stops) - 1)
    channels = [np.interp(scaled, indices, stops[:, channel]) for channel in range(3)]
    is_known = np.isfinite(positions)[..., None]
    return np.where(is_known, np.stack(channels, -1), rgb(NO_SCORE)).astype(np.float32)


@cache
def font(size: int) -> Any:
    """Return the typeface that Pillow contains, in pixels.

    It needs no font on the system. It has ASCII and a few other characters.
    """
    return ImageFont.load_default(size=size)


def drawable(text: str) -> str:
    """Return a text with a question mark for each character that the typeface does not have."""
    return "".join(c if " " <= c <= "~" or c in "·…" else "?" for c in text)


def fit_text(text: str, size: int, width: float) -> str:
    """Return a drawable text, shortened to at most `width` pixels.

    A shortened text ends with an ellipsis; it is empty if not even the ellipsis has room.
    """
    text = drawable(text)
    letters = font(size)
    if letters.getlength(text) <= width:
        return text
    num_fitting = bisect_right(
        range(len(text)), width, key=lambda end: letters.getlength(text[:end] + "…")
    )
    return text[: num_fitting - 1].rstrip() + "…" if num_fitting else ""


def kept_image(view: View, size: tuple[int, int]) -> Image.Image:
    """Draw a picture of `size` (width, height) with its kept cells bright and the others dark."""
    pixels = _picture(view, size)
    grey = (pixels @ _LUMA)[..., None]
    dark = (pixels * (1 - PRUNED_GREY) + grey * PRUNED_GREY) * PRUNED_BRIGHTNESS + 10
    is_kept = _expand(view.kept, size)[..., None]
    return outline(np.where(is_kept, pixels, dark), view.kept)


def heatmap(view: View, size: tuple[int, int], scale: Scale) -> Image.Image:
    """Draw the score of each cell, with an outline around the kept cells.

    Args:
        size: width and height in pixels.
    """
    colours = ramp(scale.place(view.scores))
    return outline(_expand(colours, size), view.kept, KEPT_IN_HEATMAP)


def _picture(view: View, size: tuple[int, int]) -> Pixels:
    """The picture alone in a size (width, height), float32 ``[h, w, 3]``."""
    width, height = size
    if view.image is None:
        return np.broadcast_to(rgb(NO_PICTURE), (height, width, 3)).astype(np.float32)
    resized = view.image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    return np.asarray(resized, np.float32)


def _expand(cells: Any, size: tuple[int, int]) -> Any:
    """Repeat values of cells ``[H, W, ...]`` to the pixels of a picture ``[h, w, ...]``."""
    width, height = size
    rows = np.arange(height) * cells.shape[0] // height
    columns = np.arange(width) * cells.shape[1] // width
    return cells[rows][:, columns]


def outline(pixels: Pixels, kept: Mask, colour: str = KEPT) -> Image.Image:
    """Draw a line along every edge between a kept cell and a pruned one.

    Args:
        pixels: float32 ``[h, w, 3]``, 0 to 255.
        kept: bool ``[H, W]``.
    """
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    rows, columns = kept.shape
    thickness = _line_thickness(min(image.width / columns, image.height / rows))
    lefts = _cell_starts(columns, image.width)
    tops = _cell_starts(rows, image.height)
    for row, column in np.argwhere(kept):
        box = (lefts[column], tops[row], lefts[column + 1] - 1, tops[row + 1] - 1)
        if box[2] < box[0] or box[3] < box[1]:
            continue  # The cell is smaller than a pixel and has none.
        for edge in _edges(kept, row, column):
            draw.rectangle(_strip(box, edge, thickness), fill=colour)
    return image


def _edges(kept: Mask, row: int, column: int) -> list[str]:
    rows, columns = kept.shape
    edges = []
    if column == 0 or not kept[row, column - 1]:
        edges.append("left")
    if column == columns - 1 or not kept[row, column + 1]:
        edges.append("right")
    if row == 0 or not kept[row - 1, column]:
        edges.append("top")
    if row == rows - 1 or not kept[row + 1, column]:
        edges.append("bottom")
    return edges


def _strip(box: _Box, edge: str, thickness: int) -> _Box:
    left, top, right, bottom = box
    if edge == "left":
        return left, top, left + thickness - 1, bottom
    if edge == "right":
        return right - thickness + 1, top, right, bottom
    if edge == "top":
        return left, top, right, top + thickness - 1
    return left, bottom - thickness + 1, right, bottom


def _line_thickness(cell_side: float) -> int:
    if cell_side < 14:
        return 1
    return 2 if cell_side < 60 else 3


def _cell_starts(count: int, length: int) -> list[int]:
    """First pixels of `count` cells on `length` pixels, and the end of the last cell."""
    return [-(-index * length // count) for index in range(count + 1)]
