"""A GPU waits for every value that Python reads from it, so rounds read few."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, inputs
from stock import METHODS, draft, target
from torch import Tensor

import draftlens

READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often values of tensors are read, by the module that does."""
    counts: Counter[str] = Counter()

    def listen(name: str) -> None:
        usual = getattr(Tensor, name)

        def counted(self: Tensor, *args: Any, **options: Any) -> Any:
            path = Path(sys._getframe(1).f_code.co_filename)
            counts["/".join(path.with_suffix("").parts[-2:])] += 1
            return usual(self, *args, **options)

        monkeypatch.setattr(Tensor, name, counted)

    for name in READS:
        listen(name)
    return counts


@pytest.mark.parametrize("method", ["chain5", "eagle"])
def test_a_round_reads_its_verdict_and_what_the_draft_missed(
    method: str, reads: Counter[str]
) -> None:
    def answer(num_tokens: int) -> Counter[str]:
        family = FAMILIES[0]
        draftlens.generate(
            target(family),
            inputs(family, family.richest),
            draft=draft(family),
            method=METHODS[method],
            max_new_tokens=num_tokens,
        )
        counts = reads.copy()
        reads.clear()
        return counts

    for num_tokens in (3, 12):
        answer(num_tokens)  # shapes of trees are planned once
    before, after = answer(3), answer(12)
    assert before["core/verify"] < after["core/verify"]
    assert after["drafting/model_drafter"] <= after["core/verify"]
    more = after - before  # by the later rounds
    assert set(more) <= {"core/verify", "drafting/model_drafter"}, "values are read elsewhere"
