"""A chart of a draft's views by token: their weights, and which of them proposed it.

The weights are drawn over the tokens of the answer as in Fig. 3 of "TABED", for any number of views
and in several bands, so that the words below them can be read. matplotlib is imported only when a
chart is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftlens.core.errors import ConfigError
from draftlens_lab.explain.gantt import NEEDS_MATPLOTLIB, has_matplotlib
from draftlens_lab.explain.gantt_style import (
    DPI,
    LIGHT,
    SUBTITLE_LENGTH,
    TITLE_LENGTH,
    WIDTH,
    Theme,
    mixed,
    shortened,
)
from draftlens_lab.explain.paint import KEPT, drawable
from draftlens_lab.measure.palette import BLUE, MAGENTA, ORANGE, PURPLE, SKY, SLATE, TEAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from draftlens_lab.explain.view_trace import ViewFigures, ViewToken, ViewTrace

LEFT = 2.0
"""Inches to the left of the tokens, for names."""
RIGHT = 0.4
"""Inches to the right of the tokens."""
HEAD = 1.25
"""Inches above the first band, without the legend."""
LEGEND_COLUMNS = 3
LEGEND_ROW = 0.25
"""Height of a row of the legend in inches."""
FOOT = 0.2
"""Inches below the last band."""
WEIGHTS = 0.95
"""Height of the weights in inches."""
ROW = 0.24
"""Inches from one row of hits to the next."""
CELL = 0.18
"""Height of a hit in inches."""
ROW_GAP = 0.1
"""Inches between the weights and the first row of hits, and between the last one and the words."""
WORDS = 0.72
"""Height of the words in inches."""
BAND_GAP = 0.3
"""Inches between two bands."""
BAND_TOKENS = 64
"""Tokens of a band, at most."""
MIN_COLUMNS = 24
"""Tokens that a band has room for, at least."""
MAX_BANDS = 8
"""Bands that are drawn; what follows is left out."""
WORD_LENGTH = 10
"""Characters of the longest word."""
PALE = 0.22
"""Share of a view's colour where its draft token would have been wrong."""

TITLE = "Which view was right"
CAPTION = (
    "Weights of the views when each token was drafted; gaps part the rounds. Full colour: the view "
    "would have drafted the token. Pale: not."
)
"""How to read the chart; the page shows it, too."""
ACCEPTED = "accepted"
"""Name of the row of tokens that the mixture drafted."""
COLOURS = (BLUE, MAGENTA, TEAL, PURPLE, ORANGE, SKY, SLATE)
"""Colours of the views in their order; they repeat."""


@dataclass(frozen=True)
class Band:
    """Some tokens of the answer, side by side.

    Args:
        first: index of the first one in the answer.
    """

    first: int
    tokens: Sequence[ViewToken]


def views_chart(trace: ViewTrace, theme: Theme = LIGHT) -> Figure:
    """Draw the views of an explained answer.

    Collections have the ids ``"weights: VIEW"``, ``"right: VIEW"``, ``"wrong: VIEW"`` and
    ``"accepted"`` in each band.
    """
    if not has_matplotlib():
        raise ConfigError(NEEDS_MATPLOTLIB)
    from matplotlib.figure import Figure

    bands = bands_of(trace.tokens)
    columns = max(MIN_COLUMNS, *(len(band.tokens) for band in bands))
    band_height = WEIGHTS + 2 * ROW_GAP + (len(trace.names) + 1) * ROW + WORDS
    head = HEAD + LEGEND_ROW * -(-(len(trace.names) + 1) // LEGEND_COLUMNS)
    height = head + len(bands) * (band_height + BAND_GAP) - BAND_GAP + FOOT
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor=theme.paper)
    _draw_head(figure, trace, theme)
    for number, band in enumerate(bands):
        top = head + number * (band_height + BAND_GAP)
        axes = figure.add_axes(
            (
                LEFT / WIDTH,
                1 - (top + band_height) / height,
                (WIDTH - LEFT - RIGHT) / WIDTH,
                band_height / height,
            )
        )
        axes.set_ylim(band_height, 0)
        axes.set_xlim(0, columns)
        _Drawing(axes, trace.names, band, theme).draw()
    return figure


def bands_of(tokens: Sequence[ViewToken]) -> list[Band]:
    """The tokens of an answer in bands of nearly equal length."""
    shown = tokens[: MAX_BANDS * BAND_TOKENS]
    num_bands = max(1, -(-len(shown) // BAND_TOKENS))
    length = max(1, -(-len(shown) // num_bands))
    return [Band(first, shown[first : first + length]) for first in range(0, len(shown), length)]


def colour_of(view: int) -> str:
    """The colour of a view, by its index."""
    return COLOURS[view % len(COLOURS)]


def word_of(token: ViewToken) -> str:
    """The label below a token."""
    text = drawable(token.text.replace("\n", "\\n").strip(" "))
    return text if len(text) <= WORD_LENGTH else f"{text[: WORD_LENGTH - 1]}…"


def _draw_head(figure: Figure, trace: ViewTrace, theme: Theme) -> None:
    from matplotlib.patches import Patch

    height = figure.get_figheight()
    left = 0.4 / WIDTH
    style: dict[str, Any] = {"va": "top", "parse_math": False}
    title = shortened(f"{TITLE}: {trace.title}", TITLE_LENGTH)
    figure.text(left, 1 - 0.3 / height, title, size=20, weight="bold", color=theme.ink, **style)
    figure.text(left, 1 - 0.72 / height, CAPTION, size=10.5, color=theme.muted, **style)
    handles = [
        Patch(facecolor=colour_of(view), label=_legend_of(figures))
        for view, figures in enumerate(trace.figures)
    ]
    together = f"accepted: {trace.stats.mean_acceptance_length:.2f} tokens a pass"
    handles.append(Patch(facecolor=KEPT, label=together))
    legend = figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(left, 1 - 0.98 / height),
        borderpad=0,
        borderaxespad=0,
        ncols=LEGEND_COLUMNS,
        frameon=False,
        fontsize=11,
        labelcolor=theme.ink,
        handlelength=1.1,
        handleheight=1.1,
        handletextpad=0.5,
        columnspacing=1.5,
    )
    legend.set_gid("legend")


def _legend_of(figures: ViewFigures) -> str:
    label = shortened(figures.name, SUBTITLE_LENGTH // 2)
    if not figures.asked:
        return f"{label}: not asked"
    label += f": {figures.right} of {figures.asked} right"
    return label if figures.alone is None else f"{label}, {figures.alone:.2f} a pass alone"


@dataclass(frozen=True)
class _Drawing:
    axes: Axes
    names: Sequence[str]
    band: Band
    theme: Theme

    def draw(self) -> None:
        """Weights, hits and words of the tokens, with their names."""
        self.axes.set_facecolor(self.theme.paper)
        for spine in self.axes.spines.values():
            spine.set_visible(False)
        self._draw_weights()
        ticks = {0.0: "1", WEIGHTS / 2: "0.5", WEIGHTS: "0"}
        for view, name in enumerate(self.names):
            ticks[self._draw_hits(view)] = shortened(name, SUBTITLE_LENGTH // 2)
        ticks[self._draw_accepted()] = ACCEPTED
        self._write_words()
        self.axes.set_yticks(list(ticks), list(ticks.values()))
        self.axes.tick_params(axis="y", length=0, labelsize=10.5, labelcolor=self.theme.ink, pad=6)
        self._number_tokens()

    def _draw_weights(self) -> None:
        """Each view's share as an area; a gap where a round begins."""
        lower = [0.0] * len(self.band.tokens)
        for view, name in enumerate(self.names):
            upper = list(lower)
            for place, token in enumerate(self.band.tokens):
                upper[place] += 0.0 if token.weights is None else token.weights[view]
            self.axes.fill_between(
                range(len(lower) + 1),
                [WEIGHTS * (1 - share) for share in _closed(lower)],
                [WEIGHTS * (1 - share) for share in _closed(upper)],
                step="post",
                facecolor=colour_of(view),
                linewidth=0,
                zorder=2,
                gid=f"weights: {name}",
            )
            lower = upper
        starts = [
            place
            for place in range(1, len(self.band.tokens))
            if self.band.tokens[place].round != self.band.tokens[place - 1].round
        ]
        self.axes.vlines(starts, 0, WEIGHTS, colors=self.theme.paper, linewidth=1.2, zorder=3)
        ends = [0, len(self.band.tokens)]
        middle = [WEIGHTS / 2] * 2
        dashes = (0, (4, 4))
        self.axes.plot(ends, middle, color=self.theme.paper, lw=0.8, ls=dashes, zorder=3)

    def _draw_hits(self, view: int) -> float:
        middle = WEIGHTS + ROW_GAP + (view + 0.5) * ROW
        colour = colour_of(view)
        looks = {True: ("right", colour), False: ("wrong", mixed(colour, self.theme.paper, PALE))}
        for hit, (word, face) in looks.items():
            places = [
                place for place, token in enumerate(self.band.tokens) if token.hits[view] is hit
            ]
            self._draw_cells(places, middle, face, f"{word}: {self.names[view]}")
        return middle

    def _draw_accepted(self) -> float:
        middle = WEIGHTS + ROW_GAP + (len(self.names) + 0.5) * ROW
        places = [place for place, token in enumerate(self.band.tokens) if token.drafted]
        self._draw_cells(places, middle, KEPT, ACCEPTED)
        return middle

    def _draw_cells(self, places: Sequence[int], middle: float, colour: str, gid: str) -> None:
        spans = [(place + 0.06, 0.88) for place in places]
        self.axes.broken_barh(
            spans, (middle - CELL / 2, CELL), facecolor=colour, linewidth=0, gid=gid, zorder=2
        )

    def _write_words(self) -> None:
        top = WEIGHTS + 2 * ROW_GAP + (len(self.names) + 1) * ROW
        for place, token in enumerate(self.band.tokens):
            self.axes.text(
                place + 0.5,
                top,
                word_of(token),
                size=8.5,
                rotation=90,
                color=self.theme.ink,
                ha="center",
                va="top",
                parse_math=False,
            )

    def _number_tokens(self) -> None:
        numbers = range(len(self.band.tokens))
        shown = [place for place in numbers if (self.band.first + place + 1) % 10 == 0]
        labels = [str(self.band.first + place + 1) for place in shown]
        self.axes.set_xticks([place + 0.5 for place in shown], labels)
        self.axes.tick_params(
            axis="x",
            top=True,
            labeltop=True,
            bottom=False,
            labelbottom=False,
            length=3,
            pad=2,
            labelsize=9,
            colors=self.theme.muted,
        )


def _closed(shares: Sequence[float]) -> list[float]:
    """The shares with the last one repeated, where the last step ends."""
    return [*shares, *shares[-1:]]
