"""From visual tokens to pictures with a grid on them: which cell was kept, and how much the target
looked at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from draftlens.draft.pruned import Choice
from draftlens.explain.pictures import Picture

Cells = np.ndarray[Any, np.dtype[np.int64]]
Scores = np.ndarray[Any, np.dtype[np.float32]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


TINY = float(np.finfo(np.float32).tiny)
"""In place of a mean of nothing."""
LONGEST = 20.0
"""A picture's longer side / its shorter one as it is drawn, at most: on a line no cell could be
seen."""


@dataclass(frozen=True, eq=False)
class View:
    """One frame, picture or tile as the draft's prompt holds it: H rows of W cells.

    Args:
        name: such as `frame 3` or `tile 2 of picture 1`.
        when: of a frame its time, such as `0.4 s`; else empty.
        image: what the cells lie on; None where their place in the picture is not known.
        scores: the target's attention to each cell in units of the mean cell's, float32 ``[H, W]``;
            NaN where it was not read or no token stands.
        kept: whether the draft saw the cell, bool ``[H, W]``.
        there: whether a token stands for it, bool ``[H, W]``.
    """

    name: str
    when: str
    image: Image.Image | None
    scores: Scores
    kept: Mask
    there: Mask

    @property
    def counts(self) -> tuple[int, int]:
        """Kept cells and all cells."""
        return int(self.kept.sum()), int(self.there.sum())

    @property
    def share(self) -> float:
        """Kept cells / all cells."""
        kept, total = self.counts
        return kept / max(1, total)

    @property
    def aspect(self) -> float:
        """Width / height as it is drawn."""
        return drawn(self.own_aspect)

    @property
    def own_aspect(self) -> float:
        """Width / height of the picture, or of the grid where there is none."""
        if self.image is None:
            return float(self.kept.shape[1] / self.kept.shape[0])
        return self.image.width / self.image.height

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; unknown scores are null."""
        scores = [
            [round(float(s), 4) if np.isfinite(s) else None for s in row] for row in self.scores
        ]
        return {"name": self.name, "when": self.when, "scores": scores} | {
            name: values.astype(int).tolist()
            for name, values in (("kept", self.kept), ("there", self.there))
        }


@dataclass(frozen=True)
class Shown:
    """All of a prompt's visual tokens.

    Args:
        views: those that have a cell of their own.
        spare: tokens that share the cell of the one before (ends of rows and pictures), all and
            kept.
    """

    views: tuple[View, ...]
    spare: tuple[int, int]

    @property
    def counts(self) -> tuple[int, int]:
        """Kept and all visual tokens."""
        kept, total = np.sum([view.counts for view in self.views], axis=0)
        return int(kept) + self.spare[1], int(total) + self.spare[0]


def drawn(aspect: float) -> float:
    """Width / height with which something of this width / height is drawn: its own up to
    `LONGEST`."""
    return min(max(aspect, 1 / LONGEST), LONGEST)


def runs_of(choice: Choice) -> list[slice]:
    """The stretches of visual tokens without text between them."""
    at = choice.at.cpu().numpy()
    starts = np.flatnonzero(np.diff(at, prepend=-2) != 1).tolist()
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(at)], strict=True)]


def wholes_of(cells: Cells, runs: Sequence[slice], pictures: int) -> dict[int, int]:
    """Which picture is shown whole at which time (t), as far as that is known: first as an
    overview, then in detail.

    Args:
        cells: frame, row and column of each visual token, int64 ``[n, 3]``.
        runs: stretches of visual tokens without text between them.
        pictures: how many the prompt shows.
    """
    if len(runs) != pictures:
        return {int(time): 0 for time in cells[:1, 0]}
    known = {}
    for number, run in enumerate(runs):
        times, counts = np.unique(cells[run, 0], return_counts=True)
        known[int(times[0])] = number
        rows, columns = cells[run][cells[run, 0] == times[-1], 1:].max(0) + 1
        if len(times) == 2 and counts[1] == rows * (
            columns + 1
        ):  # a tile's rows do not end with newlines
            known[int(times[1])] = number
    return known


def show(choice: Choice, pictures: Sequence[Picture]) -> Shown:
    """Lay a choice on its pictures.

    The first token of a cell is the one that stands for its pixels; others there have no place of
    their own.

    Args:
        choice: n visual tokens, their cells and scores, and the kept ones.
        pictures: one for each frame, picture or tile that the cells name.
    """
    cells = choice.visual.cells.cpu().numpy()
    own = np.zeros(len(cells), dtype=bool)
    own[np.unique(cells, axis=0, return_index=True)[1]] = True
    kept = np.zeros(len(cells), dtype=bool)
    kept[choice.kept.cpu().numpy()] = True
    scores = np.full(len(cells), np.nan, dtype=np.float32)
    if choice.visual.scores is not None:
        scores = choice.visual.scores.float().cpu().numpy()
        scores = scores / max(float(scores[own].mean()), TINY)
    views = []
    for time, picture in enumerate(pictures):
        chosen = own & (cells[:, 0] == time)
        views.append(_view(picture, cells[chosen, 1:], scores[chosen], kept[chosen]))
    return Shown(tuple(views), (int((~own).sum()), int((kept & ~own).sum())))


def _view(picture: Picture, places: Cells, scores: Scores, kept: Mask) -> View:
    """A view from its cells ``[m, 2]`` (row, column) and what is known of each ``[m]``."""
    rows, columns = places.max(0) + 1
    spot = places[:, 0], places[:, 1]
    grid, seen, there = (
        np.full((rows, columns), np.nan, np.float32),
        *np.zeros((2, rows, columns), bool),
    )
    grid[spot], seen[spot], there[spot] = scores, kept, True
    return View(picture.name, picture.when, picture.image, grid, seen, there)
