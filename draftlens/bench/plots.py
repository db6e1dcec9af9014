"""Figures as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlens.bench.report import swept, swept_fields
from draftlens.bench.summary import PHASE_ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Figures = Mapping[str, Any]
COLOURS = ("#3b7dbd", "#e0a458", "#4f9d69", "#7d5ba6", "#56b4c4", "#c76d9e", "#8a8a8a")
RED = "#b3202c"
PHASE_COLOURS = {
    "frames": "#c9c9c9",
    "vision": "#9cc3e6",
    "target_prefill": "#3b7dbd",
    "prune": RED,
    "draft_prefill": "#f0cf9b",
    "draft": "#e0a458",
    "verify": "#1f4e79",
    "rollback": "#7d5ba6",
    "other": "#6f6f6f",
}
MARKERS = "os^Dv<>P"
LINES = ("-", "--", ":", "-.")


def plot(summary: Figures, folder: Path) -> list[Path]:
    """Draw what was measured.

    Returns:
        The pictures written: `speedup.png`, `breakdown.png`, `acceptance_by_FIELD.png` for each
            field that was swept
        over numbers, and `draft_step_by_context.png` where a draft read prompts of quite different
        lengths.
    """
    drawn: dict[str, Figure] = {}
    groups = {name: of for name, of in summary["groups"].items() if of["methods"]}
    if groups:
        drawn["speedup"] = speedup(summary, groups)
        drawn["breakdown"] = breakdown(summary, groups)
    for field in swept_fields(summary):
        lines = [line for group in groups for line in swept(summary, group, field).values()]
        if lines and all(isinstance(value, int | float) for line in lines for value, _ in line):
            drawn[f"acceptance_by_{field}"] = acceptance(summary, groups, field)
    lengths = [of["prompt_tokens"]["median"] for of in groups.values()]
    drafts = any(row["draft_step"] for of in groups.values() for row in of["methods"].values())
    if drafts and max(lengths) >= 1.5 * min(lengths):
        drawn["draft_step_by_context"] = draft_steps(summary, groups)
    files = []
    for name, figure in drawn.items():
        files.append(folder / f"{name}.png")
        figure.savefig(files[-1], dpi=130)
    return files


def speedup(summary: Figures, groups: Figures) -> Figure:
    """Bars of speed in multiples of the reference's, with quartiles; a panel for each group, no
    variants."""
    names = _bases(summary, groups)
    figure, panels = _panels(len(groups), 1.1 + 0.5 * len(names), share_x=True)
    kinds = {"speedup_e2e": "end to end", "speedup_decode": "decoding only"}
    for axes, (group, found) in zip(panels, groups.items(), strict=True):
        for number, (key, label) in enumerate(kinds.items()):
            rows = [
                (i, found["methods"][n][key]) for i, n in enumerate(names) if n in found["methods"]
            ]
            rows = [(i, value) for i, value in rows if value is not None]
            at = [i + 0.4 * (number - 0.5) for i, _ in rows]
            axes.barh(at, [v["median"] for _, v in rows], 0.36, color=COLOURS[number], label=label)
            ends = [
                [v["median"] - v["q1"] for _, v in rows],
                [v["q3"] - v["median"] for _, v in rows],
            ]
            axes.errorbar(
                [v["median"] for _, v in rows],
                at,
                xerr=ends,
                fmt="none",
                ecolor="black",
                capsize=2,
                lw=0.8,
            )
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set(title=group, ylim=(len(names) - 0.5, -0.5))
        axes.set_yticks(range(len(names)), names)
        axes.grid(axis="x", alpha=0.3)
    panels[-1].set_xlabel("speed, in multiples of hf-generate's (whiskers: quartiles)")
    _legend(figure, panels[0])
    return figure


def breakdown(summary: Figures, groups: Figures) -> Figure:
    """Bars of time by phase; a panel for each group, no variants."""
    names = _bases(summary, groups)
    figure, panels = _panels(len(groups), 1.5 + 0.42 * len(names))
    for axes, (group, found) in zip(panels, groups.items(), strict=True):
        left = [0.0] * len(names)
        for phase, label in PHASE_ROWS.items():
            phases = [found["methods"][n]["phases"] if n in found["methods"] else {} for n in names]
            widths = [1000 * max(0.0, of.get(phase) or 0.0) for of in phases]
            axes.barh(
                range(len(names)), widths, 0.7, left=left, color=PHASE_COLOURS[phase], label=label
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.set(title=group, ylim=(len(names) - 0.5, -0.5))
        axes.set_yticks(range(len(names)), names)
        axes.grid(axis="x", alpha=0.3)
    panels[-1].set_xlabel("milliseconds of a call, medians")
    _legend(figure, panels[0], 3)
    return figure


def acceptance(summary: Figures, groups: Figures, field: str) -> Figure:
    """Mean acceptance length by a method's field; for the prune ratio, the axes of SpecVLM's Figure
    6."""
    figure, axes = _canvas()
    lines = {group: swept(summary, group, field) for group in groups}
    bases = list(dict.fromkeys(base for of in lines.values() for base in of))
    for number, (group, of) in enumerate(lines.items()):
        for base, points in of.items():
            lengths = [(value, row["mean_acceptance_length"]) for value, row in points]
            shown = [(value, length) for value, length in lengths if length is not None]
            label = base if len(groups) == 1 else f"{base}; {group}"
            if shown:
                axes.plot(
                    *zip(*shown, strict=True), label=label, **_style(bases.index(base), number)
                )
    axes.axhline(1, color=RED, linewidth=1, label="without a draft: 1")
    axes.set(
        ylim=(0, None),
        xlabel=field.replace("_", " "),
        ylabel="mean acceptance length\n(bonus token included)",
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def draft_steps(summary: Figures, groups: Figures) -> Figure:
    """Milliseconds of a draft forward by length of the prompt, with quartiles: the axes of
    SpecVLM's Figure 2(a)."""
    figure, axes = _canvas()
    names = dict.fromkeys(name for of in groups.values() for name in of["methods"])
    number = 0
    for name in (name for name in names if _on_context_plot(summary, name)):
        rows = [of["methods"][name] for of in groups.values() if name in of["methods"]]
        rows = sorted(
            (r for r in rows if r["draft_step"]), key=lambda r: r["prompt_tokens"]["median"]
        )
        if not rows:
            continue
        steps = [row["draft_step"] for row in rows]
        middles = [1000 * s["median"] for s in steps]
        ends = [
            [1000 * (s["median"] - s["q1"]) for s in steps],
            [1000 * (s["q3"] - s["median"]) for s in steps],
        ]
        at = [row["prompt_tokens"]["median"] for row in rows]
        axes.errorbar(at, middles, yerr=ends, capsize=3, label=name, **_style(number, number))
        number += 1
    axes.set(ylim=(0, None), xlabel="prompt tokens, before pruning", ylabel="one draft forward, ms")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _on_context_plot(summary: Figures, name: str) -> bool:
    """Methods as they were named, and beside them only the variant that prunes nothing."""
    of = summary["variants"].get(name)
    return of is None or (of["field"] == "prune_ratio" and of["value"] == 0)


def _bases(summary: Figures, groups: Figures) -> list[str]:
    names = dict.fromkeys(name for of in groups.values() for name in of["methods"])
    return [name for name in names if name not in summary["variants"]]


def _style(colour: int, kind: int) -> dict[str, Any]:
    """Lines that lie on each other can still be told apart."""
    shape = {
        "marker": MARKERS[kind % len(MARKERS)],
        "linestyle": LINES[kind % len(LINES)],
        "markersize": 5,
    }
    return {"color": COLOURS[colour % len(COLOURS)], "linewidth": 1.5, "alpha": 0.85, **shape}


def _canvas() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4), layout="constrained")
    return figure, figure.subplots()


def _panels(count: int, height: float, share_x: bool = False) -> tuple[Figure, list[Axes]]:
    """Panels one below the other, with room for a legend above them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, height * count + 0.6), layout="constrained")
    return figure, list(figure.subplots(count, 1, squeeze=False, sharex=share_x)[:, 0])


def _legend(figure: Figure, axes: Axes, columns: int = 2) -> None:
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside upper center", ncols=columns, frameon=False
    )
