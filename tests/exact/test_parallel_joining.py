"""Rows that join and leave a batch beside a draft worker, as a scheduler lets them: attached to the
rounds of a session, without a schedule."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from queue import Queue
from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from links import PromptLink, ScriptedLink, session_of
from stock import LONG, draft, noisy, reference, staggered, stock, target
from test_parallel_process import (
    PARALLELVLM,
    SELF,
    WINDOW,
    forked,
    two_cores,
    wait_for_the_end_of,
    warm_up,
)

import draftlens
from draftlens.core.sequence import Sequence
from draftlens.decoding import Session
from draftlens.decoding.admission import Admission, PartSize
from draftlens.drafting.pruning import Pruning
from draftlens.methods.base import Models, from_dict
from draftlens.methods.parallelvlm.draft_process import process_of
from draftlens.methods.parallelvlm.messages import Arrive, FromDraft, ToDraft, WorkerLostError
from draftlens.methods.parallelvlm.schedule import Schedule
from draftlens.models.adapter import Backbone
from draftlens.pruning import make_pruner
from draftlens.request import Request
from draftlens.scheduling import Job, Scheduler, Update

__all__ = ["forked", "two_cores"]  # fixtures

FAMILY = FAMILIES[0]
GREEDY: Mapping[str, Any] = {"max_new_tokens": LONG, "do_sample": False}
SAMPLED: Mapping[str, Any] = {**GREEDY, "do_sample": True, "top_k": 40, "repetition_penalty": 1.1}
SEEDS = (11, 12, 13)
SCHEDULES: Mapping[str, Callable[[], Schedule]] = {"measured": Schedule, "4": partial(Schedule, 4)}
WAIT = 60.0

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
schedules = pytest.mark.parametrize("schedule", SCHEDULES)


class Batch:
    """A session beside a worker, round by round."""

    def __init__(self, family: Family, session: Session) -> None:
        self.family = family
        self.session = session
        self.drafter: Any = session.drafter
        self.rounds = self.drafter.attached(session)
        next(self.rounds)

    def add(self, row: int, **options: Any) -> Sequence:
        given = inputs(self.family, self.family.richest, (row,))
        prepared = self.session.target.prepare(given, **{**GREEDY, **options})
        return self.session.add(prepared, [SEEDS[row]], given)[0]

    def round(self, count: int = 1) -> None:
        """As `scheduling.scheduler`: a prompt or a part of it, then a round of the rows."""
        for _ in range(count):
            if self.session.waiting:
                self.session.start()
            self._drop_ended()
            if self.session.running:
                self.session.begin()
                self.session.accept(self.session.check(self.session.propose()))
                next(self.rounds)
                self._drop_ended()

    def _drop_ended(self) -> None:
        for sequence in [each for each in self.session.sequences if each.finished]:
            self.session.remove(sequence)

    def finish(self) -> None:
        while not self.session.done:
            self.round()


@contextmanager
def batch_of(
    family: Family, link: Any, schedule: Schedule, pruning: Pruning | None = None
) -> Iterator[Batch]:
    batch = Batch(family, session_of(family, link, schedule, pruning))
    with closing(batch.rounds):
        yield batch


@pytest.mark.pairwise("joining beside a worker")
@every_family
@schedules
@pytest.mark.parametrize("part", [None, 5])
@pytest.mark.parametrize("prunes", [False, True])
def test_greedy_rows(
    family: Family, schedule: str, part: int | None, prunes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ends within an accepted run, one is cancelled; the others do not notice."""
    if part is not None:
        monkeypatch.setattr(PartSize, "within", lambda self, seconds: part)
    answers = reference(family, family.richest, LONG)
    ends = staggered(answers)
    link = ScriptedLink(Backbone.of(draft(family)), seed=len(family.name) + 2 * prunes)
    pruning = Pruning(make_pruner("attention"), 0.5) if prunes else None
    with batch_of(family, link, SCHEDULES[schedule](), pruning) as batch:
        first = batch.add(1)
        batch.round(2)
        ending = [batch.add(row, eos_token_id=ends) for row in (0, 1, 2)]
        batch.round(3)
        leaving = batch.add(2)
        batch.round(3)
        late = batch.add(0)
        batch.session.remove(leaving)
        batch.finish()
        assert first.tokens == answers[1]
        assert late.tokens == answers[0]
        assert leaving.tokens == answers[2][: len(leaving.tokens)]
        for row, sequence in enumerate(ending):
            given = inputs(family, family.richest, (row,))
            options = {"max_new_tokens": LONG, "eos_token_id": ends}
            assert [sequence.tokens] == stock(target(family), given, **options)
        if schedule != "measured":  # by the times of one thread, no draft pays
            assert batch.session.stats.accepted > 0
        assert batch.drafter.ahead.lost is None


@pytest.mark.pairwise("joining beside a worker")
@every_family
@schedules
@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_sampled_rows(family: Family, schedule: str, acceptance: str) -> None:
    """Each draws what it draws alone; with rejection sampling, what it draws beside the worker
    alone with the same window."""
    if acceptance == "rejection":
        schedule = "4"
    backbone = Backbone.of(draft(family))

    def answer(rows: tuple[int, ...], gap: int, seed: int) -> list[list[int]]:
        session = session_of(
            family, ScriptedLink(backbone, seed), SCHEDULES[schedule](), acceptance=acceptance
        )
        batch = Batch(family, session)
        with closing(batch.rounds):
            sequences = []
            for row in rows:
                sequences.append(batch.add(row, **SAMPLED))
                batch.round(gap)
            batch.finish()
        return [sequence.tokens for sequence in sequences]

    together = answer((1, 0, 2), gap=3, seed=1)
    assert together == [answer((row,), gap=1, seed=row)[0] for row in (1, 0, 2)]
    if acceptance == "coupled":
        for tokens, row in zip(together, (1, 0, 2), strict=True):
            given = inputs(family, family.richest, (row,))
            options = {"seed": SEEDS[row], **SAMPLED}
            assert [tokens] == draftlens.generate(target(family), given, **options).tokens


@pytest.mark.parametrize("prunes", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_prompt_that_is_not_read_to_its_end(
    prunes: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled between two parts, or cannot be read. The worker drops it when the next one
    is announced, and drafts for the others."""
    monkeypatch.setattr(PartSize, "within", lambda self, seconds: 4)
    answers = reference(FAMILY, FAMILY.richest, LONG)
    link = PromptLink(Backbone.of(draft(FAMILY)), seed=1)
    pruning = Pruning(make_pruner("attention"), 0.5) if prunes else None
    with batch_of(FAMILY, link, Schedule(4), pruning) as batch:
        first = batch.add(0)
        batch.round(2)
        lost = batch.add(1)
        batch.round(2)
        if fails:
            batch.finish()
            batch.add(1)
            with monkeypatch.context() as patch:
                patch.setattr(Admission, "_is_long", fail)
                with pytest.raises(RuntimeError):
                    batch.round()
        else:
            batch.session.remove(lost)
            batch.round()
            assert not lost.tokens
        late = batch.add(2)
        batch.finish()
        assert first.tokens == answers[0]
        assert late.tokens == answers[2]
        ahead = batch.drafter.ahead
        assert not ahead._announced
        assert not ahead._unread
        assert ahead._session.unjoined == 0
        assert not ahead._session._rows
        [theirs] = link.worker._sessions.values()
        assert not theirs._waiting
        batch.add(1)
        batch.round(2)
        assert [row.number for row in theirs._speculated_rows.rows] == [3 + fails]


def fail(*_: Any) -> bool:
    raise RuntimeError("a prompt that cannot be read")


class FailingLink(ScriptedLink):
    """Refuses some messages, and is lost after others."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone, seed=3)
        self.unsendable: set[int] = set()  # among the `Arrive`s
        self.lost_after = 10**9
        self.count = Counter[type]()

    def send(self, message: ToDraft) -> None:
        self._check()
        self.count[type(message)] += 1
        if isinstance(message, Arrive) and self.count[Arrive] in self.unsendable:
            raise TypeError("cannot pickle")
        super().send(message)

    def receive(self, answer: int, timeout: float) -> list[FromDraft]:
        self._check()
        return super().receive(answer, timeout)

    def new_answer(self) -> int:
        self._check()
        return super().new_answer()

    def _check(self) -> None:
        self.lost_after -= 1
        if self.lost_after < 0:
            raise WorkerLostError("killed")


def test_a_row_that_cannot_be_sent_goes_without_a_draft() -> None:
    """The worker goes on for the others."""
    answers = reference(FAMILY, FAMILY.richest, LONG)
    link = FailingLink(Backbone.of(draft(FAMILY, "self")))
    link.unsendable = {2}
    with batch_of(FAMILY, link, Schedule(3)) as batch:
        rows = []
        for row in (0, 1, 2):
            rows.append(batch.add(row))
            batch.round(1)
        batch.finish()
        assert [row.tokens for row in rows] == answers
        assert [sum(row.from_draft) > LONG / 2 for row in rows] == [True, False, True]
        assert sum(rows[1].from_draft) == 0
        assert batch.drafter.ahead.lost is None


@schedules
@pytest.mark.parametrize("moment", range(9, 60, 7))
def test_a_worker_that_is_lost_leaves_later_rows_to_another_one(schedule: str, moment: int) -> None:
    """The rows that it had go on without a draft."""
    answers = reference(FAMILY, FAMILY.richest, LONG)
    backbone = Backbone.of(draft(FAMILY, "self"))
    link = FailingLink(backbone)
    link.lost_after = moment
    with batch_of(FAMILY, link, SCHEDULES[schedule]()) as batch:
        batch.drafter.another = lambda: PromptLink(backbone, seed=1)
        rows = [batch.add(0)]
        batch.round(2)
        rows.append(batch.add(1))
        batch.round(3)
        link.lost_after = min(link.lost_after, 0)
        batch.round(1)
        assert batch.drafter.ahead.lost == "killed"
        rows.append(batch.add(2))
        batch.finish()
        assert [row.tokens for row in rows] == answers
        if schedule != "measured":  # by the times of one thread, no draft pays
            assert sum(rows[2].from_draft) > LONG / 2


def test_forwards_of_rows_that_have_left_are_not_kept() -> None:
    """A session may go on for as long as a server."""
    link = PromptLink(Backbone.of(draft(FAMILY, "self")), seed=1)
    with batch_of(FAMILY, link, Schedule(4)) as batch:
        batch.add(0, max_new_tokens=200)
        for number in range(12):
            leaving = batch.add(number % 3)
            batch.round(2)
            assert not leaving.finished
            batch.session.remove(leaving)
        batch.round(1)
        assert len(batch.drafter.ahead.done.forwards_to_judge) <= 2 * 4


class Caller:
    """A request to a scheduler, and what it hears."""

    def __init__(self, row: int, method: Any, new: int = LONG, **options: Any) -> None:
        self.row, self.new = row, new
        self.updates: Queue[Update] = Queue()
        self.tokens: list[int] = []
        options = {**GREEDY, "max_new_tokens": new, **options}
        given = inputs(FAMILY, FAMILY.richest, (row,))
        request = Request(given, method=from_dict(method), seed=[SEEDS[row]], options=options)
        self.job = Job(request, self.updates.put)

    def hear(self, count: int = 10**9) -> None:
        """Wait for so many tokens, or for the last one."""
        while len(self.tokens) < count:
            update = self.updates.get(timeout=WAIT)
            assert update.error is None, update.error
            for chunk in update.chunks:
                self.tokens += chunk.tokens
            if update.done:
                return


@contextmanager
def scheduler_of(model: Any) -> Iterator[Scheduler]:
    scheduler = Scheduler(Models(Backbone.of(target(FAMILY)), Backbone.of(model)))
    try:
        yield scheduler
    finally:
        scheduler.close()


@pytest.mark.parametrize(
    "method",
    [WINDOW, PARALLELVLM, {**SELF, "num_speculative_tokens": 3}],
    ids=["window", "uv", "self"],
)
def test_requests_of_a_scheduler_beside_a_process(method: Mapping[str, Any]) -> None:
    answers = reference(FAMILY, FAMILY.richest, LONG)
    process = warm_up(target(FAMILY) if "draft" in method else draft(FAMILY))
    with scheduler_of(draft(FAMILY)) as scheduler:
        first = Caller(0, method)
        scheduler.submit(first.job)
        first.hear(4)
        others = [Caller(row, method, new) for row, new in ((1, LONG), (2, 1), (0, 9), (2, LONG))]
        drawing = Caller(1, method, **SAMPLED)
        leaving = Caller(0, method)
        for caller in (*others, drawing, leaving):
            scheduler.submit(caller.job)
        leaving.hear(3)
        scheduler.cancel(leaving.job)
        for caller in (first, *others):
            caller.hear()
            assert caller.tokens == answers[caller.row][: caller.new]
        drawing.hear()
        given = inputs(FAMILY, FAMILY.richest, (1,))
        plain = draftlens.generate(
            target(FAMILY), given, method="plain", seed=[SEEDS[1]], **SAMPLED
        )
        assert [drawing.tokens] == plain.tokens
        if method is not PARALLELVLM:  # there, reading prompts may take longer than the answers
            assert scheduler.counters.accepted > 0
    assert not process._inboxes


@pytest.mark.usefixtures("forked")
def test_a_process_that_is_killed_while_rows_join() -> None:
    """No request repeats or loses a token, and later ones have another process."""
    rng = random.Random(0)
    answers = reference(FAMILY, FAMILY.richest, LONG)
    model = noisy(target(FAMILY))
    pids = set()
    with scheduler_of(model) as scheduler:
        for number in range(6):
            process = warm_up(model)
            pids.add(process.pid)
            method = (WINDOW, PARALLELVLM)[number % 2]
            timer = threading.Timer(rng.uniform(0, 0.3), os.kill, (process.pid, signal.SIGKILL))
            timer.start()
            callers = [Caller(row % 3, method) for row in range(5)]
            for caller in callers:
                scheduler.submit(caller.job)
                caller.hear(rng.randint(0, 5))
            for caller in callers:
                caller.hear()
                assert caller.tokens == answers[caller.row]
            timer.join()
            wait_for_the_end_of(process.pid)
    assert len(pids) == 6
    process_of(model).close()
