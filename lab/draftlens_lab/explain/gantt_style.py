"""Sizes, colours and texts of the charts of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftlens.core.timeline import KINDS, WAIT, Span
from draftlens_lab.explain.paint import drawable
from draftlens_lab.measure.palette import GRID, INK, MUTED, PAPER, PHASES, SLATE

DPI = 150
WIDTH = 13.333
"""Width of a chart in inches: that of a slide."""
LEFT = 2.45
"""Inches to the left of the bars, for names."""
RIGHT = 0.95
"""Inches to the right of the bars, for idle shares."""
TITLE_LENGTH = 72
SUBTITLE_LENGTH = 40
"""Characters of the longest title and subtitle."""

PLAIN_STEP = "plain"
"""The kind of bar of a target's step that checks no draft token."""
SHOWN_KINDS = (*KINDS, PLAIN_STEP)
"""The kinds of bars."""

COLOURS = {
    "frames": PHASES["frames"],
    "vision": PHASES["vision"],
    "prefill": PHASES["target_prefill"],
    "prune": PHASES["prune"],
    "caption": PHASES["caption"],
    "draft": PHASES["draft"],
    "verify": PHASES["verify"],
    PLAIN_STEP: SLATE,
    "rollback": PHASES["rollback"],
    WAIT: "#c4c6cc",
}
"""Colour of each kind of bar."""
NAMES = {
    "frames": "frames",
    "vision": "vision",
    "prefill": "prefill",
    "prune": "prune",
    "caption": "captions",
    "draft": "draft",
    "verify": "verify",
    PLAIN_STEP: "plain step",
    "rollback": "roll back",
    WAIT: "waits",
}
"""The names of kinds in the legend."""


@dataclass(frozen=True)
class Theme:
    """Colours of everything but the bars."""

    paper: str
    ink: str
    muted: str
    track: str


LIGHT = Theme(PAPER, INK, MUTED, GRID)
DARK = Theme("#1a1d24", "#eceef2", "#a2a8b4", "#3a3f4a")
"""The colours of the page's panels in the system's two modes."""


@dataclass(frozen=True)
class Unit:
    """A unit of time.

    Args:
        per_second: units per second.
    """

    name: str
    per_second: float

    @classmethod
    def of(cls, seconds: float) -> Unit:
        """The unit of an axis of this length: milliseconds below two seconds."""
        return cls("ms", 1000.0) if seconds < 2 else cls("s", 1.0)

    def text(self, seconds: float) -> str:
        """A duration of three digits, such as `1.24 s` or `1240 ms`."""
        value = seconds * self.per_second
        decimals = 0 if value >= 100 else 1 if value >= 10 else 2
        return f"{value:.{decimals}f} {self.name}"


def shown_kind(span: Span) -> str:
    """The kind of the bar of a span."""
    return PLAIN_STEP if span.kind == "verify" and not span.tokens else span.kind


def shortened(text: str, length: int) -> str:
    """A text that fonts can draw, of at most `length` characters."""
    text = drawable(text)
    return text if len(text) <= length else f"{text[: length - 3]}..."


def discarded_style(kind: str, theme: Theme) -> dict[str, Any]:
    """Style of a bar with draft tokens that were discarded."""
    return {
        "facecolor": pale(kind, theme),
        "edgecolor": COLOURS[kind],
        "linewidth": 0.0,
        "hatch": "//////",
    }


def pale(kind: str, theme: Theme) -> str:
    """The background of the hatches of discarded work."""
    return mixed(COLOURS[kind], theme.paper, 0.3)


def mixed(colour: str, other: str, share: float) -> str:
    """A share of one colour on another one."""
    from matplotlib.colors import to_hex, to_rgb

    pairs = zip(to_rgb(colour), to_rgb(other), strict=True)
    red, green, blue = (share * ours + (1 - share) * theirs for ours, theirs in pairs)
    return to_hex((red, green, blue))
