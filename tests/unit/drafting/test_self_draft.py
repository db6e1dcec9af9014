"""A model that drafts for itself: what it refuses, whichever way it is made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from draftlens import SpecVLM
from draftlens.core.errors import ConfigError
from draftlens.drafting.draft_prompt import SelfReader
from draftlens.drafting.pruning import Pruning
from draftlens.pruning.attention import UniformPruner


def by_hand(kv: str) -> Any:
    target: Any = SimpleNamespace(vocab_size=100)
    return SelfReader(target, Pruning(UniformPruner(), 0.5), kv)


def by_config(kv: str) -> Any:
    return SpecVLM(pruner="uniform", kv=kv)


@pytest.mark.parametrize("make", [by_hand, by_config])
def test_what_cannot_be(make: Any) -> None:
    with pytest.raises(ConfigError) as told:
        make("steal")
    assert str(told.value) == "unknown kv 'steal'; known: prefill, gather, sparse"


@pytest.mark.parametrize("make", [by_hand, by_config])
@pytest.mark.parametrize("kv", ["prefill", "gather", "sparse"])
def test_what_can(make: Any, kv: str) -> None:
    assert make(kv).kv == kv
