"""What a draft reads after pruning: its own prompt without most of its visual tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftlens.core.errors import UnsupportedModelError
from draftlens.draft.base import TargetContext
from draftlens.models.gather import gather
from draftlens.models.prompt import Prompt
from draftlens.prune import Choice, Pruner, Visual, keep_count

CELLS_PER_SEARCH = 1024
"""Cells whose nearest neighbours are searched at once, so that no map of all by all is formed."""


@dataclass(frozen=True)
class PrunedPrompt:
    """A prompt after pruning.

    Args:
        prompt: what is left.
        kept: per row the indices of the tokens that stay, int64 ``[K]``.
    """

    prompt: Prompt
    kept: list[Tensor]


@dataclass(frozen=True)
class Pruning:
    """How a draft's prompt is pruned.

    Args:
        pruner: chooses.
        ratio: share of visual tokens that are removed, 0 to 1.
        positions: `original` or `compact` (`models.gather`).
    """

    pruner: Pruner
    ratio: float
    positions: str = "original"

    def keep(self, prompt: Prompt, context: TargetContext) -> list[Tensor]:
        """Per row the tokens that stay, int64 ``[K]``: all text, and the visual tokens that the
        pruner chooses."""
        kept = []
        for row, length in enumerate(prompt.lengths):
            is_visual = prompt.visual[row, :length]
            positions = is_visual.nonzero()[:, 0]
            scores = _row_scores(prompt, row, positions, context)
            visual = Visual(prompt.cells[row, positions], prompt.embeds[row, positions], scores)
            chosen = self.pruner.select(visual, keep_count(len(positions), self.ratio))
            context.observe(Choice(positions, visual, chosen))
            stays = ~is_visual
            stays[positions[chosen]] = True
            kept.append(stays.nonzero()[:, 0])
        return kept

    def apply(self, prompt: Prompt, context: TargetContext) -> PrunedPrompt:
        """Prune a prompt and count its visual tokens before and after for the statistics."""
        with context.phase("prune"):
            kept = self.keep(prompt, context)
            pruned = gather(prompt, kept, self.positions)
        context.count_pruned(int(prompt.visual.sum()), int(pruned.visual.sum()))
        return PrunedPrompt(pruned, kept)


def _row_scores(
    prompt: Prompt, row: int, positions: Tensor, context: TargetContext
) -> Tensor | None:
    """The target's attention to the draft's visual tokens of one row ``[n]``, if it was read."""
    if context.readings.attention is None:
        return None
    return _scores(prompt, row, positions, context).to(positions.device)


def _scores(prompt: Prompt, row: int, at: Tensor, context: TargetContext) -> Tensor:
    """The target's scores for the draft's visual tokens ``[n]``, of one row.

    Raises:
        UnsupportedModelError: one of the two has visual tokens in this row and the other has none.
    """
    theirs = context.prompt.visual[row].nonzero()[:, 0]
    assert context.readings.attention is not None
    scores = context.readings.attention[row, theirs]
    if len(theirs) == len(at):
        return scores  # models of a family cut pictures alike
    if not len(theirs) or not len(at):
        raise UnsupportedModelError(
            "only one of target and draft has visual tokens: prune without attention"
        )
    return _carry_over(scores, context.prompt.cells[row, theirs].cpu(), prompt.cells[row, at].cpu())


def _carry_over(scores: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Scores ``[m]`` at cells ``[m, 3]`` read at other cells ``[n, 3]``, all frames stretched to
    the same size.

    Each takes the mean of the cells whose middles lie in it; where there are none, what the nearest
    of such cells has.
    """
    own = torch.ones(len(source), dtype=torch.bool)
    own[1:] = source.diff(dim=0).any(
        1
    )  # a newline shares the cell before it and stands for no pixels
    sizes = _sizes(target)
    pooled, counts = _pool(scores.cpu()[own].float(), source[own], sizes)
    wanted = _index(target, sizes)
    taken, missing = pooled[wanted, 0], counts[wanted] == 0
    places = ((target + 0.5) / sizes[target[:, 0]])[missing]
    there = pooled[counts > 0]
    nearest = [
        torch.cdist(part, there[:, 1:]).argmin(1) for part in torch.split(places, CELLS_PER_SEARCH)
    ]
    taken[missing] = there[torch.cat(nearest), 0]
    return taken


def _pool(scores: Tensor, cells: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """What lies in each cell of other frames: mean score and place ``[C, 4]`` (NaN: nothing), and
    count ``[C]``.

    Args:
        scores: float ``[m]``.
        cells: theirs, int64 ``[m, 3]``.
        sizes: of the other frames, ``[T, 3]``.
    """
    middles, own = (
        2 * cells + 1,
        2 * _sizes(cells)[cells[:, 0]],
    )  # in halves of a cell: whole numbers do not round
    times = middles[:, 0] * len(sizes) // own[:, 0]
    index = _index(middles * sizes[times] // own, sizes)
    counts = torch.bincount(index, minlength=int(sizes.amax(0).prod()))
    found = torch.cat([scores[:, None], middles / own], 1)
    # Means, not sums: where one grid does not divide the other, a cell that holds more of them is
    # not looked at more.
    return torch.zeros(len(counts), 4).index_add_(0, index, found) / counts[:, None], counts


def _sizes(cells: Tensor) -> Tensor:
    """How many frames there are, and rows and columns of each, int64 ``[T, 3]``, by the cells ``[n,
    3]`` in them."""
    frames = int(cells[:, 0].max()) + 1
    sizes = cells.new_zeros(frames, 3)
    sizes.scatter_reduce_(0, cells[:, :1].expand(-1, 3), cells + 1, "amax")
    sizes[:, 0] = frames
    return sizes


def _index(cells: Tensor, sizes: Tensor) -> Tensor:
    """A number for each of the cells ``[n, 3]``, int64 ``[n]``, in frames of these sizes ``[T,
    3]``."""
    _, high, wide = sizes.amax(0).tolist()
    weights = cells.new_tensor([high * wide, wide, 1])
    return (cells * weights).sum(-1)
