"""Two drafters for the same rows, of which one proposes in each round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from draftlens.core.batch import Batch
from draftlens.core.proposal import DraftTree, Verdict
from draftlens.decoding.drafter import Drafter, TargetContext
from draftlens.drafting.adaptive.expectation import Expectation
from draftlens.drafting.model_drafter import ModelDrafter

PRIOR_TOKENS = 16.0
"""Expected tokens that the prior of `Trust` counts as."""
PRIOR_TRUST = 0.8
FORGETTING = 0.9
"""Weight of a round relative to the next one."""


class CopyingDrafter(Drafter, Protocol):
    """A drafter whose proposals cost next to nothing and have measured chances, such as
    `LookupDrafter`."""

    expected: Expectation | None
    """The expected result of the last proposal; None if it is empty."""

    comparison: tuple[float, int]
    """Tokens of the last round, in all rows, that this proposal was expected to have, and that it
    had, whichever drafter proposed."""

    def follow(self, batch: Batch) -> None:
        """Receive the tokens of a round in which another drafter proposed."""
        ...


class Trust:
    """How many of the copied tokens that were expected to be accepted are, or would have been:
    rounds are chosen by their expectation, so that overestimated ones are chosen too often."""

    def __init__(self) -> None:
        self._expected = PRIOR_TOKENS
        self._accepted = PRIOR_TRUST * PRIOR_TOKENS

    @property
    def value(self) -> float:
        return self._accepted / self._expected

    def count(self, expected: float, accepted: float) -> None:
        """Record tokens of a round; one in which none were expected tells nothing."""
        if not expected:
            return
        self._expected = FORGETTING * self._expected + expected
        self._accepted = FORGETTING * self._accepted + accepted


class MixedDrafter:
    """In each round the drafter proposes from which more tokens per second are expected: by the
    chances of its draft tokens, the costs of forwards, and the tokens that the model has missed.

    Args:
        model: drafts with a model, with trees that it chooses by measured costs.
        copying: copies from texts.
    """

    def __init__(self, model: ModelDrafter, copying: CopyingDrafter) -> None:
        self.model = model
        self.copying = copying
        self.max_nodes = max(model.max_nodes, copying.max_nodes)
        self.readings = model.readings | copying.readings
        self.needs_target_scores = model.needs_target_scores or copying.needs_target_scores
        self._is_copied = False
        self._trust = Trust()

    @property
    def forwards(self) -> int:
        return self.model.forwards + self.copying.forwards

    @property
    def cache_bytes(self) -> int:
        return self.model.cache_bytes + self.copying.cache_bytes

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        return self.model.encode(inputs)

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        self.model.begin(batch, encoded, context)
        self.copying.begin(batch, None, context)

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        copied = self.copying.propose(batch, budget)
        self._is_copied = self._copying_is_faster(batch, budget)
        if not self._is_copied:
            return self.model.propose(batch, budget)
        self.model.pause()
        return copied

    def _copying_is_faster(self, batch: Batch, budget: int) -> bool:
        expected = self.copying.expected
        if expected is None:
            return False
        by_model = self.model.expected(batch, budget)
        return expected.speed(self._trust.value) > by_model.speed()

    def update(self, verdict: Verdict, batch: Batch) -> None:
        if self._is_copied:
            self.copying.update(verdict, batch)
            self.model.follow(verdict, batch)
        else:
            self.model.update(verdict, batch)
            self.copying.follow(batch)
        self._trust.count(*self.copying.comparison)

    def remove(self, row: int) -> None:
        self.model.remove(row)
        self.copying.remove(row)
