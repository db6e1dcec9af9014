"""Rows that join and leave a running batch, rows with trees of their own, and rows with rules of
their own: a request's tokens do not depend on its neighbours, its slot, or when it joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from sessions import session_of
from stock import LONG, METHODS, NEW, draft, noisy, reference, staggered, stock, target
from torch import Tensor

import draftlens
from draftlens import InputError
from draftlens.core.prefill_readings import NO_FEATURES
from draftlens.core.sequence import Batch
from draftlens.core.sequence import Sequence as Row
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import EAGLE_PATHS, EMPTY, DraftTree, Topology, Verdict, chain, from_paths
from draftlens.decoding import Plan, Session, decode
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.draft_rows import DraftRows
from draftlens.methods.base import Models, from_dict
from draftlens.models.adapter import Backbone

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)

DRAFTING: Mapping[str, Any] = {
    "plain": {"method": "plain"},
    "chain": METHODS["chain5"],
    "tree": METHODS["odd"],
    "specvlm": {"method": "specvlm", "prune_ratio": 0.5, "draft": "model"},
    "gather": {"method": "specvlm", "prune_ratio": 0.5, "draft": "self"},
    "sparse": {"method": "self-sd", "prune_ratio": 0.5, "kv": "sparse"},
    "lookup": {"method": "lookup", "num_speculative_tokens": 4, "window": 1},
    "mixed": {"method": "mixed", "copying": {"name": "lookup", "window": 1}},
}
drafting = pytest.mark.parametrize("name", DRAFTING)

ENDING: Mapping[str, Any] = {
    **DRAFTING,
    "auto": {"tree": "auto"},
    "tabed": {"method": "tabed", "views": ["multimodal", "text"]},
    "hsd": {"method": "hsd"},
}

GREEDY: Mapping[str, Any] = {"max_new_tokens": LONG, "do_sample": False}
SAMPLED: Mapping[str, Any] = {
    "max_new_tokens": LONG,
    "do_sample": True,
    "top_k": 40,
    "repetition_penalty": 1.1,
}
SEEDS = (11, 12, 13)


def add(session: Session, family: Family, row: int, options: Mapping[str, Any]) -> Row:
    """Let one row of the family's richest input join."""
    given = inputs(family, family.richest, (row,))
    prepared = session.target.prepare(given, **options)
    return session.add(prepared, [SEEDS[row]], given)[0]


def alone(family: Family, row: int, name: str, options: Mapping[str, Any]) -> list[int]:
    """The tokens of a row in a session of its own."""
    session = session_of(family, ENDING[name])
    sequence = add(session, family, row, options)
    for _ in decode(session):
        pass
    return sequence.tokens


@cache
def drawn_alone(family: Family, row: int) -> list[int]:
    """What a row draws by itself without a draft; coupled drafts do not change it."""
    return alone(family, row, "plain", SAMPLED)


def rounds(session: Session, count: int) -> None:
    """Run some rounds, as the serial schedule does."""
    for _ in range(count):
        session.start()
        if session.running:
            session.begin()
            session.accept(session.check(session.propose()))


def finish(session: Session) -> None:
    """Run until every row has ended."""
    for _ in decode(session):
        pass


@pytest.mark.pairwise("rows")
@every_family
@drafting
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
def test_rows_that_join(family: Family, name: str, options: Mapping[str, Any]) -> None:
    """Each at another moment, after rows that have run for some rounds."""
    session = session_of(family, ENDING[name])
    rows = [add(session, family, 1, options)]
    rounds(session, 2)
    rows.append(add(session, family, 0, options))
    rounds(session, 1)
    rows.append(add(session, family, 2, options))
    finish(session)
    for sequence, row in zip(rows, (1, 0, 2), strict=True):
        if options is GREEDY:
            assert sequence.tokens == reference(family, family.richest, LONG)[row]
        else:
            assert sequence.tokens == drawn_alone(family, row)
    check_caches(session)


@pytest.mark.pairwise("rows")
@every_family
@drafting
def test_rows_that_leave(family: Family, name: str) -> None:
    """The first, a middle and the last row, after different numbers of rounds; others go on, and a
    row takes a place that became free."""
    session = session_of(family, ENDING[name])
    rows = [add(session, family, row, GREEDY) for row in (0, 1, 2)]
    rounds(session, 2)
    session.remove(rows[0])
    check_caches(session)
    rounds(session, 1)
    late = add(session, family, 0, GREEDY)
    rounds(session, 1)
    session.remove(rows[2])
    finish(session)
    answers = reference(family, family.richest, LONG)
    assert rows[1].tokens == answers[1]
    assert late.tokens == answers[0]
    for row in (0, 2):
        count = len(rows[row].tokens)
        assert 0 < count < LONG
        assert rows[row].tokens == answers[row][:count]
    assert set(session.sequences) < {*rows, late}  # those that ended last
    check_caches(session)


LENGTHS = (8, 1, 25, 3, 14, 2, 25, 19, 5, 1, 11, 4, 22, 6, 2, 16)


def sixteen(family: Family) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Inputs and options of sixteen rows, every second of which has end-of-sequence tokens."""
    ends = staggered(reference(family, family.richest, LONG))
    for number, length in enumerate(LENGTHS):
        own = {"eos_token_id": ends} if number % 2 else {}
        yield inputs(family, family.richest, (number % 3,)), {"max_new_tokens": length, **own}


@cache
def stock_of_sixteen(family: Family) -> list[list[int]]:
    """What the unmodified library answers to them, one by one."""
    return [stock(target(family), given, **own)[0] for given, own in sixteen(family)]


@pytest.mark.pairwise("rows")
@pytest.mark.parametrize("name", ENDING)
@pytest.mark.parametrize("family", FAMILIES[::3], ids=str)
def test_sixteen_rows_that_end_one_after_the_other(family: Family, name: str) -> None:
    """By their lengths or by an end-of-sequence token; the batch shrinks from round to round."""
    session = session_of(family, ENDING[name])
    rows = []
    for given, options in sixteen(family):
        prepared = session.target.prepare(given, do_sample=False, **options)
        rows += session.add(prepared, [0], given)
    finish(session)
    assert [row.tokens for row in rows] == stock_of_sixteen(family)
    assert len(session.sequences) < len(rows) / 4
    assert session.stats.emitted == sum(len(row.tokens) for row in rows)


@pytest.mark.parametrize("family", FAMILIES[1::4], ids=str)
@pytest.mark.parametrize("method", ["chain3", "odd"])
def test_rejection_sampling_in_a_batch_that_shrinks(family: Family, method: str) -> None:
    """A row draws what it draws alone, whoever has left."""
    models = Models(Backbone.of(target(family)), Backbone.of(draft(family)))
    rejection = from_dict({**METHODS[method], "sampling_rule": "rejection"})

    def answer(numbers: Sequence[int]) -> list[list[int]]:
        session = Session(models.target, rejection.plan(models), Clock(Stats()))
        rows = []
        for number in numbers:
            given = inputs(family, family.richest, (number % 3,))
            own = {**SAMPLED, "max_new_tokens": LENGTHS[number]}
            rows += session.add(session.target.prepare(given, **own), [number], given)
        finish(session)
        return [row.tokens for row in rows]

    assert answer(range(8)) == [answer([number])[0] for number in range(8)]


@every_family
def test_a_row_that_leaves_before_its_draft_has_read_it(family: Family) -> None:
    session = session_of(family, ENDING["chain"])
    rows = [add(session, family, row, GREEDY) for row in (0, 1)]
    session.start()
    session.remove(rows[0])
    finish(session)
    assert rows[1].tokens == reference(family, family.richest, LONG)[1]
    assert len(rows[0].tokens) == 1


@pytest.mark.parametrize("name", ["chain", "gather", "lookup"])
def test_a_row_that_ends_before_its_draft_has_read_it(name: str) -> None:
    """Prompts are read twice before a round, as by a scheduler with many requests."""
    family = FAMILIES[0]
    session = session_of(family, ENDING[name])
    rows = []
    for row, new in ((0, 1), (1, 9), (2, 1), (0, 5)):
        rows.append(add(session, family, row, {**GREEDY, "max_new_tokens": new}))
        session.start()
    finish(session)
    answers = reference(family, family.richest, LONG)
    expected = [answers[0][:1], answers[1][:9], answers[2][:1], answers[0][:5]]
    assert [row.tokens for row in rows] == expected


def test_a_consumer_that_removes_every_row_that_has_ended() -> None:
    """One after the other, although the next round would drop them."""
    family = FAMILIES[0]
    session = session_of(family, ENDING["chain"])
    rows = [add(session, family, row, {**GREEDY, "max_new_tokens": 9}) for row in (0, 1, 2)]
    late = add(session, family, 2, GREEDY)
    for _ in decode(session):
        for sequence in list(session.sequences):
            if sequence.finished:
                session.remove(sequence)
    assert session.sequences == []
    answers = reference(family, family.richest, LONG)
    assert [row.tokens for row in rows] == [answer[:9] for answer in answers]
    assert late.tokens == answers[2]


@every_family
def test_a_batch_that_becomes_empty_and_fills_again(family: Family) -> None:
    session = session_of(family, ENDING["tree"])
    first = add(session, family, 2, GREEDY)
    rounds(session, 2)
    session.remove(first)
    second = add(session, family, 0, GREEDY)
    finish(session)
    assert second.tokens == reference(family, family.richest, LONG)[0]


@pytest.mark.pairwise("rows")
@every_family
@pytest.mark.parametrize("name", ["chain", "tree"])
def test_chunks_are_numbered_by_arrival(family: Family, name: str) -> None:
    """Whatever slots the rows have."""
    session = session_of(family, ENDING[name])
    rows = [add(session, family, row, GREEDY) for row in (0, 1)]
    heard: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for number, chunk in enumerate(decode(session)):
        heard[chunk.row] += chunk.tokens
        if number == 4:
            session.remove(rows[0])
            rows.append(add(session, family, 2, GREEDY))
    assert heard[1] == rows[1].tokens
    assert heard[2] == rows[2].tokens == reference(family, family.richest, LONG)[2]
    assert rows[0].tokens[: len(heard[0])] == heard[0]


@every_family
@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_rows_with_rules_of_their_own(family: Family, acceptance: str) -> None:
    """A greedy row, a sampled one and one with a penalty, in one batch."""
    penalties = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    options = [{**each, "max_new_tokens": NEW} for each in (GREEDY, SAMPLED, GREEDY | penalties)]
    method = {**METHODS["odd"], "sampling_rule": acceptance}
    models = Models(Backbone.of(target(family)), Backbone.of(draft(family)))

    def answer(rows: Sequence[int]) -> list[list[int]]:
        plan = from_dict(method).plan(models)
        session = Session(models.target, plan, Clock(Stats()))
        sequences = [add(session, family, row, options[row]) for row in rows]
        finish(session)
        return [sequence.tokens for sequence in sequences]

    together = answer((0, 1, 2))
    assert together == [answer((row,))[0] for row in (0, 1, 2)]
    given = inputs(family, family.richest, (2,))
    assert together[2:] == stock(
        target(family), given, **{k: v for k, v in options[2].items() if k != "do_sample"}
    )


@every_family
def test_seeds_of_rows(family: Family) -> None:
    """A row of a batch draws what it draws alone with its seed, in whatever place."""
    given = inputs(family, family.richest)
    options = {"draft": draft(family), "method": METHODS["odd"], **SAMPLED}
    options["max_new_tokens"] = NEW
    batch = draftlens.generate(target(family), given, seed=SEEDS, **options).tokens
    for row, seed in enumerate(SEEDS):
        single = inputs(family, family.richest, (row,))
        assert draftlens.generate(target(family), single, seed=seed, **options).tokens == [
            batch[row]
        ]


class Scattered:
    """Draft tokens with another tree in every row and round: the row's own answer, partly wrong.

    Args:
        answers: the right tokens of each row.
    """

    max_nodes = len(EAGLE_PATHS)
    readings = NO_FEATURES
    needs_target_scores = False
    forwards = 0
    cache_bytes = 0
    trees = (EMPTY, chain(1), from_paths(EAGLE_PATHS), chain(6), from_paths([[0], [1], [1, 0]]))

    def __init__(self, answers: Sequence[Sequence[int]]) -> None:
        self.answers = answers
        self.round = 0
        self.seen: set[tuple[Topology, ...]] = set()

    def encode(self, inputs: Mapping[str, Any]) -> None:
        """Nothing to read."""

    def begin(self, batch: Batch, encoded: None, context: TargetContext) -> None:
        """Nothing to prepare."""

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        self.round += 1
        topologies = tuple(
            self.trees[(self.round + 2 * row) % len(self.trees)] for row in range(len(batch))
        )
        self.seen.add(topologies)
        tokens = torch.zeros(len(batch), max(map(len, topologies)), dtype=torch.long)
        for row, (topology, history) in enumerate(zip(topologies, batch.histories, strict=True)):
            for node, depth in enumerate(topology.depths):
                place = history.length + depth - 1
                answer = self.answers[row]
                right = answer[place] if place < len(answer) else 0
                first = topology.children[topology.parents[node]][0] == node
                # The last sibling is right; in some rounds nothing is.
                last = topology.children[topology.parents[node]][-1] == node
                is_right = last and (self.round + depth) % 4
                tokens[row, node] = right if is_right else (right + 1 + first) % 90
        return DraftTree(topologies, tokens)

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """Nothing to learn."""

    def remove(self, row: int) -> None:
        """Nothing to drop."""


@pytest.mark.pairwise("rows")
@every_family
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
def test_trees_that_differ_per_row(family: Family, options: Mapping[str, Any]) -> None:
    """Fillers of smaller trees change nothing and are not counted."""
    given = inputs(family, family.richest)
    plain = draftlens.generate(target(family), given, seed=SEEDS, **options).tokens
    drafter = Scattered(plain)
    backbone = Backbone.of(target(family))
    session = Session(backbone, Plan(drafter), Clock(Stats()))
    sequences = session.add(backbone.prepare(given, **options), SEEDS, given)
    finish(session)
    assert [sequence.tokens for sequence in sequences] == plain
    stats = session.stats
    assert any(len(set(topologies)) > 1 for topologies in drafter.seen)
    assert 0 < stats.accepted < stats.drafted
    assert sum(stats.accepted_by_depth.values()) == stats.passes
    assert stats.emitted == 3 * LONG


class Recorder(Scattered):
    """Keeps the target's scores of every verdict."""

    needs_target_scores = True

    def __init__(self, answers: Sequence[Sequence[int]]) -> None:
        super().__init__(answers)
        self.scores: list[Tensor] = []

    def update(self, verdict: Verdict, batch: Batch) -> None:
        assert verdict.scores is not None
        self.scores.append(verdict.scores)


def test_target_scores_on_request() -> None:
    """Their argmax along the path is what was emitted."""
    family = FAMILIES[0]
    given = inputs(family, family.richest)
    drafter = Recorder(reference(family, family.richest, LONG))
    backbone = Backbone.of(target(family))
    session = Session(backbone, Plan(drafter), Clock(Stats()))
    session.add(backbone.prepare(given, **GREEDY), SEEDS, given)
    session.start()
    session.begin()
    verdict = session.check(session.propose())
    session.accept(verdict)
    [scores] = drafter.scores
    for row, (path, tokens) in enumerate(zip(verdict.paths, verdict.tokens, strict=True)):
        nodes = [0, *(node + 1 for node in path)]
        assert scores[row, nodes].argmax(-1).tolist() == list(tokens)


def check_caches(session: Session) -> None:
    """Both caches hold each running row's prompt and its answer but for what is pending."""
    assert session.cache is not None
    drafter: Any = session.drafter
    for row, sequence in enumerate(session.sequences):
        if sequence.finished:
            continue
        said = len(sequence.tokens)
        assert session.cache.lengths[row] == session.prompt_lengths[row] + said - 1
        model = getattr(drafter, "rows", None)
        if type(model) is DraftRows and model.cache is not None:  # with one view of each prompt
            pending = model.pending[row]
            held = model.prompt_lengths[row] + said - len(pending)
            assert model.cache.lengths[row] == held
            assert sequence.tokens[said - len(pending) :] == pending


@pytest.mark.parametrize("amount", [0.02, 0.2])
def test_a_long_row_joins_a_short_one(amount: float) -> None:
    """The prompt of the row that joins is longer than the buffers are."""
    family = FAMILIES[2]
    models = Models(Backbone.of(target(family)), Backbone.of(noisy(target(family), amount)))
    plan = from_dict(METHODS["eagle"]).plan(models)
    session = Session(models.target, plan, Clock(Stats()))
    short = inputs(family, "text", (1,))
    first = session.add(models.target.prepare(short, **GREEDY), [0], short)[0]
    rounds(session, 3)
    long = inputs(family, "mixed", (0,))
    second = session.add(models.target.prepare(long, **GREEDY), [0], long)[0]
    finish(session)
    assert first.tokens == stock(target(family), short, max_new_tokens=LONG)[0]
    assert second.tokens == stock(target(family), long, max_new_tokens=LONG)[0]


def test_rows_are_removed_once() -> None:
    """Also one that waits, which is then never read."""
    family = FAMILIES[0]
    session = session_of(family, ENDING["chain"])
    row, waiting = add(session, family, 0, GREEDY), add(session, family, 1, GREEDY)
    session.remove(waiting)
    with pytest.raises(InputError, match="only a sequence of the session"):
        session.remove(waiting)
    finish(session)
    assert row.tokens == reference(family, family.richest, LONG)[0]
    assert waiting.tokens == []
    session.remove(row)
    with pytest.raises(InputError, match="only a sequence of the session"):
        session.remove(row)
    assert session.done


def test_seeds_of_any_size() -> None:
    """Their low 63 bits count, also where a session is used directly."""
    family = FAMILIES[0]
    given = inputs(family, "text", (0,))
    answers = []
    for seed in (5, 5 + 2**63, 5 + 2**70, 5 - 2**63):
        session = session_of(family, ENDING["chain"])
        prepared = session.target.prepare(given, **SAMPLED)
        [row] = session.add(prepared, [seed], given)
        finish(session)
        answers.append(row.tokens)
    assert all(answer == answers[0] for answer in answers)
