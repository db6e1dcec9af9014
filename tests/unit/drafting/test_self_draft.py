"""A model that drafts for itself: what it refuses, whichever way it is made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from draftlens_lab.plugins.spatial_pruners import GridPruner

from draftlens import SpecVLM
from draftlens.core.errors import ConfigError
from draftlens.drafting.draft_prompt import SelfReader
from draftlens.drafting.pruning import Pruning

GATHERED = 'gathered keys carry the positions they were made at: positions must be "original"'


def by_hand(kv: str, positions: str) -> Any:
    target: Any = SimpleNamespace(vocab_size=100)
    return SelfReader(target, Pruning(GridPruner(), 0.5, positions), kv)


def by_config(kv: str, positions: str) -> Any:
    return SpecVLM(pruner="grid", kv=kv, positions=positions)


@pytest.mark.parametrize("make", [by_hand, by_config])
@pytest.mark.parametrize(
    ("kv", "positions", "sentence"),
    [
        ("gather", "compact", GATHERED),
        ("sparse", "compact", GATHERED),
        ("steal", "original", "unknown kv 'steal'; known: prefill, gather, sparse"),
    ],
)
def test_what_cannot_be(make: Any, kv: str, positions: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as told:
        make(kv, positions)
    assert str(told.value) == sentence


@pytest.mark.parametrize("make", [by_hand, by_config])
@pytest.mark.parametrize(
    ("kv", "positions"),
    [
        ("prefill", "compact"),
        ("prefill", "original"),
        ("gather", "original"),
        ("sparse", "original"),
    ],
)
def test_what_can(make: Any, kv: str, positions: str) -> None:
    assert make(kv, positions).kv == kv
