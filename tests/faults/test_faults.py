"""Some of the malformed inputs of `run.py`: each is answered, or refused in one line."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pypdfium2")
pytest.importorskip("reportlab")

from faults import run, watch
from faults.inputs import COUNTS
from faults.watch import Input, Watch

import draftlens

FEW = ("documents", "folders of pages", "files of answers", "command lines")
"""Kinds that start processes."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.filterwarnings("ignore")
def test_some_malformed_inputs_of_each_kind(cache: Path) -> None:
    many = [kind for kind in COUNTS if kind not in FEW]
    outcomes = run.run(cache, 0.04, 3, many) + run.run(cache, 0.02, 3, FEW)
    assert [(each.given.what, each.fault) for each in outcomes if each.fault is not None] == []
    given = Counter(each.given.kind for each in outcomes)
    assert given.keys() == COUNTS.keys()
    assert 50 <= given.total() <= 80
    assert sum(each.refusal is not None for each in outcomes) > len(outcomes) / 3
    table = run.table_of(outcomes)
    assert table.row_count == len(COUNTS) + 1


def test_the_whole_has_enough_inputs() -> None:
    assert sum(COUNTS.values()) >= 800


def refuse(sentence: str) -> None:
    raise draftlens.InputError(sentence)


def hold() -> None:
    """Memory that is written, for several looks of the watch."""
    held = b"x" * 2**26
    time.sleep(0.5)
    assert held


def wait() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("give", "fault"),
    [
        (lambda: 5, None),
        (lambda: refuse("there is no such file"), None),
        (lambda: refuse("two\nlines"), "not one line"),
        (lambda: refuse("\x1b[2J"), "not one line"),
        (lambda: refuse("x" * 2000), "2000 characters"),
        (lambda: refuse("cannot read a.png: KeyError: 5"), "exception in disguise"),
        (lambda: {}["x"], "KeyError: 'x' at test_faults.py"),
        (hold, "memory grows"),
        (wait, "longer than 1 seconds"),
    ],
)
def test_what_is_a_fault(give: watch.Give, fault: str | None) -> None:
    with Watch(1, 2**24) as watched:
        outcome = watched.give(Input("tests", "this", give))
    assert (outcome.fault is None) == (fault is None)
    assert fault is None or fault in str(outcome.fault)
