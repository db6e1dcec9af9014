"""Counters and times of one call, and all metrics computed from them.

A pass is one verification forward of the target, counted once for each row that was still running.
The tokens that prefill yields, one for each row, belong to no pass.
Times of phases are wall-clock times on the CPU: with a GPU, a kernel's time is counted in the phase
that waits for its result.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Unpack

from draftlens.core.errors import ConfigError
from draftlens.core.timeline import DRAFT, Annotation, Recorder, Span, Timeline, Track

PHASES = (
    "render",
    "layout",
    "read",
    "regions",
    "frames",
    "vision",
    "target_prefill",
    "prune",
    "caption",
    "draft_prefill",
    "draft",
    "verify",
    "rollback",
)

DEFINITIONS = {
    "mean_acceptance_length": "tokens emitted by verification passes / passes, bonus token "
    "included",
    "mean_accepted_tokens": "draft tokens that passes accept / passes, bonus token not included",
    "mean_run_length": "with a draft that runs ahead: accepted draft tokens / corrections",
    "draft_acceptance_rate": "draft tokens that passes accept / draft tokens that passes verify",
    "ttft": "seconds from the call to the first token",
    "tpot": "seconds per token after those of prefill",
    "tokens_per_second": "emitted tokens / end-to-end seconds",
    "decode_tokens_per_second": "tokens after those of prefill / decode seconds",
}
"""Metric names and their definitions, as printed under every table."""


@dataclass
class ViewStats:
    """Draft tokens that one view of a draft would propose.

    It was evaluated for `asked` tokens of the answer and would have proposed `right` of them.
    `weight` is the sum of its weights at `tokens` tokens.
    """

    asked: int = 0
    right: int = 0
    weight: float = 0.0
    tokens: int = 0

    def count(self, weight: float, hit: bool | None) -> None:
        """Count a token; `hit` is None if the view was not evaluated."""
        self.tokens += 1
        self.weight += weight
        if hit is not None:
            self.asked += 1
            self.right += hit


@dataclass
class Stats:
    """Counters and times of one call; sums over all rows.

    Attributes:
        emitted: emitted tokens, including those that prefill yields.
        first: emitted tokens that prefill yields.
        passes: verification passes, counted per running row.
        drafted: draft tokens that passes verified, counted per running row.
        accepted: draft tokens that passes accepted and that were used.
        tolerated: accepted draft tokens other than the target's own choice.
        visual, kept: visual tokens in the draft's prompt before and after pruning; 0 without
            pruning.
        cached_tokens: tokens of the prompts that the target did not read, since the prompt cache
            had their keys and values.
        target_forwards, draft_forwards: decode forwards; a batch counts once.
        corrections: with a draft that runs in parallel, rejected draft tokens; each ended a run of
            accepted ones.
        worker_lost: why the draft worker was lost during the call; None if it was not.
        accepted_by_depth: number of passes by the length of their accepted path.
        accepted_by_reference: accepted draft tokens by the row of the call and the index of their
            reference; -1 stands for the prompt and the answer itself.
        phases: seconds by phase (`PHASES`). `render`, `layout`, `read` and `regions` are those of
            documents: the pipeline, which may overlap the answer of the page before, and the crops.
        e2e: seconds from the call to the last token, everything included.
        ttft: seconds from the call to the first token.
        target_cache_bytes, draft_cache_bytes: bytes of keys and values allocated by the end.
        lanes: by lane, seconds by phase (`Clock.lane`) or kind of span (`Clock.add_spans`). Lanes
            run at the same time as `phases`, so the sum of all may exceed `e2e`.
        views: by name, for a draft that reads the prompt in several views.
    """

    emitted: int = 0
    first: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    tolerated: int = 0
    visual: int = 0
    kept: int = 0
    cached_tokens: int = 0
    target_forwards: int = 0
    draft_forwards: int = 0
    corrections: int = 0
    worker_lost: str | None = None
    accepted_by_depth: Counter[int] = field(default_factory=Counter)
    accepted_by_reference: dict[int, Counter[int]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    e2e: float = 0.0
    ttft: float = 0.0
    target_cache_bytes: int = 0
    draft_cache_bytes: int = 0
    lanes: dict[str, dict[str, float]] = field(default_factory=dict)
    views: dict[str, ViewStats] = field(default_factory=dict)

    @property
    def decode(self) -> float:
        """Seconds from the first token to the last."""
        return self.e2e - self.ttft

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that passes emit / passes, bonus token included: τ in papers, the same in vLLM."""
        return _ratio(self.emitted - self.first, self.passes)

    @property
    def mean_accepted_tokens(self) -> float:
        """Draft tokens that passes accept / passes: AAL in HSD, MAT in MMSpec."""
        return _ratio(self.accepted, self.passes)

    @property
    def mean_run_length(self) -> float:
        """Accepted draft tokens / corrections, with a draft that runs in parallel: M in
        ParallelVLM, not the number of tokens a pass."""
        right = self.emitted - self.corrections
        return _ratio(right, self.corrections)

    @property
    def draft_acceptance_rate(self) -> float:
        """Draft tokens that passes accept / draft tokens that passes verify."""
        return _ratio(self.accepted, self.drafted)

    @property
    def tpot(self) -> float:
        """Seconds per token after those of prefill, all rows together."""
        return self.decode / max(1, self.emitted - self.first)

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens / end-to-end seconds."""
        return _ratio(self.emitted, self.e2e)

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after those of prefill / decode seconds."""
        return _ratio(self.emitted - self.first, self.decode)

    def to_dict(self) -> dict[str, Any]:
        """Counters, times and metrics as plain JSON values."""
        containers = ("accepted_by_depth", "accepted_by_reference", "phases", "lanes", "views")
        counters = {name: value for name, value in vars(self).items() if name not in containers}
        metrics = {name: getattr(self, name) for name in DEFINITIONS}
        depths = sorted(self.accepted_by_depth)
        return {
            **counters,
            **metrics,
            "decode": self.decode,
            "accepted_by_depth": {str(depth): self.accepted_by_depth[depth] for depth in depths},
            "accepted_by_reference": {
                str(row): {str(reference): counts[reference] for reference in sorted(counts)}
                for row, counts in sorted(self.accepted_by_reference.items())
            },
            "phases": dict(self.phases),
            "lanes": {name: dict(phases) for name, phases in self.lanes.items()},
            "views": {name: dict(vars(view)) for name, view in self.views.items()},
        }


class Lane:
    """A stack of nested phases, for one thread at a time; fills `phases` (seconds) and `track`."""

    def __init__(self, phases: dict[str, float], track: Track | None = None) -> None:
        self.phases = phases
        self._track = track
        self._nested_seconds = 0.0  # time of the phases nested in the current one that have ended

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time inside, without nested phases, also if an exception is raised."""
        start = time.perf_counter()
        outer_nested_seconds = self._nested_seconds
        self._nested_seconds = 0.0
        if self._track is not None:
            self._track.enter(name, start)
        try:
            yield
        finally:
            end = time.perf_counter()
            seconds = end - start
            self.phases[name] += seconds - self._nested_seconds
            self._nested_seconds = outer_nested_seconds + seconds
            if self._track is not None:
                self._track.leave(end)

    def annotate(self, phase: str, **fields: Unpack[Annotation]) -> None:
        """Change fields of the last ended span of a phase, if spans are recorded."""
        if self._track is not None:
            self._track.annotate(phase, **fields)


class Clock:
    """Measures the times of one call, starting when the clock is created; `record` also keeps
    spans.

    Example:

        >>> clock = Clock(Stats(), record=True)
        >>> with clock.phase("verify"):
        ...     pass
        >>> clock.annotate("verify", tokens=5, accepted=3)
        >>> clock.mark_last()
        >>> [(span.lane, span.kind, span.accepted) for span in clock.timeline().spans]
        [('target', 'verify', 3)]
    """

    def __init__(self, stats: Stats, record: bool = False) -> None:
        self.stats = stats
        self.start = time.perf_counter()
        self._recorder = Recorder() if record else None
        self._lane = Lane(stats.phases, None if self._recorder is None else self._recorder.own)

    @property
    def records(self) -> bool:
        return self._recorder is not None

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Add the time inside, without nested phases, to one of `PHASES` (else KeyError)."""
        return self._lane.phase(name)

    def begin_earlier(self, phase: str, seconds: float) -> None:
        """Add seconds that one of `PHASES` took before the clock was made, to all times."""
        self.stats.phases[phase] += seconds
        self.start -= seconds

    def lane(self, name: str) -> Lane:
        """A lane for another thread; its seconds go to `stats.lanes[name]`. Lanes of one name must
        not run at the same time."""
        track = None if self._recorder is None else self._recorder.track(name)
        return Lane(self.stats.lanes.setdefault(name, defaultdict(float)), track)

    def annotate(self, phase: str, **fields: Unpack[Annotation]) -> None:
        self._lane.annotate(phase, **fields)

    def add_spans(self, spans: Sequence[Span]) -> None:
        """Add spans measured elsewhere, in seconds of `time.perf_counter`, which the processes of a
        machine share on Linux. The clock's own phases of their lane then count as the target's."""
        for span in spans:
            phases = self.stats.lanes.setdefault(span.lane, defaultdict(float))
            phases[span.kind] += span.seconds
        if self._recorder is not None:
            self._recorder.add(spans)

    def timeline(self) -> Timeline:
        """Spans in seconds since the clock was created; raises ConfigError without `record`."""
        if self._recorder is None:
            raise ConfigError("this clock records no spans: make it with record=True")
        spans = [span.shifted(-self.start) for span in self._recorder.spans()]
        # A call without a draft has only the target's lane.
        if not (self.stats.draft_forwards or self.stats.drafted):
            spans = [span for span in spans if span.lane != DRAFT]
        return Timeline(tuple(spans), self.stats.ttft, self.stats.e2e)

    def mark_first(self) -> None:
        self.stats.ttft = time.perf_counter() - self.start

    def mark_last(self) -> None:
        """The latest call sets `e2e`; call it outside of phases, so that no phase exceeds it."""
        self.stats.e2e = time.perf_counter() - self.start


def _ratio(value: float, divisor: float) -> float:
    return value / divisor if divisor > 0 else 0.0
