"""Readings that several parts request are united."""

from __future__ import annotations

from draftlens.core.readings import ATTENTION, NO_READINGS, ReadingSpec


def test_union() -> None:
    two = ReadingSpec(hidden_layers=(3, 0)) | ReadingSpec(hidden_layers=(1, 3))
    assert two == ReadingSpec(hidden_layers=(0, 1, 3))
    assert ATTENTION | two == two | ATTENTION == ReadingSpec(True, (0, 1, 3))
    assert NO_READINGS | NO_READINGS == NO_READINGS
    assert NO_READINGS | ATTENTION == ATTENTION


def test_truth() -> None:
    assert not NO_READINGS
    assert ATTENTION
    assert ReadingSpec(hidden_layers=(0,))
