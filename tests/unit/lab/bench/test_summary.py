"""The arithmetic against a slow twin, on made-up measurements."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from draftlens_lab.bench.contestants import Contestant, HfGenerate
from draftlens_lab.bench.store import Measurement, Store
from draftlens_lab.bench.summary import PHASE_ROWS, draft_step, summarize

from draftlens.core.stats import PHASES, Stats

METHODS = ("hf-generate", "plain", "ours")
CLIPS = {"a": "short", "b": "short", "c": "long"}


def made_up(seed: int, repeats: int = 3) -> list[Measurement]:
    """Measurements of every clip, method and repeat, in any order, some answers a single token
    long."""
    rng = random.Random(seed)
    found = []
    for clip, group in CLIPS.items():
        tokens = [rng.randrange(9) for _ in range(rng.choice((1, 4, 9)))]
        for method in METHODS:
            for repeat in range(repeats):
                ttft = rng.uniform(0.1, 2)
                e2e = ttft + (rng.uniform(0.1, 3) if len(tokens) > 1 else 0)
                phases = (
                    {phase: rng.uniform(0, 0.05) for phase in PHASES}
                    if method != "hf-generate"
                    else {}
                )
                counters = {} if method == "hf-generate" else _counters(rng, method, len(tokens))
                said = [*tokens[:-1], 99] if rng.random() < 0.2 else list(tokens)
                memory = rng.randrange(10**6), rng.randrange(10**6, 10**7), rng.randrange(10**5)
                found.append(
                    Measurement(
                        *(
                            clip,
                            group,
                            method,
                            repeat,
                            said,
                            e2e,
                            ttft,
                            phases,
                            len(clip) * 10,
                            counters,
                        ),
                        cache_bytes=memory[0] if counters else None,
                        peak_bytes=memory[1],
                        start_bytes=memory[2],
                    )
                )
    rng.shuffle(found)
    return found


def _counters(rng: random.Random, method: str, emitted: int) -> dict[str, int]:
    drafts = 0 if method == "plain" else rng.randrange(1, 9)
    passes = rng.randrange(1, 9) if emitted > 1 else 0
    counts = {
        "emitted": emitted,
        "first": 1,
        "passes": passes,
        "drafted": 5 * drafts,
        "accepted": drafts,
    }
    return {
        **counts,
        "visual": 10 * drafts,
        "kept": drafts,
        "target_forwards": passes,
        "draft_forwards": drafts,
        "corrections": min(emitted, drafts) if passes else 0,
    }


def summary_of(found: list[Measurement]) -> dict[str, Any]:
    store = Store.__new__(Store)
    store.records = list(found)
    return summarize(store, [Contestant(name, HfGenerate()) for name in METHODS], ["short", "long"])


def expected_quartiles(values: list[float]) -> Any:
    if not values:
        return None
    q1, median, q3 = np.percentile(values, [25, 50, 75])
    return pytest.approx({"median": median, "q1": q1, "q3": q3})


@pytest.mark.parametrize("seed", range(8))
def test_figures_are_those_of_the_slow_twin(seed: int) -> None:
    found = made_up(seed, repeats=1 + seed % 4)
    summary = summary_of(found)
    for group in ("short", "long"):
        for method in METHODS:
            row = summary["groups"][group]["methods"][method]
            mine = [m for m in found if m.group == group and m.method == method]
            pairs = [
                (r, m)
                for m in mine
                for r in found
                if r.method == "hf-generate" and r.clip == m.clip and r.repeat == m.repeat
            ]
            assert row["measurements"] == len(mine)
            assert row["e2e"] == expected_quartiles([m.e2e for m in mine])
            assert row["tokens_per_second"] == expected_quartiles(
                [len(m.tokens) / m.e2e for m in mine]
            )
            assert row["speedup_e2e"] == expected_quartiles([r.e2e / m.e2e for r, m in pairs])
            longer = [(r, m) for r, m in pairs if len(r.tokens) > 1]
            assert row["speedup_decode"] == expected_quartiles(
                [(r.e2e - r.ttft) / (m.e2e - m.ttft) for r, m in longer]
            )
            assert row["peak_bytes"] == max(m.peak_bytes for m in mine)
            assert row["grown_bytes"] == max(m.peak_bytes - m.start_bytes for m in mine)
            _check_counts(row, mine)
            for phase in PHASES:
                has_draft = [bool(m.counters.get("draft_forwards")) for m in mine]
                times = [
                    m.phases[phase]
                    for m, drafts in zip(mine, has_draft, strict=True)
                    if m.phases and (drafts or not phase.startswith("draft"))
                ]
                assert row["phases"][phase] == (pytest.approx(np.median(times)) if times else None)
            rest = []
            for m in mine:
                drafting = m.phases.get("draft_prefill", 0.0) + m.phases.get("draft", 0.0)
                is_plain = not (m.counters.get("draft_forwards") or m.counters.get("drafted"))
                counted = sum(m.phases.values()) - (drafting if is_plain else 0.0)
                rest.append(max(0.0, m.e2e - counted))
            assert row["phases"]["other"] == pytest.approx(np.median(rest))


def _check_counts(row: dict[str, Any], mine: list[Measurement]) -> None:
    def total(name: str) -> int:
        return sum(m.counters.get(name, 0) for m in mine)

    passes, drafted, visual = total("passes"), total("drafted"), total("visual")
    length = (total("emitted") - total("first")) / passes if passes else None
    assert row["mean_acceptance_length"] == length
    assert row["draft_acceptance_rate"] == (total("accepted") / drafted if drafted else None)
    assert row["visual_kept"] == (total("kept") / visual if visual else None)
    corrections = total("corrections")
    right = total("emitted") - corrections
    assert row["corrections"] == corrections
    assert row["mean_run_length"] == (right / corrections if corrections else None)
    forwards = [
        (m.phases["draft"], m.counters["draft_forwards"])
        for m in mine
        if m.counters.get("draft_forwards")
    ]
    assert row["draft_step"] == expected_quartiles([seconds / count for seconds, count in forwards])


@pytest.mark.parametrize("seed", range(8))
def test_divergences_are_those_of_the_slow_twin(seed: int) -> None:
    found = made_up(seed)
    expected = set()
    for m in found:
        repeat = 0 if m.method == "hf-generate" else m.repeat
        reference = next(
            r for r in found if (r.clip, r.method, r.repeat) == (m.clip, "hf-generate", repeat)
        )  # the library's own answers are held against its first
        if reference.tokens != m.tokens:
            expected.add((m.clip, m.method, m.repeat, len(m.tokens) - 1))
    summary = summary_of(found)
    assert {
        (d["clip"], d["method"], d["repeat"], d["index"]) for d in summary["divergences"]
    } == expected
    rows = [row for group in summary["groups"].values() for row in group["methods"].values()]
    assert sum(row["compared"] - row["identical"] for row in rows) == len(expected)


def test_without_the_reference_there_are_no_ratios() -> None:
    rows = summary_of([m for m in made_up(1) if m.method != "hf-generate"])["groups"]["short"][
        "methods"
    ]
    assert rows["ours"]["speedup_e2e"] is None
    assert rows["ours"]["compared"] == 0


def test_metrics_are_those_of_stats() -> None:
    """The same definitions as in every other table of the house."""
    counters = {"emitted": 31, "first": 1, "passes": 8, "drafted": 40, "accepted": 23}
    counters["corrections"] = 5
    stats = Stats(**counters)
    m = Measurement("a", "short", "ours", 0, [1], 2.0, 1.0, {}, 5, counters, None, 1, 0)
    row = summary_of([m])["groups"]["short"]["methods"]["ours"]
    assert row["mean_acceptance_length"] == stats.mean_acceptance_length
    assert row["draft_acceptance_rate"] == stats.draft_acceptance_rate
    assert row["mean_run_length"] == stats.mean_run_length
    assert draft_step(m) is None


def test_every_phase_has_a_row() -> None:
    assert set(PHASE_ROWS) == {*PHASES, "lookup", "other"}


def test_draft_tokens_without_a_draft_model_are_a_lookup() -> None:
    """The time of drafting is that of a draft only where one ran."""
    phases = {"draft_prefill": 0.25, "draft": 0.5, "verify": 1.0}

    def shown(**counters: int) -> dict[str, float | None]:
        m = Measurement("a", "short", "ours", 0, [1], 2.0, 1.0, phases, 5, counters, None, 1, 0)
        found = summary_of([m])["groups"]["short"]["methods"]["ours"]["phases"]
        return {name: found[name] for name in ("draft_prefill", "draft", "lookup", "other")}

    with_draft = {"draft_prefill": 0.25, "draft": 0.5, "lookup": None, "other": 0.25}
    assert shown(drafted=4, draft_forwards=4) == with_draft
    without = {"draft_prefill": None, "draft": None, "lookup": 0.75, "other": 0.25}
    assert shown(drafted=4, draft_forwards=0) == without
    plain = {"draft_prefill": None, "draft": None, "lookup": None, "other": 1.0}
    assert shown(drafted=0, draft_forwards=0) == plain


def judged(method: str, clip: str, said: list[int], accepted: int | None) -> Measurement:
    figures = (said, 2.0, 1.0, {}, 5, {"visual": 40, "kept": 10}, None, 1, 0)
    return Measurement(clip, "short", method, 0, *figures, accepted=accepted)


def test_acceptance_is_summed_over_all_answers_first() -> None:
    found = [judged("ours", "a", [1, 2, 3, 4], 1), judged("ours", "b", [1, 2], 2)]
    found += [judged("plain", "a", [1, 2], None)]
    rows = summary_of(found)["groups"]["short"]["methods"]
    assert (rows["ours"]["lossy"], rows["ours"]["target_acceptance"]) == (True, 3 / 6)
    assert (rows["plain"]["lossy"], rows["plain"]["target_acceptance"]) == (False, 1.0)
    assert rows["ours"]["visual_kept"] == 20 / 80


def test_lossy_answers_that_differ_are_no_divergences() -> None:
    found = [judged("hf-generate", "a", [1, 2], None), judged("plain", "a", [1, 3], None)]
    summary = summary_of([*found, judged("ours", "a", [1, 4], 2)])
    assert [d["method"] for d in summary["divergences"]] == ["plain"]
    row = summary["groups"]["short"]["methods"]["ours"]
    assert (row["identical"], row["compared"]) == (0, 1)


def _made(method: str, seconds: float, **counters: int) -> Measurement:
    """An answer of 9 tokens that begins after 1 s and takes so many more."""
    phases = {"draft": 0.5, "verify": 1.0} if counters else {}
    return Measurement(
        *("a", "short", method, 0, [1] * 9, 1 + seconds, 1.0, phases, 10, counters),
        cache_bytes=None,
        peak_bytes=1,
        start_bytes=0,
    )


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 2 / (0.125 / 0.5 + 1)),  # 8 tokens in 4 passes, 0.5 s of drafting, 0.5 s a token
        ({"passes": 2}, 4 / (0.25 / 0.5 + 1)),
        ({"drafted": 0}, None),  # plain decoding
        ({"passes": 0}, None),
        ({"corrections": 1}, None),  # the draft runs while the target does
    ],
)
def test_the_speedup_that_equation_1_expects(
    changed: dict[str, int], expected: float | None
) -> None:
    counters = {"emitted": 9, "first": 1, "passes": 4, "drafted": 12, "corrections": 0}
    found = [_made("hf-generate", 4.0), _made("ours", 2.0, **{**counters, **changed})]
    row = summary_of(found)["groups"]["short"]["methods"]["ours"]
    if expected is None:
        assert row["speedup_expected"] is None
    else:
        assert row["speedup_expected"]["median"] == pytest.approx(expected)
        assert row["speedup_decode"]["median"] == 2
