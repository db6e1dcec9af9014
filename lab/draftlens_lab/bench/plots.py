"""The summary of a run as plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlens_lab.bench.report import Point, swept, swept_fields
from draftlens_lab.bench.summary import PHASE_ROWS
from draftlens_lab.measure.palette import INK, PHASES, SERIES
from draftlens_lab.measure.plots import new_axes, new_figure, save_figures, whiskers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Figures = Mapping[str, Any]

MARKERS = "os^Dv<>P"
LINES = ("-", "--", ":", "-.")
WIDTH = 7.5

SPEEDUPS = {"speedup_e2e": "end to end", "speedup_decode": "decoding only"}

CONTEXT_RATIO = 1.5
"""The draft's step is drawn by context if prompt lengths differ by at least this factor."""


def bench_plots(summary: Figures, folder: Path) -> list[Path]:
    """Draw the figures of a run.

    Returns:
        The written files: `speedup.png`, `breakdown.png`, `acceptance_by_FIELD.png` for each field
        that was swept over numbers, and `draft_step_by_context.png` if a draft was measured with
        prompts of clearly different lengths.
    """
    groups = {name: group for name, group in summary["groups"].items() if group["methods"]}
    figures: dict[str, Figure] = {}
    if groups:
        figures["speedup"] = speedup(summary, groups)
        figures["breakdown"] = breakdown(summary, groups)
    for field in swept_fields(summary):
        if _is_numeric_sweep(summary, groups, field):
            figures[f"acceptance_by_{field}"] = acceptance(summary, groups, field)
    if _has_contexts(groups):
        figures["draft_step_by_context"] = draft_steps(summary, groups)
    return save_figures(figures, folder)


def speedup(summary: Figures, groups: Figures) -> Figure:
    """Bars of speedups against the reference, with quartiles; a panel for each group, without
    variants."""
    names = _bases(summary, groups)
    figure, panels = _panels(groups, 1.1 + 0.5 * len(names), share_x=True)
    for group, axes in panels.items():
        for number, key in enumerate(SPEEDUPS):
            _draw_speedups(axes, names, groups[group]["methods"], key, number)
        axes.axvline(1, color="black", linewidth=0.8)
        _label_rows(axes, group, names)
    listed = list(panels.values())
    listed[-1].set_xlabel("speed, in multiples of hf-generate's (whiskers: quartiles)")
    _add_legend_above(figure, listed[0], columns=2)
    return figure


def breakdown(summary: Figures, groups: Figures) -> Figure:
    """Bars of time by phase; a panel for each group, without variants."""
    names = _bases(summary, groups)
    figure, panels = _panels(groups, 1.5 + 0.42 * len(names))
    for group, axes in panels.items():
        methods = groups[group]["methods"]
        starts = [0.0] * len(names)
        for phase, label in PHASE_ROWS.items():
            widths = [_phase_milliseconds(methods.get(name), phase) for name in names]
            if not any(widths):
                continue
            axes.barh(range(len(names)), widths, 0.7, left=starts, color=PHASES[phase], label=label)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        _label_rows(axes, group, names)
    listed = list(panels.values())
    listed[-1].set_xlabel("milliseconds of a call, medians")
    _add_legend_above(figure, listed[0], columns=3)
    return figure


def acceptance(summary: Figures, groups: Figures, field: str) -> Figure:
    """Mean acceptance length by a method's field; for the prune ratio these are the axes of
    SpecVLM's Figure 6."""
    lines = {group: swept(summary, group, field) for group in groups}
    bases = list(dict.fromkeys(base for by_base in lines.values() for base in by_base))
    figure, axes = new_axes(WIDTH, 4)
    for number, (group, by_base) in enumerate(lines.items()):
        for base, points in by_base.items():
            values, lengths = _acceptance_lengths(points)
            if values:
                label = base if len(groups) == 1 else f"{base}; {group}"
                style = _line_style(bases.index(base), number)
                axes.plot(values, lengths, label=label, **style)
    axes.axhline(1, color=INK, linewidth=1, label="without a draft: 1")
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
    figure, axes = new_axes(WIDTH, 4)
    lines = {name: _rows_by_context(groups, name) for name in _names(groups)}
    plotted = [name for name, rows in lines.items() if rows and _is_on_context_plot(summary, name)]
    for number, name in enumerate(plotted):
        lengths = [row["prompt_tokens"]["median"] for row in lines[name]]
        steps = [_scaled(row["draft_step"], 1000) for row in lines[name]]
        axes.errorbar(
            lengths,
            [step["median"] for step in steps],
            yerr=_quartile_whiskers(steps),
            capsize=3,
            label=name,
            **_line_style(number, number),
        )
    axes.set(ylim=(0, None), xlabel="prompt tokens, before pruning", ylabel="one draft forward, ms")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _draw_speedups(
    axes: Axes, names: Sequence[str], methods: Figures, key: str, number: int
) -> None:
    """Draw the bars of one of SPEEDUPS.

    Args:
        number: place of the bars in their rows, 0 or 1.
    """
    places = []
    values = []
    for index, name in enumerate(names):
        row = methods.get(name)
        if row is not None and row[key] is not None:
            places.append(index + 0.4 * (number - 0.5))
            values.append(row[key])
    medians = [value["median"] for value in values]
    axes.barh(places, medians, 0.36, color=SERIES[number], label=SPEEDUPS[key])
    ends = _quartile_whiskers(values)
    axes.errorbar(medians, places, xerr=ends, fmt="none", ecolor="black", capsize=2, lw=0.8)


def _is_numeric_sweep(summary: Figures, groups: Figures, field: str) -> bool:
    lines = [line for group in groups for line in swept(summary, group, field).values()]
    values = [value for line in lines for value, _ in line]
    return bool(values) and all(isinstance(value, int | float) for value in values)


def _has_contexts(groups: Figures) -> bool:
    rows = [row for group in groups.values() for row in group["methods"].values()]
    if not any(row["draft_step"] for row in rows):
        return False
    lengths = [group["prompt_tokens"]["median"] for group in groups.values()]
    return bool(max(lengths) >= CONTEXT_RATIO * min(lengths))


def _acceptance_lengths(points: Sequence[Point]) -> tuple[list[Any], list[float]]:
    values = []
    lengths = []
    for value, row in points:
        if row["mean_acceptance_length"] is not None:
            values.append(value)
            lengths.append(row["mean_acceptance_length"])
    return values, lengths


def _rows_by_context(groups: Figures, name: str) -> list[Figures]:
    rows = [group["methods"][name] for group in groups.values() if name in group["methods"]]
    rows = [row for row in rows if row["draft_step"]]
    return sorted(rows, key=lambda row: row["prompt_tokens"]["median"])


def _is_on_context_plot(summary: Figures, name: str) -> bool:
    variant = summary["variants"].get(name)
    if variant is None:
        return True
    return bool(variant["field"] == "prune_ratio" and variant["value"] == 0)


def _names(groups: Figures) -> list[str]:
    return list(dict.fromkeys(name for group in groups.values() for name in group["methods"]))


def _bases(summary: Figures, groups: Figures) -> list[str]:
    return [name for name in _names(groups) if name not in summary["variants"]]


def _phase_milliseconds(row: Figures | None, phase: str) -> float:
    seconds = row["phases"].get(phase) if row is not None else None
    return 1000 * max(0.0, seconds or 0.0)


def _quartile_whiskers(values: Sequence[Figures]) -> list[list[float]]:
    medians = [value["median"] for value in values]
    return whiskers(medians, [value["q1"] for value in values], [value["q3"] for value in values])


def _scaled(value: Figures, factor: float) -> Figures:
    return {name: factor * number for name, number in value.items()}


def _line_style(colour: int, kind: int) -> dict[str, Any]:
    return {
        "color": SERIES[colour % len(SERIES)],
        "linewidth": 1.5,
        "alpha": 0.85,
        "marker": MARKERS[kind % len(MARKERS)],
        "linestyle": LINES[kind % len(LINES)],
        "markersize": 5,
    }


def _label_rows(axes: Axes, title: str, names: Sequence[str]) -> None:
    axes.set(title=title, ylim=(len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), names)
    axes.grid(axis="x", alpha=0.3)


def _panels(
    groups: Figures, height: float, share_x: bool = False
) -> tuple[Figure, dict[str, Axes]]:
    figure = new_figure(WIDTH, height * len(groups) + 0.6)
    grid = figure.subplots(len(groups), 1, squeeze=False, sharex=share_x)
    panels: Iterator[Axes] = iter(grid[:, 0])
    return figure, dict(zip(groups, panels, strict=True))


def _add_legend_above(figure: Figure, axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)
