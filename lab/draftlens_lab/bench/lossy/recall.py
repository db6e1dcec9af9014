"""Decoding that reads some of the cached visual tokens and may recall the others (DyCoke)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from draftlens.core.errors import ConfigError
from draftlens.pruning.base import keep_count, top
from draftlens_lab.bench.lossy.base import Recall
from draftlens_lab.bench.lossy.prefill import Prefilled
from draftlens_lab.bench.lossy.reading import reader_attention, scaling_of


class RecallingPass:
    """The `AttentionPass` of all decoding steps of one answer.

    In the layers after `recall.layer` the cache holds the text and the chosen visual tokens. The
    others are kept aside. Each step compares the attention of `recall.layer` to the visual tokens
    with that of the step before, and chooses again if it has changed.

    Attributes:
        choices: number of times that tokens were chosen.
    """

    def __init__(self, recall: Recall, prefilled: Prefilled) -> None:
        depth = len(prefilled.kept)
        if recall.layer >= depth:
            raise ConfigError(
                f"no layer follows layer {recall.layer} of {depth}: choose an earlier layer"
            )
        self.recall = recall
        self.choices = 0
        is_visual = prefilled.prompt.visual[0]
        kept = prefilled.kept[recall.layer - 1]
        self.columns = is_visual[kept.to(is_visual.device)].nonzero()[:, 0]
        self.split = [
            SplitLayer(prefilled.cache.layers[index], self.columns)
            for index in range(recall.layer, depth)
        ]
        self._attention: Tensor | None = None
        self._layers_done = 0

    @property
    def num_aside(self) -> int:
        """Visual tokens of all layers that the next step does not read."""
        return sum(layer.num_visual - layer.num_chosen for layer in self.split)

    @property
    def nbytes_aside(self) -> int:
        """Bytes of keys and values that are kept aside."""
        return sum(layer.visual_keys.nbytes + layer.visual_values.nbytes for layer in self.split)

    def begin_step(self) -> None:
        self._layers_done = 0

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        self._layers_done += 1
        if self._layers_done == self.recall.layer:
            scaling = scaling_of(query, kwargs.get("scaling"))
            reader = torch.tensor([query.shape[2] - 1])
            weights = reader_attention(query[0], key[0], reader, scaling)[0]
            self._choose(weights[self.columns.to(weights.device)])
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)

    def _choose(self, attention: Tensor) -> None:
        """Choose visual tokens by their attention, float32 ``[n]``, if it has changed enough."""
        previous = self._attention
        self._attention = attention
        if previous is not None:
            similarity = float(cosine_similarity(attention, previous, dim=0))
            if similarity >= self.recall.similarity:
                return
        self.choices += 1
        chosen = top(attention, keep_count(len(attention), self.recall.prune_ratio))
        for layer in self.split:
            layer.select(chosen)


class SplitLayer:
    """One layer of a cache whose visual tokens are kept aside.

    Args:
        columns: of the visual tokens in it, int64 ``[n]``.

    Attributes:
        visual_keys, visual_values: of all visual tokens, ``[1, H, n, D]``.
        num_chosen: visual tokens that the layer holds.
    """

    def __init__(self, layer: Any, columns: Tensor) -> None:
        self.layer = layer
        columns = columns.to(layer.keys.device)
        is_other = torch.ones(layer.keys.shape[2], dtype=torch.bool, device=layer.keys.device)
        is_other[columns] = False
        self.visual_keys = layer.keys[:, :, columns]
        self.visual_values = layer.values[:, :, columns]
        self.num_visual = len(columns)
        self.num_chosen = 0
        layer.keys = layer.keys[:, :, is_other]
        layer.values = layer.values[:, :, is_other]

    def select(self, chosen: Tensor) -> None:
        """Replace the visual tokens of the layer; a step of one token attends to all that the
        layer holds, so their order does not matter.

        Args:
            chosen: indices among the visual tokens, int64 ``[K]``.
        """
        chosen = chosen.to(self.visual_keys.device)
        others = slice(self.num_chosen, None)
        self.layer.keys = torch.cat(
            [self.visual_keys[:, :, chosen], self.layer.keys[:, :, others]], 2
        )
        self.layer.values = torch.cat(
            [self.visual_values[:, :, chosen], self.layer.values[:, :, others]], 2
        )
        self.num_chosen = len(chosen)
