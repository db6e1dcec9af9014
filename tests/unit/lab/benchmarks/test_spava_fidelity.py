"""Rows of `spava.py fidelity` on disk, and the rounds in which prompts are read."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.spava_parts.asked import Cell

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def fidelity(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which imports others as the script does."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("spava_parts.fidelity")


def test_rows_of_other_weights_and_unfinished_lines_are_dropped(
    fidelity: Any, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"cell": "a", "index": index, "weights": w} for index, w in enumerate(("old", "new"))]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"cell": "a", "ind')
    assert fidelity.read_rows(file, "new") == rows[1:]
    assert [json.loads(line) for line in file.read_text().splitlines()] == rows[1:]


@pytest.mark.parametrize(("rounds", "expected"), [(1, [2, 1]), (2, [4, 2]), (None, [8, 4])])
def test_every_round_has_prompts_of_all_cells(
    fidelity: Any, rounds: int | None, expected: list[int]
) -> None:
    cells = [
        Cell("ordering", 1025, 0, "compared", 8, rounds=4),
        Cell("counting", 1025, 0, "compared", 4, rounds=4),
    ]
    found = fidelity.todo([], cells, [1025], rounds)
    assert [sum(cell is each for each, _ in found) for cell in cells] == expected
    fewest = fidelity.todo([], cells, [1025], rounds, most=1)
    assert [sum(cell is each for each, _ in fewest) for cell in cells] == [1, 1]
    done = [{"cell": cell.name, "index": index} for cell, index in found]
    assert fidelity.todo(done, cells, [1025], rounds) == []
