"""A long prompt is read in parts beside running rows, which go on between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from fuzzing import check_caches
from sessions import add_row, session_of
from stock import LONG, METHODS, reference

from draftlens.core.sequence import Sequence
from draftlens.decoding import step
from draftlens.decoding.admission import PartSize

DRAFTING: Mapping[str, Any] = {
    "plain": {"method": "plain"},
    "chain": METHODS["chain3"],
    "specvlm": {"method": "specvlm", "prune_ratio": 0.5, "num_speculative_tokens": 3},
    "gather": {"method": "specvlm", "prune_ratio": 0.5, "draft": "self"},
}

every_method = pytest.mark.parametrize("name", DRAFTING)
some_families = pytest.mark.parametrize("family", FAMILIES[1::4], ids=str)


def length_of(family: Family, row: int) -> int:
    """Tokens of a row's prompt."""
    return int(inputs(family, family.richest, (row,))["attention_mask"].sum())


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the size of parts, however fast this machine reads."""

    def set_size(size: int) -> None:
        monkeypatch.setattr(PartSize, "within", lambda self, seconds: size)

    return set_size


def check_tokens(family: Family, row: int, sequence: Sequence) -> None:
    answer = reference(family, family.richest, LONG)[row]
    assert sequence.tokens == answer[: len(sequence.tokens)]


@some_families
@every_method
def test_rows_go_on_and_leave_between_the_parts(
    family: Family, name: str, in_parts: Callable[[int], None]
) -> None:
    """The others move in the batch that the long row joins."""
    session = session_of(family, DRAFTING[name])
    in_parts(1000)
    early = [add_row(session, family, row) for row in (2, 1, 2)]
    step(session)
    in_parts(-(-length_of(family, 0) // 4))
    long = add_row(session, family, 0)
    for part in range(4):
        before = [len(row.tokens) for row in early]
        step(session)
        assert bool(long.tokens) is (part == 3)
        gained = [len(row.tokens) > count for row, count in zip(early, before, strict=True)]
        assert gained == [part < 2, part < 3, part < 3]
        check_caches(session)
        if part == 1:
            session.remove(early[0])
    while not session.done:
        step(session)
        check_caches(session)
    assert [len(row.tokens) for row in (*early[1:], long)] == [LONG] * 3
    for row, sequence in zip((2, 1, 2, 0), (*early, long), strict=True):
        check_tokens(family, row, sequence)


@some_families
@pytest.mark.parametrize("name", ["plain", "chain"])
def test_the_rest_is_read_at_once_where_no_row_runs(
    family: Family, name: str, in_parts: Callable[[int], None]
) -> None:
    session = session_of(family, DRAFTING[name])
    in_parts(5)
    early = add_row(session, family, 1, new=3)
    step(session)
    long, last = add_row(session, family, 0), add_row(session, family, 2)
    while not early.finished:
        step(session)
        assert not long.tokens
    step(session)
    assert long.tokens
    while not session.done:
        step(session)
    for row, sequence, length in ((1, early, 3), (0, long, LONG), (2, last, LONG)):
        assert len(sequence.tokens) == length
        check_tokens(family, row, sequence)
