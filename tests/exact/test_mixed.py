"""Method mixed: the tokens of stock `generate`, whichever drafter proposes in a round."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from random_trees import choose_at_random
from stock import LONG, draft, reference, staggered, stock, target

import draftlens
from draftlens.core.sequence import Batch
from draftlens.core.tree import chain
from draftlens.drafting.adaptive.controller import TreeController
from draftlens.drafting.adaptive.costs import Expectation
from draftlens.drafting.draft_rows import DraftRows
from draftlens.methods.lookup.drafter import LookupDrafter
from draftlens.methods.mixed.drafter import LookAllowance, MixedDrafter, Trust
from draftlens.models.adapter import Backbone

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
BY_NAME = {family.name: family for family in FAMILIES}

MODELS: dict[str, Any] = {
    "draft": "speculative",
    "pruned": {"name": "specvlm", "prune_ratio": 0.5, "draft": "model"},
    "self": {"name": "specvlm", "prune_ratio": 0.5, "draft": "self"},
}
COPYING: dict[str, Any] = {"lookup": {"name": "lookup", "window": 1}, "hsd": "hsd"}


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Which rounds are copied, chosen at random, as are the trees of the model and the rounds that
    look for copies."""
    rng = random.Random(0)
    choose_at_random(monkeypatch, rng)
    monkeypatch.setattr(LookAllowance, "is_left", property(lambda self: rng.random() < 0.8))
    made: list[bool] = []

    def chosen(self: MixedDrafter, expected: Any, batch: Batch, budget: int) -> bool:
        made.append(expected is not None and rng.random() < 0.6)
        return made[-1]

    monkeypatch.setattr(MixedDrafter, "_copying_is_faster", chosen)
    further = spy_on_further(monkeypatch)
    yield made
    assert any(made)
    assert not all(made)
    assert further


def spy_on_further(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each round in which copied tokens follow the model's how many are accepted."""
    counts: list[int] = []
    attribute = LookupDrafter.attribute

    def counted(self: LookupDrafter, runs: Any, accepted: Sequence[int]) -> None:
        counts.append(sum(accepted))
        attribute(self, runs, accepted)

    monkeypatch.setattr(LookupDrafter, "attribute", counted)
    return counts


def references_of(rows: list[list[int]]) -> list[list[list[int]]]:
    """For each row a text that is its answer with every fifth token wrong."""
    return [[[7 if n % 5 == 4 else token for n, token in enumerate(row)]] for row in rows]


@every_family
@pytest.mark.parametrize("model", MODELS)
def test_rounds_of_both_drafters(family: Family, model: str, choices: list[bool]) -> None:
    """A ragged batch of the richest inputs, three answers with what the first ones have shown."""
    expected = reference(family, family.richest, LONG)
    for copying in (COPYING["lookup"], COPYING["hsd"], COPYING["lookup"]):
        result = draftlens.generate(
            target(family),
            inputs(family, family.richest),
            draft=draft(family),
            method={"method": "mixed", "model": MODELS[model], "copying": copying},
            references=references_of(expected),
            max_new_tokens=LONG,
        )
        assert result.tokens == expected
        assert result.lossless
        assert result.stats.accepted > 0


@every_family
def test_the_default(family: Family, choices: list[bool]) -> None:
    """A call that names no method lets both draft, and without a draft model it copies."""
    expected = reference(family, family.richest, LONG)
    given = inputs(family, family.richest)
    options: dict[str, Any] = {
        "references": references_of(expected),
        "max_new_tokens": LONG,
    }
    forwards = []
    for model in (draft(family), draft(family), draft(family), None):
        result = draftlens.generate(target(family), given, draft=model, **options)
        assert result.tokens == expected
        assert result.lossless
        assert result.stats.accepted > 0
        forwards.append(result.stats.draft_forwards)
    assert sum(forwards) > forwards[-1] == 0


@every_family
def test_coupled_sampling(family: Family, choices: list[bool]) -> None:
    """The tokens of plain sampling with the same seed."""
    options = {"do_sample": True, "seed": 5, "top_k": 40, "max_new_tokens": LONG}
    given = inputs(family, family.richest)
    plain = draftlens.generate(target(family), given, **options)
    mixed = {"method": "mixed", "copying": COPYING["lookup"]}
    for _ in range(3):
        result = draftlens.generate(
            target(family),
            given,
            draft=draft(family),
            method=mixed,
            references=references_of(plain.tokens),
            **options,
        )
        assert result.tokens == plain.tokens


@pytest.mark.parametrize("name", ["llava_onevision", "qwen3_vl", "internvl"])
def test_rows_end_at_different_times(name: str, choices: list[bool]) -> None:
    """One row ends early, one late and one never, also inside a copied run."""
    family = BY_NAME[name]
    answers = reference(family, family.richest, LONG)
    eos = staggered(answers)
    given = inputs(family, family.richest)
    expected = stock(target(family), given, max_new_tokens=LONG, eos_token_id=eos)
    for _ in range(4):
        result = draftlens.generate(
            target(family),
            given,
            draft=draft(family),
            method={"method": "mixed", "copying": COPYING["lookup"]},
            references=references_of(answers),
            max_new_tokens=LONG,
            eos_token_id=eos,
        )
        assert result.tokens == expected


@pytest.fixture
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round looks for copies."""
    monkeypatch.setattr(LookAllowance, "is_left", True)


def test_the_draft_goes_on_with_what_it_has_missed(
    choices: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each round the texts have the whole answer, and the draft's cache with its pending
    tokens has it, too."""
    monkeypatch.setattr(LookAllowance, "is_left", True)  # in place of that of `choices`
    family = BY_NAME["qwen2_5_vl"]
    expected = reference(family, family.richest, LONG)
    stream = draftlens.stream(
        target(family),
        inputs(family, family.richest),
        draft=draft(family),
        method={"method": "mixed", "copying": COPYING["lookup"]},
        references=references_of(expected),
        max_new_tokens=LONG,
    )
    drafter: Any = stream.session.drafter
    num_checked = 0
    for _ in stream:
        rows: DraftRows = drafter.model.rows
        if rows.cache is None or stream.session.done:
            continue
        num_checked += 1
        for row, sequence in enumerate(stream.session.sequences):
            assert drafter.copying._rows[row].num_read == len(sequence.tokens)
            missing = [] if sequence.finished else rows.pending[row]
            held = rows.cache.lengths[row] - rows.prompt_lengths[row]
            assert sequence.finished or held + len(missing) == len(sequence.tokens)
            assert sequence.finished or sequence.tokens[held:] == missing
    assert num_checked > 3
    assert stream.result.tokens == expected


@pytest.mark.usefixtures("_looks")
def test_what_copies_alone_needs_no_forward_of_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft whose rounds are all copied reads neither its prompt nor the answer."""
    family = BY_NAME["llava"]
    expected = reference(family, "image", LONG)
    monkeypatch.setattr(MixedDrafter, "_copying_is_faster", lambda *_: True)
    small = Backbone.of(draft(family))
    forwards: list[int] = []
    monkeypatch.setattr(small, "encode", lambda *_: forwards.append(1))
    result = draftlens.generate(
        target(family),
        inputs(family, "image"),
        draft=small,
        method={"method": "mixed", "copying": COPYING["lookup"]},
        references=[[row] for row in expected],
        max_new_tokens=LONG,
    )
    assert result.tokens == expected
    assert result.stats.draft_forwards == 0
    assert not forwards


@pytest.mark.usefixtures("_looks")
@pytest.mark.parametrize("copying", COPYING)
def test_copied_tokens_after_those_of_the_model(
    copying: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model drafts two tokens in each round, and what the reference has after them follows;
    both are right, and the draft does not read the copied tokens twice."""
    family = BY_NAME["qwen2_5_vl"]
    expected = reference(family, "image", LONG)
    monkeypatch.setattr(MixedDrafter, "_copying_is_faster", lambda *_: False)
    monkeypatch.setattr(TreeController, "tree", lambda self, at: chain(2))
    monkeypatch.setattr(TreeController, "caught_up", lambda self, hits, misses: chain(2))
    monkeypatch.setattr(TreeController, "grown", lambda *_: True)
    monkeypatch.setattr(TreeController, "kept_depth", 2)
    monkeypatch.setattr(
        TreeController, "further", lambda self, chances: (min(3, len(chances[0])), 0.0)
    )
    counts = spy_on_further(monkeypatch)
    result = draftlens.generate(
        target(family),
        inputs(family, "image", (0,)),
        draft=target(family),
        method={"method": "mixed", "copying": copying},
        references=[[expected[0]]],
        max_new_tokens=LONG,
    )
    assert result.tokens == expected[:1]
    assert sum(counts) >= 2 * len(counts) > 0
    assert result.stats.mean_acceptance_length > 4
    copied = sum(result.stats.accepted_by_reference.get(0, {}).values())
    assert copied == sum(counts)


@pytest.mark.parametrize(("accepted", "copies"), [(4.0, True), (0.0, False)])
def test_trust_follows_what_is_accepted(accepted: float, copies: bool) -> None:
    """Copying that brings as much as expected goes on, and one that does not ends."""
    trust = Trust()
    for _ in range(20):
        trust.count(4.0, accepted)
    copied, drafted = Expectation(5.0, 1.0), Expectation(4.0, 1.0)
    assert (copied.speed(trust.value) > drafted.speed()) is copies
    value = trust.value
    for _ in range(10_000):  # a server's rounds in which there is nothing to copy
        trust.count(0.0, 0)
    assert trust.value == value
