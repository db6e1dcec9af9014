"""With `tree="auto"` the tokens are those of stock `generate`, whatever is chosen.

Most tests replace the choices by random ones: trees of all sizes and none, other trees after the
draft has read what it lacked, growth that ends at any level, and fewer levels verified than were
grown. One lets the real controller choose by the timings of a simulated machine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from random_trees import choose_at_random
from stock import LONG, draft, reference, self_drafting, staggered, stock, target

import draftlens
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import EMPTY, DraftTree, Topology, Verdict, chain, cut
from draftlens.decoding import step
from draftlens.decoding.session import Session
from draftlens.drafting.adaptive import controller
from draftlens.drafting.adaptive import history as records
from draftlens.drafting.adaptive.controller import RoundState, TreeController
from draftlens.drafting.adaptive.costs import CostCurve, ForwardCosts
from draftlens.drafting.draft_rows import DraftRows
from draftlens.methods.base import Models, from_dict
from draftlens.models.adapter import Backbone
from draftlens.models.model_state import Slot

HALF = {"method": "specvlm", "prune_ratio": 0.5}
DRAFTS: dict[str, dict[str, Any]] = {
    "speculative": {"method": "speculative"},
    "specvlm": {**HALF, "draft": "model"},
    **{kv: {**HALF, **self_drafting(kv)} for kv in ("prefill", "gather", "sparse")},
    "tabed": {"method": "tabed", "tree": "auto"},
}
"""A draft model that reads all tokens or half of them, or the target itself with each source of
keys and values, or a draft model that reads several views."""

STEP = (0.01, 0.2, 0.001, 0.05, 0.01, 0.2, 0.001, 50.0, 0.05)
"""Seconds of a draft step, one for each round in turn."""

NODE = (0.001, 0.05, 0.005, 0.02, 0.1)
"""Seconds for each verified draft token, in addition to one for each verification."""

ANSWERS = 3
"""Answers of each pair, one after the other."""

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
every_draft = pytest.mark.parametrize("drafts", DRAFTS)


class Checked(list[Topology]):
    """The trees that were checked, one for each round."""

    def assert_varied(self) -> None:
        """They differ from round to round, and some are empty."""
        assert EMPTY in self
        assert len(set(self)) >= 6
        changes = [one != other for one, other in pairwise(self)]
        assert sum(changes) >= 10


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Checked:
    """Records are empty, and the trees that are checked are collected."""
    trees = Checked()
    check = Session.check

    def check_tree(self: Session, tree: DraftTree) -> Verdict:
        trees.append(tree.topologies[0])
        return check(self, tree)

    monkeypatch.setattr(Session, "check", check_tree)
    monkeypatch.setattr(records, "_RECORDS", Slot("records"))
    return trees


@pytest.fixture
def random_choices(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> Checked:
    """All choices of controllers are random."""
    choose_at_random(monkeypatch, random.Random(1))
    return checked


@pytest.fixture
def simulated_timings(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> Checked:
    """The real controller with the timings of a machine on which drafting is cheap at some times
    and expensive at others. Nothing limits its explorations."""
    drafted, judged = TreeController.drafted, TreeController.judged

    def record_draft(self: TreeController, widths: Sequence[int], seconds: float) -> None:
        drafted(self, widths, STEP[self.rounds % len(STEP)] * len(widths))

    def record_check(
        self: TreeController,
        topology: Topology,
        paths: Sequence[Sequence[int]],
        seconds: float,
        num_further: int,
    ) -> None:
        seconds = 1 + NODE[self.rounds % len(NODE)] * (len(topology) + num_further)
        judged(self, topology, paths, seconds, num_further)

    def live_costs(backbone: Backbone, other: Backbone | None = None) -> ForwardCosts:
        seconds = 1.0 if other is None else 0.1
        return ForwardCosts(CostCurve((1, 256), (seconds, seconds)))

    monkeypatch.setattr(records, "_live_costs", live_costs)
    for name, value in {"PLAN_EVERY": 2, "MAX_SAVINGS": 1000, "EXPLORED_SHARE": 100}.items():
        monkeypatch.setattr(controller, name, value)
    monkeypatch.setattr(TreeController, "drafted", record_draft)
    monkeypatch.setattr(TreeController, "judged", record_check)
    return checked


def open_stream(
    family: Family, drafts: str, more: Mapping[str, Any] | None = None, **options: Any
) -> draftlens.Stream:
    """A call of the library for a ragged batch.

    Args:
        more: further fields of the method.
        options: options of `generate`.
    """
    small = draft(family) if drafts in ("speculative", "specvlm") else None
    method = {**DRAFTS[drafts], "tree": "auto", **(more or {})}
    options = {"max_new_tokens": LONG, **options}
    return draftlens.stream(
        target(family), inputs(family, family.richest), draft=small, method=method, **options
    )


@every_family
@every_draft
def test_greedy(family: Family, drafts: str, random_choices: Checked) -> None:
    """All answers, one after the other, are exact."""
    for _ in range(ANSWERS):
        result = open_stream(family, drafts).run()
        assert result.tokens == reference(family, family.richest, LONG)
        assert result.lossless
        assert 0 < result.stats.accepted < result.stats.drafted
    random_choices.assert_varied()


@every_family
def test_coupled_sampling(family: Family, random_choices: Checked) -> None:
    """The tokens are those of plain sampling with the same seed; drafts alternate."""
    options = {
        "do_sample": True,
        "seed": 17,
        "top_k": 40,
        "repetition_penalty": 1.1,
        "max_new_tokens": LONG,
    }
    plain = draftlens.generate(target(family), inputs(family, family.richest), **options)
    assert len({tuple(row) for row in plain.tokens}) == len(plain.tokens)
    random_choices.clear()
    drafts = list(DRAFTS)[FAMILIES.index(family) % len(DRAFTS)]
    for _ in range(ANSWERS):
        result = open_stream(family, drafts, **options).run()
        assert result.tokens == plain.tokens
        assert 0 < result.stats.accepted < result.stats.drafted
    random_choices.assert_varied()


@every_family
def test_a_model_that_drafts_for_itself_from_all_tokens_is_always_right(
    family: Family, random_choices: Checked
) -> None:
    """Every level of every tree is accepted, also after rounds without a draft and after levels
    that were grown and not verified."""
    drafts = ("prefill", "gather", "sparse")[FAMILIES.index(family) % 3]
    for _ in range(ANSWERS):
        random_choices.clear()
        result = open_stream(family, drafts, {"prune_ratio": 0}).run()
        assert result.tokens == reference(family, family.richest, LONG)
        rows = result.stats.first
        assert result.stats.accepted == rows * sum(tree.depth for tree in random_choices)
    assert any(random_choices)


@pytest.mark.parametrize("name", ["llava_onevision", "qwen3_vl", "internvl"])
@pytest.mark.parametrize("drafts", ["speculative", "prefill"])
def test_rows_end_at_different_times(name: str, drafts: str, random_choices: Checked) -> None:
    """One row ends early, one late and one never. A paused draft has no pending tokens for rows
    that have ended."""
    family = next(family for family in FAMILIES if family.name == name)
    eos = staggered(reference(family, family.richest, LONG))
    expected = stock(
        target(family), inputs(family, family.richest), max_new_tokens=LONG, eos_token_id=eos
    )
    for _ in range(ANSWERS):
        stream = open_stream(family, drafts, eos_token_id=eos)
        drafter: Any = stream.session.drafter
        for _ in stream:
            if drafter.rows.pending and not stream.session.done:  # the prompts have been read
                rows = zip(drafter.rows.pending, stream.session.sequences, strict=True)
                assert all(len(tokens) == 1 for tokens, row in rows if row.finished)
        assert stream.result.tokens == expected
    random_choices.assert_varied()


@pytest.mark.parametrize("reads", [3, 8, None])
def test_rows_join_and_leave_before_the_draft_has_read(
    reads: int | None, random_choices: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows end, are removed and join; the draft reads the prompts in a later round, or never."""
    family = FAMILIES[0]
    small, asked = Backbone.of(draft(family)), [0]
    encoded: list[Any] = []
    prepare = small.prepare_prompt

    def may_read(self: TreeController, at: RoundState, is_kept: bool) -> bool:
        asked[0] += 1
        return reads is not None and asked[0] > reads

    def read(inputs: Any) -> Any:
        encoded.append(inputs)
        return prepare(inputs)

    monkeypatch.setattr(TreeController, "may_read", may_read)
    monkeypatch.setattr(small, "prepare_prompt", read)
    models = Models(Backbone.of(target(family)), small)
    session = Session(models.target, from_dict({"tree": "auto"}).plan(models), Clock(Stats()))
    lengths = (LONG, 2, 12, 6, 9)

    def add(number: int) -> Any:
        given = inputs(family, family.richest, (number % 3,))
        return session.add(
            session.target.prepare(given, max_new_tokens=lengths[number]), [0], given
        )[0]

    batch = inputs(family, family.richest)
    prepared = session.target.prepare(batch, max_new_tokens=LONG, do_sample=False)
    rows = session.add(prepared, [0] * 3, batch)
    late: list[Any] = []
    for number in range(60):
        if number < len(lengths):
            late.append(add(number))
        if number == 2:
            session.remove(rows[1])
        step(session)
    assert session.done
    answers = reference(family, family.richest, LONG)
    assert [row.tokens for row in (rows[0], rows[2])] == [answers[0], answers[2]]
    assert rows[1].tokens == answers[1][: len(rows[1].tokens)]
    assert [row.tokens for row in late] == [
        answers[number % 3][:length] for number, length in enumerate(lengths)
    ]
    assert len(encoded) == (0 if reads is None else 1 + len(lengths))


@every_family
def test_prompts_are_given_up_and_read_again(
    family: Family, random_choices: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows join one by one, and all prompts are given up every third time."""
    asked, cleared = [0], [0]
    clear = DraftRows.clear

    def may_read(*given: Any) -> bool:
        asked[0] += 1
        return asked[0] % 3 != 0

    def count(rows: DraftRows) -> None:
        cleared[0] += 1
        clear(rows)

    monkeypatch.setattr(DraftRows, "clear", count)
    monkeypatch.setattr(TreeController, "may_read", may_read)
    models = Models(Backbone.of(target(family)), Backbone.of(draft(family)))
    session = Session(models.target, from_dict({"tree": "auto"}).plan(models), Clock(Stats()))
    lengths = (LONG, 9, 5, LONG, 12, 7, LONG)
    rows: list[Any] = []
    for number in range(60):
        if number % 3 == 0 and number // 3 < len(lengths):
            index = number // 3
            given = inputs(family, family.richest, (index % 3,))
            prepared = session.target.prepare(given, max_new_tokens=lengths[index])
            rows += session.add(prepared, [0], given)
        if not session.done:
            step(session)
    assert session.done
    answers = reference(family, family.richest, LONG)
    assert [row.tokens for row in rows] == [
        answers[index % 3][:length] for index, length in enumerate(lengths)
    ]
    assert cleared[0] >= 2


@every_family
def test_the_real_choices(family: Family, simulated_timings: Checked) -> None:
    """The controller itself chooses, by timings that change; drafts alternate."""
    drafts = list(DRAFTS)[FAMILIES.index(family) % len(DRAFTS)]
    for _ in range(ANSWERS):
        result = open_stream(family, drafts).run()
        assert result.tokens == reference(family, family.richest, LONG)
        assert 0 < result.stats.accepted < result.stats.drafted
    assert len(set(simulated_timings)) >= 3


def test_a_tuner_is_asked_about_what_the_draft_has_done(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The situation names rows, cached tokens, pending tokens and the length that is left, and the
    widths are those of the draft's forwards."""
    family = FAMILIES[0]
    asked: list[RoundState] = []
    widths: list[Sequence[int]] = []
    drafted = TreeController.drafted

    def tree(self: TreeController, at: RoundState) -> Topology:
        asked.append(at)
        self._at = at
        return chain(2) if len(asked) % 2 else EMPTY

    def record(self: TreeController, given: Sequence[int], seconds: float) -> None:
        widths.append(list(given))
        drafted(self, given, seconds)

    monkeypatch.setattr(TreeController, "may_read", lambda *given: True)
    monkeypatch.setattr(TreeController, "tree", tree)
    monkeypatch.setattr(TreeController, "caught_up", lambda self, hits, misses: chain(2))
    monkeypatch.setattr(TreeController, "grown", lambda self, confidences: True)
    monkeypatch.setattr(TreeController, "kept_depth", property(lambda self: 2))
    monkeypatch.setattr(TreeController, "drafted", record)
    result = open_stream(family, "speculative").run()
    rows = result.stats.first
    assert [at.rows for at in asked] == sorted((at.rows for at in asked), reverse=True)
    assert asked[0].rows == rows
    assert asked[0].remaining == LONG - 1
    assert asked[0].pending == 1
    for before, at in pairwise(asked):
        assert at.context >= before.context or at.rows < before.rows
    for number, (at, round_widths) in enumerate(zip(asked, widths, strict=True)):
        depth = 0 if number % 2 else min(2, at.remaining - 1)
        assert round_widths == [at.rows * at.pending, at.rows][:depth]
    assert max(at.pending for at in asked[2::2]) >= 2  # a round without a draft leaves tokens
    assert sum(map(len, widths)) == result.stats.draft_forwards


def test_trees_are_cut_to_the_room_for_them(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TreeController, "may_read", lambda *given: True)
    monkeypatch.setattr(TreeController, "tree", lambda self, at: chain(9))
    monkeypatch.setattr(TreeController, "caught_up", lambda self, hits, misses: chain(9))
    monkeypatch.setattr(TreeController, "grown", lambda self, confidences: True)
    monkeypatch.setattr(TreeController, "kept_depth", property(lambda self: 9))
    family = FAMILIES[0]
    result = open_stream(family, "speculative", max_new_tokens=6).run()
    assert result.tokens == [row[:6] for row in reference(family, family.richest, LONG)]
    assert checked[0] == cut(chain(9), 4)
