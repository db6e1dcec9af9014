"""How many tokens of a prompt are read in a given time."""

from __future__ import annotations

from draftlens.decoding.admission import FIRST, MIN_TOKENS, PartSize


def test_parts_follow_the_speed_of_the_last_one() -> None:
    size = PartSize()
    assert size.within(0.05) == FIRST
    size.record(0, 9.0)
    assert size.within(0.05) == FIRST
    size.record(100, 0.01)
    assert size.within(0.05) == 500
    size.record(64, 0.64)
    assert size.within(0.5) == 50
    assert size.within(0.05) == MIN_TOKENS
