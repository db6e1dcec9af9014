"""Figures from measurements; the definition of every figure is in this module.

A ratio is taken between two measurements of the same clip in the same repeat, which are made within
minutes of each other. Times are medians with quartiles over clips and repeats; counters are summed
before they are divided.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from draftlens.verify import StockRun, first_divergence
from draftlens_lab.bench.batches import batch_figures
from draftlens_lab.bench.contestants import COUNTERS, REFERENCE, Contestant
from draftlens_lab.bench.store import Failure, Measurement, Refusal, Store
from draftlens_lab.measure.statistics import quartiles

Figures = dict[str, Any]

Key = tuple[str, str, int]
"""Clip, method and repeat of a measurement."""

ByKey = Mapping[Key, Measurement]

PHASE_ROWS = {
    "render": "pages as pictures",
    "layout": "layout of pages",
    "read": "reading of pages by the pipeline",
    "regions": "crops of regions",
    "frames": "reading and processor",
    "vision": "target's vision",
    "target_prefill": "target prefill",
    "prune": "pruning",
    "caption": "captions",
    "draft_prefill": "draft prefill, its vision included",
    "draft": "draft decoding",
    "lookup": "lookup, without a draft model",
    "verify": "target decoding",
    "rollback": "rollback",
    "other": "the rest",
}
"""Name of each phase in reports. SpecVLM's Table 5 has target prefill, target decoding, draft
prefill and pruning."""


def summarize(store: Store, contestants: Sequence[Contestant], groups: Sequence[str]) -> Figures:
    """Figures by group of clips and by method, and all failures.

    Returns:
        JSON values: `groups`, `variants`, `settings`, `divergences`, `refused` (method to error
        message), `failed`, `measurements` (their number) and `batches` (`batch_figures`).
    """
    failures: list[Failure] = store.of(Failure)
    failed_clips = {failure.clip for failure in failures}
    measurements = [m for m in store.of(Measurement) if m.clip not in failed_clips]
    by_key = {(m.clip, m.method, m.repeat): m for m in measurements}
    measured = {m.method for m in measurements}
    names = [contestant.name for contestant in contestants if contestant.name in measured]
    groups_by_name = {group: _group(measurements, by_key, names, group) for group in groups}
    # Lossy answers are expected to differ, and the metric A says by how much.
    divergences = [divergence(m, by_key) for m in measurements if not m.is_lossy]
    refusals = [r for r in store.of(Refusal) if r.method not in measured]
    return {
        "groups": groups_by_name,
        "variants": _variants(contestants),
        "settings": {contestant.name: contestant.way.settings() for contestant in contestants},
        "divergences": [figures for figures in divergences if figures is not None],
        "refused": {refusal.method: refusal.error for refusal in refusals},
        "failed": [vars(failure) for failure in failures],
        "measurements": len(measurements),
        "batches": batch_figures(store, contestants),
    }


def figures(measurements: Sequence[Measurement], by_key: ByKey) -> Figures:
    """Figures of one method.

    Args:
        measurements: of the method, at least contestant.

    Returns:
        JSON values; None where a figure cannot be computed.
    """
    compared = [m for m in measurements if _reference(m, by_key) is not None]
    return {
        "measurements": len(measurements),
        "prompt_tokens": quartiles([m.prompt_tokens for m in measurements]),
        "tokens": quartiles([len(m.tokens) for m in measurements]),
        **_time_figures(measurements),
        "speedup_e2e": quartiles(_speedups(measurements, by_key, lambda m: m.e2e)),
        "speedup_decode": quartiles(_speedups(measurements, by_key, lambda m: m.decode)),
        "speedup_expected": quartiles(list(_expected_speedups(measurements, by_key))),
        **_counter_figures(measurements),
        "views": _view_figures(measurements),
        **_lossy_figures(measurements),
        **_memory_figures(measurements),
        "identical": sum(divergence(m, by_key) is None for m in compared),
        "compared": len(compared),
    }


def divergence(measurement: Measurement, by_key: ByKey) -> Figures | None:
    """The first difference between an answer and the reference's answer to the same clip in the
    same repeat.

    Answers of the reference are compared with its answer in the first repeat, which shows whether
    they are reproducible.

    Returns:
        JSON values; None if the answers are identical or there is no reference.
    """
    reference = _reference(measurement, by_key)
    if reference is None:
        return None
    stock = StockRun([reference.tokens], reference.e2e, reference.ttft)
    difference = first_divergence(stock, [measurement.tokens])
    if difference is None:
        return None
    return {
        "clip": measurement.clip,
        "method": measurement.method,
        "repeat": measurement.repeat,
        "index": difference.index,
        "reference": difference.stock,
        "method_says": difference.ours,
    }


def draft_step(measurement: Measurement) -> float | None:
    """Mean seconds of one draft forward: those of the phase `draft` / draft forwards; None if no
    draft forwards were counted."""
    forwards = measurement.counters.get("draft_forwards", 0)
    return measurement.phases.get("draft", 0.0) / forwards if forwards else None


def _group(
    measurements: Sequence[Measurement], by_key: ByKey, names: Sequence[str], group: str
) -> Figures:
    in_group = [m for m in measurements if m.group == group]
    methods = {}
    for name in names:
        of_method = [m for m in in_group if m.method == name]
        if of_method:
            methods[name] = figures(of_method, by_key)
    return {
        "clips": len({m.clip for m in in_group}),
        "prompt_tokens": quartiles([m.prompt_tokens for m in in_group]),
        "methods": methods,
    }


def _variants(contestants: Iterable[Contestant]) -> Figures:
    variants = {}
    for contestant in contestants:
        if contestant.varied is not None:
            field, value = contestant.varied
            variants[contestant.name] = {"base": contestant.base, "field": field, "value": value}
    return variants


def _time_figures(measurements: Sequence[Measurement]) -> Figures:
    """Seconds of calls and of their parts."""
    steps = [draft_step(m) for m in measurements]
    return {
        "e2e": quartiles([m.e2e for m in measurements]),
        "ttft": quartiles([m.ttft for m in measurements]),
        "decode": quartiles([m.decode for m in measurements]),
        "tokens_per_second": quartiles([len(m.tokens) / m.e2e for m in measurements]),
        "phases": {phase: _median(_phase_seconds(measurements, phase)) for phase in PHASE_ROWS},
        "draft_step": quartiles([step for step in steps if step is not None]),
    }


def _view_figures(measurements: Sequence[Measurement]) -> Figures:
    """Sums over all answers by the name of the view, and what follows from them: `weight`, the mean
    weight over all tokens, and `right_share` of the tokens that the view was asked about."""
    sums: dict[str, dict[str, float]] = {}
    for measurement in measurements:
        for name, counted in measurement.views.items():
            total = sums.setdefault(name, dict.fromkeys(counted, 0))
            for key, value in counted.items():
                total[key] += value
    return {
        name: {
            "asked": total["asked"],
            "right": total["right"],
            "tokens": total["tokens"],
            "weight": _quotient(total["weight"], total["tokens"]),
            "right_share": _quotient(total["right"], total["asked"]),
        }
        for name, total in sums.items()
    }


def _lossy_figures(measurements: Sequence[Measurement]) -> Figures:
    """Whether the method is lossy, and A: tokens that the full target accepts / tokens, over all
    answers together (ParallelVLM, appendix A); 1 for a lossless method by definition."""
    judged = [m for m in measurements if m.accepted is not None]
    if not judged:
        return {"lossy": False, "target_acceptance": 1.0}
    accepted = sum(m.accepted or 0 for m in judged)
    tokens = sum(len(m.tokens) for m in judged)
    return {"lossy": True, "target_acceptance": _quotient(accepted, tokens)}


def _memory_figures(measurements: Sequence[Measurement]) -> Figures:
    """Largest numbers of bytes."""
    caches = [m.cache_bytes for m in measurements if m.cache_bytes is not None]
    return {
        "peak_bytes": max(m.peak_bytes for m in measurements),
        "grown_bytes": max(m.peak_bytes - m.start_bytes for m in measurements),
        "cache_bytes": max(caches, default=None),
    }


def _reference(measurement: Measurement, by_key: ByKey) -> Measurement | None:
    clip = measurement.clip
    if measurement.method != REFERENCE:
        return by_key.get((clip, REFERENCE, measurement.repeat))
    repeats = [repeat for name, method, repeat in by_key if (name, method) == (clip, REFERENCE)]
    return by_key[clip, REFERENCE, min(repeats)] if repeats else None


def _speedups(
    measurements: Iterable[Measurement], by_key: ByKey, seconds: Callable[[Measurement], float]
) -> list[float]:
    ratios = []
    for measurement in measurements:
        reference = by_key.get((measurement.clip, REFERENCE, measurement.repeat))
        if reference is not None and seconds(reference) > 0 and seconds(measurement) > 0:
            ratios.append(seconds(reference) / seconds(measurement))
    return ratios


def _expected_speedups(measurements: Sequence[Measurement], by_key: ByKey) -> Iterator[float]:
    """Speedups of decoding by equation 1 of TABED, τ / (γ·T_q / T_p + 1): τ tokens a pass, γ·T_q
    seconds of drafting for each pass, T_p seconds a token of the reference. None for methods that
    draft nothing or draft while the target runs, which the equation does not describe."""
    if any(m.counters.get("corrections", 0) for m in measurements):
        return
    for m in measurements:
        reference = by_key.get((m.clip, REFERENCE, m.repeat))
        passes = m.counters.get("passes", 0)
        if reference is None or not passes or not m.counters.get("drafted", 0):
            continue
        if len(reference.tokens) > 1 and reference.decode > 0:
            length = (m.counters["emitted"] - m.counters["first"]) / passes
            drafting = m.phases.get("draft", 0.0) / passes
            yield length / (drafting * (len(reference.tokens) - 1) / reference.decode + 1)


def _phase_seconds(measurements: Iterable[Measurement], phase: str) -> list[float]:
    if phase == "other":
        # The last rollback ends after the last token, so the difference may be below 0.
        return [max(0.0, m.e2e - sum(_phases(m).values())) for m in measurements]
    by_phase = [_phases(m) for m in measurements]
    return [phases[phase] for phases in by_phase if phase in phases]


def _phases(measurement: Measurement) -> Figures:
    """Seconds by phase. Without forwards of a draft model there is no time of one: draft tokens are
    looked up, and what plain decoding spends there is part of the rest."""
    phases = dict(measurement.phases)
    if measurement.counters.get("draft_forwards", 0):
        return phases
    seconds = phases.pop("draft_prefill", 0.0) + phases.pop("draft", 0.0)
    if measurement.counters.get("drafted", 0):
        phases["lookup"] = seconds
    return phases


def _counter_figures(measurements: Sequence[Measurement]) -> Figures:
    """Metrics of `draftlens.core.stats` over all answers together; None if nothing was counted."""
    total = {name: sum(m.counters.get(name, 0) for m in measurements) for name in COUNTERS}
    right = total["emitted"] - total["corrections"]
    return {
        "mean_acceptance_length": _quotient(total["emitted"] - total["first"], total["passes"]),
        "draft_acceptance_rate": _quotient(total["accepted"], total["drafted"]),
        "visual_kept": _quotient(total["kept"], total["visual"]),
        "corrections": total["corrections"],
        "mean_run_length": _quotient(right, total["corrections"]),
    }


def _quotient(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
