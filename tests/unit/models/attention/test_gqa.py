"""Grouped queries under a mask: the attention of `sdpa`, without a copy of the keys."""

from __future__ import annotations

import os
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import FAMILIES, TEXT, Family, inputs
from stock import target
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from draftlens.core.tree import EAGLE_PATHS, ancestors, attention_mask, from_paths
from draftlens.models.adapter import Backbone
from draftlens.models.attention.gqa import attend_in_groups, attend_packed, grouped_attention
from draftlens.models.attention.switch import SharedSwitch
from draftlens.prefill.spava.kernels import attend_by_formula

HEADS, KEY_HEADS, WIDTH = 6, 2, 8
LONG = 30.0
"""Seconds in which a thread certainly runs."""


def states(
    queries: int, keys: int, value_width: int = WIDTH, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and the mask of two ragged rows."""
    torch.manual_seed(0)
    query = torch.randn(2, HEADS, queries, WIDTH, dtype=dtype)
    key = torch.randn(2, KEY_HEADS, keys, WIDTH, dtype=dtype)
    value = torch.randn(2, KEY_HEADS, keys, value_width, dtype=dtype)
    window = torch.ones(queries, queries, dtype=torch.bool).tril()
    mask = attention_mask([keys - queries, keys - queries - 3], window)
    assert mask is not None
    return query, key, value, mask


def module() -> Any:
    """What transformers' attention reads of a layer."""
    return SimpleNamespace(num_key_value_groups=HEADS // KEY_HEADS, is_causal=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [2, 6, 26, 65])
def test_the_bits_are_those_of_transformers(queries: int, dtype: torch.dtype) -> None:
    query, key, value, mask = states(queries, 100, dtype=dtype)
    ours, _ = grouped_attention(module(), query, key, value, mask, scaling=0.3, dropout=0.0)
    theirs, _ = sdpa_attention_forward(module(), query, key, value, mask, scaling=0.3)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("queries", [1, 2, 7])
@pytest.mark.parametrize("value_width", [WIDTH, 5])
def test_packed_queries_attend_by_the_formula(queries: int, value_width: int) -> None:
    """As they do where a kernel would copy the keys, and where values have another width."""
    query, key, value, mask = states(queries, 40, value_width)
    packed = attend_packed(query, key, value, mask, 0.3)
    chosen = attend_in_groups(query, key, value, mask, 0.3)
    for row in range(2):
        visible = mask[row, 0]
        twin = attend_by_formula(query[row], key[row], value[row], 0.3, visible=visible).out
        assert torch.allclose(packed[row], twin, atol=1e-6)
        assert torch.allclose(chosen[row], twin, atol=1e-6)


def test_other_calls_are_those_of_transformers() -> None:
    query, key, value, mask = states(4, 20)
    bias = torch.randn(1, HEADS, 4, 20)
    with_bias = {"position_bias": bias, "scaling": 0.3}
    calls: list[tuple[Tensor, Tensor, Tensor, Tensor | None, dict[str, Any]]] = [
        (query, key, value, None, {"is_causal": False}),
        (query, key, value, mask, with_bias),
        (query, key, value, mask.repeat(1, HEADS, 1, 1), {}),
        (query[:, :KEY_HEADS], key, value, mask, {}),
    ]
    for *given, kwargs in calls:
        layer = module()
        layer.num_key_value_groups = given[0].shape[1] // KEY_HEADS
        ours, _ = grouped_attention(layer, *given, **kwargs)
        theirs, _ = sdpa_attention_forward(layer, *given, **kwargs)
        assert torch.equal(ours, theirs)
    with pytest.raises(ValueError, match="softcap"):
        grouped_attention(module(), query, key, value, mask, softcap=30.0)


class SizesOfResults(TorchDispatchMode):
    """Elements of the tensors that operations have made, views not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, Tensor)}
        if isinstance(result, Tensor) and result.untyped_storage().data_ptr() not in given:
            self.sizes.add(result.numel())
        return result


def is_grouped(text: dict[str, Any]) -> bool:
    return text["num_key_value_heads"] < text["num_attention_heads"]


GROUPED = [family for family in FAMILIES if is_grouped({**TEXT, **family.text})]


def test_most_families_have_grouped_queries() -> None:
    assert [family for family in FAMILIES if Backbone.of(target(family)).has_groups] == GROUPED
    assert len(GROUPED) >= 6


@pytest.mark.parametrize("family", GROUPED, ids=str)
def test_a_pass_over_a_tree_copies_no_keys(family: Family) -> None:
    backbone = Backbone.of(target(family))
    topology = from_paths(EAGLE_PATHS)
    prepared = backbone.prepare(inputs(family, family.richest), max_new_tokens=1)
    prompt = backbone.encode(prepared)
    rows, nodes = len(prompt.lengths), len(topology) + 1
    tokens = torch.arange(rows * nodes).reshape(rows, nodes) % 50
    logits = []
    copies = []
    for has_groups in (True, False):
        cache = backbone.new_cache(prompt, nodes)
        backbone.prefill(prompt, cache)
        mask = attention_mask(cache.lengths, ancestors(topology))
        positions = prompt.positions(torch.tensor((0, *topology.depths))[None])
        backbone.has_groups = has_groups
        try:
            with SizesOfResults() as seen:
                logits.append(backbone.forward(tokens, positions, cache, mask))
        finally:
            backbone.has_groups = True
        heads = backbone.text_config.num_attention_heads
        copied = rows * heads * max(cache.lengths) * cache.layers[0].keys.shape[-1]
        copies.append(copied in seen.sizes)
    assert torch.equal(*logits)
    assert copies == [False, True]
    assert backbone.decoder.config._attn_implementation == "sdpa"


def config_of(name: str = "sdpa") -> Any:
    return SimpleNamespace(_attn_implementation=name)


def test_a_switch_is_off_when_the_last_user_has_left() -> None:
    switch, config, inside, leave = SharedSwitch("ours"), config_of(), Event(), Event()

    def hold() -> None:
        switch.enter(config)
        inside.set()
        assert leave.wait(LONG)
        switch.leave(config)

    thread = Thread(target=hold)
    thread.start()
    assert inside.wait(LONG)
    switch.enter(config)
    switch.enter(config)
    switch.leave(config)
    assert config._attn_implementation == "ours"
    switch.leave(config)
    assert config._attn_implementation == "ours"
    leave.set()
    thread.join(LONG)
    assert config._attn_implementation == "sdpa"


def test_switches_of_two_configurations_are_apart() -> None:
    switch, first, second = SharedSwitch("ours"), config_of(), config_of("eager")
    switch.enter(first)
    switch.enter(second)
    switch.leave(second)
    assert (first._attn_implementation, second._attn_implementation) == ("ours", "eager")
    switch.leave(first)
    assert first._attn_implementation == "sdpa"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_leaves_what_other_threads_entered() -> None:
    switch, config, mine = SharedSwitch("ours"), config_of(), config_of()
    thread = Thread(target=switch.enter, args=(config,))
    thread.start()
    thread.join(LONG)
    switch.enter(mine)
    child = os.fork()
    if child == 0:
        is_right = config._attn_implementation == "sdpa" and mine._attn_implementation == "ours"
        switch.leave(mine)
        os._exit(0 if is_right and mine._attn_implementation == "sdpa" else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert config._attn_implementation == "ours"
