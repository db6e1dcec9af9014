"""Counters and times of one call, and the metrics computed from them.

All metrics are defined in this module only. A pass is one verification forward of the target,
counted once for each row that was still running. The tokens that prefill yields belong to no pass:
one for each row.
The time of a phase is wall-clock time on the CPU. On a GPU the host runs ahead of the device, so
the time of a kernel is counted in the phase that waits for its result.
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
    "mean_run_length": "with a draft that runs ahead: tokens guessed rightly / corrections",
    "draft_acceptance_rate": "draft tokens that passes accept / draft tokens that passes verify",
    "ttft": "seconds from the call to the first token",
    "tpot": "seconds per token after those of prefill",
    "tokens_per_second": "emitted tokens / end-to-end seconds",
    "decode_tokens_per_second": "tokens after those of prefill / decode seconds",
}
"""Metric names and their definitions, as printed under every table."""


@dataclass
class ViewStats:
    """What one view of a draft would have guessed.

    Attributes:
        asked: tokens of answers that the view was asked about.
        right: tokens of these that it would have guessed.
        weight: sum of its weights over all tokens; its mean weight is ``weight / tokens``.
        tokens: tokens of answers whose views were weighed.
    """

    asked: int = 0
    right: int = 0
    weight: float = 0.0
    tokens: int = 0

    def count(self, weight: float, hit: bool | None) -> None:
        """Count a token; `hit` is None where the view was not asked."""
        self.tokens += 1
        self.weight += weight
        if hit is not None:
            self.asked += 1
            self.right += hit


@dataclass
class Stats:
    """Counters and times of one call.

    Attributes:
        emitted: number of emitted tokens in all rows, including those that prefill yields.
        first: number of emitted tokens that prefill yields.
        passes: number of verification passes, counted per running row.
        drafted: number of draft tokens that passes verified, counted per running row.
        accepted: number of draft tokens that passes accepted and that were used.
        tolerated: number of accepted draft tokens that are other tokens than the target's own
            choice.
        visual: number of visual tokens in the draft's prompt before pruning; 0 without pruning.
        kept: number of visual tokens in the draft's prompt after pruning; 0 without pruning.
        target_forwards: number of decode forwards of the target; a batch counts once.
        draft_forwards: number of decode forwards of the draft; a batch counts once.
        corrections: with a draft in a lane of its own, number of guesses that the target
            contradicted; each ended a run of right ones.
        lane_lost: why the draft's lane was lost in the middle of the call; None if it was not.
        accepted_by_depth: number of passes by the length of their accepted path.
        accepted_by_reference: with references, number of accepted draft tokens, by the row of the
            call and the index of the reference that they come from; -1 stands for the prompt and
            the answer itself. Method `hsd` counts them.
        phases: seconds by phase (`PHASES`). `render`, `layout`, `read` and `regions` are those of
            documents (`draftlens.documents`): what the pipeline takes, which may work while the
            page before is answered, and the crops of a page.
        e2e: seconds from the call to the last token, everything included.
        ttft: seconds from the call to the first token.
        target_cache_bytes: bytes of keys and values allocated for the target by the end.
        draft_cache_bytes: bytes of keys and values allocated for the draft by the end.
        lanes: seconds by phase of each further lane (`Clock.lane`), or by kind of its spans
            (`Clock.add_spans`), by the name of the lane. Lanes run at the same time as `phases`, so
            that all seconds together may exceed `e2e`.
        views: what each view would have guessed, by its name, with a draft that reads the prompt in
            several views.
    """

    emitted: int = 0
    first: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    tolerated: int = 0
    visual: int = 0
    kept: int = 0
    target_forwards: int = 0
    draft_forwards: int = 0
    corrections: int = 0
    lane_lost: str | None = None
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
        """Tokens emitted by verification passes / passes, bonus token included.

        vLLM uses the same definition; papers call it τ.
        """
        return _ratio(self.emitted - self.first, self.passes)

    @property
    def mean_accepted_tokens(self) -> float:
        """Draft tokens that passes accept / passes, bonus token not included.

        This is AAL in HSD and MAT in MMSpec.
        """
        return _ratio(self.accepted, self.passes)

    @property
    def mean_run_length(self) -> float:
        """Tokens that the draft guessed rightly / corrections: the length of a run of right guesses
        between two wrong ones, with a draft that runs ahead of the target.

        This is M in ParallelVLM. It is not the number of tokens a pass.
        """
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
    """A stack of nested phases, measured one after the other.

    A lane must be used by one thread at a time.

    Args:
        phases: seconds by phase; the lane adds to it whenever a phase ends.
        track: receives the spans of the phases; None to record none.
    """

    def __init__(self, phases: dict[str, float], track: Track | None = None) -> None:
        self.phases = phases
        self._track = track
        self._nested_seconds = 0.0  # time of the phases nested in the current one that have ended

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to phase `name`, without the time of phases nested in it.

        The time is also added when an exception ends the phase.
        """
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
        """Change fields of the last span of a phase that has ended, if spans are recorded.

        Args:
            phase: its name.
            fields: `tokens`, `accepted` or `outcome` of `core.timeline.Span`.
        """
        if self._track is not None:
            self._track.annotate(phase, **fields)


class Clock:
    """Measures the times of one call, starting when the clock is created.

    Args:
        stats: receives the times.
        record: whether to record when each phase began and ended, for `timeline`.

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
        """Whether spans are recorded. Where not, nobody needs to measure spans for it."""
        return self._recorder is not None

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Add the time spent inside to `stats.phases[name]`, without that of nested phases.

        Raises:
            KeyError: `name` is not one of `PHASES`.
        """
        return self._lane.phase(name)

    def begin_earlier(self, phase: str, seconds: float) -> None:
        """Add time that was spent for the call before the clock was made, such as on reading frames
        before the models were loaded.

        Args:
            phase: one of `PHASES`.
            seconds: all times of the clock grow by them.
        """
        self.stats.phases[phase] += seconds
        self.start -= seconds

    def lane(self, name: str) -> Lane:
        """A lane independent of this clock's own phases, to be used from another thread.

        Its seconds are added to `stats.lanes[name]`, which has no entries until a phase has ended.
        Lanes of the same name add to the same seconds and must not run at the same time. Their
        spans are recorded under this name.
        """
        track = None if self._recorder is None else self._recorder.track(name)
        return Lane(self.stats.lanes.setdefault(name, defaultdict(float)), track)

    def annotate(self, phase: str, **fields: Unpack[Annotation]) -> None:
        """See `Lane.annotate`; of this clock's own phases."""
        self._lane.annotate(phase, **fields)

    def add_spans(self, spans: Sequence[Span]) -> None:
        """Add spans of a lane that were measured elsewhere, such as in another process.

        Their seconds are added to `stats.lanes`, by lane and kind. In the timeline, the clock's own
        phases of this lane are then spans of the target: in them it prunes for the draft, or waits
        for it.

        Args:
            spans: in seconds of `time.perf_counter`, which all processes of a machine share on
                Linux.
        """
        for span in spans:
            phases = self.stats.lanes.setdefault(span.lane, defaultdict(float))
            phases[span.kind] += span.seconds
        if self._recorder is not None:
            self._recorder.add(spans)

    def timeline(self) -> Timeline:
        """The spans so far, in seconds since the clock was created.

        A call without a draft has only the target's lane.

        Raises:
            ConfigError: the clock does not record spans.
        """
        if self._recorder is None:
            raise ConfigError("this clock records no spans: make it with record=True")
        spans = [span.shifted(-self.start) for span in self._recorder.spans()]
        if not (self.stats.draft_forwards or self.stats.drafted):
            spans = [span for span in spans if span.lane != DRAFT]
        return Timeline(tuple(spans), self.stats.ttft, self.stats.e2e)

    def mark_first(self) -> None:
        """Record that the first token has been emitted."""
        self.stats.ttft = time.perf_counter() - self.start

    def mark_last(self) -> None:
        """Record that tokens have been emitted; the latest call sets the end-to-end time.

        Call it outside of phases, so that no phase is longer than the whole.
        """
        self.stats.e2e = time.perf_counter() - self.start


def _ratio(value: float, divisor: float) -> float:
    """`value / divisor`, or 0 where `divisor` is not positive."""
    return value / divisor if divisor > 0 else 0.0
