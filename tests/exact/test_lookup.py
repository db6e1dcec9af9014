"""Method lookup: the same tokens as stock `generate`, whatever the texts say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from proposals import draft_ids_of, proposals_of
from stock import ALL_KINDS, LONG, Divisible, NoEcho, reference, staggered, stock, target

import draftlens
from draftlens.core.tree import DraftTree
from draftlens.methods.lookup.drafter import LookupDrafter
from draftlens.models.adapter import Backbone

METHODS: dict[str, Any] = {
    "auto": {"method": "lookup"},
    "chain": {"method": "lookup", "num_speculative_tokens": 3, "max_branches": 1},
    "tree": {"method": "lookup", "num_speculative_tokens": 4, "window": 1},
}
Texts = Sequence[Sequence[Sequence[int]]]
every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


def told(branches: int = 3, length: int = 5, rule: str = "coupled") -> dict[str, Any]:
    """The options of a method that checks all draft tokens from references."""
    return {
        "method": "lookup",
        "num_speculative_tokens": length,
        "max_branches": branches,
        "sampling_rule": rule,
    }


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> list[DraftTree]:
    """Every tree of the test."""
    return proposals_of(LookupDrafter, monkeypatch)


def garbled(rows: Sequence[Sequence[int]], every: int = 6) -> Texts:
    """Two texts for each row: its answer with some wrong, missing and additional tokens, and the
    answer of another row."""
    rng = random.Random(every)
    texts = []
    for number, row in enumerate(rows):
        text: list[int] = []
        for place, token in enumerate(row, 1):
            if place % every:
                text.append(token)
            else:
                text += rng.choice([[token + 1], [], [token, token + 1]])
        texts.append([text, rows[number - 1]])
    return texts


@pytest.mark.parametrize(("family", "kind"), ALL_KINDS, ids=str)
def test_a_ragged_batch(family: Family, kind: str, proposed: list[DraftTree]) -> None:
    """Images, videos, several of them, text only; what stands for pixels is never drafted."""
    name = list(METHODS)[ALL_KINDS.index((family, kind)) % len(METHODS)]
    model = target(family)
    result = draftlens.generate(
        model, inputs(family, kind), method=METHODS[name], max_new_tokens=LONG
    )
    assert result.tokens == reference(family, kind, LONG)
    assert result.lossless
    backbone = Backbone.of(model)
    assert backbone.pixel_ids
    draft_tokens = draft_ids_of(proposed)
    assert not draft_tokens & backbone.pixel_ids
    assert all(0 <= draft_token < backbone.vocab_size for draft_token in draft_tokens)


@every_family
def test_texts_that_are_right_in_part(family: Family, proposed: list[DraftTree]) -> None:
    """Rows have different trees in every round, and fillers do not count."""
    rows = reference(family, family.richest, LONG)
    result = draftlens.generate(
        target(family),
        inputs(family, family.richest),
        method=told(),
        references=garbled(rows),
        max_new_tokens=LONG,
    )
    assert result.tokens == rows
    stats = result.stats
    assert stats.mean_acceptance_length > 2
    assert stats.target_forwards < LONG * 0.7
    assert stats.draft_forwards == 0
    assert stats.accepted == sum(map(sum, result.from_draft))
    assert any(len(set(tree.topologies)) == len(rows) for tree in proposed)
    assert stats.drafted <= sum(len(topology) for tree in proposed for topology in tree.topologies)


def test_accepted_tokens_are_counted_by_their_reference() -> None:
    family = FAMILIES[0]
    answer = reference(family, "image", LONG)[0]
    texts = [[[(token + 1) % 90 for token in answer], answer]]
    result = draftlens.generate(
        target(family),
        inputs(family, "image", (0,)),
        method=told(),
        references=texts,
        max_new_tokens=LONG,
    )
    assert result.tokens == [answer]
    counts = result.stats.accepted_by_reference[0]
    assert counts[1] > LONG // 2
    assert sum(counts.values()) == sum(result.from_draft[0])


@every_family
def test_endings_inside_an_accepted_run(family: Family) -> None:
    """Rows end at different moments while the texts go on."""
    rows = reference(family, family.richest, LONG)
    given = inputs(family, family.richest)
    call: dict[str, Any] = {"method": told(length=20), "references": [[row] for row in rows]}
    ends = staggered(rows)
    result = draftlens.generate(
        target(family), given, **call, max_new_tokens=LONG, eos_token_id=ends
    )
    assert result.tokens == stock(target(family), given, max_new_tokens=LONG, eos_token_id=ends)
    assert result.stats.target_forwards < 8
    for most in (1, 2, 7):
        result = draftlens.generate(target(family), given, **call, max_new_tokens=most)
        assert result.tokens == [row[:most] for row in rows]


@every_family
def test_processors_and_criteria_with_history(family: Family) -> None:
    """Each node of each row's own tree is asked about with its own history."""
    given = inputs(family, family.richest)
    length = given["input_ids"].shape[1]
    options: dict[str, Any] = {
        "max_new_tokens": LONG,
        "repetition_penalty": 1.2,
        "logits_processor": [NoEcho()],
        "stopping_criteria": [Divisible(length)],
    }
    expected = stock(target(family), given, **options)
    texts = garbled(expected, every=4)
    result = draftlens.generate(target(family), given, method=told(), references=texts, **options)
    assert result.tokens == expected


@pytest.mark.parametrize("family", FAMILIES[2:4], ids=str)
def test_texts_of_nothing_but_what_must_not_be_drafted(
    family: Family, proposed: list[DraftTree]
) -> None:
    """Placeholders, ids that do not exist and the answer between them."""
    model = target(family)
    backbone = Backbone.of(model)
    bad = [*backbone.pixel_ids, backbone.vocab_size, -1, 10**6]
    rows = reference(family, family.richest, LONG)
    texts = [[[token for right in row for token in (right, *bad)]] for row in rows]
    result = draftlens.generate(
        model,
        inputs(family, family.richest),
        method=told(),
        references=texts,
        max_new_tokens=LONG,
    )
    assert result.tokens == rows
    assert draft_ids_of(proposed) <= set(range(backbone.vocab_size)) - backbone.pixel_ids


@pytest.mark.parametrize("family", FAMILIES[3:5], ids=str)
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_draws(family: Family, rule: str) -> None:
    """The tokens of plain decoding with the same seed, and fewer passes, under both rules."""
    given = inputs(family, family.richest)
    options: dict[str, Any] = {
        "do_sample": True,
        "temperature": 0.7,
        "seed": 3,
        "max_new_tokens": LONG,
    }
    model = target(family)
    method = told(rule=rule)
    alone = [[] for _ in given["input_ids"]]
    plain = draftlens.generate(model, given, method=method, references=alone, **options)
    texts = garbled(plain.tokens)
    result = draftlens.generate(model, given, method=method, references=texts, **options)
    assert result.tokens == plain.tokens
    assert result.stats.passes < 0.8 * plain.stats.passes
    assert result.stats.mean_acceptance_length > 1.5
