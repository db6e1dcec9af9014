"""The contact sheet: every frame with what the draft saw of it, where the target looked, and how
much was kept."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from PIL import Image, ImageDraw

from draftlens.explain import paint
from draftlens.explain.layout import LABEL, MARGIN, SEAM, WIDTH, Layout, fit
from draftlens.explain.trace import Trace
from draftlens.explain.views import View

MOST = 64
"""Views on one sheet."""
HEAD, FOOT = 190, 300
"""Heights of the title and of what stands below the cards."""
BARS = 96
"""Height of the tallest bar."""
NARROW = 0.2
"""Width / height of a picture that is too narrow for its line of text, which then takes the width
of the box."""


def sheet(trace: Trace) -> Image.Image:
    """Draw it: RGB, 1600 pixels wide, as high as its cards need."""
    views, shown = trace.shown.views, chosen(trace.shown.views)
    scale = paint.Scale.of(views)
    layout = fit([view.aspect for view in shown], scale is not None)
    notes = notes_of(trace)
    image = Image.new("RGB", (WIDTH, HEAD + layout.height + FOOT + 24 * len(notes)), paint.PAPER)
    draw = ImageDraw.Draw(image)
    _title(draw, trace)
    for index, view in enumerate(shown):
        left, top = layout.corner(index)
        _card(image, draw, view, (MARGIN + left, HEAD + top), layout, scale)
    top = HEAD + layout.height + 44
    _legend(image, draw, top, scale)
    _strip(draw, views, top + 76)
    for number, note in enumerate(notes):
        text = paint.fitting(note, 15, WIDTH - 2 * MARGIN)
        draw.text(
            (MARGIN, image.height - 40 - 24 * (len(notes) - number - 1)),
            text,
            paint.FAINT,
            paint.font(15),
            "ls",
        )
    return image


def chosen(views: Sequence[View]) -> list[View]:
    """The views that have room: all, or evenly spaced ones, the first and the last among them."""
    if len(views) <= MOST:
        return list(views)
    return [views[index] for index in np.linspace(0, len(views) - 1, MOST).round().astype(int)]


def notes_of(trace: Trace) -> list[str]:
    """Small print."""
    total = len(trace.shown.views)
    left_out = (
        [f"{MOST} of {total} views are shown, evenly spaced; the bars count all."]
        if total > MOST
        else []
    )
    return [*left_out, *trace.notes]


def _title(draw: ImageDraw.ImageDraw, trace: Trace) -> None:
    kept, total = trace.shown.counts
    figure, right = f"{kept:,} of {total:,}", WIDTH - MARGIN
    room = right - MARGIN - 40 - max(paint.font(44).getlength(figure), 260)
    draw.text((MARGIN, 96), paint.fitting(trace.title, 44, room), paint.INK, paint.font(44), "ls")
    draw.text(
        (MARGIN, 134), paint.fitting(subtitle(trace), 21, room), paint.MUTED, paint.font(21), "ls"
    )
    draw.text((right, 96), figure, paint.INK, paint.font(44), "rs")
    draw.text((right, 134), "visual tokens seen by the draft", paint.MUTED, paint.font(21), "rs")


def subtitle(trace: Trace) -> str:
    """The method in a few words."""
    method, views = trace.method, trace.shown.views
    kind = "frames" if views[0].when else "views"
    words = [f"method {method.name}", f"{method.prune_ratio * 100:g} % pruned"]
    words += [] if method.pruner == method.name else [f"pruner {method.pruner}"]
    grid = {view.kept.shape for view in views}
    cells = "{} x {} cells".format(*grid.pop()) if len(grid) == 1 else "cells of several sizes"
    return " · ".join([*words, f"{len(views)} {kind if len(views) > 1 else kind[:-1]} of {cells}"])


def _card(
    image: Image.Image,
    draw: ImageDraw.ImageDraw,
    view: View,
    corner: tuple[int, int],
    layout: Layout,
    scale: paint.Scale | None,
) -> None:
    left, top = corner
    size = inside(view.aspect, layout.size)
    wide = layout.size[0] if view.aspect < NARROW else size[0]
    points, (kept, total) = 14 if layout.size[0] < 110 else 17, view.counts
    letters, name = paint.font(points), view.when or view.name
    room = wide - letters.getlength(paint.plain(name)) - 6
    count = next(
        (text for text in (f"{kept} of {total}", f"{kept}") if letters.getlength(text) <= room),
        f"{kept}",
    )
    name = paint.fitting(name, points, wide - letters.getlength(count) - 6)
    draw.text((left, top + LABEL - 9), name, paint.INK, letters, "ls")
    draw.text(
        (left + wide, top + LABEL - 9), count, paint.MUTED if kept else paint.FAINT, letters, "rs"
    )
    image.paste(paint.lit(view, size), (left, top + LABEL))
    if scale is not None:
        aside = (left + layout.size[0] + SEAM, top + LABEL)
        below = (left, top + LABEL + size[1] + SEAM)
        image.paste(paint.heat(view, size, scale), aside if layout.beside else below)


def inside(aspect: float, box: tuple[int, int]) -> tuple[int, int]:
    """Width and height of the largest picture of this aspect in a box."""
    width, height = box
    if aspect >= width / height:
        return width, max(1, round(width / aspect))
    return max(1, round(height * aspect)), height


def _legend(
    image: Image.Image, draw: ImageDraw.ImageDraw, top: int, scale: paint.Scale | None
) -> None:
    letters, right = paint.font(17), WIDTH - MARGIN
    draw.line((MARGIN, top - 22, right, top - 22), paint.LINE)
    tone, left = paint.rgb(paint.BLANK), MARGIN
    for name, kept in (("seen by the draft", True), ("left out", False)):
        swatch = np.broadcast_to(tone if kept else tone * paint.DARK + 10, (22, 22, 3))
        image.paste(paint.outlined(swatch, np.full((1, 1), kept)), (left, top))
        draw.text((left + 32, top + 17), name, paint.MUTED, letters, "ls")
        left += 32 + int(letters.getlength(name)) + 36
    if scale is None:
        return
    width = 320
    places = np.linspace(0, 1, width, dtype=np.float32)[None].repeat(16, 0)
    start = right - width
    image.paste(Image.fromarray(paint.ramp(places).round().astype(np.uint8)), (start, top + 3))
    draw.text((start - 18, top + 17), "attention of the target", paint.MUTED, letters, "rs")
    low, high = (f"{end:.2g}x" for end in (scale.low, scale.high))
    middle = start + round(float(scale.place(np.ones(1, np.float32))[0]) * width)
    draw.text((start, top + 38), low, paint.FAINT, paint.font(15), "ls")
    draw.text((right, top + 38), high, paint.FAINT, paint.font(15), "rs")
    draw.line((middle, top + 3, middle, top + 22), "#ffffff", 1)
    if start + 50 < middle - 36 and middle + 36 < right - 40:
        draw.text((middle, top + 38), "mean cell", paint.FAINT, paint.font(15), "ms")


def _strip(draw: ImageDraw.ImageDraw, views: Sequence[View], top: int) -> None:
    """A bar for the share that each view kept, and a line for the mean."""
    letters, right = paint.font(15), WIDTH - MARGIN
    name = "frame" if views[0].when else "view"
    floor, high = top + 40 + BARS, top_of([view.share for view in views])
    mean = sum(view.counts[0] for view in views) / max(1, sum(view.counts[1] for view in views))
    title = f"share kept of each {name}" + (
        f", {mean * 100:.1f} % on average" if len(views) > 1 else ""
    )
    draw.text((MARGIN, top + 15), title, paint.MUTED, paint.font(17), "ls")
    pitch = min((right - MARGIN + 6) / len(views), 184.0)
    thick = max(1.0, pitch - (6 if pitch > 14 else 1))
    _bars(draw, [view.share / high for view in views], floor, pitch, thick)
    _dashes(draw, MARGIN, MARGIN + (len(views) - 1) * pitch + thick, floor - mean / high * BARS)
    for index, view in enumerate(views if thick >= 36 else ()):
        # On a patch of paper, so that the line of the mean does not cross the figure.
        place = MARGIN + index * pitch + thick / 2, floor - view.share / high * BARS - 7
        left, upper, beyond, lower = draw.textbbox(
            place, f"{view.share * 100:.0f} %", letters, "ms"
        )
        draw.rectangle((left - 4, upper - 3, beyond + 4, lower + 2), paint.PAPER)
        draw.text(place, f"{view.share * 100:.0f} %", paint.MUTED, letters, "ms")


def _bars(
    draw: ImageDraw.ImageDraw, heights: Sequence[float], floor: float, pitch: float, thick: float
) -> None:
    """Bars of heights 0 to 1 on a line that also shows those of nothing."""
    for index, height in enumerate(heights):
        left = MARGIN + index * pitch
        draw.rectangle((left, floor - 1, left + thick - 1, floor), paint.LINE)
        if height:
            draw.rectangle((left, floor - height * BARS, left + thick - 1, floor), paint.KEPT)


def top_of(shares: Sequence[float]) -> float:
    """Where the axis of shares ends: the largest share, at least 1 %, rounded up to 5 % if it is
    above that."""
    most = max(shares)
    return max(0.01, most) if most < 0.05 else min(1.0, ceil(most * 20 - 1e-9) / 20)


def _dashes(draw: ImageDraw.ImageDraw, left: float, right: float, height: float) -> None:
    for start in range(round(left), round(right), 9):
        draw.line((start, height, min(start + 4, right), height), paint.INK, 1)
