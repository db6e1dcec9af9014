"""Grids of visual tokens over the pictures that they represent.

Each view is one frame, picture or tile with a grid of cells: which cells the draft reads, and the
score of each, such as the attention that the target pays to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from draftlens.core.prefill_readings import ATTENTION_NAME
from draftlens.pruning import Choice
from draftlens_lab.explain.pictures import Picture

Cells = np.ndarray[Any, np.dtype[np.int64]]
Scores = np.ndarray[Any, np.dtype[np.float32]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

MAX_ASPECT = 20.0
"""Largest ratio of a picture's longer to its shorter side with which it is drawn.

On a thinner picture no cell would be visible.
"""
_SMALLEST_MEAN = float(np.finfo(np.float32).tiny)  # avoids a division by zero


class Counts(NamedTuple):
    """Numbers of visual tokens or cells."""

    kept: int
    total: int


@dataclass(frozen=True, eq=False)
class View:
    """One frame, picture or tile of the draft's prompt as a grid of H rows and W columns.

    Args:
        name: for example `frame 3` or `tile 2 of picture 1`.
        when: the time of a frame, for example `0.4 s`; empty for anything else.
        image: the picture under the grid; None where the place of the cells is not known.
        scores: the score of each cell, such as the target's attention to it, relative to the mean
            of all cells, float32 ``[H, W]``; NaN where it was not computed or where the cell has no
            token.
        kept: whether the draft reads the cell, bool ``[H, W]``.
        has_token: whether a visual token represents the cell, bool ``[H, W]``.
    """

    name: str
    when: str
    image: Image.Image | None
    scores: Scores
    kept: Mask
    has_token: Mask

    @property
    def counts(self) -> Counts:
        """Numbers of kept cells and of cells with a token."""
        return Counts(int(self.kept.sum()), int(self.has_token.sum()))

    @property
    def share(self) -> float:
        """Kept cells / cells with a token, 0 to 1."""
        return self.counts.kept / max(1, self.counts.total)

    @property
    def aspect(self) -> float:
        """Width / height with which the view is drawn."""
        return clamp_aspect(self.source_aspect)

    @property
    def source_aspect(self) -> float:
        """Width / height of the picture, or of the grid where there is no picture."""
        if self.image is None:
            rows, columns = self.kept.shape
            return float(columns / rows)
        return self.image.width / self.image.height

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values without the picture; unknown scores are null."""
        return {
            "name": self.name,
            "when": self.when,
            "scores": [[_json_score(score) for score in row] for row in self.scores],
            "kept": self.kept.astype(int).tolist(),
            "has_token": self.has_token.astype(int).tolist(),
        }


def _json_score(score: np.float32) -> float | None:
    return round(float(score), 4) if np.isfinite(score) else None


@dataclass(frozen=True)
class VisualTokens:
    """All visual tokens of the draft's prompt.

    Args:
        spare: the tokens without one: they end a row or a picture and share the cell of the token
            before.
    """

    views: tuple[View, ...]
    spare: Counts
    score_name: str = ATTENTION_NAME

    @property
    def quantity(self) -> str:
        """What the scores are, in one word."""
        return self.score_name.split()[0]

    @property
    def counts(self) -> Counts:
        """Numbers of kept and of all visual tokens."""
        num_kept = sum(view.counts.kept for view in self.views)
        num_cells = sum(view.counts.total for view in self.views)
        return Counts(num_kept + self.spare.kept, num_cells + self.spare.total)


def mean_share(views: Sequence[View]) -> float:
    """Return kept cells / all cells over several views, 0 to 1."""
    num_kept = sum(view.counts.kept for view in views)
    num_cells = sum(view.counts.total for view in views)
    return num_kept / max(1, num_cells)


def view_noun(views: Sequence[View]) -> str:
    """Return `frame` for views of a clip and `view` for anything else."""
    return "frame" if views[0].when else "view"


def clamp_aspect(aspect: float) -> float:
    """Return a ratio of width to height, limited to `MAX_ASPECT` and its inverse."""
    return min(max(aspect, 1 / MAX_ASPECT), MAX_ASPECT)


def token_runs(choice: Choice) -> list[slice]:
    """Return the runs of visual tokens without text between them, in the order of the prompt."""
    positions = choice.positions.cpu().numpy()
    starts = np.flatnonzero(np.diff(positions, prepend=-2) != 1).tolist()
    ends = [*starts[1:], len(positions)]
    return [slice(start, end) for start, end in zip(starts, ends, strict=True)]


def whole_pictures(cells: Cells, runs: Sequence[slice], num_pictures: int) -> dict[int, int]:
    """Map each view that shows a whole picture to the index of that picture.

    A picture can have two such views: an overview and, after it, the same picture in detail. Views
    for which this is not known are left out.

    Args:
        cells: view, row and column of each of the n visual tokens, int64 ``[n, 3]``.
        runs: runs of visual tokens without text between them.
    """
    if len(runs) != num_pictures:
        return {int(cells[0, 0]): 0} if len(cells) else {}
    pictures = {}
    for number, run in enumerate(runs):
        views, counts = np.unique(cells[run, 0], return_counts=True)
        pictures[int(views[0])] = number
        if len(views) != 2:
            continue
        rows, columns = cells[run][cells[run, 0] == views[1], 1:].max(0) + 1
        # The rows of a picture in detail end with newline tokens; the rows of a tile do not.
        if counts[1] == rows * (columns + 1):
            pictures[int(views[1])] = number
    return pictures


def build_views(choice: Choice, pictures: Sequence[Picture]) -> VisualTokens:
    """Arrange a pruner's choice as grids over pictures.

    Where several tokens share a cell, the first one represents its pixels, and the others count as
    spare.
    """
    cells = choice.visual.cells.cpu().numpy()
    has_cell = np.zeros(len(cells), dtype=bool)
    has_cell[np.unique(cells, axis=0, return_index=True)[1]] = True
    is_kept = np.zeros(len(cells), dtype=bool)
    is_kept[choice.kept.cpu().numpy()] = True
    scores = _relative_scores(choice, has_cell)
    views = []
    for index, picture in enumerate(pictures):
        in_view = has_cell & (cells[:, 0] == index)
        views.append(_view(picture, cells[in_view, 1:], scores[in_view], is_kept[in_view]))
    spare = Counts(int((is_kept & ~has_cell).sum()), int((~has_cell).sum()))
    return VisualTokens(tuple(views), spare, choice.score_name)


def _relative_scores(choice: Choice, has_cell: Mask) -> Scores:
    """Scores relative to the mean of the tokens with a cell, ``[n]``; NaN if there are none.

    Scores of which some are negative count from the lowest of them.
    """
    if choice.visual.scores is None:
        return np.full(len(has_cell), np.nan, dtype=np.float32)
    scores: Scores = choice.visual.scores.float().cpu().numpy()
    scores = scores - min(0.0, float(scores.min(initial=0)))
    mean = max(float(scores[has_cell].mean()), _SMALLEST_MEAN)
    return scores / np.float32(mean)


def _view(picture: Picture, cells: Cells, scores: Scores, kept: Mask) -> View:
    """A view from the rows and columns of m cells, ``[m, 2]``, and their scores and flags."""
    rows, columns = cells[:, 0], cells[:, 1]
    shape = (int(rows.max()) + 1, int(columns.max()) + 1)
    score_grid = np.full(shape, np.nan, dtype=np.float32)
    kept_grid = np.zeros(shape, dtype=bool)
    has_token = np.zeros(shape, dtype=bool)
    score_grid[rows, columns] = scores
    kept_grid[rows, columns] = kept
    has_token[rows, columns] = True
    return View(picture.name, picture.when, picture.image, score_grid, kept_grid, has_token)
