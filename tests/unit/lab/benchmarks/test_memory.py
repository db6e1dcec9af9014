"""The table of docs/memory.md is what the script computes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import memory

    yield memory
    sys.modules.pop("memory")


def test_the_table_of_the_page_is_computed(memory: Any) -> None:
    rows = [memory.computed(name) for name in memory.MODELS]
    assert len(rows) == 20
    assert memory.computed_table(rows) in (ROOT / "docs/memory.md").read_text()
    parameters = {row["model"]: round(row["parameters"] / 1e9, 2) for row in rows}
    # As the model cards print them.
    assert parameters["Qwen2.5-VL-7B"] == 8.29
    assert parameters["LLaVA-1.5-7B"] == 7.06
    assert parameters["SmolVLM2-2.2B"] == 2.25
