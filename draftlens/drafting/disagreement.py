"""A warning for drafts that are hardly ever right, which names the likely cause."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import torch
from torch import Tensor

from draftlens.core.batch import Batch
from draftlens.core.proposal import Verdict
from draftlens.models.adapter import Backbone

MIN_TRIALS = 24
"""First guesses after which a draft can be called useless."""
USELESS = 0.05
"""Share of right first guesses below which a draft is called useless."""
UNRELATED = 0.1
"""Rank correlation of two models' embedding norms below which their ids mean other tokens. Common
tokens have other norms than rare ones in every model, so that models of one tokenizer agree."""
MIN_IDS = 256
"""Token ids that both models need for this comparison."""

_log = logging.getLogger("draftlens")

_WARNED: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()
"""Target models, each with the drafts that a warning has named."""


class Disagreement:
    """Counts the first guesses of every round and warns once per pair if nearly all are wrong.

    Args:
        target: the model that decides.
        draft: the model that drafts.
        is_blind: whether the draft reads no visual tokens.
    """

    def __init__(self, target: Backbone, draft: Backbone, is_blind: bool = False) -> None:
        self.target = target
        self.draft = draft
        self.is_blind = is_blind
        self.trials = 0
        self.hits = 0

    def count(self, hits: int, misses: int) -> None:
        """Count first guesses."""
        self.trials += hits + misses
        self.hits += hits

    def count_verdict(self, verdict: Verdict, batch: Batch) -> None:
        """Count the first guesses of the rows that go on, and warn if it is time."""
        paths = zip(verdict.paths, batch.histories, strict=True)
        right = [bool(path) for path, history in paths if not history.finished]
        self.count(sum(right), len(right) - sum(right))
        self.warn()

    def warn(self) -> None:
        """Log the warning if the draft is useless and the pair has not been named yet."""
        if self.trials < MIN_TRIALS or self.hits > USELESS * self.trials:
            return
        warned = _WARNED.setdefault(self.target.model, weakref.WeakSet())
        if self.draft.model in warned:
            return
        warned.add(self.draft.model)
        _log.warning(
            "The draft %s was right about %d of %d tokens, so drafting gains nothing: %s.",
            self.draft.name,
            self.hits,
            self.trials,
            self.likely_cause(),
        )

    def likely_cause(self) -> str:
        """Why the draft is likely wrong, as a part of a sentence."""
        likeness = embedding_likeness(self.target, self.draft)
        if likeness is not None and likeness < UNRELATED:
            return (
                "its token ids probably mean other tokens than those of the target "
                f"(the norms of their embeddings have a rank correlation of {likeness:.2f})"
            )
        if self.is_blind:
            return "it reads none of the visual tokens"
        return (
            "it probably does not know the language or the task of the prompt, or its inputs are "
            "not those of the target"
        )


@torch.no_grad()
def embedding_likeness(target: Backbone, draft: Backbone) -> float | None:
    """Rank correlation of the norms of two models' input embeddings over the ids that both have;
    None if it cannot be computed."""
    norms = [_norms(backbone) for backbone in (target, draft)]
    if norms[0] is None or norms[1] is None:
        return None
    count = min(len(norms[0]), len(norms[1]))
    if count < MIN_IDS:
        return None
    first, second = (_ranks(values[:count]) for values in (norms[0], norms[1]))
    return float((first @ second) / (first.norm() * second.norm()))


def _norms(backbone: Backbone) -> Tensor | None:
    """Norm of each id's embedding, on the CPU; None if the weights are not at hand as floats."""
    weight = getattr(backbone.embed, "weight", None)
    if not isinstance(weight, Tensor) or weight.is_meta or not weight.is_floating_point():
        return None
    norms: Tensor = weight.float().norm(dim=-1)
    return norms.cpu()


def _ranks(values: Tensor) -> Tensor:
    ranks = values.argsort().argsort().double()
    return ranks - ranks.mean()
