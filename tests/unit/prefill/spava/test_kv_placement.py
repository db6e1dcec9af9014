"""Where keys and values are while an answer is decoded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftlens.core.errors import ConfigError
from draftlens.prefill.base import make_prefill
from draftlens.prefill.spava.hosts import Alone
from draftlens.prefill.spava.kv_placement import CacheShape, KeepingCosts, is_sharded

CONFIG = SimpleNamespace(
    num_hidden_layers=10, num_attention_heads=4, num_key_value_heads=2, hidden_size=32
)
COSTS = KeepingCosts(size=4, layers=10, message=1e-4, moving=1e-6, attention=1e-7)
"""A message of a layer costs as much as attention to 1,000 keys."""


def backbone() -> Any:
    """What the decision is made of."""
    return SimpleNamespace(
        text_config=CONFIG,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        hosts=Alone(),
    )


def prompt(tokens: int) -> Any:
    return SimpleNamespace(lengths=[tokens - 10, 10])


@pytest.mark.parametrize("name", ["ring", "spava", "star"])
def test_unknown_places_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown decode 'here'; known: auto, gathered, sharded"):
        make_prefill({"name": name, "decode": "here"})


def test_bytes_of_a_token() -> None:
    """Keys and values of two heads of eight, two bytes each, in ten layers."""
    assert CacheShape.of(backbone()).bytes_per_token == 2 * 10 * 2 * 8 * 2


def test_costs_of_both_ways() -> None:
    assert COSTS.gathered(1000, 50) == pytest.approx(750 * 1e-6 + 50 * 10 * 1000 * 1e-7)
    assert COSTS.sharded(1000, 50) == pytest.approx(50 * 10 * (1e-4 + 250 * 1e-7))


@pytest.mark.parametrize(
    ("tokens", "free", "expected"),
    [(1000, 10**9, False), (2000, 10**9, True), (1000, 640 * 999, True)],
    ids=["messages cost more", "keys cost more", "no room"],
)
def test_auto_takes_what_is_possible_and_faster(
    monkeypatch: pytest.MonkeyPatch, tokens: int, free: int, expected: bool
) -> None:
    monkeypatch.setattr("draftlens.prefill.spava.kv_placement.free_bytes", lambda _: free)
    monkeypatch.setattr("draftlens.prefill.spava.kv_placement.placement_costs", lambda *_: COSTS)
    assert is_sharded(backbone(), prompt(tokens), 50, "auto") is expected
    assert is_sharded(backbone(), prompt(tokens), 50, "sharded")
    assert not is_sharded(backbone(), prompt(tokens), 50, "gathered")
