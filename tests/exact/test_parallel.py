"""Parallel decoding says what stock `generate` says, whichever of target and worker moves when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from links import (
    PromptLink,
    ScriptedLink,
    check_speculated_rows,
    session_of,
    speculated_rows_of,
)
from stock import LONG, NEW, draft, ranks_of, reference, staggered, stock, target

import draftlens
from draftlens.decoding import Session
from draftlens.drafting.pruning import Pruning
from draftlens.methods.parallelvlm.loop import decode
from draftlens.methods.parallelvlm.schedule import Schedule
from draftlens.models.adapter import Backbone
from draftlens.pruning import make_pruner

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)

SHORT: Mapping[str, Any] = {"max_new_tokens": NEW, "do_sample": False}
GREEDY: Mapping[str, Any] = {"max_new_tokens": LONG, "do_sample": False}
SAMPLED: Mapping[str, Any] = {
    "max_new_tokens": NEW,
    "do_sample": True,
    "top_k": 40,
    "repetition_penalty": 1.1,
}
SEEDS = [11, 12, 13]
SCHEDULES = {
    "measured": lambda: Schedule(),
    "1": lambda: Schedule(1),
    "4": lambda: Schedule(4),
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)
schedules = pytest.mark.parametrize("schedule", ["measured", "4"])


def answer(session: Session, given: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
    """The tokens of a batch."""
    prepared = session.target.prepare(given, **options)
    rows = session.add(prepared, SEEDS[: len(prepared.input_ids)], given)
    for _ in decode(session):
        pass
    return [row.tokens for row in rows]


@pytest.mark.pairwise("schedules")
@every_family
@every_schedule
def test_ragged_batches_equal_stock_generate(family: Family, schedule: str) -> None:
    link = ScriptedLink(Backbone.of(draft(family)), seed=len(family.name + schedule))
    session = session_of(family, link, SCHEDULES[schedule]())
    given = inputs(family, family.richest)
    assert answer(session, given, SHORT) == reference(family, family.richest)
    assert session.stats.emitted == 3 * NEW


@pytest.mark.pairwise("schedules")
@every_family
@schedules
def test_sampled_tokens_are_those_of_plain_decoding(family: Family, schedule: str) -> None:
    given = inputs(family, family.richest)
    plain = draftlens.generate(target(family), given, seed=SEEDS, **SAMPLED).tokens
    link = ScriptedLink(Backbone.of(draft(family)), seed=1)
    assert answer(session_of(family, link, SCHEDULES[schedule]()), given, SAMPLED) == plain


@every_family
@pytest.mark.parametrize("kind", ["self", "random"])
def test_drafts_that_are_always_and_hardly_ever_right(family: Family, kind: str) -> None:
    link = PromptLink(Backbone.of(draft(family, kind)), 0)
    session = session_of(family, link, Schedule(5), kind=kind)
    given = inputs(family, family.richest)
    assert answer(session, given, SHORT) == reference(family, family.richest)
    if kind == "self":
        assert session.drafter.ahead.done.corrections == 0
        assert session.stats.passes <= 3 * -(-(NEW - 1) // 5)


@pytest.mark.pairwise
@every_family
@pytest.mark.parametrize(
    ("pruner", "kind", "ratio"),
    [
        ("uv", "noisy", 0.5),
        ("uv", "target", 0.5),
        ("attention", "noisy", 0.9),
        ("attention", "target", 0.5),
        ("random", "noisy", 1.0),
    ],
)
def test_pruned_drafts(family: Family, pruner: str, kind: str, ratio: float) -> None:
    pruning = Pruning(make_pruner(pruner), ratio)
    backbone = Backbone.of(target(family) if kind == "target" else draft(family))
    link = ScriptedLink(backbone, seed=2)
    session = session_of(family, link, Schedule(4), pruning, kind)
    given = inputs(family, family.richest)
    assert answer(session, given, GREEDY) == reference(family, family.richest, LONG)
    assert session.stats.visual > session.stats.kept


@pytest.mark.pairwise("schedules")
@every_family
@schedules
def test_rows_that_end_early_and_late(family: Family, schedule: str) -> None:
    """End-of-sequence tokens inside windows."""
    ends = staggered(reference(family, family.richest, LONG))
    given = inputs(family, family.richest)
    expected = stock(target(family), given, max_new_tokens=LONG, eos_token_id=ends)
    link = ScriptedLink(Backbone.of(draft(family)), seed=3)
    options = {**GREEDY, "eos_token_id": ends}
    assert answer(session_of(family, link, SCHEDULES[schedule]()), given, options) == expected


@pytest.mark.pairwise("schedules")
@every_family
@schedules
def test_the_cache_of_the_worker_is_that_of_its_hypothesis(family: Family, schedule: str) -> None:
    link = ScriptedLink(Backbone.of(draft(family)), seed=4)
    session = session_of(family, link, SCHEDULES[schedule]())
    given = inputs(family, family.richest)
    session.add(session.target.prepare(given, **GREEDY), SEEDS, given)
    for number, _ in enumerate(decode(session)):
        if number in (8, 17, 26) and not link.sent:
            check_speculated_rows(link, family, (0, 1, 2))


@pytest.mark.pairwise("schedules")
@every_family
@schedules
def test_rows_that_join_and_leave(family: Family, schedule: str) -> None:
    link = ScriptedLink(Backbone.of(draft(family)), 5)
    session = session_of(family, link, SCHEDULES[schedule]())

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
    answers = reference(family, family.richest, LONG)
    assert first.tokens == answers[1]
    assert late.tokens == answers[0]
    assert leaving.tokens == answers[2][: len(leaving.tokens)]


@schedules
@pytest.mark.parametrize("family", FAMILIES[::4], ids=str)
def test_rows_that_end_one_after_the_other(family: Family, schedule: str) -> None:
    """The worker drops them, too."""
    link = PromptLink(Backbone.of(draft(family)), seed=7)
    session = session_of(family, link, SCHEDULES[schedule]())
    rows = []
    for number, length in enumerate((9, 1, 25, 3, 14, 2)):
        given = inputs(family, family.richest, (number % 3,))
        own = {**GREEDY, "max_new_tokens": length}
        rows += session.add(session.target.prepare(given, **own), [0], given)
    fewest = len(rows)
    for _ in decode(session):
        if link.worker._sessions:
            fewest = min(fewest, len(speculated_rows_of(link).rows) or fewest)
    answers = reference(family, family.richest, LONG)
    for number, row in enumerate(rows):
        assert row.tokens == answers[number % 3][: len(row.tokens)]
    assert [len(row.tokens) for row in rows] == [9, 1, 25, 3, 14, 2]
    assert fewest < 3


@schedules
def test_a_session_goes_on_behind_the_end_of_its_rows(schedule: str) -> None:
    family = FAMILIES[0]
    link = ScriptedLink(Backbone.of(draft(family, "self")), 6)
    session = session_of(family, link, SCHEDULES[schedule](), kind="self")
    answers = reference(family, family.richest, LONG)
    for row in (1, 0):
        given = inputs(family, family.richest, (row,))
        drafted = session.stats.drafted
        assert answer(session, given, GREEDY) == [answers[row]]
        if session.drafter.schedule.is_fixed:  # by the times of one thread, no draft pays
            assert session.stats.drafted > drafted
    assert session.drafter.ahead.lost is None


def test_a_given_window_repeats_itself() -> None:
    """Passes and forwards of target and worker do not depend on who moves when."""
    family = FAMILIES[0]
    given = inputs(family, family.richest)
    counts = set()
    for seed in range(6):
        link = ScriptedLink(Backbone.of(draft(family)), seed, moves=seed)
        session = session_of(family, link, Schedule(4))
        answer(session, given, GREEDY)
        stats = session.stats
        counts.add((stats.passes, stats.drafted, stats.accepted, stats.corrections))
    assert len(counts) == 1


def passes_of_the_paper(ranks: list[int], length: int) -> tuple[int, int]:
    """Passes and corrections of the paper's automaton for one row.

    Args:
        ranks: per token of the answer, how many tokens the draft likes better there.
        length: γ.
    """
    said = 0
    written = (
        length  # length of answer and draft tokens; the first window is written during the prefill
    )
    passes = 0
    corrections = 0
    gained = 1
    while True:
        agrees = all(rank == 0 for rank in ranks[said : said + gained])
        said += gained
        if not agrees:
            corrections += 1
            written = said
        if said >= len(ranks):
            return passes, corrections
        window = min(written - said, len(ranks) - said - 1)
        gained = 1
        while gained <= window and ranks[said + gained - 1] == 0:
            gained += 1
        written += length  # meanwhile
        passes += 1


@pytest.mark.parametrize("length", [1, 2, 4, 6])
def test_passes_are_those_of_the_paper(length: int) -> None:
    for family in FAMILIES[:3]:
        given = inputs(family, family.richest, (0,))
        expected = reference(family, family.richest, LONG)[0]
        full = torch.cat([given["input_ids"], torch.tensor([expected])], 1)
        mask = torch.cat([given["attention_mask"], torch.ones(1, LONG, dtype=torch.long)], 1)
        model = draft(family)
        with torch.no_grad():
            logits = model(**{**given, "input_ids": full, "attention_mask": mask}).logits
        ranks = ranks_of(logits[:, -LONG - 1 : -1], torch.tensor([expected]))[0]
        link = ScriptedLink(Backbone.of(model), 0)
        session = session_of(family, link, Schedule(length))
        assert answer(session, given, GREEDY) == [expected]
        assert (session.stats.passes, session.stats.corrections) == passes_of_the_paper(
            ranks, length
        )
