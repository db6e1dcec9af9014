"""What is asked of the embedded pair; a yardstick for any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Report = Mapping[str, Any]
FACTS, RETRIEVAL, LENGTH, FALL = 0.95, 0.9, (3.0, 5.0), 0.2


def goals(report: Report) -> list[dict[str, Any]]:
    """Each goal with its figure, None where that was not measured; `met` is None then too."""
    low, high = LENGTH
    asked: list[tuple[str, str, Callable[[], float | None], Callable[[float], bool]]] = [
        (
            "facts of clip captions right, target",
            f"at least {FACTS:.0%}",
            lambda: _facts(report),
            lambda x: x >= FACTS,
        ),
        (
            "retrieval questions right, target",
            f"at least {RETRIEVAL:.0%}",
            lambda: report["accuracy"]["target"]["questions"]["retrieval"]["right"]["share"],
            lambda x: x >= RETRIEVAL,
        ),
        (
            "mean acceptance length at γ = 5",
            f"{low:g} to {high:g}",
            lambda: report["agreement"]["acceptance_length"]["5"],
            lambda x: low <= x <= high,
        ),
        (
            "its fall when the draft sees no visual token",
            f"at least {FALL:.0%}",
            lambda: report["visual"]["kept"][-1]["fall"],
            lambda x: x >= FALL,
        ),
    ]
    return [_goal(name, wanted, read, holds) for name, wanted, read, holds in asked]


def _facts(report: Report) -> float | None:
    captions = report["accuracy"]["target"]["captions"]
    share: float | None = captions[str(report["arguments"]["frames"][0])]["facts"]["share"]
    return share


def _goal(
    name: str, wanted: str, read: Callable[[], float | None], holds: Callable[[float], bool]
) -> dict[str, Any]:
    try:
        figure = read()
    except KeyError:  # not measured: no draft, or not yet
        figure = None
    return {
        "goal": name,
        "asked": wanted,
        "figure": figure,
        "met": None if figure is None else holds(figure),
    }
