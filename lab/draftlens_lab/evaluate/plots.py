"""The report of an evaluation as plots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlens_lab.measure.palette import BLUE, INK, SLATE, YELLOW
from draftlens_lab.measure.plots import new_axes, save_figures, whiskers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Figures = Mapping[str, Any]

COLOURS = {"target": BLUE, "draft": YELLOW}
SIZE = (6, 3.8)
CHANCE = "chance: best constant answer"


def evaluation_plots(report: Figures, folder: Path) -> list[Path]:
    """Draw the sections that the report holds.

    Returns:
        The written files: those of `accuracy.png`, `acceptance_by_depth.png`,
        `acceptance_by_gamma.png` and `visual_dependence.png`, as far as measured.
    """
    figures: dict[str, Figure] = {}
    models = report.get("accuracy", {})
    if any("questions" in sections for sections in models.values()):
        figures["accuracy"] = accuracy(models, report["arguments"]["frames"][0])
    agreement = report.get("agreement")
    if agreement and agreement["agreed"]["total"]:
        figures["acceptance_by_depth"] = acceptance_by_depth(agreement)
        figures["acceptance_by_gamma"] = by_gamma(agreement)
    if "visual" in report:
        figures["visual_dependence"] = acceptance_by_pruning(report["visual"])
    return save_figures(figures, folder)


def accuracy(models: Figures, frames: int) -> Figure:
    """Bars of accuracy by family of questions, with marks for blind guessing."""
    families = next(
        sections["questions"] for sections in models.values() if "questions" in sections
    )
    rows = _accuracy_rows(families, frames)
    labels = [row.name for row in rows]
    figure, axes = new_axes(7.5, 1.4 + 0.42 * len(rows))
    height = 0.8 / len(models)
    for number, (role, sections) in enumerate(models.items()):
        offset = (number - (len(models) - 1) / 2) * height
        _draw_bars(axes, role, _shares(rows, sections), offset, height)
    _draw_chance(axes, families, labels)
    axes.set(
        xlim=(-1, 101), ylim=(len(rows) - 0.5, -0.5), xlabel="right, % (whiskers: 95% intervals)"
    )
    axes.set_yticks(range(len(rows)), labels)
    axes.grid(axis="x", alpha=0.3)
    _add_legend(figure, axes)
    return figure


def acceptance_by_depth(agreement: Figures) -> Figure:
    """Probability that a draft token is accepted, by its depth in the chain."""
    depths = []
    shares = []
    for depth, share in agreement["by_depth"].items():
        if share["share"] is not None:
            depths.append(int(depth))
            shares.append(share)
    values, ends = _percentages(shares)
    figure, axes = new_axes(*SIZE)
    axes.errorbar(depths, values, yerr=ends, marker="o", capsize=3, color=BLUE)
    axes.set(
        ylim=(0, 102),
        xlabel="depth d of the draft token",
        ylabel="accepted, % of those whose\npredecessors all were",
    )
    gamma = len(agreement["by_depth"])
    axes.set_title(f"Acceptance by depth, γ = {gamma}, {agreement['clips']} clips", fontsize=11)
    axes.set_xticks([int(depth) for depth in agreement["by_depth"]])
    axes.grid(alpha=0.3)
    return figure


def by_gamma(agreement: Figures) -> Figure:
    """Mean acceptance length by the number of draft tokens in a pass, with its upper bound."""
    gammas = [int(gamma) for gamma in agreement["acceptance_length"]]
    lengths = list(agreement["acceptance_length"].values())
    bounds = [gamma + 1 for gamma in gammas]
    figure, axes = new_axes(*SIZE)
    axes.plot(gammas, bounds, "--", color=SLATE, label="upper bound: γ + 1")
    axes.plot(gammas, lengths, marker="o", color=BLUE, label="this pair")
    axes.axhline(1, color=INK, linewidth=1, label="without a draft: 1")
    axes.set(
        ylim=(0, None),
        xlabel="γ, draft tokens in a pass",
        ylabel="mean acceptance length\n(bonus token included)",
    )
    axes.set_title(f"Acceptance by γ, {agreement['clips']} clips", fontsize=11)
    axes.set_xticks(gammas)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def acceptance_by_pruning(dependence: Figures) -> Figure:
    """Mean acceptance length by the share of visual tokens removed from the draft, as in Figure
    2(b) of SpecVLM."""
    rows = dependence["kept"]
    lengths = [row["acceptance_length"] for row in rows]
    lows = [row["length_interval"][0] for row in rows]
    highs = [row["length_interval"][1] for row in rows]
    removed = [100 * row["removed"] for row in rows]
    gamma = dependence["gamma"]
    figure, axes = new_axes(*SIZE)
    ends = whiskers(lengths, lows, highs)
    axes.errorbar(removed, lengths, yerr=ends, marker="o", capsize=3, color=BLUE)
    axes.axhline(1, color=INK, linewidth=1)
    axes.text(0, 0.92, "without a draft: 1", color=INK, va="top")
    axes.set(
        xlim=(-3, 103),
        ylim=(0, gamma + 1.2),
        xlabel="visual tokens removed from the draft, %",
        ylabel=f"mean acceptance length, γ = {gamma}",
    )
    axes.set_title(f"Random removal, {dependence['clips']} clips, 95% intervals", fontsize=11)
    axes.grid(alpha=0.3)
    return figure


@dataclass(frozen=True)
class _Row:
    """A row of bars.

    Args:
        path: keys of its share in the section of a model.
    """

    name: str
    path: tuple[str, ...]


def _accuracy_rows(families: Iterable[str], frames: int) -> list[_Row]:
    clips = _Row(f"clip captions, {frames} frames: facts", ("captions", str(frames), "facts"))
    pictures = _Row("picture captions: facts", ("pictures", "facts"))
    return [clips, pictures, *(_Row(name, ("questions", name, "right")) for name in families)]


def _shares(rows: Sequence[_Row], sections: Figures) -> Iterator[tuple[int, Figures]]:
    """Index and share of each row that was measured."""
    for index, row in enumerate(rows):
        share: Any = sections
        for key in row.path:
            share = share.get(key, {})
        if share and share["share"] is not None:
            yield index, share


def _draw_bars(
    axes: Axes, role: str, shares: Iterator[tuple[int, Figures]], offset: float, height: float
) -> None:
    """Draw the bars of one model.

    Args:
        shares: index of the row and share of each bar.
    """
    places = []
    bars = []
    for index, share in shares:
        places.append(index + offset)
        bars.append(share)
    if not bars:
        return
    values, ends = _percentages(bars)
    axes.barh(places, values, 0.9 * height, color=COLOURS[role], label=role)
    axes.errorbar(values, places, xerr=ends, fmt="none", ecolor="black", elinewidth=0.8, capsize=2)


def _draw_chance(axes: Axes, families: Figures, labels: Sequence[str]) -> None:
    label: str | None = CHANCE
    for family, figures in families.items():
        chance = figures["chance"]["share"]
        if chance is None:
            continue
        row = labels.index(family)
        places = [row - 0.45, row + 0.45]
        axes.plot([100 * chance] * 2, places, color=INK, linewidth=2, label=label)
        label = None  # one entry in the legend


def _add_legend(figure: Figure, axes: Axes) -> None:
    entries = list(zip(*axes.get_legend_handles_labels(), strict=True))
    entries.sort(key=lambda entry: entry[1] == CHANCE)
    handles, labels = zip(*entries, strict=True)
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)


def _percentages(shares: Sequence[Figures]) -> tuple[list[float], list[list[float]]]:
    """Shares in percent, and the lengths of their whiskers."""
    values = [100 * share["share"] for share in shares]
    lows = [100 * share["low"] for share in shares]
    highs = [100 * share["high"] for share in shares]
    return values, whiskers(values, lows, highs)
