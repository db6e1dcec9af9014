"""Goals for the embedded pair, which its card lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Report = Mapping[str, Any]

FACTS = 0.95
RETRIEVAL = 0.9
LENGTH = (3.0, 5.0)
FALL = 0.2


@dataclass(frozen=True)
class Goal:
    """A figure of the report and the range in which it should lie.

    Args:
        name: what the figure measures.
        path: keys of the figure in the report.
        low: smallest value that meets the goal.
        high: largest value that meets the goal.
        requirement: the range in words.
    """

    name: str
    path: tuple[str | int, ...]
    low: float
    high: float
    requirement: str

    def to_json(self, report: Report) -> dict[str, Any]:
        """The goal and its figure as JSON values; `figure` and `met` are None if the report does
        not hold the figure."""
        figure = _figure(report, self.path)
        return {
            "goal": self.name,
            "asked": self.requirement,
            "figure": figure,
            "met": None if figure is None else self.low <= figure <= self.high,
        }


def goals(report: Report) -> list[dict[str, Any]]:
    """Each goal with its figure, as JSON values (`Goal.to_json`)."""
    frames = str(report["arguments"]["frames"][0])
    retrieval = ("accuracy", "target", "questions", "retrieval", "right", "share")
    low, high = LENGTH
    listed = [
        Goal(
            "facts of clip captions right, target",
            ("accuracy", "target", "captions", frames, "facts", "share"),
            FACTS,
            1,
            f"at least {FACTS:.0%}",
        ),
        Goal(
            "retrieval questions right, target",
            retrieval,
            RETRIEVAL,
            1,
            f"at least {RETRIEVAL:.0%}",
        ),
        Goal(
            "mean acceptance length at γ = 5",
            ("agreement", "acceptance_length", "5"),
            low,
            high,
            f"{low:g} to {high:g}",
        ),
        Goal(
            "its fall when the draft sees no visual token",
            ("visual", "kept", -1, "fall"),
            FALL,
            1,
            f"at least {FALL:.0%}",
        ),
    ]
    return [goal.to_json(report) for goal in listed]


def _figure(report: Report, path: tuple[str | int, ...]) -> float | None:
    """The figure at a path; None if the section was not measured."""
    value: Any = report
    for key in path:
        try:
            value = value[key]
        except KeyError:  # no draft, or the section is still to come
            return None
    figure: float | None = value
    return figure
