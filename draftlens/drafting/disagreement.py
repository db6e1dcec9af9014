"""A warning where hardly any draft token is accepted."""

from __future__ import annotations

import logging
from functools import cache

MIN_TRIALS = 24
"""First draft tokens of a round after which a draft can be called useless."""
USELESS = 0.05
"""Share of accepted ones below which it is."""

_log = logging.getLogger("draftlens")


class Disagreement:
    """Counts the first draft token of every round and warns if nearly all are rejected.

    Args:
        draft: name of the model that drafts.
    """

    def __init__(self, draft: str) -> None:
        self.draft = draft
        self.trials = 0
        self.hits = 0

    def count(self, hits: int, misses: int) -> None:
        """Count accepted and rejected tokens, and warn if it is time."""
        self.trials += hits + misses
        self.hits += hits
        if self.trials >= MIN_TRIALS and self.hits <= USELESS * self.trials:
            _warn(self.draft)


@cache
def _warn(draft: str) -> None:  # the cache makes it one warning for each draft
    _log.warning(
        "Hardly any token of the draft %s is accepted, so drafting gains nothing: it may have "
        "another tokenizer, not know the language or the task, or not see what the target sees.",
        draft,
    )
