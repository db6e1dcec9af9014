"""Rows of `fidelity` to figures with intervals, and to a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from draftlens_lab.measure.statistics import Share, central_interval, resampled_ratios, resamples
from shared import Report, table

from spava_parts.asked import Cell

SEED = 16
"""Of the bootstrap."""

FEWEST = 13
"""Prompts from which on the page shows a way."""


def summaries(cell: Cell, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Figures of every way in one cell; none without rows."""
    mine = sorted((row for row in rows if row["cell"] == cell.name), key=lambda row: row["index"])
    names: dict[str, None] = {}
    for row in mine:
        names |= dict.fromkeys(row["figures"])
    found = []
    for name in names:
        with_it = [row for row in mine if name in row["figures"]]
        ours = [row["figures"][name] for row in with_it]
        fulls = [row["figures"]["full"] for row in with_it]
        identity = {"cell": cell.name, "family": cell.family, "visual": cell.visual}
        sizes = {"kept": cell.kept, "set": cell.ways, "way": name, "prompts": len(ours)}
        found.append({**identity, **sizes, **figures_of(ours, fulls)})
    return found


def figures_of(
    ours: Sequence[Mapping[str, Any]], fulls: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Shares, means and intervals of one way over prompts.

    Args:
        ours: of the way.
        fulls: of the full prefill, on the same prompts.
    """
    numerators = [row["right"][0] for row in ours]
    denominators = [row["right"][1] for row in ours]
    indices = resamples(len(ours), SEED)
    share = Share(sum(numerators), sum(denominators))
    interval = share.interval
    if max(denominators) > 1:
        interval = central_interval(resampled_ratios(numerators, denominators, indices))
    changes = [row["right"][0] - full["right"][0] for row, full in zip(ours, fulls, strict=True)]
    found: dict[str, Any] = {
        "right": share.value,
        "interval": interval,
        "lost": sum(change < 0 for change in changes),
        "won": sum(change > 0 for change in changes),
    }
    if "kl" in ours[0]:
        kl = np.array([row["kl"] for row in ours])
        found["kl"] = float(kl.mean())
        found["kl interval"] = central_interval(kl[indices].mean(1))
        found["same"] = sum(row["same"] for row in ours) / len(ours)
        found["flops"] = sum(row.get("flops", 1.0) for row in ours) / len(ours)
    return found


def page(report: Report) -> list[str]:
    """A table for each cell."""
    columns: dict[str, Any] = {
        "way": "{way}",
        "prompts": "{prompts}",
        "right": lambda row: (
            f"{row['right']:.0%} ({100 * row['interval'][0]:.0f} to {100 * row['interval'][1]:.0f})"
        ),
        "lost": "{lost}",
        "won": "{won}",
        "KL": lambda row: (
            "{:.4f} ({:.4f} to {:.4f})".format(row["kl"], *row["kl interval"])
            if "kl" in row
            else ""
        ),
        "same": "{same:.1%}",
        "FLOPs": "{flops:.1%}",
    }
    fewest = min(FEWEST, max((found["prompts"] for found in report["cells"]), default=0))
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for found in report["cells"]:
        if found["prompts"] >= fewest:
            groups.setdefault(found["cell"], []).append(found)
    blocks = [
        "`right`: answers that are right word for word, of captions facts, with the 95% interval "
        "(of answers Wilson's, of facts the bootstrap over clips); `lost` and `won`: prompts that "
        "full answers rightly and this one does not, and the reverse; `KL`: nats a token along the "
        "full prefill's own answer, with the bootstrap's 95% interval; `same`: tokens of it that "
        "stay the likeliest; `FLOPs`: of attention in the language model in relation to full. "
        "FastV's FLOPs and distributions are not compared. Ways with fewer than "
        f"{fewest} prompts are in the report alone."
    ]
    for cell, rows in groups.items():
        blocks += [f"## {cell[0].upper()}{cell[1:]}", table(rows, columns)]
    return blocks
