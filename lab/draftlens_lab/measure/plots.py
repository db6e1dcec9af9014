"""Helpers for plots with matplotlib, which is imported only when a figure is created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from draftlens_lab.measure.palette import INK, MUTED, PAPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130


def new_figure(width: float, height: float) -> Figure:
    # Without pyplot, which keeps every figure in memory until it is closed.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)


def new_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with a single plot, and the axes of that plot."""
    figure = new_figure(width, height)
    return figure, figure.subplots()


def whiskers(
    values: Sequence[float], lows: Sequence[float], highs: Sequence[float]
) -> list[list[float]]:
    """Lengths of error bars below and above each value, as ``Axes.errorbar`` expects them."""
    below = [max(0.0, value - low) for value, low in zip(values, lows, strict=True)]
    above = [max(0.0, high - value) for value, high in zip(values, highs, strict=True)]
    return [below, above]


def save_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write each figure as ``NAME.png``.

    Returns:
        The written files, in the order of `figures`.
    """
    files = []
    for name, figure in figures.items():
        for axes in figure.axes:
            _style(axes)
        file = folder / f"{name}.png"
        figure.savefig(file, dpi=DPI)
        files.append(file)
    return files


def _style(axes: Axes) -> None:
    axes.set_facecolor(PAPER)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, labelcolor=INK, length=4)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("bottom", "left"))
        spine.set_color(MUTED)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(MUTED)
    axes.title.set_color(INK)
    axes.title.set_fontweight("bold")
