"""Masks of sliding windows against slow loops, and which models have them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from stock_families import FOUR, SLIDING
from torch import Tensor
from transformers import DynamicCache, cache_utils

from draftlens.core import tree as trees
from draftlens.core.tree import EAGLE_PATHS, Topology, chain, from_paths
from draftlens.models.kv_cache import KVCache
from draftlens.models.layer_kinds import FULL, LayerKinds, unsupported, within_window
from draftlens.models.layer_kinds import SLIDING as SLIDES

ODD = from_paths([[0], [1], [2], [1, 0], [1, 1], [2, 0], [1, 1, 0], [1, 1, 0, 0]])
TREES = {"chain": chain(6), "eagle": from_paths(EAGLE_PATHS), "odd": ODD, "root": chain(0)}


def slow(prefix: list[int], topologies: list[Topology], window: int) -> Tensor:
    """Token by token: a key of the prefix has its slot as index, a node its depth after it."""
    width = max(map(len, topologies)) + 1
    mask = torch.zeros(len(prefix), 1, width, max(prefix) + width, dtype=torch.bool)
    for row, (length, tree) in enumerate(zip(prefix, topologies, strict=True)):
        for token in range(width):
            if token > len(tree):  # a filler reads the prefix and itself
                path = [token]
            else:
                path = [0, *(node + 1 for node in trees.path_to(tree, token - 1))]
            slots = [*range(length), *(length + node for node in path)]
            for key, slot in enumerate(slots):
                mask[row, 0, token, slot] = len(slots) - 1 - key < window
    return mask


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("window", [1, 2, 5, 8, 30])
@pytest.mark.parametrize("prefix", [[12], [9, 9], [3, 17, 8]], ids=str)
def test_trees_after_rows(name: str, window: int, prefix: list[int]) -> None:
    topologies = [TREES[name]] * len(prefix)
    mask = trees.attention_mask(prefix, trees.batch_ancestors(topologies, torch.device("cpu")))
    if mask is None:
        mask = torch.ones(len(prefix), 1, 1, max(prefix) + 1, dtype=torch.bool)
    assert torch.equal(within_window(mask, window), slow(prefix, topologies, window))


@pytest.mark.parametrize("window", [1, 2, 5, 8])
def test_other_trees_in_each_row(window: int) -> None:
    topologies = [chain(3), ODD, chain(0)]
    mask = trees.attention_mask([4, 19, 11], trees.batch_ancestors(topologies, torch.device("cpu")))
    assert mask is not None
    assert torch.equal(within_window(mask, window), slow([4, 19, 11], topologies, window))


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("prefix", [[3], [7], [8], [15], [16], [40], [2, 40], [20, 40]], ids=str)
@pytest.mark.parametrize("tree", ["root", "odd"])
@pytest.mark.parametrize("whole", [False, True])
def test_masks_of_a_pass(mixed: bool, prefix: list[int], tree: str, whole: bool) -> None:
    """The slots that sliding layers do not read are hidden from every token, and what is left of
    the mask is the slow one."""
    window, topologies = 8, [TREES[tree]] * len(prefix)
    slides = (True, False) if mixed else (True, True)
    kinds = LayerKinds(window, slides, 2)
    cache = kinds.marked(KVCache(2, len(prefix), 64, layers_per_block=1))
    cache.truncate(prefix)
    mask = trees.attention_mask(prefix, trees.batch_ancestors(topologies, torch.device("cpu")))
    backbone: Any = SimpleNamespace(
        attention_mask=lambda mask: mask,
        device=torch.device("cpu"),
        token_inputs=lambda ids: {},
        indexers=None,
    )
    tokens = torch.zeros(len(prefix), len(TREES[tree]) + 1, dtype=torch.long)
    given = kinds.arguments(backbone, cache, mask, tokens, whole)["attention_mask"]
    if mixed:
        assert given[FULL] is mask
        given = given[SLIDES]
    expected = slow(prefix, topologies, window)
    if given is None:
        given = torch.ones_like(expected[..., cache.first_seen :])
    assert not expected[..., : cache.first_seen].any()
    assert torch.equal(given, expected[..., cache.first_seen :])
    if whole:
        assert cache.first_seen == 0
    elif min(prefix) >= 2 * window:
        assert cache.first_seen == min(prefix) + 1 - window


def test_sliding_layers_read_their_windows_only() -> None:
    """The views of keys end where those of full layers do, and begin later."""
    kinds = LayerKinds(8, (True, False), 2)
    cache = kinds.marked(KVCache(2, 1, 64))
    states = torch.randn(1, 2, 40, 4)
    for layer in cache.layers:
        layer.update(states, states)
    cache.advance(40)
    cache.first_seen = 33
    new = torch.randn(1, 2, 3, 4)
    keys = [layer.update(new, new)[0] for layer in cache.layers]
    assert [each.shape[2] for each in keys] == [10, 43]
    assert torch.equal(keys[0], keys[1][:, :, 33:])
    rows = cache.new_rows(1)
    assert [layer.buffers.slides for layer in rows.layers] == [True, False]
    assert rows.first_seen == 0


def test_caches_of_others_are_read_whole() -> None:
    """A cache that is not marked, such as one that was put together, is never cut."""
    kinds = LayerKinds(8, (True, True), 2)
    cache = KVCache(2, 1, 64)
    cache.truncate([40])
    backbone: Any = SimpleNamespace(
        attention_mask=lambda mask: mask,
        device=torch.device("cpu"),
        token_inputs=lambda ids: {},
        indexers=None,
    )
    given = kinds.arguments(backbone, cache, None, torch.zeros(1, 1), False)["attention_mask"]
    assert cache.first_seen == 0
    assert given.shape[-1] == 41
    assert int(given.sum()) == 8


def test_shared_layers_keep_nothing() -> None:
    config = hf.Gemma3nTextConfig(
        **{**FOUR, **SLIDING, "num_kv_shared_layers": 2, "intermediate_size": [96] * 4}
    )
    kinds = LayerKinds.of(config)
    assert kinds == LayerKinds(8, (True, False, True, False), 2, ("",) * 4)
    assert kinds.are_mixed


@pytest.mark.parametrize(
    ("layers", "names", "reason"),
    [
        ((("sliding", 8), ("sliding", 16)), ("sliding_attention",) * 2, r"several sizes \(8, 16\)"),
        (("dummy", "full"), ("full_attention",) * 2, "without keys and values before others"),
        (("full", "dummy"), (), "without keys and values before others"),
        (("full", ("sliding", 8)), ("full_attention", "other"), "layers with other"),
        (("both", "full"), ("linear_attention", "full_attention"), "LinearAttentionAndFull"),
    ],
)
def test_models_that_are_refused(
    layers: tuple[Any, ...], names: tuple[str, ...], reason: str
) -> None:
    made: list[Any] = []
    for layer in layers:
        if isinstance(layer, tuple):
            made.append(cache_utils.DynamicSlidingWindowLayer(layer[1]))
        else:
            kinds = {
                "full": cache_utils.DynamicLayer,
                "dummy": cache_utils.DummyLayer,
                "both": cache_utils.LinearAttentionAndFullAttentionLayer,
            }
            made.append(kinds[layer]())
    found = unsupported("Model", SimpleNamespace(layer_types=list(names)), made)
    assert re.search(reason, found), found
    assert "\n" not in found


def test_window_of_all_layers() -> None:
    config = hf.MistralConfig(**{**FOUR, "sliding_window": 8})
    assert LayerKinds.of(config) == LayerKinds(8, (True,) * 4, 4, ("",) * 4)
    assert unsupported("Mistral", config, DynamicCache(config=config).layers) == ""
