"""What a draft reads after pruning: its own prompt without most of its visual tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlens.draft.base import Seen
from draftlens.errors import UnsupportedModelError
from draftlens.models.gather import gather
from draftlens.models.prompt import Prompt
from draftlens.prune import Pruner, Visual, keep_count

AT_ONCE = 1024
"""Cells that look for their nearest at once, so that no map of all by all is formed."""


@dataclass(frozen=True)
class Choice:
    """What was made of one row's n visual tokens, for whoever wants to show it.

    Args:
        at: where they stand in the draft's prompt, int64 ``[n]``.
        visual: what the pruner was shown.
        kept: the indices that it chose, int64 ``[K]``, rising.
    """

    at: Tensor
    visual: Visual
    kept: Tensor


@dataclass(frozen=True)
class Pruning:
    """How a draft's prompt is pruned.

    Args:
        pruner: who chooses.
        ratio: share of visual tokens that goes, 0 to 1.
        positions: `original` or `compact` (`models.gather`).
        observer: told every choice.
    """

    pruner: Pruner
    ratio: float
    positions: str = "original"
    observer: Callable[[Choice], None] | None = None

    def keep(self, prompt: Prompt, seen: Seen) -> list[Tensor]:
        """Per row the tokens that stay, int64 ``[K]``: all text, and the visual ones that the pruner chose."""
        kept = []
        for row, length in enumerate(prompt.lengths):
            visual = prompt.visual[row, :length]
            at = visual.nonzero()[:, 0]
            scores = None if seen.scores is None else _scores(prompt, row, at, seen).to(at.device)
            tokens = Visual(prompt.cells[row, at], prompt.embeds[row, at], scores)
            chosen = self.pruner.select(tokens, keep_count(len(at), self.ratio))
            if self.observer:
                self.observer(Choice(at, tokens, chosen))
            stays = ~visual
            stays[at[chosen]] = True
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
    places, wanted = ((c.float() + 0.5) / (c.max(0).values + 1) for c in (source, target))
    nearest = [torch.cdist(part, places).argmin(1) for part in torch.split(wanted, AT_ONCE)]
    return scores[torch.cat(nearest).to(scores.device)]
