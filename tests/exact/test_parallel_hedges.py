"""Hedges: a draft that also continues its second choices says nothing else, and its corrections
find their continuation ready."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from lanes import PromptLink, ScriptedLink, check_hypotheses, hypotheses_of, session_of
from stock import NEW, NoEcho, draft, reference, staggered, stock, target
from test_parallel import GREEDY, SAMPLED, SEEDS, answer

import draftlens
from draftlens.drafting.pruning import Pruning
from draftlens.methods.parallelvlm.link import LaneLostError
from draftlens.methods.parallelvlm.loop import decode
from draftlens.methods.parallelvlm.messages import Guesses
from draftlens.methods.parallelvlm.schedule import Eager
from draftlens.models.adapter import Backbone
from draftlens.pruning import make_pruner

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
hedges = pytest.mark.parametrize("hedges", [1, 7])


def link_of(family: Family, seed: int) -> ScriptedLink:
    return ScriptedLink(Backbone.of(draft(family)), seed)


@pytest.mark.pairwise
@every_family
@hedges
@pytest.mark.parametrize("seed", range(2))
def test_ragged_batches_equal_stock_generate(family: Family, hedges: int, seed: int) -> None:
    session = session_of(family, link_of(family, seed), Eager(5, hedges=hedges))
    given = inputs(family, family.richest)
    assert answer(session, given, GREEDY) == reference(family, family.richest)


@every_family
@hedges
def test_sampled_tokens_are_those_of_plain_decoding(family: Family, hedges: int) -> None:
    given = inputs(family, family.richest)
    options = {**SAMPLED, "logits_processor": [NoEcho()]}
    plain = draftlens.generate(target(family), given, seed=SEEDS, **options).tokens
    session = session_of(family, link_of(family, 1), Eager(4, hedges=hedges))
    assert answer(session, given, options) == plain


@every_family
def test_rows_that_end_early_and_late(family: Family) -> None:
    """End-of-sequence tokens in windows and in branches."""
    ends = staggered(reference(family, family.richest))
    given = inputs(family, family.richest)
    expected = stock(target(family), given, max_new_tokens=NEW, eos_token_id=ends)
    options = {**GREEDY, "eos_token_id": ends}
    for link in (link_of(family, 3), PromptLink(Backbone.of(draft(family)), 0)):
        session = session_of(family, link, Eager(5, hedges=6))
        assert answer(session, given, options) == expected


@every_family
def test_the_cache_of_the_lane_is_that_of_its_hypothesis(family: Family) -> None:
    link = link_of(family, 4)
    session = session_of(family, link, Eager(4, hedges=5))
    given = inputs(family, family.richest)
    session.add(session.target.prepare(given, **GREEDY), SEEDS, given)
    seen = 0
    for _ in decode(session):
        if session.drafter.ready > seen and not session.done:
            seen = session.drafter.ready
            while link.sent:
                link.worker.handle(link.sent.popleft())
            check_hypotheses(link, family, (0, 1, 2))
            link.move()
            check_hypotheses(link, family, (0, 1, 2))
    assert seen


@every_family
def test_rows_that_join_and_leave(family: Family) -> None:
    link = link_of(family, 5)
    session = session_of(family, link, Eager(4, hedges=4))

    def add(row: int) -> Any:
        given = inputs(family, family.richest, (row,))
        return session.add(session.target.prepare(given, **GREEDY), [SEEDS[row]], given)[0]

    first = add(1)
    leaving = add(2)
    chunks = decode(session)
    for _ in range(5):
        next(chunks)
    late = add(0)
    session.remove(leaving)
    for _ in chunks:
        pass
    answers = reference(family, family.richest)
    assert first.tokens == answers[1]
    assert late.tokens == answers[0]


@pytest.mark.parametrize("kind", ["noisy", "target"])
def test_pruned_drafts(kind: str) -> None:
    family = FAMILIES[0]
    pruning = Pruning(make_pruner("uv"), 0.5)
    backbone = Backbone.of(target(family) if kind == "target" else draft(family))
    session = session_of(family, ScriptedLink(backbone, 2), Eager(4, hedges=5), pruning, kind)
    given = inputs(family, family.richest)
    assert answer(session, given, GREEDY) == reference(family, family.richest)


class OrderedLink(ScriptedLink):
    """A link whose lane makes a given number of moves at each look of the target."""

    def __init__(self, backbone: Backbone, order: Sequence[int]) -> None:
        super().__init__(backbone, 0)
        self.order = itertools.cycle(order)

    def receive(self, answer: int, timeout: float) -> list[Any]:
        for _ in range(next(self.order)):
            self.move()
        while timeout and not self.made and self.move():
            pass
        messages = list(self.made)
        self.made.clear()
        return messages


def test_every_order_of_short_answers() -> None:
    """Moves between the target's looks in every order of none, one and some."""
    family = FAMILIES[0]
    given = inputs(family, family.richest, (0,))
    expected = reference(family, family.richest)[0][:10]
    for order in itertools.product((0, 1, 4), repeat=4):
        if any(order):
            link = OrderedLink(Backbone.of(draft(family)), order)
            session = session_of(family, link, Eager(3, wait=0, hedges=4))
            assert answer(session, given, {**GREEDY, "max_new_tokens": 10}) == [expected]


def passes(family: Family, hedges: int, options: Mapping[str, Any] = GREEDY) -> tuple[int, int]:
    """Passes of the target with the fastest draft, and guesses that were ready."""
    link = PromptLink(Backbone.of(draft(family)), 0)
    session = session_of(family, link, Eager(4, wait=0, hedges=hedges))
    answer(session, inputs(family, family.richest), options)
    return session.stats.passes, session.drafter.ready


def test_corrections_find_their_continuation_ready() -> None:
    ready = [passes(family, 6)[1] for family in FAMILIES]
    assert sum(ready) > 0
    assert passes(FAMILIES[0], 0)[1] == 0


def test_guesses_that_were_ready_are_no_forwards() -> None:
    """They are sent as they are judged: the lane's forwards are its steps."""
    for family in FAMILIES:
        link = link_of(family, 6)
        session = session_of(family, link, Eager(4, hedges=6))
        answer(session, inputs(family, family.richest), GREEDY)
        assert session.stats.draft_forwards <= link.steps


class LosingLink(ScriptedLink):
    """A lane that is lost behind the first guesses that were ready."""

    is_lost = False

    def receive(self, answer: int, timeout: float) -> list[Any]:
        if self.is_lost:
            raise LaneLostError("killed")
        messages = super().receive(answer, timeout)
        self.is_lost = any(type(m) is Guesses and not m.forwards for m in messages)
        return messages


def test_a_lane_that_is_lost_in_a_branch() -> None:
    lost = []
    for family in FAMILIES:
        link = LosingLink(Backbone.of(draft(family)), 7)
        session = session_of(family, link, Eager(4, hedges=6))
        given = inputs(family, family.richest)
        assert answer(session, given, GREEDY) == reference(family, family.richest)
        lost.append(session.stats.lane_lost)
    assert "killed" in lost


def test_without_hedges_there_are_no_branches() -> None:
    family = FAMILIES[0]
    link = link_of(family, 8)
    session = session_of(family, link, Eager(4))
    chunks = decode(session)
    given = inputs(family, family.richest)
    session.add(session.target.prepare(given, **GREEDY), SEEDS, given)
    for _, _ in zip(chunks, range(12), strict=False):
        pass
    assert all(not row.branches.likeliest(100) for row in hypotheses_of(link).rows)
