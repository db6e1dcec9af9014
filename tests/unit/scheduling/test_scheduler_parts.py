"""A long prompt is read in parts between the rounds of the rows that run."""

from __future__ import annotations

from typing import Any

import pytest
from families import inputs
from stock import reference

from draftlens.decoding.admission import Admission, PartSize
from draftlens.decoding.session import Session
from draftlens.scheduling import AnswerError
from tests.unit.scheduling.callers import FAMILY, WAIT, Caller, Gate, Start

PART = 6


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passes of the target in order, while prompts are read in parts of `PART` tokens."""
    happened: list[str] = []

    def noted(owner: type, name: str) -> None:
        before = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            happened.append(name)
            return before(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    monkeypatch.setattr(PartSize, "within", lambda *_: PART)
    noted(Admission, "read")
    noted(Session, "check")
    return happened


def num_parts() -> int:
    return -(-inputs(FAMILY, FAMILY.richest, (1,))["input_ids"].shape[1] // PART)


def test_a_round_between_two_parts(start: Start, events: list[str], gate: Gate) -> None:
    scheduler = start()
    answers = reference(FAMILY, FAMILY.richest)
    callers = [Caller(row) for row in range(3)]
    scheduler.submit(callers[0].job)
    assert gate.reached.wait(WAIT)
    scheduler.submit(callers[1].job)
    scheduler.submit(callers[2].job)
    gate.let(2)
    while events.count("read") < 2:
        callers[0].updates.get(timeout=WAIT)
    assert scheduler.num_rows == 2  # one that runs and one that is read
    assert scheduler.num_waiting == 1
    callers[0].updates.queue.clear()
    gate.open()
    for caller in callers[1:]:
        assert caller.heard() == [answers[caller.row]]
    assert callers[0].job.sequences[0].tokens == answers[0]
    assert "read read" not in " ".join(events[: 2 * num_parts()])
    assert events.count("read") > num_parts()
    assert 0 < scheduler.counters.stall_seconds < callers[2].job.read - callers[0].job.admitted
    lengths = [caller.job.prompt_length for caller in callers]
    assert scheduler.counters.prompt_tokens == sum(lengths)


def test_the_time_of_a_part_ends_with_its_work(
    start: Start, events: list[str], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU it would end with the launch: each part is waited for, and no whole prompt."""
    monkeypatch.setattr(
        "draftlens.decoding.admission.wait_for", lambda device: events.append("waited")
    )
    scheduler = start()
    callers = [Caller(row) for row in range(2)]
    scheduler.submit(callers[0].job)
    assert gate.reached.wait(WAIT)
    assert "waited" not in events
    scheduler.submit(callers[1].job)
    gate.open()
    assert callers[1].heard() == [reference(FAMILY, FAMILY.richest)[1]]
    assert events.count("waited") == events.count("read") - 1 > 1


def test_a_job_is_cancelled_while_it_is_read(start: Start, events: list[str], gate: Gate) -> None:
    scheduler = start()
    first, second, third = callers = [Caller(row) for row in range(3)]
    scheduler.submit(first.job)
    assert gate.reached.wait(WAIT)
    scheduler.submit(second.job)
    gate.let(2)
    while events.count("read") < 2:
        first.updates.get(timeout=WAIT)
    scheduler.cancel(second.job)
    scheduler.submit(third.job)
    first.updates.queue.clear()
    gate.open()
    answers = reference(FAMILY, FAMILY.richest)
    assert third.heard() == [answers[2]]
    assert first.job.sequences[0].tokens == answers[0]
    assert second.updates.empty()
    assert second.job.read == 0
    assert all(caller.job.sequences[0].finished for caller in callers)
    assert scheduler.num_rows == scheduler.num_waiting == 0


@pytest.mark.parametrize("samples", [1, 2])
def test_an_error_in_a_part_fails_its_job_alone(
    start: Start, events: list[str], gate: Gate, monkeypatch: pytest.MonkeyPatch, samples: int
) -> None:
    scheduler = start()
    other, bad, late = Caller(0), Caller(1, samples=samples), Caller(2)
    scheduler.submit(other.job)
    assert gate.reached.wait(WAIT)
    read = Admission.read

    def fail(admission: Admission, *arguments: Any) -> Any:
        if events.count("read") == 1 + samples:
            monkeypatch.setattr(Admission, "read", read)
            raise RuntimeError("a secret of the device")
        return read(admission, *arguments)

    monkeypatch.setattr(Admission, "read", fail)
    scheduler.submit(bad.job)
    scheduler.submit(late.job)
    gate.open()
    with pytest.raises(AnswerError, match="could not be read"):
        bad.heard()
    answers = reference(FAMILY, FAMILY.richest)
    assert other.heard() == [answers[0]]
    assert late.heard() == [answers[2]]
    assert scheduler.counters.failed_rounds == 0
    assert scheduler.num_rows == 0
