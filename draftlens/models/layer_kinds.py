"""Layers that are more than full attention to keys of their own: sliding windows, keys and values
that layers share, and inputs of each token for each layer.

Masks hide the tokens that are no longer within a window. Where it can, the cache drops them
(`LayerKinds.bounded`).
transformers takes a mask for each kind of layer as a mapping; a single one would silently hold for
all layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DummyLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from draftlens.core import tree as trees
from draftlens.core.tree import ROOT, Topology
from draftlens.models.inspection import PLAIN_LAYERS, is_indexed
from draftlens.models.kv_cache import KVCache
from draftlens.models.outer_model import ReplacingEmbedding
from draftlens.models.prompt import TOKEN_INPUTS
from draftlens.models.windowed_cache import WindowedCache

FULL, SLIDING, INDEXED = "full_attention", "sliding_attention", "indexed_attention"
"""Kinds of layers as transformers names them in `layer_types` and in mappings of masks."""

LONGEST = 8192
"""Longest window whose mask `misfit` makes, with an entry for each two tokens."""


@dataclass(frozen=True)
class LayerKinds:
    """The kinds of a language model's layers.

    Args:
        window: how many tokens a token of a sliding layer attends to, itself included; 0 if no
            layer slides.
        slides: by layer, whether it does.
        num_cached: the number of its first layers that keep keys and values, or states. The others
            read what these have stored in the same pass.
        with_states: by layer, the name of its kind if it keeps states, which take no mask.
    """

    window: int
    slides: tuple[bool, ...]
    num_cached: int
    with_states: tuple[str, ...] = ()

    @classmethod
    def of(cls, text_config: Any) -> LayerKinds:
        """Of a model that `unsupported` has nothing against."""
        layers = DynamicCache(config=text_config).layers
        windows = _windows(layers)
        kept = [layer for layer in layers if type(layer) is not DummyLayer]
        names = _names(text_config)
        slides = tuple(
            names[index] == SLIDING if type(layer) is DummyLayer else layer in windows
            for index, layer in enumerate(layers)
        )
        with_states = tuple(
            names[index] if type(layer) is LinearAttentionLayer else ""
            for index, layer in enumerate(layers)
        )
        return cls(max(windows.values(), default=0), slides, len(kept), with_states)

    @property
    def are_mixed(self) -> bool:
        """Whether some layers slide and some do not, so that a model takes a mapping of masks."""
        return len(set(self.slides)) > 1

    def marked(self, cache: KVCache) -> KVCache:
        """The cache, whose sliding layers read no more than their windows need."""
        for layer, slides in zip(cache.layers, self.slides, strict=False):
            layer.buffers.slides = slides
        return cache

    def bounded(self, cache: KVCache, layers_per_block: int, whole: bool = False) -> KVCache:
        """A cache in place of an empty one, whose sliding layers hold little more than their
        windows.

        The cache itself, `marked`, where layers keep states, too, or if it must be `whole`, as for
        engines of passes, which write whole buffers. Who reads prompts out of the windows later
        takes `KVCache.whole` of it: attention scores and drafts that take the target's keys
        (`decoding.admission`), and views that share a row (`methods.tabed`).
        """
        if whole or not self.window or type(cache) is not KVCache:
            return self.marked(cache)
        slides = self.slides[: self.num_cached]
        return WindowedCache(
            self.window, slides, len(cache.lengths), cache.capacity, layers_per_block
        )

    def arguments(
        self, backbone: Any, cache: KVCache, mask: Tensor | None, tokens: Tensor | None, whole: bool
    ) -> dict[str, Any]:
        """Arguments of a language model for a pass that appends to a cache.

        Args:
            mask: bool ``[B, 1, T, K]``; None if each row's only token attends to everything, or for
                a prompt, whose masks the model makes if no slots are dropped.
            tokens: of an answer, int64 ``[B, T]``; None for a prompt.
            whole: whether the pass reads all slots of all layers.
        """
        cache.first_seen = 0
        if whole and cache.starts != cache.lengths:
            raise RuntimeError("sliding layers have dropped slots that the pass reads")
        if mask is None and tokens is None and cache.starts == cache.lengths:
            return {}
        further = {} if tokens is None else backbone.token_inputs(tokens)
        convert = backbone.attention_mask
        masks = self.masks(mask, cache, backbone.device, whole)
        if isinstance(masks, Mapping):
            if backbone.indexers is not None:  # which need a mask in every pass
                shape = (len(cache.lengths), 1, 1, max(cache.lengths) + 1)
                seen = torch.ones(shape, dtype=torch.bool, device=backbone.device)
                masks = {**masks, INDEXED: seen if mask is None else mask}
            masks = {kind: convert(of_kind) for kind, of_kind in masks.items()}
            masks |= dict.fromkeys(filter(None, self.with_states))
        else:
            masks = convert(masks)
        return {**further, "attention_mask": masks}

    def masks(
        self, mask: Tensor | None, cache: KVCache, device: torch.device, whole: bool = True
    ) -> Any:
        """Boolean masks of a pass for each kind of layer, or the only one; arguments are as for
        `arguments`."""
        sliding = self._sliding(mask, cache, device, whole)
        return {FULL: mask, SLIDING: sliding} if self.are_mixed else sliding

    def _sliding(
        self, mask: Tensor | None, cache: KVCache, device: torch.device, whole: bool
    ) -> Tensor | None:
        """The mask of sliding layers; leaves to `cache` which slots they read."""
        cache.first_seen, longest = 0, max(cache.lengths)
        if not self.window or (longest < self.window and mask is None):
            return mask
        if isinstance(cache, WindowedCache):
            return self._of_held_slots(mask, cache, device)
        is_marked = cache.layers[self.slides.index(True)].buffers.slides
        may_cut = is_marked and not whole and longest >= 2 * self.window
        if mask is None and may_cut and self.are_mixed:
            cache.first_seen = longest + 1 - self.window
            return None
        if mask is None:  # a single one that is missing is made by the model, for all slots
            shape = (len(cache.lengths), 1, 1, longest + 1)
            mask = torch.ones(shape, dtype=torch.bool, device=device)
        sliding = within_window(mask, self.window)
        if may_cut:
            cache.first_seen = int(sliding.flatten(0, 2).any(0).to(torch.uint8).argmax())
            sliding = sliding[..., cache.first_seen :].contiguous()
        return sliding

    def _of_held_slots(
        self, mask: Tensor | None, cache: WindowedCache, device: torch.device
    ) -> Tensor | None:
        """`_sliding` of the slots that sliding layers hold."""
        start, longest = max(cache.starts), max(cache.lengths)
        if mask is None and self.are_mixed and min(cache.starts) == start:
            cache.first_seen = max(start + 1 - self.window, 0)
            return None
        if mask is None:
            shape = (len(cache.lengths), 1, 1, longest + 1)
            mask = torch.ones(shape, dtype=torch.bool, device=device)
        return within_window(cache.cut(mask), self.window)

    def token_inputs(self, decoder: Any, embed: Any, tokens: Tensor | None) -> dict[str, Tensor]:
        """Further arguments of a language model for text tokens ``[..., T]``, if any."""
        made = getattr(decoder, f"get_{TOKEN_INPUTS}", None)
        if tokens is None or made is None or not decoder.config.hidden_size_per_layer_input:
            return {}
        if isinstance(embed, ReplacingEmbedding):
            tokens = embed.ids(tokens)
        return {TOKEN_INPUTS: made(tokens)}


def within_window(mask: Tensor, window: int) -> Tensor:
    """A mask ``[B, 1, T, K]`` with the last `window` of the keys that each token sees.

    A key's distance is the number of visible keys after it, not of slots: a node of a tree has
    slots of other branches between its ancestors, and a shorter row has unused ones.
    """
    if mask.shape[-1] <= window:
        return mask
    seen = mask.cumsum(-1, dtype=torch.int32)
    return mask & (seen[..., -1:] - seen < window)


def unsupported(name: str, text_config: Any, layers: Sequence[Any]) -> str:
    """Why the layers of a model cannot be rolled back or masked, given the cache layers that stock
    `generate` makes for them; empty if they can."""
    for layer in layers:
        kinds = (*PLAIN_LAYERS, DynamicSlidingWindowLayer, DummyLayer)
        if type(layer) not in kinds and not is_indexed(layer):
            return (
                f"{name} keeps a {type(layer).__name__}, which cannot be rolled back when a draft "
                "token is rejected"
            )
    sizes = sorted(set(_windows(layers).values()))
    if len(sizes) > 1:
        listed = ", ".join(map(str, sizes))
        return f"{name} has layers with sliding windows of several sizes ({listed})"
    if any(map(is_indexed, layers)):  # `IndexedCache` has what each layer keeps
        return ""
    is_kept = [type(layer) is not DummyLayer for layer in layers]
    names = _names(text_config)
    if not all(is_kept[: sum(is_kept)]) or (not all(is_kept) and len(names) < len(layers)):
        return f"{name} has layers without keys and values before others that keep them"
    others = sorted(
        {
            name
            for name, layer in zip(names, layers, strict=False)
            if name not in (FULL, SLIDING) and type(layer) is not LinearAttentionLayer
        }
    )
    if others:
        return f"{name} has layers with {', '.join(others)}, which cannot be masked"
    return ""


def _windows(layers: Sequence[Any]) -> dict[Any, int]:
    return {
        layer: layer.sliding_window for layer in layers if type(layer) is DynamicSlidingWindowLayer
    }


def _names(text_config: Any) -> tuple[str, ...]:
    return tuple(getattr(text_config, "layer_types", None) or ())


@torch.no_grad()
def misfit(backbone: Any) -> str:
    """Why the masks of a model's layers are not those that are made here; empty if they are.

    A comparison of logits finds this only with more tokens than a window has. The masks themselves
    are seen without computing much: the model's own mask of a prompt is read where the first
    sliding layer begins, where the pass ends, and a pass over a small tree with a window of 2 tells
    which mask each layer gets.
    """
    kinds: LayerKinds = backbone.kinds
    layers = getattr(backbone.decoder, "layers", None)
    if layers is None or len(layers) != len(kinds.slides):
        return f"{backbone.name} does not list its layers, whose windows cannot be checked"
    if not _has_prompt_masks(backbone, layers):
        return f"{backbone.name} has other masks in its sliding layers than a window"
    given = _masks_by_layer(backbone, layers)
    if given is None or not all(map(_is_same, *given)):
        return f"{backbone.name} does not give its sliding layers a mask of their own"
    return ""


def _has_prompt_masks(backbone: Any, layers: Sequence[Any]) -> bool:
    kinds: LayerKinds = backbone.kinds
    length = kinds.window + 2
    most = getattr(backbone.text_config, "max_position_embeddings", None) or LONGEST
    if not kinds.window or length > min(LONGEST, most):
        return True
    ids = (torch.arange(length, device=backbone.device)[None] % 4 + 1) % backbone.vocab_size
    prompt = backbone.text_prompt(ids)
    causal = torch.ones(length, length, dtype=torch.bool, device=backbone.device).tril()
    with backbone.alone(), backbone.stopping_at(layers[kinds.slides.index(True)], _stop):
        try:
            backbone.prefill(prompt, backbone.new_cache(prompt, room=1))
        except _LayerReached as reached:
            return _is_same(reached.mask, within_window(causal[None, None], kinds.window))
    return False


def _masks_by_layer(
    backbone: Any, layers: Sequence[Any]
) -> tuple[list[Tensor | None], list[Tensor]] | None:
    """The masks that the layers get in a pass over a fork with a window of 2, and those meant."""
    fork = Topology((ROOT, ROOT))
    ids = torch.tensor([[1, 2, 3, 4, 1]], device=backbone.device) % backbone.vocab_size
    prompt = backbone.text_prompt(ids[:, :2])
    cache = backbone.new_cache(prompt, room=4)
    backbone.prefill(prompt, cache)
    mask = trees.attention_mask([2], trees.ancestors(fork, backbone.device))
    assert mask is not None
    got: dict[int, Tensor | None] = {}
    kinds: LayerKinds = backbone.kinds
    backbone.kinds = replace(kinds, window=min(kinds.window, 2))
    try:
        with backbone.alone(), ExitStack() as hooks:
            for index, layer in enumerate(layers):
                hooks.enter_context(backbone.stopping_at(layer, _noting(index, got)))
            positions = prompt.positions(trees.depths(fork, backbone.device)[None])
            backbone.forward(ids[:, 2:], positions, cache, mask)
    finally:
        backbone.kinds = kinds
    if len(got) != len(layers):
        return None
    masked = [index for index, name in enumerate(kinds.with_states) if not name]
    meant = [within_window(mask, 2) if kinds.slides[index] else mask for index in masked]
    return [got[index] for index in masked], meant


def _is_same(mask: Any, meant: Tensor) -> bool:
    """Whether a mask, boolean or additive, hides what is meant to be hidden."""
    if not isinstance(mask, Tensor) or mask.shape[-2:] != meant.shape[-2:]:
        return False
    visible = mask if mask.dtype == torch.bool else mask == 0
    return bool((visible == meant.to(visible.device)).all())


class _LayerReached(Exception):  # noqa: N818 - not an error: it ends a forward that has served its purpose
    def __init__(self, mask: Any) -> None:
        self.mask = mask


def _stop(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    raise _LayerReached(kwargs.get("attention_mask"))


def _noting(index: int, got: dict[int, Any]) -> Any:
    def note(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        got[index] = kwargs.get("attention_mask")

    return note
