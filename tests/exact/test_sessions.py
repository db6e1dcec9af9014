"""Consumers that stop early, and the memory that a session takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from stock import LONG, METHODS, draft, reference, staggered, target

import draftlens
from draftlens.core import stats
from draftlens.core.stats import Clock
from draftlens.decoding.session import Session

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
methods = pytest.mark.parametrize("method", ["chain5", "eagle", "odd"])


def check_caches(session: Session) -> None:
    """What each running row holds is its prompt and all that it said but the last token."""
    drafter: Any = session.drafter
    for row, (said, finished) in enumerate(
        (sequence.tokens, sequence.finished) for sequence in session.sequences
    ):
        if finished:
            continue
        assert session.cache.lengths[row] == session.prompt_lengths[row] + len(said) - 1
        if drafter.rows.cache is None:  # nothing has been drafted yet
            continue
        pending = drafter.rows.pending[row]
        assert drafter.rows.cache.lengths[row] == drafter.rows.prompt_lengths[row] + len(
            said
        ) - len(pending)
        assert said[len(said) - len(pending) :] == list(pending)


@pytest.mark.pairwise("streams")
@every_family
@pytest.mark.parametrize(
    ("method", "chunks"), [("chain5", 1), ("eagle", 4), ("odd", 7), ("chain5", 11)]
)
def test_a_consumer_that_stops(family: Family, method: str, chunks: int) -> None:
    """The caches agree with what was said, the words so far are right, and the next call is as if
    nothing was."""
    rows, given = reference(family, family.richest, LONG), inputs(family, family.richest)
    options = {"draft": draft(family), "method": METHODS[method], "max_new_tokens": LONG}
    stream = draftlens.stream(target(family), given, **options, eos_token_id=staggered(rows))
    heard: list[list[int]] = [[], [], []]
    for chunk in islice(stream, chunks):
        heard[chunk.row] += chunk.tokens
    check_caches(stream.session)
    assert all(row[: len(part)] == part for row, part in zip(rows, heard, strict=True))
    assert all(
        said[: len(part)] == part for said, part in zip(stream.result.tokens, heard, strict=True)
    )
    del stream
    assert draftlens.generate(target(family), given, **options).tokens == rows


def test_a_result_stays_as_it_was() -> None:
    """One taken early does not grow with the stream."""
    stream = draftlens.stream(
        target(FAMILIES[0]),
        inputs(FAMILIES[0], "image"),
        draft=draft(FAMILIES[0]),
        max_new_tokens=9,
    )
    next(stream)
    early = stream.result
    told = (str(early.tokens), str(early.from_draft), early.stats.to_dict())
    whole = stream.run()
    assert (str(early.tokens), str(early.from_draft), early.stats.to_dict()) == told
    assert len(whole.tokens[0]) == 9


@every_family
def test_a_stream_that_is_resumed(family: Family) -> None:
    """What comes after a pause is what would have come without one, whatever ran in between."""
    rows, given = reference(family, family.richest, LONG), inputs(family, family.richest)
    stream = draftlens.stream(target(family), given, draft=draft(family), max_new_tokens=LONG)
    heard: list[list[int]] = [[], [], []]
    for chunk in islice(stream, 7):
        heard[chunk.row] += chunk.tokens
    draftlens.generate(
        target(family), inputs(family, "text"), draft=draft(family), max_new_tokens=4
    )
    for chunk in stream:
        heard[chunk.row] += chunk.tokens
    check_caches(stream.session)
    assert heard == stream.result.tokens == rows


@pytest.mark.pairwise("streams")
@every_family
@methods
@pytest.mark.parametrize("rows", [(0,), (0, 1, 2)], ids=["one", "ragged"])
def test_the_memory_of_the_cache(family: Family, method: str, rows: tuple[int, ...]) -> None:
    """Prompt, answer and one tree: nothing is held twice and nothing grows."""
    given = inputs(family, family.richest, rows)
    stream = draftlens.stream(
        target(family),
        given,
        draft=draft(family),
        method=METHODS[method],
        compile=False,  # caches of other passes grow by other steps
        max_new_tokens=LONG,
    )
    stream.run()
    text = target(family).config.get_text_config()
    nodes = {"chain5": 5, "eagle": 25, "odd": 8}[method]
    tokens = len(rows) * (int(given["attention_mask"].sum(1).max()) + LONG + nodes)
    per_token = 2 * text.num_hidden_layers * text.num_key_value_heads * (64 // 4) * 4
    assert stream.session.cache.nbytes == pytest.approx(tokens * per_token, rel=0.05)
    assert stream.session.drafter.rows.cache.nbytes <= 1.05 * tokens * per_token


@pytest.fixture
def slow_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that each look at it moves on: by a second while a phase runs, else by a millionth of
    one."""
    now, running, phase = 0.0, 0, Clock.phase

    def perf_counter() -> float:
        nonlocal now
        now += 1 if running else 2**-20
        return now

    @contextmanager
    def noted(clock: Clock, name: str) -> Iterator[None]:
        nonlocal running
        with phase(clock, name):
            running += 1
            yield
        running -= 1

    monkeypatch.setattr(stats, "time", SimpleNamespace(perf_counter=perf_counter))
    monkeypatch.setattr(Clock, "phase", noted)


@pytest.mark.usefixtures("slow_phases")
@pytest.mark.parametrize(
    "method",
    [
        {"method": "plain"},
        METHODS["eagle"],
        {"method": "specvlm"},
        METHODS["chain3"],
    ],
)
@pytest.mark.parametrize("most", [1, 2, LONG])
def test_the_phases_take_no_longer_than_the_whole(method: dict[str, Any], most: int) -> None:
    """At whatever chunk a consumer stops."""
    family = FAMILIES[0]
    given = {"draft": draft(family), "method": method, "max_new_tokens": most}
    stream = draftlens.stream(target(family), inputs(family, family.richest), **given)
    for _ in stream:
        told = stream.session.stats
        assert told.e2e - 1 < sum(told.phases.values()) <= told.e2e
        assert 0 < told.ttft <= told.e2e
    assert told.emitted == 3 * most
