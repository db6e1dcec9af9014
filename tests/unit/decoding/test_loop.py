"""The loop: its steps, and the rows in its passes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from families import FAMILIES, inputs
from sessions import session_of
from stock import LONG, METHODS, reference

from draftlens import InputError
from draftlens.core.sequence import Batch
from draftlens.core.tree import DraftTree
from draftlens.decoding import Session, decode, step
from draftlens.decoding.admission import PartSize
from draftlens.models.adapter import Backbone

FAMILY = FAMILIES[0]
LENGTHS = (1, 2, 23, 3, 12, 5, 1, 7)
PASSES: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain"},
    "chain": METHODS["chain3"],
    "tree": METHODS["odd"],
    "auto": {"tree": "auto"},
    "self": {"method": "specvlm", "prune_ratio": 0.5, "draft": "self"},
    "tabed": {"method": "tabed", "views": ["multimodal", "text"]},
    "lookup": {"method": "lookup", "window": 1},
    "hsd": {"method": "hsd"},
}


def add(session: Session, number: int) -> Any:
    """One row of the richest batch with a length of its own."""
    row = number % 3
    given = inputs(FAMILY, FAMILY.richest, (row,))
    prepared = session.target.prepare(given, max_new_tokens=LENGTHS[number])
    return session.add(prepared, [0], given)[0]


def expected() -> list[list[int]]:
    rows = reference(FAMILY, FAMILY.richest, LONG)
    return [rows[number % 3][:length] for number, length in enumerate(LENGTHS)]


class Passes:
    """Counts the rows of all forwards between proposals."""

    def __init__(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = session
        self.forwarded: list[list[int]] = []  # rows of each forward, round by round
        self.running: list[int] = []  # rows that run, round by round
        forward = Backbone.forward
        greedy_chain = Backbone.greedy_chain
        propose = session.drafter.propose

        def counted(backbone: Backbone, tokens: Any, *args: Any) -> Any:
            self._count(len(tokens))
            return forward(backbone, tokens, *args)

        def counted_chain(backbone: Backbone, tokens: Any, *args: Any) -> Any:
            self._count(len(tokens))
            return greedy_chain(backbone, tokens, *args)

        def proposed(batch: Batch, budget: int) -> DraftTree:
            assert not any(history.finished for history in batch.histories)
            self.running.append(sum(not row.finished for row in session.sequences))
            self.forwarded.append([])
            return propose(batch, budget)

        monkeypatch.setattr(Backbone, "forward", counted)
        monkeypatch.setattr(Backbone, "greedy_chain", counted_chain)
        monkeypatch.setattr(session.drafter, "propose", proposed)

    def _count(self, rows: int) -> None:
        if self.forwarded:
            self.forwarded[-1].append(rows)


@pytest.mark.parametrize("name", PASSES)
def test_passes_hold_running_rows_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(FAMILY, PASSES[name])
    rows = [add(session, number) for number in range(len(LENGTHS))]
    passes = Passes(session, monkeypatch)
    for _ in decode(session):
        pass
    assert [row.tokens for row in rows] == expected()
    for forwarded, running in zip(passes.forwarded, passes.running, strict=True):
        assert forwarded
        assert set(forwarded) == {running}
    assert passes.running == sorted(passes.running, reverse=True)
    assert sum(passes.running) == session.stats.passes  # as the statistics always counted
    assert session.stats.emitted == sum(LENGTHS)


def test_nothing_moves_when_the_last_rows_end(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(FAMILY, PASSES["chain"])
    row = add(session, 2)
    monkeypatch.setattr(Session, "_drop", lambda *_: pytest.fail("a row was moved"))
    for _ in decode(session):
        pass
    assert session.sequences == [row]
    assert session.stats.target_forwards > 0


@pytest.mark.parametrize("name", ["plain", "chain", "auto", "lookup"])
def test_a_scheduler_that_calls_steps(name: str) -> None:
    """Requests come between steps, also after all rows have ended; a step reads or decodes."""
    session = session_of(FAMILY, PASSES[name])
    rows: list[Any] = []
    streamed: dict[int, list[int]] = {}
    for number in range(len(LENGTHS)):
        rows.append(add(session, number))
        forwards = session.stats.target_forwards
        chunks = step(session)
        assert session.stats.target_forwards == forwards
        assert [chunk.row for chunk in chunks] == [number]
        while sum(not row.finished for row in session.sequences) > number % 3:
            chunks += step(session)
            assert session.stats.target_forwards == (forwards := forwards + 1)
        for chunk in chunks:
            streamed.setdefault(chunk.row, []).extend(chunk.tokens)
    while not session.done:
        for chunk in step(session):
            streamed[chunk.row] += chunk.tokens
    assert step(session) == []
    assert [row.tokens for row in rows] == list(streamed.values()) == expected()


@pytest.mark.parametrize("parts", [0, 1])
def test_rows_leave_before_they_are_read(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two rows of a call, and then the call; `parts` of its prompt have been read."""
    monkeypatch.setattr(PartSize, "within", lambda *_: 4)
    session = session_of(FAMILY, PASSES["chain"])
    first = add(session, 2)
    step(session)
    given = inputs(FAMILY, FAMILY.richest, (0, 1))
    prepared = session.target.prepare(given, max_new_tokens=5)
    left, kept = session.add(prepared, [0, 0], given)
    gone = session.add(prepared, [0, 0], given)
    for _ in range(parts):
        assert session.start() == []
    for row in (left, *gone):
        session.remove(row)
        with pytest.raises(InputError) if row is gone[1] else nullcontext():
            session.remove(row)
    while not session.done:
        step(session)
    answers = reference(FAMILY, FAMILY.richest, LONG)
    assert first.tokens == answers[2][:23]
    assert kept.tokens == answers[1][:5]
    assert all(row.tokens == [] for row in (left, *gone))
