"""Arithmetic: from measurements to figures. Every definition stands here, once.

A ratio is taken between two measurements of the same clip in the same repeat, which were made
within minutes of each other. Figures of time are medians with quartiles over clips and repeats;
counts are added up first.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from draftlens.bench.contestants import COUNTERS, REFERENCE, Contestant
from draftlens.bench.store import Failure, Measurement, Refusal, Store
from draftlens.measure.stock import StockRun, first_divergence

Figures = dict[str, Any]
ByKey = Mapping[tuple[str, str, int], Measurement]

PHASE_ROWS = {
    "frames": "reading and processor",
    "vision": "target's vision",
    "target_prefill": "target prefill",
    "prune": "pruning",
    "draft_prefill": "draft prefill, its vision included",
    "draft": "draft decoding",
    "verify": "target decoding",
    "rollback": "rollback",
    "other": "the rest",
}
"""Phase to its row: SpecVLM's Table 5 has target prefill, target decoding, draft prefill and
pruning."""


def summarize(store: Store, chosen: Sequence[Contestant], groups: Sequence[str]) -> Figures:
    """Figures by group of clips and by method, and everything that went wrong.

    Args:
        store: with the measurements.
        chosen: who was measured, in the order of the report.
        groups: of clips, in the same.
    """
    failures: list[Failure] = store.of(Failure)
    failed = {failure.clip for failure in failures}
    counted: list[Measurement] = [m for m in store.of(Measurement) if m.clip not in failed]
    by_key = {(m.clip, m.method, m.repeat): m for m in counted}
    measured = {m.method for m in counted}
    refusals = {
        refusal.method: refusal.error
        for refusal in store.of(Refusal)
        if refusal.method not in measured
    }
    names = [one.name for one in chosen if one.name in measured]
    return {
        "groups": {group: _group(counted, by_key, names, group) for group in groups},
        "variants": {
            one.name: {"base": one.base, "field": one.varied[0], "value": one.varied[1]}
            for one in chosen
            if one.varied is not None
        },
        "settings": {one.name: one.way.settings() for one in chosen},
        "divergences": [d for m in counted if (d := divergence(m, by_key)) is not None],
        "refused": refusals,
        "failed": [vars(failure) for failure in failures],
        "measurements": len(counted),
    }


def _group(
    counted: Sequence[Measurement], by_key: ByKey, names: Sequence[str], group: str
) -> Figures:
    inside = [m for m in counted if m.group == group]
    methods = {name: [m for m in inside if m.method == name] for name in names}
    return {
        "clips": len({m.clip for m in inside}),
        "prompt_tokens": spread([m.prompt_tokens for m in inside]),
        "methods": {name: figures(found, by_key) for name, found in methods.items() if found},
    }


def figures(found: Sequence[Measurement], by_key: ByKey) -> Figures:
    """Figures of one method.

    Args:
        found: its measurements, at least one.
        by_key: all measurements by clip, method and repeat.
    """
    compared = [m for m in found if _reference(m, by_key) is not None]
    return {
        "measurements": len(found),
        "prompt_tokens": spread([m.prompt_tokens for m in found]),
        "tokens": spread([len(m.tokens) for m in found]),
        "e2e": spread([m.e2e for m in found]),
        "ttft": spread([m.ttft for m in found]),
        "decode": spread([m.decode for m in found]),
        "tokens_per_second": spread([len(m.tokens) / m.e2e for m in found]),
        "speedup_e2e": spread(_ratios(found, by_key, lambda m: m.e2e)),
        "speedup_decode": spread(_ratios(found, by_key, lambda m: m.decode)),
        "phases": {phase: _median(_phase(found, phase)) for phase in PHASE_ROWS},
        "draft_step": spread([step for m in found if (step := draft_step(m)) is not None]),
        **_counts(found),
        "peak_bytes": max(m.peak_bytes for m in found),
        "grown_bytes": max(m.peak_bytes - m.start_bytes for m in found),
        "cache_bytes": max(
            (m.cache_bytes for m in found if m.cache_bytes is not None), default=None
        ),
        "identical": sum(divergence(m, by_key) is None for m in compared),
        "compared": len(compared),
    }


def divergence(m: Measurement, by_key: ByKey) -> Figures | None:
    """Where an answer differs from the reference's of the same clip and repeat; None where it does
    not.

    The reference's own answers are compared with its first one, which shows whether it says the
    same every time.
    """
    reference = _reference(m, by_key)
    if reference is None:
        return None
    found = first_divergence(
        StockRun([reference.tokens], reference.e2e, reference.ttft), [m.tokens]
    )
    if found is None:
        return None
    which = {"clip": m.clip, "method": m.method, "repeat": m.repeat}
    return {**which, "index": found.index, "reference": found.stock, "method_says": found.ours}


def draft_step(m: Measurement) -> float | None:
    """Seconds of one draft forward: those of the phase `draft` / draft forwards; None where none
    are counted."""
    forwards = m.counters.get("draft_forwards", 0)
    return m.phases.get("draft", 0.0) / forwards if forwards else None


def spread(values: Sequence[float]) -> Figures | None:
    """Median and quartiles, those of the values themselves at the ends (no extrapolation); None
    without values."""
    if not values:
        return None
    ends = (
        statistics.quantiles(values, n=4, method="inclusive")
        if len(values) > 1
        else [values[0]] * 3
    )
    return {"median": ends[1], "q1": ends[0], "q3": ends[2]}


def _reference(m: Measurement, by_key: ByKey) -> Measurement | None:
    if m.method != REFERENCE:
        return by_key.get((m.clip, REFERENCE, m.repeat))
    repeats = [key[2] for key in by_key if key[:2] == (m.clip, REFERENCE)]
    return by_key[m.clip, REFERENCE, min(repeats)] if repeats else None


def _ratios(
    found: Iterable[Measurement], by_key: ByKey, time: Callable[[Measurement], float]
) -> list[float]:
    """The reference's time / the method's, where both took any: an answer of one token has no
    decoding."""
    pairs = ((by_key.get((m.clip, REFERENCE, m.repeat)), m) for m in found)
    return [
        time(slow) / time(fast)
        for slow, fast in pairs
        if slow is not None and time(slow) > 0 and time(fast) > 0
    ]


def _phase(found: Iterable[Measurement], phase: str) -> list[float]:
    if phase == "other":  # not below 0: the last rollback goes on after the last token
        return [max(0.0, m.e2e - sum(m.phases.values())) for m in found]
    return [m.phases[phase] for m in found if phase in m.phases]


def _counts(found: Sequence[Measurement]) -> Figures:
    """Metrics of `engine.stats`, over all answers together; None where nothing was counted."""
    total = {name: sum(m.counters.get(name, 0) for m in found) for name in COUNTERS}

    def share(part: int, whole: int) -> float | None:
        return part / whole if whole else None

    if not any(m.counters for m in found):
        return {"mean_acceptance_length": None, "draft_acceptance_rate": None, "visual_kept": None}
    return {
        "mean_acceptance_length": share(total["emitted"] - total["first"], total["passes"]),
        "draft_acceptance_rate": share(total["accepted"], total["drafted"]),
        "visual_kept": share(total["kept"], total["visual"]),
    }


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
