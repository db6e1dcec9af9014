"""What a draft reads after pruning: its own prompt without most of its visual tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftlens.draft.base import Seen
from draftlens.errors import UnsupportedModelError
from draftlens.models.gather import gather
from draftlens.models.prompt import Prompt
from draftlens.prune import Pruner, Visual, keep_count


@dataclass(frozen=True)
class Pruning:
    """How a draft's prompt is pruned.

    Args:
        pruner: who chooses.
        ratio: share of visual tokens that goes, 0 to 1.
        positions: `original` or `compact` (`models.gather`).
    """

    pruner: Pruner
    ratio: float
    positions: str = "original"

    def keep(self, prompt: Prompt, seen: Seen) -> list[Tensor]:
        """Per row the tokens that stay, int64 ``[K]``: all text, and the visual ones that the pruner chose."""
        kept = []
        for row, length in enumerate(prompt.lengths):
            visual = prompt.visual[row, :length]
            at = visual.nonzero()[:, 0]
            scores = None if seen.scores is None else _scores(prompt, row, at, seen).to(at.device)
            tokens = Visual(prompt.cells[row, at], prompt.embeds[row, at], scores)
            stays = ~visual
            stays[at[self.pruner.select(tokens, keep_count(len(at), self.ratio))]] = True
            kept.append(stays.nonzero()[:, 0])
        return kept

    def apply(self, prompt: Prompt, seen: Seen) -> tuple[Prompt, list[Tensor]]:
        """The pruned prompt and what of each row stayed; counts both for the statistics."""
        with seen.phase("prune"):
            kept = self.keep(prompt, seen)
            smaller = gather(prompt, kept, self.positions)
        seen.pruned(int(prompt.visual.sum()), int(smaller.visual.sum()))
        return smaller, kept


def _scores(prompt: Prompt, row: int, at: Tensor, seen: Seen) -> Tensor:
    """The target's scores for the draft's visual tokens ``[n]``, of one row.

    Raises:
        UnsupportedModelError: one of the two has visual tokens in this row and the other has none.
    """
    theirs = seen.prompt.visual[row].nonzero()[:, 0]
    assert seen.scores is not None
    scores = seen.scores[row, theirs]
    if len(theirs) == len(at):
        return scores  # models of a family cut pictures alike
    if not len(theirs) or not len(at):
        raise UnsupportedModelError("only one of target and draft has visual tokens: prune without attention")
    return _carry_over(scores, seen.prompt.cells[row, theirs].cpu(), prompt.cells[row, at].cpu())


def _carry_over(scores: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Scores ``[m]`` at cells ``[m, 3]`` read at other cells ``[n, 3]``: each takes its nearest, sizes evened out."""
    places = [(c.float() + 0.5) / (c.max(0).values + 1) for c in (source, target)]
    return scores[torch.cdist(places[1], places[0]).argmin(1).to(scores.device)]
