"""Star Attention, and SPAVA with other rules for passing keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from draftlens_lab.plugins.spava_ablation import SpavaAblation
from draftlens_lab.plugins.star import StarPrefill

from draftlens.core.errors import ConfigError
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import PREFILLS, make_prefill


def test_rounding() -> None:
    """As in the code of the paper, which rounds up to 128."""
    visual = torch.zeros(1, 4106, dtype=torch.bool)
    visual[0, :4097] = True
    ids = torch.arange(4106)[None]
    prompt = Prompt(torch.zeros(1, 4106, 1), ids, [4106], ids[:, -1:] + 1, visual, {})
    plain, rounded, wide = (
        SpavaAblation(rounding=rounding).rows(prompt)[0] for rounding in (1, 128, 4096)
    )
    assert plain.blocks is not None
    assert rounded.blocks is not None
    assert (plain.blocks.anchor, plain.blocks.passing) == (64, 32)
    assert (rounded.blocks.anchor, rounded.blocks.passing) == (128, 128)
    assert wide.blocks is None
    assert wide.note == "anchor 4096 leaves too few tokens for 16 blocks"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"select": "likes"}, "unknown select 'likes'; known: query, random, uniform"),
        ({"pool": 4}, "pool must be odd"),
        ({"rounding": 0}, "rounding must be a whole number"),
    ],
)
def test_bad_options_are_refused_when_they_are_given(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make_prefill({"name": "spava-ablation", **options})


def test_star_needs_two_blocks() -> None:
    with pytest.raises(ConfigError, match="at least 2 blocks, not 1"):
        StarPrefill(1)


def test_what_is_approximate() -> None:
    odd = SpavaAblation(anchor=9, blocks=4, select="random", rounding=8)
    assert odd.approximate == (
        "spava-ablation prefill: 4 blocks, anchor 9, passing n/128, random selection, rounded to 8",
    )
    assert SpavaAblation(pool=1).approximate[0].endswith("passing n/128, pool 1")


def test_ablations_are_for_one_process() -> None:
    with pytest.raises(ConfigError, match="hosts"):
        make_prefill({"name": "spava-ablation", "hosts": 2})


@pytest.mark.parametrize("name", ["star", "spava-ablation"])
def test_they_are_refused_without_the_lab(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PREFILLS.__dict__, "_points", {})
    with pytest.raises(ConfigError, match=f"prefill '{name}' is part of the package draftlens-lab"):
        make_prefill(name)
