"""What virtual time says of the paper's pairs: `parallel_pairs.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from .claim import Check, Report
from .figures import Figure, at, computed

SELF_PAIRS = ("OV 7B & itself", "Qwen 7B & itself")

Values = Callable[[Mapping[str, Any]], Iterable[float]]


def pairs(report: Report) -> Mapping[str, Any]:
    found: Mapping[str, Any] = at(report, "found", "pairs")
    return found


def extreme(
    pick: Callable[[Iterable[float]], float],
    values: Values,
    report: Report,
) -> Figure:
    """The least or the greatest of figures in virtual time."""
    return computed(pick(values(pairs(report))))


def rises(found: Mapping[str, Any], first: int, second: int) -> list[float]:
    """Quotients of two points of Fig. 6, by pair."""
    return [
        row["points"][second]["simulated"] / row["points"][first]["simulated"]
        for row in found["figure 6"]
    ]


def against_serial(found: Mapping[str, Any]) -> list[float]:
    """ParallelVLM's speed over that of the best serial row of Table 1, by pair."""
    quotients = []
    for row in found["table 1"]:
        rows = [one["simulated"] for one in found["serial rows"] if one["pair"] == row["pair"]]
        quotients.append(row["lockstep"]["speedup"] / max(rows))
    return quotients


def in_order(found: Mapping[str, Any]) -> list[float]:
    """1 for each pair whose methods have the printed order, else 0."""
    same = []
    for row in found["table 1"]:
        own = [one for one in found["serial rows"] if one["pair"] == row["pair"]]
        speeds = [(one["paper"], one["simulated"]) for one in own]
        speeds.append((row["paper"], row["lockstep"]["speedup"]))
        same.append(float([s for _, s in sorted(speeds)] == sorted(s for _, s in speeds)))
    return same


def self_gains(found: Mapping[str, Any]) -> list[float]:
    """ParallelVLM minus SpecVLM and STD in pairs of a model with itself."""
    ours = {row["pair"]: row["lockstep"]["speedup"] for row in found["table 1"]}
    return [
        ours[row["pair"]] - row["simulated"]
        for row in found["serial rows"]
        if row["pair"] in SELF_PAIRS and row["method"] in ("SpecVLM", "STD")
    ]


def blind(found: Mapping[str, Any]) -> list[float]:
    """OnSD over plain decoding in self pairs."""
    return [
        row["simulated"]
        for row in found["serial rows"]
        if row["pair"] in SELF_PAIRS and row["method"] == "OnSD"
    ]


def theorems(chosen: str, found: Mapping[str, Any]) -> list[float]:
    """What theorems say over what is simulated."""
    rows = [row for row in found["theorems"] if row["theorem"].startswith(tuple(chosen.split("|")))]
    assert rows, chosen
    return [row["says"] / row["simulated"] for row in rows]


def rounding(own: bool, found: Mapping[str, Any]) -> list[float]:
    """γ rounded up over γ rounded down, in self pairs or in the others."""
    return [
        row["speedup up"] / row["speedup down"]
        for row in found["rounding"]
        if (row["pair"] in SELF_PAIRS) == own
    ]


def nodes_that_fit(found: Mapping[str, Any]) -> list[float]:
    """Nodes of EAGLE's tree behind each leaf, over those that fit into a forward."""
    trees = found["trees"]
    nodes = trees["EAGLE's 25 nodes, 5 deep, behind each of its 16 leaves"]
    return [nodes / trees["nodes that fit into T_p one by one"]]


def allocated(report: Report) -> Figure:
    """Gigabytes beyond serial speculative decoding that the method allocates."""
    memory = pairs(report)["memory"]
    names = ("the lead of the draft in its cache", "guesses in messages")
    total = sum(memory[name] for name in (*names, "scores of the visual tokens"))
    return computed(total / 1e9)


def virtual(
    label: str,
    pick: Callable[[Iterable[float]], float],
    values: Values,
    above: float | None = None,
    below: float | None = None,
) -> Check:
    return Check(label, "parallel_pairs", partial(extreme, pick, values), above, below)
