"""The page of an answer drafted from several views of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from draftlens_lab.explain.markup import render_page
from draftlens_lab.explain.sections import DRAFTED_KEY, Account, drawn, figures_of
from draftlens_lab.explain.view_chart import CAPTION, TITLE, colour_of, views_chart
from draftlens_lab.explain.view_trace import ViewFigures, ViewToken, ViewTrace

COLUMNS = ("view", "mean weight", "asked", "right", "tokens a pass alone")
"""The columns of a table of views."""


@dataclass(frozen=True)
class Word:
    """A token of the answer with a strip for each view.

    Args:
        space: before the text.
        text: without the space; empty for a token of spaces.
        strips: colour of each view that would have drafted it, transparent for the others.
    """

    space: str
    text: str
    drafted: bool
    title: str
    strips: Sequence[str]

    @classmethod
    def of(cls, token: ViewToken, names: Sequence[str]) -> Word:
        """The word of a token; `names` are those of the views."""
        text = token.text.lstrip()
        strips = [colour_of(view) if hit else "transparent" for view, hit in enumerate(token.hits)]
        space = token.text[: len(token.text) - len(text)]
        return cls(space, text, token.drafted, described(token, names), strips)


def views_page(trace: ViewTrace) -> str:
    """The HTML page of a trace; one file that loads nothing."""
    views = [(colour_of(view), f"{name} was right") for view, name in enumerate(trace.names)]
    return render_page(
        "views.html",
        trace=trace,
        lead=f"method {trace.method['method']} · views {', '.join(trace.names)}",
        figures=_figures(trace),
        drawn=drawn(TITLE, CAPTION, partial(views_chart, trace)),
        columns=COLUMNS,
        rows=view_rows(trace),
        answer_keys=[*views, DRAFTED_KEY],
        words=[Word.of(token, trace.names) for token in trace.tokens],
        account=Account.of(trace),
    )


def view_rows(trace: ViewTrace) -> list[list[str]]:
    """The figures of each view under `COLUMNS`, and of all views together."""
    rows = [_row(figures) for figures in trace.figures]
    rows.append(["all, mixed", "", "", "", f"{trace.stats.mean_acceptance_length:.2f}"])
    return rows


def _row(figures: ViewFigures) -> list[str]:
    weight = "" if figures.weight is None else f"{figures.weight:.2f}"
    alone = "" if figures.alone is None else f"{figures.alone:.2f}"
    right = ""
    if figures.asked:
        right = f"{figures.right} ({figures.right / figures.asked * 100:.0f}%)"
    return [figures.name, weight, str(figures.asked), right, alone]


def _figures(trace: ViewTrace) -> list[tuple[str, str]]:
    best = _best(trace.figures)
    if best is None:
        return figures_of(trace)
    return [(best.name, "the view that is right most often"), *figures_of(trace)]


def _best(views: Sequence[ViewFigures]) -> ViewFigures | None:
    """The view with the most accepted draft tokens; None without any."""
    asked = [figures for figures in views if figures.asked]
    return max(asked, key=lambda figures: figures.right, default=None)


def described(token: ViewToken, names: Sequence[str]) -> str:
    parts = [f"round {token.round}" if token.round else "from prefill"]
    words = {True: "right", False: "wrong", None: "not asked"}
    for view, name in enumerate(names):
        weight = "" if token.weights is None else f" {token.weights[view]:.2f}"
        parts.append(f"{name}{weight} {words[token.hits[view]]}")
    return ", ".join(parts)
