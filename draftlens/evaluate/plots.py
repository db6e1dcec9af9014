"""The report as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Figures = Mapping[str, Any]
COLOURS = {"target": "#3b7dbd", "draft": "#e0a458"}
RED = "#b3202c"


def plot(report: Figures, folder: Path) -> list[Path]:
    """Draw what the report holds.

    Returns:
        The pictures written: `accuracy.png`, `acceptance_by_depth.png`, `acceptance_by_gamma.png`,
        `visual_dependence.png`, or those of them that were measured.
    """
    drawn: dict[str, Figure] = {}
    if any("questions" in figures for figures in report.get("accuracy", {}).values()):
        drawn["accuracy"] = accuracy(report["accuracy"], report["arguments"]["frames"][0])
    if report.get("agreement", {}).get("agreed", {}).get("total"):
        drawn["acceptance_by_depth"] = by_depth(report["agreement"])
        drawn["acceptance_by_gamma"] = by_gamma(report["agreement"])
    if "visual" in report:
        drawn["visual_dependence"] = visual(report["visual"])
    files = []
    for name, figure in drawn.items():
        files.append(folder / f"{name}.png")
        figure.savefig(files[-1], dpi=130)
    return files


def accuracy(models: Figures, frames: int) -> Figure:
    """Bars of what is right by family, with what blind guessing gets marked."""
    rows = [f"clip captions, {frames} frames: facts", "picture captions: facts"]
    rows += list(next(of["questions"] for of in models.values() if "questions" in of))
    figure, axes = _canvas(7.5, 1.4 + 0.42 * len(rows))
    height = 0.8 / len(models)
    for number, (who, figures) in enumerate(models.items()):
        for index, name in enumerate(rows):
            if share := _share(figures, index, name, frames):
                at = index + (number - (len(models) - 1) / 2) * height
                axes.barh(
                    at,
                    100 * share["share"],
                    0.9 * height,
                    color=COLOURS[who],
                    label=who if index == 0 else None,
                )
                ends = [
                    [100 * (share["share"] - share["low"])],
                    [100 * (share["high"] - share["share"])],
                ]
                axes.errorbar(
                    100 * share["share"], at, xerr=ends, color="black", linewidth=0.8, capsize=2
                )
    families = next(of["questions"] for of in models.values() if "questions" in of)
    for index, name in enumerate(rows[2:], start=2):
        if (chance := families[name]["chance"]["share"]) is not None:
            label = "chance: best constant answer" if index == 2 else None
            axes.plot(
                [100 * chance] * 2,
                [index - 0.45, index + 0.45],
                color=RED,
                linewidth=2,
                label=label,
            )
    axes.set(
        xlim=(-1, 101), ylim=(len(rows) - 0.5, -0.5), xlabel="right, % (whiskers: 95% intervals)"
    )
    axes.set_yticks(range(len(rows)), rows)
    axes.grid(axis="x", alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda index: labels[index].startswith("chance"))
    named = [handles[index] for index in order], [labels[index] for index in order]
    figure.legend(*named, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _share(figures: Figures, index: int, name: str, frames: int) -> Figures | None:
    """The share that a row of `accuracy` shows, None where there is none."""
    if index == 0:
        share = figures.get("captions", {}).get(str(frames), {}).get("facts")
    elif index == 1:
        share = figures.get("pictures", {}).get("facts")
    else:
        share = figures.get("questions", {}).get(name, {}).get("right")
    return share if share and share["share"] is not None else None


def by_depth(agreement: Figures) -> Figure:
    """How likely a guess is to stand, by its place in the chain."""
    shares = [
        (int(depth), s) for depth, s in agreement["by_depth"].items() if s["share"] is not None
    ]
    figure, axes = _canvas(6, 3.8)
    values = [100 * s["share"] for _, s in shares]
    ends = [
        [100 * (s["share"] - s["low"]) for _, s in shares],
        [100 * (s["high"] - s["share"]) for _, s in shares],
    ]
    axes.errorbar(
        [depth for depth, _ in shares],
        values,
        yerr=ends,
        marker="o",
        capsize=3,
        color=COLOURS["target"],
    )
    axes.set(
        ylim=(0, 102),
        xlabel="depth d of the guess",
        ylabel="accepted, % of those whose\nforerunners all were",
    )
    axes.set_title(
        f"Acceptance by depth, γ = {len(agreement['by_depth'])}, {agreement['clips']} clips",
        fontsize=11,
    )
    axes.set_xticks([int(depth) for depth in agreement["by_depth"]])
    axes.grid(alpha=0.3)
    return figure


def by_gamma(agreement: Figures) -> Figure:
    """Mean acceptance length by guesses a pass, below the most that is possible."""
    lengths = {int(gamma): length for gamma, length in agreement["acceptance_length"].items()}
    figure, axes = _canvas(6, 3.8)
    axes.plot(
        list(lengths), [gamma + 1 for gamma in lengths], "--", color="grey", label="the most: γ + 1"
    )
    axes.plot(
        list(lengths),
        list(lengths.values()),
        marker="o",
        color=COLOURS["target"],
        label="this pair",
    )
    axes.axhline(1, color=RED, linewidth=1, label="without a draft: 1")
    axes.set(
        ylim=(0, None),
        xlabel="γ, guesses in a pass",
        ylabel="mean acceptance length\n(bonus token included)",
    )
    axes.set_title(f"Acceptance by γ, {agreement['clips']} clips", fontsize=11)
    axes.set_xticks(list(lengths))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def visual(dependence: Figures) -> Figure:
    """Mean acceptance length by share of visual tokens removed from the draft, as in Figure 2(b) of
    SpecVLM."""
    rows = dependence["kept"]
    figure, axes = _canvas(6, 3.8)
    lengths = [row["acceptance_length"] for row in rows]
    ends = [
        [max(0.0, row["acceptance_length"] - row["length_interval"][0]) for row in rows],
        [max(0.0, row["length_interval"][1] - row["acceptance_length"]) for row in rows],
    ]
    removed = [100 * row["removed"] for row in rows]
    axes.errorbar(removed, lengths, yerr=ends, marker="o", capsize=3, color=COLOURS["target"])
    axes.axhline(1, color=RED, linewidth=1)
    axes.text(0, 0.92, "without a draft: 1", color=RED, va="top")
    gamma = dependence["gamma"]
    axes.set(xlim=(-3, 103), ylim=(0, gamma + 1.2))
    axes.set(
        xlabel="visual tokens removed from the draft, %",
        ylabel=f"mean acceptance length, γ = {gamma}",
    )
    axes.set_title(f"Random removal, {dependence['clips']} clips, 95% intervals", fontsize=11)
    axes.grid(alpha=0.3)
    return figure


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import (
        Figure,  # takes a second to import; without pyplot, which keeps figures for ever
    )

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()
