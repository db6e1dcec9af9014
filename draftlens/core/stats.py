"""Counters, times and the metrics made of them: every definition stands here, once.

A pass is one verification forward of the target, counted per row that was still running. The token
that prefill yields belongs to no pass. A phase's time is wall-clock on the CPU; on a GPU, where the
host runs ahead, work counts in the phase that waits for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

PHASES = (
    "frames",
    "vision",
    "target_prefill",
    "prune",
    "draft_prefill",
    "draft",
    "verify",
    "rollback",
)

DEFINITIONS = {
    "mean_acceptance_length": "tokens emitted by verification passes / passes, bonus token "
    "included",
    "mean_accepted_tokens": "accepted draft tokens / passes, bonus token not included",
    "draft_acceptance_rate": "accepted draft tokens / drafted tokens",
    "ttft": "seconds from the call to the first token",
    "tpot": "seconds per token after the first",
    "tokens_per_second": "emitted tokens / end-to-end seconds",
    "decode_tokens_per_second": "tokens after the first / decode seconds",
}
"""Metric to meaning, as printed under every table."""


@dataclass
class Stats:
    """What one call did.

    Args:
        emitted: tokens emitted, all rows, prefill's own included.
        first: tokens of them that prefill itself yielded.
        passes: verification passes, counted per running row.
        drafted: guesses that were checked, per running row.
        accepted: guesses that were right and used.
        visual, kept: visual tokens of the draft's prompt before and after pruning; 0 where none is
            pruned.
        target_forwards, draft_forwards: decode forwards of each model, whole batches counted once.
        accepted_by_depth: depth to number of passes whose accepted path was that long.
        phases: seconds by phase (`PHASES`).
        e2e: seconds from the call to the last token, everything included.
        ttft: seconds from the call to the first token.
    """

    emitted: int = 0
    first: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    visual: int = 0
    kept: int = 0
    target_forwards: int = 0
    draft_forwards: int = 0
    accepted_by_depth: Counter[int] = field(default_factory=Counter)
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    e2e: float = 0.0
    ttft: float = 0.0

    @property
    def decode(self) -> float:
        """Seconds from the first token to the last."""
        return self.e2e - self.ttft

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted by verification passes / passes, the bonus token included (vLLM's meaning;
        τ)."""
        return (self.emitted - self.first) / self.passes if self.passes else 0.0

    @property
    def mean_accepted_tokens(self) -> float:
        """Accepted draft tokens / passes, the bonus token not included (HSD's AAL, MMSpec's
        MAT)."""
        return self.accepted / self.passes if self.passes else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tpot(self) -> float:
        """Seconds per token after the first, all rows together."""
        return self.decode / max(1, self.emitted - self.first)

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens / end-to-end seconds."""
        return self.emitted / self.e2e if self.e2e else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first / decode seconds."""
        return (self.emitted - self.first) / self.decode if self.decode > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Counters, times and metrics as plain JSON values."""
        counters = {k: v for k, v in vars(self).items() if k not in ("accepted_by_depth", "phases")}
        metrics = {name: getattr(self, name) for name in DEFINITIONS}
        depths = {
            str(depth): self.accepted_by_depth[depth] for depth in sorted(self.accepted_by_depth)
        }
        return {
            **counters,
            **metrics,
            "decode": self.decode,
            "accepted_by_depth": depths,
            "phases": dict(self.phases),
        }


class Clock:
    """Adds up time by phase.

    Args:
        stats: where it goes.
    """

    def __init__(self, stats: Stats) -> None:
        self.stats, self.start = stats, time.perf_counter()
        self._inner = 0.0  # seconds of phases inside the one that runs

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside towards `name`, but for what a phase within it counts."""
        begin, outer, self._inner = time.perf_counter(), self._inner, 0.0
        try:
            yield
        finally:
            spent = time.perf_counter() - begin
            self.stats.phases[name] += spent - self._inner
            self._inner = outer + spent

    def mark_first(self) -> None:
        """The first token is out."""
        self.stats.ttft = time.perf_counter() - self.start

    def mark_last(self) -> None:
        """Tokens are out and no phase is running; the latest of these calls sets the end-to-end
        time."""
        self.stats.e2e = time.perf_counter() - self.start
