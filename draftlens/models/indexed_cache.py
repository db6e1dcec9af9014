"""Layers with an indexer, which selects the tokens that a token attends to by keys of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DummyLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from draftlens.core import tree as trees
from draftlens.core.errors import InputError, UnsupportedModelError
from draftlens.core.tree import ROOT, Topology
from draftlens.models.inspection import is_indexed
from draftlens.models.kv_cache import (
    LAYERS_PER_BLOCK,
    KVCache,
    LayerBlock,
    LayerBuffers,
    _Layer,
    make_buffers,
)


class Indexers:
    """The indexers of a model: what they make of its passes, and what they do not allow.

    Args:
        name: of the model.
        text_config: of its language model.

    Attributes:
        chains_only: as of `Backbone`.
        refusal: why nothing can be drafted; empty if it can.
    """

    def __init__(self, name: str, text_config: Any) -> None:
        self._name = name
        self._text_config = text_config
        layers = DynamicCache(config=text_config).layers
        # MiniMax-M3 takes the positions of tokens for their slots, and selects blocks of slots.
        self._takes_slots = any(hasattr(layer, "update_index") for layer in layers)
        self.chains_only = (
            f"{name} selects blocks of slots by the positions of tokens, which the nodes of a tree "
            "do not have in the order of their slots"
            if self._takes_slots
            else ""
        )

        self.refusal = ""
        if getattr(text_config, "index_kpool", None):
            # GLM-5 pools tokens by their slots; its indexer gets no mask of a pass.
            self.refusal = (
                f"{name} selects tokens by their slots in the cache, also those that a draft token "
                "must not attend to"
            )
        elif any(isinstance(layer, LinearAttentionLayer) for layer in layers):
            # The indexers of Qwen4 take the positions of the last keys for those of the queries.
            self.refusal = (
                f"{name} selects tokens by their positions at the end of the cache, where those of "
                "a shorter row are not, and keeps recurrent states"
            )

    def new_cache(self, rows: int, capacity: int, layers_per_block: int) -> KVCache:
        return IndexedCache(self._text_config, rows, capacity, True, layers_per_block)

    def check_padding(self) -> None:
        """Raise `InputError` where stock answers a padded row otherwise than the row alone."""
        if self._takes_slots:
            raise InputError(
                f"{self._name} of transformers selects other blocks of tokens in a padded batch, "
                "which changes its answers: give prompts of one length, or each prompt in a call "
                "of its own"
            )

    def check_parts(self) -> None:
        """Raise `UnsupportedModelError` for a model that cannot read a part of a prompt, or several
        views of it in one row, as a draft does."""
        if self._takes_slots:
            raise UnsupportedModelError(
                f"{self._name} takes the positions of tokens for their slots in the cache, so it "
                "drafts from whole prompts only: use method 'speculative'"
            )

    def refuse_attention(self) -> None:
        """The layers make the masks of what they select for `sdpa` and `eager` only."""
        raise UnsupportedModelError(
            f"{self._name} selects the tokens that it attends to, so its attention cannot be "
            "computed or read apart: prune without attention, and use prefill 'full'"
        )

    def misfit(self, backbone: Any) -> str:
        """Why passes do not select the tokens that the model's own forward selects; empty if they
        do. A short text is selected whole unless the indexers select fewer tokens. In 16 bits,
        rounding alone changes what they select, so there is nothing to compare."""
        if backbone.model.dtype != torch.float32:
            return ""
        with _selecting_few(backbone.decoder) as changed:
            apart = _difference(backbone) if changed else None
        if not changed:
            return f"{self._name} has indexers whose choice of tokens cannot be checked"
        if apart is not None:
            return (
                f"{self._name} selects other tokens in passes over a part of a text (its logits "
                f"differ by {apart:.3g}), so its answers could not be kept the same"
            )
        return ""


class IndexedCache(KVCache):
    """A `KVCache` some of whose layers have a third buffer, of the keys of their indexer.

    Args:
        text_config: says which layers keep keys and values, and which have an indexer.
        rows, capacity, grows, layers_per_block: as for `KVCache`.
    """

    def __init__(
        self,
        text_config: Any,
        rows: int,
        capacity: int,
        grows: bool = False,
        layers_per_block: int = LAYERS_PER_BLOCK,
    ) -> None:
        super().__init__(0, rows, capacity, grows)
        kinds = DynamicCache(config=text_config).layers if text_config is not None else []
        # Of MistralLarge4 and HYV4: some layers have the keys and values or the choice of another.
        sharing = getattr(text_config, "kv_sharing_modes", None) or [None] * len(kinds)
        indexers = getattr(text_config, "indexer_types", None) or ["full"] * len(kinds)
        keep = [
            type(kind) is not DummyLayer and mode != "reuse_but_indexer"
            for kind, mode in zip(kinds, sharing, strict=True)
        ]
        select = [
            is_indexed(kind) and indexer != "shared"
            for kind, indexer in zip(kinds, indexers, strict=True)
        ]
        buffers = iter(make_buffers(sum(keep), layers_per_block))
        keys = iter(make_buffers(sum(select), layers_per_block))
        self.layers = [
            _IndexedLayer(
                self,
                next(buffers) if keeps else LayerBuffers(LayerBlock(1), 0),
                _Layer(self, next(keys)) if selects else None,
                keeps,
            )
            for keeps, selects in zip(keep, select, strict=True)
        ]
        for layer, kind in zip(self.layers, kinds, strict=True):
            layer.buffers.slides = type(kind) is DynamicSlidingWindowLayer

    @property
    def stores(self) -> list[Any]:
        layers: Sequence[Any] = self.layers
        indexers = (layer.indexer for layer in layers)
        return [
            *(layer for layer in layers if layer.keeps),
            *(indexer for indexer in indexers if indexer is not None),
        ]

    def whole_buffers(self, end: int) -> None:
        """No pass but one of the modules can write the keys of an indexer."""

    def _empty_rows(self, count: int) -> KVCache:
        return IndexedCache(None, count, self.capacity, self.grows)


class _IndexedLayer(_Layer):
    """A layer with an indexer.

    Args:
        indexer: keeps the keys ``[B, 1, capacity, D]`` of the indexer, and values of width 0; None
            for a layer that takes the choice of another.
        keeps: whether the layer has keys and values of its own.
    """

    def __init__(
        self, cache: KVCache, buffers: LayerBuffers, indexer: _Layer | None, keeps: bool
    ) -> None:
        self.indexer = indexer
        self.keeps = keeps
        super().__init__(cache, buffers)

    def of_rows(self, cache: KVCache) -> _IndexedLayer:
        indexer = None if self.indexer is None else self.indexer.of_rows(cache)
        return _IndexedLayer(cache, self.buffers, indexer, self.keeps)

    def update_indexer(self, keys: Tensor) -> Tensor:
        """Write the keys ``[B, T, D]`` of the indexer after each row's length; returns a view up to
        the longest row."""
        return self.update_index(keys[:, None])[:, 0]

    def update_index(self, keys: Tensor) -> Tensor:
        """`update_indexer` with an axis of heads, ``[B, 1, T, D]``, as MiniMax-M3 calls it."""
        assert self.indexer is not None
        return self.indexer.update(keys, keys[..., :0])[0]


FEW = {"index_topk": 4, "topk_blocks": 2, "block_size": 2}
"""Attributes of indexers by which they select few tokens."""

CHECKED = (24, 17)
"""Tokens of the texts of `Indexers.misfit`, several times those that are selected."""


@torch.no_grad()
def _difference(backbone: Any) -> float | None:
    """Compare the model's own forward on texts with a pass over the last two tokens of each, and
    a rejected one where that may stand between them; None for rounding."""
    tree = Topology((ROOT,) if backbone.chains_only else (ROOT, ROOT))
    cache = backbone.empty_cache(0, max(CHECKED) + 1)
    stock, positions, tokens = [], [], []
    for length in CHECKED:
        ids = torch.arange(1, length + 1, device=backbone.device)[None] % backbone.vocab_size
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
        stock.append(backbone.model(**given).logits[:, -1])
        prompt = backbone.text_prompt(ids[:, :-2])
        row = cache.new_rows(1)
        backbone.prefill(prompt, row)
        cache.join(row)
        positions.append(prompt.positions(trees.depths(tree, backbone.device)[None]))
        tokens.append(ids[:, [-2, -1] if backbone.chains_only else [-2, 1, -1]])
    mask = trees.attention_mask(cache.lengths, trees.ancestors(tree, backbone.device))
    called = backbone.forward(torch.cat(tokens), torch.cat(positions, -2), cache, mask)[:, -1]
    expected = torch.cat(stock)
    bound = 1e-3 * float(expected.abs().max().clamp_min(1e-6))
    found = float((called.to(expected.device) - expected).abs().max())
    return None if found <= bound else found


@contextmanager
def _selecting_few(decoder: Any) -> Iterator[list[tuple[Any, str, int]]]:
    """Entered while no other pass runs; yields what is changed and was before."""
    before = [
        (module, name, value)
        for module in decoder.modules()
        for name in FEW
        if isinstance(value := vars(module).get(name), int)
    ]
    try:
        for module, name, value in before:
            setattr(module, name, min(value, FEW[name]))
        yield before
    finally:
        for module, name, value in before:
            setattr(module, name, value)
