"""Many requests in one batch: each gets its own tokens, whatever becomes of the others."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from families import inputs
from stock import NEW, reference

from draftlens import ConfigError, InputError
from draftlens.core.sampling import row_seeds
from draftlens.decoding.plan import NoDraft, Plan
from draftlens.decoding.session import Session
from draftlens.drafting.adaptive.costs import CostCurve, ForwardCosts
from draftlens.methods.base import Models, from_dict
from draftlens.models.adapter import Backbone
from draftlens.models.prompt_cache import PromptCache
from draftlens.scheduling import AnswerError, QueueFullError, Update
from draftlens.scheduling import scheduler as batch
from tests.unit.scheduling.callers import (
    FAMILY,
    METHOD,
    SAMPLED,
    WAIT,
    Caller,
    Gate,
    Start,
    alone,
)


def test_greedy_and_sampled_rows_join_and_leave(start: Start) -> None:
    """More jobs than rows, greedy ones and seeded ones, of different lengths."""
    scheduler = start(max_rows=3)
    answers = reference(FAMILY, FAMILY.richest)
    callers = [Caller(row % 3, new=NEW - 3 * (row % 4)) for row in range(8)]
    drawn = [Caller(row, seed=11 + row, **SAMPLED) for row in range(3)]
    for caller in [*callers[:4], *drawn, *callers[4:]]:
        scheduler.submit(caller.job)
    for number, caller in enumerate(callers):
        count = NEW - 3 * (number % 4)
        assert caller.heard() == [answers[number % 3][:count]]
    for row, caller in enumerate(drawn):
        assert caller.heard() == [alone(row, 11 + row)]
    assert scheduler.num_rows == scheduler.num_waiting == 0
    counters = scheduler.counters
    assert counters.accepted == sum(counters.accepted_by_position.values()) > 0
    assert counters.tokens == sum(len(caller.job.sequences[0].tokens) for caller in callers + drawn)


@pytest.mark.parametrize("curve", [None, CostCurve((1, 2, 4), (1.0, 1.5, 2.0))])
def test_plain_decoding_is_estimated(
    start: Start, monkeypatch: pytest.MonkeyPatch, curve: CostCurve | None
) -> None:
    """Where costs are known; a pass is a part of its round, and makes four tokens at most."""
    costs = ForwardCosts(curve)
    monkeypatch.setattr(batch, "costs_of", lambda target: (costs, nullcontext()))
    caller = Caller(0)
    start().submit(caller.job)
    caller.heard()
    job = caller.job
    assert job.round_seconds > 0
    assert 0 <= job.plain_seconds <= 4 * job.round_seconds
    assert (job.plain_seconds > 0) is (curve is not None)


def test_samples_have_seeds_of_their_own(start: Start) -> None:
    caller = Caller(0, seed=5, samples=3, **SAMPLED)
    start().submit(caller.job)
    assert caller.heard() == [alone(0, seed) for seed in row_seeds(5, 3)]


@pytest.mark.parametrize("beside", [False, True])
def test_samples_read_the_prompt_once(start: Start, gate: Gate, beside: bool) -> None:
    """The further ones restore it from the prompt cache, also beside a running row."""
    scheduler = start()
    for model in (scheduler.models.target, scheduler.models.draft):
        model.prompt_cache = PromptCache("10MB")
    other, caller = Caller(1), Caller(0, seed=5, samples=3, namespace="a", **SAMPLED)
    if beside:
        scheduler.submit(other.job)
        assert gate.reached.wait(WAIT)
    scheduler.submit(caller.job)
    gate.open()
    assert caller.heard() == [alone(0, seed) for seed in row_seeds(5, 3)]
    cached = [sequence.cached_tokens for sequence in caller.job.sequences]
    length = caller.job.prompt_length
    assert cached[0] == 0
    assert length - 8 < cached[1] == cached[2] < length
    assert scheduler.counters.cached_tokens == sum(cached)
    again, stranger = Caller(0, namespace="a"), Caller(0, namespace="b")
    for one, expected in ((again, cached[1]), (stranger, 0)):
        scheduler.submit(one.job)
        assert one.heard() == [reference(FAMILY, FAMILY.richest)[0]]
        assert one.job.sequences[0].cached_tokens == expected


def test_methods_have_sessions_of_their_own(start: Start) -> None:
    scheduler = start()
    answers = reference(FAMILY, FAMILY.richest)
    lookup = from_dict({"method": "lookup", "num_speculative_tokens": 2})
    callers = [Caller(row, method=method) for row in range(3) for method in (METHOD, lookup)]
    for caller in callers:
        scheduler.submit(caller.job)
    for number, caller in enumerate(callers):
        assert caller.heard() == [answers[number // 2]]


def test_equal_methods_alone_share_a_session(start: Start, gate: Gate) -> None:
    """A row that is drawn by rejection sampling does not change how others are drawn."""
    scheduler = start()
    method = from_dict(
        {"method": "speculative", "num_speculative_tokens": 3, "sampling_rule": "rejection"}
    )
    rejection = Caller(1, method=method, **SAMPLED)
    scheduler.submit(rejection.job)
    assert gate.reached.wait(WAIT)
    coupled = [Caller(row, seed=11 + row, **SAMPLED) for row in (0, 2)]
    for caller in coupled:
        scheduler.submit(caller.job)
    gate.open()
    for row, caller in zip((0, 2), coupled, strict=True):
        assert caller.heard() == [alone(row, 11 + row)]
    rejection.heard()


def test_a_cancelled_job_leaves_within_a_round(start: Start, gate: Gate) -> None:
    scheduler = start(max_rows=2)
    first, second, third = callers = [Caller(row) for row in range(3)]
    for caller in callers:
        scheduler.submit(caller.job)
    assert gate.reached.wait(WAIT)
    gate.let(2)
    while len(first.job.sequences[0].tokens) < 3:  # two rounds
        first.updates.get(timeout=WAIT)
    scheduler.cancel(first.job)
    gate.let(1)
    third.updates.get(timeout=WAIT)  # it takes the place
    assert scheduler.num_rows == 2
    scheduler.cancel(third.job)
    scheduler.cancel(third.job)  # again
    gate.open()
    assert second.heard() == [reference(FAMILY, FAMILY.richest)[1]]
    answer = reference(FAMILY, FAMILY.richest)[0]
    emitted = first.job.sequences[0].tokens
    assert 0 < len(emitted) < NEW
    assert emitted == answer[: len(emitted)]


def test_a_waiting_job_can_be_cancelled(start: Start, gate: Gate) -> None:
    scheduler = start(max_rows=1)
    first, second = Caller(0), Caller(1)
    scheduler.submit(first.job)
    scheduler.submit(second.job)
    assert gate.reached.wait(WAIT)
    scheduler.cancel(second.job)
    gate.open()
    first.heard()
    last = Caller(2, new=1)
    scheduler.submit(last.job)
    last.heard()
    assert second.updates.empty()
    assert scheduler.num_waiting == 0


def test_an_error_in_a_round_fails_its_rows_and_no_later_ones(
    start: Start, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    # On a busy machine a prompt is read in parts, and the second row would join some rounds later.
    monkeypatch.setattr("draftlens.decoding.session.PART_SECONDS", 1e9)
    scheduler = start(max_rows=2)
    callers = [Caller(row) for row in range(3)]
    for caller in callers:
        scheduler.submit(caller.job)
    assert gate.reached.wait(WAIT)
    gate.let(1)
    callers[1].updates.get(timeout=WAIT)  # two rows run, and one job waits
    accept = Session.accept
    failing = iter([True])

    def fail_once(session: Session, verdict: Any) -> Any:
        if next(failing, False):
            raise RuntimeError("a secret of the device")
        return accept(session, verdict)

    monkeypatch.setattr(Session, "accept", fail_once)
    gate.open()
    for caller in callers[:2]:
        with pytest.raises(AnswerError, match="failed in this round") as raised:
            caller.heard()
        assert "secret" not in str(raised.value)
    assert callers[2].heard() == [reference(FAMILY, FAMILY.richest)[2]]
    assert callers[0].updates.empty()
    assert callers[1].updates.empty()
    assert scheduler.counters.failed_rounds == 1
    assert scheduler.alive


class Raising:
    """A processor, a criterion or a prefix function that fails when the answer is long enough."""

    def __init__(self, row: int, tokens: int) -> None:
        self.length = inputs(FAMILY, FAMILY.richest, (row,))["input_ids"].shape[1] + tokens
        self.error = ValueError("the caller's own")
        self.is_prefix = False

    def __call__(self, first: Any, second: Any) -> Any:
        ids = second if self.is_prefix else first
        if ids.shape[-1] >= self.length:
            raise self.error
        if self.is_prefix:
            return list(range(150))
        return second if isinstance(second, torch.Tensor) else False


@pytest.mark.parametrize("tokens", [0, 4])
@pytest.mark.parametrize("option", ["logits_processor", "stopping_criteria", "prefix"])
def test_a_callable_of_the_caller_that_raises_fails_its_job_alone(
    start: Start, gate: Gate, option: str, tokens: int
) -> None:
    raising = Raising(0, tokens)
    options: dict[str, Any] = {option: [raising]}
    if option == "prefix":
        raising.is_prefix = True
        options = {"prefix_allowed_tokens_fn": raising}
    scheduler = start()
    others = [Caller(1), Caller(2, seed=5, **SAMPLED)]
    bad = Caller(0, samples=2, **options)
    for caller in (others[0], bad, others[1]):
        scheduler.submit(caller.job)
    gate.open()
    with pytest.raises(ValueError, match="the caller's own") as raised:
        bad.heard()
    assert raised.value is raising.error
    assert others[0].heard() == [reference(FAMILY, FAMILY.richest)[1]]
    assert others[1].heard() == [alone(2, 5)]
    assert bad.updates.empty()
    assert scheduler.counters.failed_rounds == 0
    assert scheduler.num_rows == 0


@pytest.mark.parametrize("option", ["logits_processor", "stopping_criteria"])
def test_a_callable_of_the_caller_that_returns_nothing_fails_its_job_alone(
    start: Start, gate: Gate, option: str
) -> None:
    scheduler = start()
    other, bad = Caller(1), Caller(0, **{option: [lambda ids, scores: None]})
    for caller in (other, bad):
        scheduler.submit(caller.job)
    gate.open()
    with pytest.raises((RuntimeError, TypeError)):
        bad.heard()
    assert other.heard() == [reference(FAMILY, FAMILY.richest)[1]]
    assert scheduler.counters.failed_rounds == 0


@pytest.mark.parametrize("place", ["prepare", "read", "second sample"])
def test_an_error_in_a_prompt_fails_its_job_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch, gate: Gate, place: str
) -> None:
    scheduler = start()
    other = Caller(1)
    scheduler.submit(other.job)
    assert gate.reached.wait(WAIT)
    name = "prepare" if place == "prepare" else "encode"
    before = getattr(Backbone, name)
    calls: list[None] = []

    def fail(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == (2 if place == "second sample" else 1):
            raise RuntimeError("a secret of the device")
        return before(*arguments, **named)

    monkeypatch.setattr(Backbone, name, fail)
    bad = Caller(0, samples=2)
    scheduler.submit(bad.job)
    gate.let(2)
    with pytest.raises(AnswerError, match="could not be read"):
        bad.heard()
    monkeypatch.setattr(Backbone, name, before)
    late = Caller(2)
    scheduler.submit(late.job)
    gate.open()
    assert other.heard() == [reference(FAMILY, FAMILY.richest)[1]]
    assert late.heard() == [reference(FAMILY, FAMILY.richest)[2]]
    assert scheduler.num_rows == 0
    assert bad.updates.empty()


class OtherSchedule:
    """A method with a schedule of its own."""

    def plan(self, models: Models) -> Plan:
        return Plan(NoDraft(), schedule=lambda session: iter(()))


def test_a_refusal_is_passed_on(start: Start) -> None:
    caller = Caller(0)
    caller.job.request.options["max_new_tokens"] = 0  # type: ignore[index]
    scheduler = start()
    scheduler.submit(caller.job)
    with pytest.raises(InputError):
        caller.heard()
    other = Caller(0, method=OtherSchedule())
    scheduler.submit(other.job)
    with pytest.raises(ConfigError, match="'serial' or 'parallel'"):
        other.heard()


def test_few_wait_and_the_others_are_refused(start: Start, gate: Gate) -> None:
    scheduler = start(max_rows=1, max_waiting=2)
    callers = [Caller(0, new=3) for _ in range(4)]
    scheduler.submit(callers[0].job)
    assert gate.reached.wait(WAIT)
    scheduler.submit(callers[1].job)
    scheduler.submit(callers[2].job)
    assert scheduler.num_waiting == 2
    with pytest.raises(QueueFullError):
        scheduler.submit(callers[3].job)
    gate.open()
    for caller in callers[:3]:
        caller.heard()
    scheduler.submit(callers[3].job)
    callers[3].heard()


def test_rows_and_memory_are_bounded(start: Start, gate: Gate) -> None:
    with pytest.raises(InputError, match="at once"):
        start(max_rows=2).submit(Caller(0, samples=3).job)
    length = Caller(0).job.length
    probe = start()
    room = probe._bytes(2, length) + 1
    scheduler = start(max_cache_bytes=room)
    with pytest.raises(InputError, match="memory"):
        scheduler.submit(Caller(0, new=3 * length).job)
    callers = [Caller(0) for _ in range(3)]
    for caller in callers:
        scheduler.submit(caller.job)
    assert gate.reached.wait(WAIT)
    gate.let(2)
    callers[1].updates.get(timeout=WAIT)
    assert scheduler.num_rows == 2
    assert scheduler.num_waiting == 1
    gate.open()
    callers[1].updates.queue.clear()
    for caller in (callers[0], callers[2]):
        assert caller.heard() == [reference(FAMILY, FAMILY.richest)[0]]


def test_rows_count_as_long_as_the_longest_of_them(start: Start) -> None:
    """A short job waits for another one's end, although three short ones would have room."""
    long = Caller(0, new=300)
    scheduler = start(max_cache_bytes=start()._bytes(2, long.job.length) + 1)
    events: list[tuple[int, bool]] = []
    callers = [Caller(row) for row in range(2)]
    for number, caller in enumerate(callers):

        def notify(update: Update, number: int = number, caller: Caller = caller) -> None:
            events.append((number, update.done))
            caller.updates.put(update)

        caller.job.notify = notify
    for caller in (long, *callers):
        scheduler.submit(caller.job)
    callers[1].heard()
    scheduler.cancel(long.job)
    assert events == sorted(events)
    assert not any(chunk.done for chunk in long.updates.queue)


def test_clients_take_turns(start: Start, gate: Gate) -> None:
    scheduler = start(max_rows=2)
    order: list[str] = []

    def submit(name: str, client: str) -> Caller:
        caller = Caller(0, new=2, client=client)
        put = caller.updates.put

        def notify(update: Update) -> None:
            if name not in order:
                order.append(name)
            put(update)

        caller.job.notify = notify
        scheduler.submit(caller.job)
        return caller

    callers = [submit(f"a{number}", "a") for number in range(4)]
    assert gate.reached.wait(WAIT)
    callers += [submit(f"b{number}", "b") for number in range(2)]
    gate.open()
    for caller in callers:
        caller.heard()
    assert order[0] == "a0"
    assert order.index("b0") <= 2  # before those of a that came earlier
    assert [name for name in order if name[0] == "a"] == ["a0", "a1", "a2", "a3"]


def test_the_end_of_a_scheduler_ends_its_jobs(start: Start, gate: Gate) -> None:
    scheduler = start(max_rows=1)
    running, waiting = Caller(0), Caller(1)
    scheduler.submit(running.job)
    assert gate.reached.wait(WAIT)
    scheduler.submit(waiting.job)
    scheduler.close(wait=False)
    gate.open()
    for caller in (running, waiting):
        with pytest.raises(AnswerError, match="closed"):
            caller.heard()
    with pytest.raises(AnswerError):
        scheduler.submit(Caller(0).job)
    assert not scheduler.alive or scheduler._thread.join(WAIT) is None


def test_a_scheduler_can_be_closed_on_its_own_thread(start: Start) -> None:
    scheduler = start()
    caller = Caller(0)
    put = caller.updates.put

    def close(update: Update) -> None:
        scheduler.close()
        put(update)

    caller.job.notify = close
    scheduler.submit(caller.job)
    with pytest.raises(AnswerError, match="closed"):
        caller.heard()


def test_passes_run_on_one_thread(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    check = Session.check

    def noted(session: Session, tree: Any) -> Any:
        threads.add(threading.get_ident())
        return check(session, tree)

    monkeypatch.setattr(Session, "check", noted)
    scheduler = start()
    for _ in range(2):
        caller = Caller(0, new=4)
        scheduler.submit(caller.job)
        caller.heard()
    assert threads == {scheduler._thread.ident}
    assert torch.get_num_threads() == 1
