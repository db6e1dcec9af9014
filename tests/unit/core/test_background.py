"""Work beside the caller's."""

from __future__ import annotations

import threading

import pytest

from draftlens.core.background import start_in_background


def test_it_runs_before_it_is_asked_for() -> None:
    """And once, however often the value is taken."""
    has_run = threading.Event()
    threads = []

    def make() -> int:
        threads.append(threading.current_thread())
        has_run.set()
        return 3

    value = start_in_background(make)
    assert has_run.wait(10)
    assert [value(), value()] == [3, 3]
    (thread,) = threads
    assert thread is not threading.current_thread()


def test_errors_are_raised_where_the_value_is_taken() -> None:
    def make() -> int:
        raise ValueError("no captions")

    value = start_in_background(make)
    for _ in range(2):
        with pytest.raises(ValueError, match="no captions"):
            value()
