"""All counters of a call describe the same tokens, by whatever method, rule and batch it is
answered."""

from __future__ import annotations

from typing import Any

import pytest
from families import FAMILIES, inputs, tokenizer
from stock import LONG, Divisible, draft, reference, staggered, target

import draftlens
from draftlens.core.result import Result

FAMILY = {family.name: family for family in FAMILIES}["qwen2_vl"]
KIND = "images"

METHODS: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain"},
    "chain": {"num_speculative_tokens": 5},
    "tree": {"tree": "eagle"},
    "specvlm": {"method": "specvlm", "num_speculative_tokens": 4, "prune_ratio": 0.5},
    "parallel": {"num_speculative_tokens": 4, "schedule": "parallel"},
    "tabed": {"method": "tabed", "tree": "eagle"},
    "lookup": {"method": "lookup", "num_speculative_tokens": 6},
    "hsd": {"method": "hsd", "num_speculative_tokens": 12},
}
RULES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "coupled": {"do_sample": True, "temperature": 0.3, "seed": 3},
    "rejection": {"do_sample": True, "temperature": 0.3, "seed": 3},
}
ROWS: dict[str, tuple[int, ...]] = {"one": (1,), "two": (0, 2), "three": (0, 1, 2)}
ENDS = ("length", "eos", "in step")


def ending(rows: tuple[int, ...], ends: str) -> dict[str, Any]:
    """Options under which rows end together, alone, or when all have met a criterion."""
    if ends == "eos":
        return {"eos_token_id": staggered(reference(FAMILY, KIND, LONG))}
    if ends == "in step":
        length = inputs(FAMILY, KIND, rows)["input_ids"].shape[1]
        return {"stopping_criteria": [Divisible(length)]}
    return {}


def answered(method: str, rule: str, rows: tuple[int, ...], ends: str, limit: int) -> Result:
    chosen = dict(METHODS[method])
    if rule == "rejection" and method != "plain":
        chosen["sampling_rule"] = "rejection"
    repeats = chosen.get("method") in ("hsd", "lookup")
    answers = [reference(FAMILY, KIND, LONG)[row] for row in rows]
    return draftlens.generate(
        target(FAMILY),
        inputs(FAMILY, KIND, rows),
        draft=None if repeats else draft(FAMILY),
        method=chosen,
        references=[[row[:9], row[7:], row] for row in answers] if repeats else None,
        tokenizer=tokenizer(),
        max_new_tokens=limit,
        **ending(rows, ends),
        **RULES[rule],
    )


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.pairwise
def test_counters_agree(method: str, rule: str, rows: tuple[int, ...], ends: str) -> None:
    for limit in (2, 9, LONG):
        check(answered(method, rule, rows, ends, limit), METHODS[method])


def check(result: Result, method: dict[str, Any]) -> None:
    """Every identity that the definitions of the counters imply."""
    stats = result.stats
    assert stats.emitted == sum(map(len, result.tokens))
    assert stats.accepted == sum(map(sum, result.from_draft))
    assert stats.first == len(result.tokens)
    assert stats.accepted <= stats.drafted
    assert sum(stats.accepted_by_depth.values()) == stats.passes
    assert sum(depth * count for depth, count in stats.accepted_by_depth.items()) == stats.accepted
    assert stats.accepted <= stats.emitted - stats.first <= stats.accepted + stats.passes
    assert stats.target_forwards <= stats.passes <= stats.target_forwards * len(result.tokens)
    for row, from_draft in enumerate(result.from_draft):
        by_reference = stats.accepted_by_reference.get(row, {})
        repeats = method.get("method") in ("hsd", "lookup")
        assert sum(by_reference.values()) == (sum(from_draft) if repeats else 0)
    for view in stats.views.values():
        assert view.right <= view.asked <= view.tokens <= stats.emitted
        assert view.weight <= view.tokens + 1e-4
    assert stats.kept <= stats.visual
    assert stats.tolerated == 0


@pytest.mark.parametrize("rows", [(0, 1), (1, 2), (0, 2)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_references_of_a_tree_that_the_end_of_an_answer_cuts(
    rows: tuple[int, ...], seed: int
) -> None:
    """One row is ahead of the other, so its tree reaches over its own end."""
    answers = [reference(FAMILY, KIND, LONG)[row] for row in rows]
    result = draftlens.generate(
        target(FAMILY),
        inputs(FAMILY, KIND, rows),
        method={"method": "hsd", "num_speculative_tokens": 12, "sampling_rule": "rejection"},
        references=[[answers[0]], [[5, 6, 7]]],
        max_new_tokens=LONG,
        do_sample=True,
        temperature=0.05,
        seed=seed,
    )
    assert any(result.from_draft[0])
    check(result, {"method": "hsd"})
