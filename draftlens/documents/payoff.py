"""Whether reading pictures takes longer than its drafts save."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftlens.core.stats import Stats

LOSSES = 2
"""Pages in a row on which reading has to lose before it ends."""

_BEFORE = ("vision", "target_prefill")
_ROUNDS = ("draft_prefill", "draft", "verify", "rollback")


@dataclass
class ReadingPayoff:
    """Compares pages that were read with their time by plain decoding.

    Args:
        seconds_per_token: of plain decoding.
        ahead: whether a page is read during the answer of the page before, so that the slower of
            both counts; otherwise their sum counts.
    """

    seconds_per_token: float
    ahead: bool
    _losses: int = field(default=0, init=False)

    def pays(self, stats: Stats) -> bool:
        """False if this page and those before it, `LOSSES` in all, took longer than plain decoding.
        `stats` holds the phases of the pipeline and of a page answered alone, in one stage."""
        phases = stats.phases
        before = sum(phases[name] for name in _BEFORE)
        rounds = sum(phases[name] for name in _ROUNDS)
        plain = stats.emitted * self.seconds_per_token
        took = self._together(phases["layout"] + phases["read"], before + rounds)
        would_take = self._together(phases["layout"], before + plain)
        self._losses = self._losses + 1 if took > would_take else 0
        return self._losses < LOSSES

    def _together(self, pipeline: float, answer: float) -> float:
        return max(pipeline, answer) if self.ahead else pipeline + answer
