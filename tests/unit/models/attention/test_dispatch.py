"""The dispatching attention is `sdpa` unless a pass directs it elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import target
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from draftlens.models.adapter import Backbone
from draftlens.models.attention import dispatch
from draftlens.models.attention.dispatch import dispatching
from draftlens.models.prompt import Prompt

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


class Counted:
    """Computes `sdpa` and remembers which layers called it."""

    def __init__(self) -> None:
        self.layers: list[int] = []

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        """See `AttentionPass`."""
        assert dispatch.ARGUMENT not in kwargs
        self.layers.append(module.layer_idx)
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)


class Zero(Counted):
    """Answers with zeros."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `AttentionPass`."""
        output, weights = super().__call__(*args, **kwargs)
        return torch.zeros_like(output), weights


def encoded(family: Family) -> tuple[Backbone, Prompt]:
    backbone = Backbone.of(target(family))
    prepared = backbone.prepare(inputs(family, family.richest), max_new_tokens=1)
    return backbone, backbone.encode(prepared)


def prefilled(backbone: Backbone, prompt: Prompt, attention: Any = None) -> Tensor:
    return backbone.prefill(prompt, backbone.new_cache(prompt, 1), attention)


@every_family
def test_it_is_sdpa(family: Family) -> None:
    """Without a pass, and with one that computes `sdpa` itself: once per layer, in order."""
    backbone, prompt = encoded(family)
    plain = prefilled(backbone, prompt)
    counted = Counted()
    assert torch.equal(prefilled(backbone, prompt, counted), plain)
    assert counted.layers == [*range(backbone.text_config.num_hidden_layers)]
    with dispatching(backbone.decoder):
        assert torch.equal(prefilled(backbone, prompt), plain)


@every_family
def test_a_pass_decides_what_is_attended_to(family: Family) -> None:
    backbone, prompt = encoded(family)
    plain = prefilled(backbone, prompt)
    zero = Zero()
    assert not torch.allclose(prefilled(backbone, prompt, zero), plain)
    assert len(zero.layers) == backbone.text_config.num_hidden_layers
    assert torch.equal(prefilled(backbone, prompt), plain)


@every_family
def test_answers_with_a_tree_mask(family: Family) -> None:
    """A forward after a prefill, with a mask, while the attention is dispatched."""
    backbone, prompt = encoded(family)
    num_rows = len(prompt.lengths)
    tokens = torch.ones(num_rows, 2, dtype=torch.long)
    positions = prompt.positions(torch.arange(2).expand(num_rows, -1))
    logits = []
    for is_dispatched in (False, True):
        cache = backbone.new_cache(prompt, 4)
        backbone.prefill(prompt, cache)
        longest = max(prompt.lengths)
        mask = torch.zeros(num_rows, 1, 2, longest + 2, dtype=torch.bool)
        for row, length in enumerate(prompt.lengths):
            mask[row, :, :, :length] = True
            mask[row, :, :, length : length + 2] = torch.ones(2, 2, dtype=torch.bool).tril()
        if is_dispatched:
            with dispatching(backbone.decoder):
                logits.append(backbone.forward(tokens, positions, cache, mask))
        else:
            logits.append(backbone.forward(tokens, positions, cache, mask))
    assert torch.equal(*logits)
