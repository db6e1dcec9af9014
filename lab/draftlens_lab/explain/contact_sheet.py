"""The contact sheet of a trace as one picture.

It shows every frame with its kept cells, the scores of all cells (the target's attention, unless
the pruner has another one) and the share of cells kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from draftlens_lab.explain import paint
from draftlens_lab.explain.layout import (
    LABEL_HEIGHT,
    MARGIN,
    SEAM,
    WIDTH,
    Layout,
    axis_top,
    fit,
    fit_inside,
)
from draftlens_lab.explain.tracing import Trace
from draftlens_lab.explain.views import Counts, View, mean_share, view_noun

MAX_VIEWS = 64
"""Views on one sheet, at most."""
HEAD_HEIGHT = 190
"""Height of the title above the cards."""
FOOT_HEIGHT = 300
"""Height of the legend and the bars below the cards."""
NOTE_HEIGHT = 24
BAR_HEIGHT = 96
"""Height of the highest bar."""
RAMP_WIDTH = 320
NARROW_ASPECT = 0.2
"""Width / height below which the text above a picture takes the width of the picture's box."""

_RIGHT = WIDTH - MARGIN


def sheet(trace: Trace) -> Image.Image:
    """Draw the contact sheet of a trace: RGB, 1600 pixels wide, as high as its cards need."""
    all_views = trace.visual.views
    views = select_views(all_views)
    scale = paint.Scale.of(all_views)
    layout = fit([view.aspect for view in views], heatmaps=scale is not None)
    notes = footnotes(trace)
    height = HEAD_HEIGHT + layout.height + FOOT_HEIGHT + NOTE_HEIGHT * len(notes)
    image = Image.new("RGB", (WIDTH, height), paint.PAPER)
    draw = ImageDraw.Draw(image)
    _draw_title(draw, trace)
    for index, view in enumerate(views):
        left, top = layout.corner(index)
        _draw_card(image, view, (MARGIN + left, HEAD_HEIGHT + top), layout, scale)
    legend_top = HEAD_HEIGHT + layout.height + 44
    _draw_legend(image, legend_top, has_heatmaps=scale is not None)
    if scale is not None:
        _draw_ramp(image, legend_top, scale, trace.visual.score_name)
    _draw_shares(draw, all_views, legend_top + 76)
    _draw_notes(draw, notes, height)
    return image


def select_views(views: Sequence[View]) -> list[View]:
    """Return at most `MAX_VIEWS` views: all, or evenly spaced ones with the first and the last."""
    if len(views) <= MAX_VIEWS:
        return list(views)
    indices = np.linspace(0, len(views) - 1, MAX_VIEWS).round().astype(int)
    return [views[index] for index in indices]


def footnotes(trace: Trace) -> list[str]:
    num_views = len(trace.visual.views)
    if num_views <= MAX_VIEWS:
        return list(trace.notes)
    note = f"{MAX_VIEWS} of {num_views} views are shown, evenly spaced; the bars include all views."
    return [note, *trace.notes]


def subtitle(trace: Trace) -> str:
    """Return the method and the number of views as a short line."""
    method = trace.method
    views = trace.visual.views
    pruner = method["pruner"]["name"]
    parts = [f"method {method['method']}", f"{method['prune_ratio'] * 100:g}% pruned"]
    if pruner != method["method"]:
        parts.append(f"pruner {pruner}")
    shapes = {view.kept.shape for view in views}
    cells = "cells of several sizes"
    if len(shapes) == 1:
        rows, columns = shapes.pop()
        cells = f"{rows} x {columns} cells"
    plural = "s" if len(views) > 1 else ""
    parts.append(f"{len(views)} {view_noun(views)}{plural} of {cells}")
    return " · ".join(parts)


def _write(
    draw: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    colour: str,
    letters: Any,
    anchor: str = "ls",
) -> None:
    draw.text(place, text, colour, letters, anchor)


def _draw_title(draw: ImageDraw.ImageDraw, trace: Trace) -> None:
    large = paint.font(44)
    small = paint.font(21)
    counts = trace.visual.counts
    figure = f"{counts.kept:,} of {counts.total:,}"
    caption = "visual tokens kept for the draft"
    room = _RIGHT - MARGIN - 40 - max(large.getlength(figure), small.getlength(caption))
    _write(draw, (MARGIN, 96), paint.fit_text(trace.title, 44, room), paint.INK, large)
    _write(draw, (MARGIN, 134), paint.fit_text(subtitle(trace), 21, room), paint.MUTED, small)
    _write(draw, (_RIGHT, 96), figure, paint.INK, large, "rs")
    _write(draw, (_RIGHT, 134), caption, paint.MUTED, small, "rs")


def _draw_card(
    image: Image.Image,
    view: View,
    corner: tuple[int, int],
    layout: Layout,
    scale: paint.Scale | None,
) -> None:
    left, top = corner
    size = fit_inside(view.aspect, layout.size)
    text_width = layout.size[0] if view.aspect < NARROW_ASPECT else size[0]
    points = 14 if layout.size[0] < 110 else 17
    _draw_label(ImageDraw.Draw(image), view, corner, text_width, points)
    picture_top = top + LABEL_HEIGHT
    image.paste(paint.kept_image(view, size), (left, picture_top))
    if scale is None:
        return
    place = (left, picture_top + size[1] + SEAM)
    if layout.beside:
        place = (left + layout.size[0] + SEAM, picture_top)
    image.paste(paint.heatmap(view, size, scale), place)


def _draw_label(
    draw: ImageDraw.ImageDraw, view: View, corner: tuple[int, int], width: int, points: int
) -> None:
    left, top = corner
    letters = paint.font(points)
    name = view.when or view.name
    room = width - letters.getlength(paint.drawable(name)) - 6
    count = _count_text(view.counts, letters, room)
    name = paint.fit_text(name, points, width - letters.getlength(count) - 6)
    baseline = top + LABEL_HEIGHT - 9
    colour = paint.MUTED if view.counts.kept else paint.FAINT
    _write(draw, (left, baseline), name, paint.INK, letters)
    _write(draw, (left + width, baseline), count, colour, letters, "rs")


def _count_text(counts: Counts, letters: Any, room: float) -> str:
    text = f"{counts.kept} of {counts.total}"
    return text if letters.getlength(text) <= room else str(counts.kept)


def _draw_legend(image: Image.Image, top: int, has_heatmaps: bool) -> None:
    draw = ImageDraw.Draw(image)
    letters = paint.font(17)
    draw.line((MARGIN, top - 22, _RIGHT, top - 22), paint.LINE)
    bright = paint.rgb(paint.NO_PICTURE)
    dark = bright * paint.PRUNED_BRIGHTNESS + 10
    left = MARGIN
    swatches = [("kept", bright, True, paint.KEPT), ("pruned", dark, False, paint.KEPT)]
    if has_heatmaps:
        middle = paint.ramp(np.full((), 0.5, np.float32))
        swatches.append(("kept, in the heatmap", middle, True, paint.KEPT_IN_HEATMAP))
    for name, colour, is_kept, line in swatches:
        cells = np.full((1, 1), is_kept)
        if line == paint.KEPT_IN_HEATMAP:  # between other cells, since the paper is white, too
            cells = np.array([[False] * 4, [False, True, True, False], [False] * 4])
        swatch = np.broadcast_to(colour, (22, 22, 3))
        image.paste(paint.outline(swatch, cells, line), (left, top))
        _write(draw, (left + 32, top + 17), name, paint.MUTED, letters)
        left += 32 + int(letters.getlength(name)) + 36


def _draw_ramp(image: Image.Image, top: int, scale: paint.Scale, caption: str) -> None:
    draw = ImageDraw.Draw(image)
    small = paint.font(15)
    left = _RIGHT - RAMP_WIDTH
    image.paste(_ramp_image(), (left, top + 3))
    _write(draw, (left - 18, top + 17), caption, paint.MUTED, paint.font(17), "rs")
    _write(draw, (left, top + 38), f"{scale.low:.2g}x", paint.FAINT, small)
    _write(draw, (_RIGHT, top + 38), f"{scale.high:.2g}x", paint.FAINT, small, "rs")
    mean = left + round(float(scale.place(np.ones(1, np.float32))[0]) * RAMP_WIDTH)
    draw.line((mean, top + 3, mean, top + 22), "#ffffff", 1)
    if left + 50 < mean - 36 and mean + 36 < _RIGHT - 40:
        _write(draw, (mean, top + 38), "mean cell", paint.FAINT, small, "ms")


def _ramp_image() -> Image.Image:
    positions = np.linspace(0, 1, RAMP_WIDTH, dtype=np.float32)[None].repeat(16, 0)
    return Image.fromarray(paint.ramp(positions).round().astype(np.uint8))


def _draw_shares(draw: ImageDraw.ImageDraw, views: Sequence[View], top: int) -> None:
    """Draw a bar for the share of cells kept in each view, and a dashed line at the mean."""
    shares = [view.share for view in views]
    mean = mean_share(views)
    _write(draw, (MARGIN, top + 15), _shares_title(views), paint.MUTED, paint.font(17))
    scale = BAR_HEIGHT / axis_top(shares)
    floor = top + 40 + BAR_HEIGHT
    pitch = min((_RIGHT - MARGIN + 6) / len(views), 184.0)
    width = max(1.0, pitch - (6 if pitch > 14 else 1))
    lefts = [MARGIN + index * pitch for index in range(len(views))]
    for left, share in zip(lefts, shares, strict=True):
        _draw_bar(draw, (left, floor), width, share * scale)
    _draw_dashes(draw, MARGIN, lefts[-1] + width, floor - mean * scale)
    if width < 36:
        return
    for left, share in zip(lefts, shares, strict=True):
        _draw_share(draw, (left + width / 2, floor - share * scale - 7), share)


def _shares_title(views: Sequence[View]) -> str:
    title = f"share of cells kept in each {view_noun(views)}"
    if len(views) == 1:
        return title
    return f"{title}, {mean_share(views) * 100:.1f}% on average"


def _draw_bar(
    draw: ImageDraw.ImageDraw, corner: tuple[float, float], width: float, height: float
) -> None:
    """Draw a bar on a short line, which also shows where a bar of height 0 is."""
    left, floor = corner
    right = left + width - 1
    draw.rectangle((left, floor - 1, right, floor), paint.LINE)
    if height:
        draw.rectangle((left, floor - height, right, floor), paint.KEPT)


def _draw_share(draw: ImageDraw.ImageDraw, place: tuple[float, float], share: float) -> None:
    """Draw a share in percent over a patch of paper that hides the dashed line."""
    letters = paint.font(15)
    text = f"{share * 100:.0f}%"
    left, top, right, bottom = draw.textbbox(place, text, letters, "ms")
    draw.rectangle((left - 4, top - 3, right + 4, bottom + 2), paint.PAPER)
    _write(draw, place, text, paint.MUTED, letters, "ms")


def _draw_dashes(draw: ImageDraw.ImageDraw, left: float, right: float, height: float) -> None:
    for start in range(round(left), round(right), 9):
        draw.line((start, height, min(start + 4, right), height), paint.INK, 1)


def _draw_notes(draw: ImageDraw.ImageDraw, notes: Sequence[str], sheet_height: int) -> None:
    last_baseline = sheet_height - 40
    for index, note in enumerate(reversed(notes)):
        text = paint.fit_text(note, 15, WIDTH - 2 * MARGIN)
        baseline = last_baseline - NOTE_HEIGHT * index
        _write(draw, (MARGIN, baseline), text, paint.FAINT, paint.font(15))
