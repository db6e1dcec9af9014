"""Passes that read a cache and return what belongs into it, for engines that cannot write the
buffers of the caller."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from draftlens.core.errors import UnsupportedModelError
from draftlens.models.adapter import Backbone
from draftlens.models.attention.dispatch import ARGUMENT, AttentionPass, dispatching
from draftlens.models.forward_backend import Passes
from draftlens.models.kv_cache import KVCache
from draftlens.models.layer_kinds import FULL, SLIDING, LayerKinds, within_window
from draftlens.models.outer_model import ReplacingEmbedding
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_blocks import ends_of_parts
from draftlens.models.support import with_cache
from draftlens.passes.ordered_attention import BLOCK, OrderedAttention, layout_of, slots_read
from draftlens.passes.structure import (
    Forward,
    check_pass,
    kept_by_layers,
    named_tensors,
    position_axes,
    slots_of,
    whole_cache,
)

_log = logging.getLogger("draftlens")

Function = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""From the inputs of `SplitPass.forward`, all contiguous, to its outputs, which may be overwritten
by the next call."""

Buffers = tuple[list[Tensor], list[Tensor]]
"""Keys and values of each layer that keeps them (`KVCache.whole_buffers`)."""

ROWS, WIDTH, CAPACITY = 2, 3, 96
"""Sizes of the tensors that a pass is traced with. Their dimensions are variables afterwards."""

AXES = (4,)
"""Leading sizes of the positions of M-RoPE: the first axis counts tokens. Those of texts, which may
have none, are the same on all axes, so that one function runs both."""

PART = 256
"""Most tokens of a row that are read at once, but for those that attend to each other."""

SCORES = 2**24
"""Most pairs of a query and a key in all heads of a layer: 64 MiB in float32."""

LEAST_PART = 64
"""A prompt whose parts would be smaller is read by the modules, whose attention keeps no pairs; or
in parts of this size, where passes round weights."""

FEW_SLOTS = 64
"""Sliding layers read no fewer slots of a cache, if it has them."""

SHORT_WINDOW = 2
"""Sliding windows while a function is checked, so that its few tokens cross them."""

SAMPLES = 8
"""Elements of each weight that are compared to notice that a model has changed."""


@dataclass(frozen=True)
class Tokens:
    """Tokens that are appended to a cache, as `SplitPass` reads them.

    Args:
        visible: without windows.
        further: inputs.
        ahead: which later ones of these tokens each token attends to (`Prompt.ahead`).
    """

    embeds: Tensor
    position_ids: Tensor
    visible: Tensor
    readers: Tensor
    further: Sequence[Tensor] = ()
    ahead: Mapping[str, Tensor] = field(default_factory=dict)


class SplitPasses(Passes):
    """Passes by an engine that makes a function of a `SplitPass`.

    Keys and values stay in the buffers of the cache: the function reads them in place and returns
    those of the new tokens. Embeddings, masks and the scale of the logits are computed by torch.

    Args:
        backbone: the model, on the CPU, which is not kept alive.
        bound: of the logits' differences from those of the modules (`check_pass`); None for the
            rounding of the dtype.

    Attributes:
        is_ordered: whether attention is `OrderedAttention`.
        seconds: that making the functions took.
        has_changed: whether the model's weights have changed since the start.

    Raises:
        UnsupportedModelError: its logits differ from those of the modules.
        Exception: whatever the engine raises on code that it does not support.
    """

    is_ordered = False
    cache_step = BLOCK

    def __init__(self, backbone: Backbone, bound: float | None = None) -> None:
        self.seconds = 0.0
        self.has_changed = False
        self._bound = bound
        self._model = weakref.ref(backbone.model)
        self._functions: dict[tuple[int, ...], Function | None] = {}
        self._layers = kept_by_layers(backbone)
        self._num_heads = backbone.text_config.num_attention_heads
        self._kinds = backbone.kinds
        self._further = tuple(backbone.token_inputs(torch.zeros(1, 1, dtype=torch.long)))
        self._scale = backbone.scale
        embed = backbone.embed
        self._others = embed.others if isinstance(embed, ReplacingEmbedding) else {}
        self._weights = _fingerprint(backbone.model)
        self._one_at_a_time = threading.RLock()
        self._axes = axes = position_axes(backbone)
        if "mrope_section" in (getattr(backbone.text_config, "rope_parameters", None) or {}):
            self._axes = AXES
        try:
            self._prepare(self._axes)
        except Exception as error:  # conversion raises whatever its parts raise
            if self._axes == axes:
                raise
            _log.info("%s gets a function of its own for texts: %s", backbone.name, error)
            self._axes = axes
            self._prepare(axes)

    def compile(self, backbone: Backbone, axes: tuple[int, ...]) -> None:
        """Make the function of passes whose positions have these leading sizes (empty, or the axes
        of M-RoPE), and give it to `start`."""
        raise NotImplementedError

    def start(self, backbone: Backbone, axes: tuple[int, ...], function: Function) -> None:
        """Use a function, if it computes the logits of the modules; raises
        `UnsupportedModelError` otherwise. It is called by one thread at a time."""
        kinds = backbone.kinds
        if kinds is not None and kinds.window:
            backbone.kinds = replace(kinds, window=SHORT_WINDOW)
        run = partial(self._run, backbone.kinds)
        try:
            self._functions[axes] = function
            self.check(backbone, axes, run)
        except Exception:
            self._functions[axes] = None  # never run what differs from the modules
            raise
        finally:
            backbone.kinds = kinds

    def check(self, backbone: Backbone, axes: tuple[int, ...], run: Forward) -> None:
        """Raise `UnsupportedModelError` unless the passes of `run` have the logits of the
        modules."""
        check_pass(backbone, run, 2, 3, axes, self._bound)
        check_pass(backbone, run, 1, 1, axes, self._bound)

    def accept_weights(self, model: nn.Module) -> None:
        """What the model holds now is what the passes were made of."""
        self._weights = _fingerprint(model)

    def begin(self) -> None:
        """Compile anew if the weights have changed, since engines have a copy of them."""
        model = self._model()
        weights = self._weights if model is None else _fingerprint(model)
        with self._one_at_a_time:
            if weights != self._weights:
                self._weights = weights
                self.has_changed = True
                self._functions.clear()

    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor | None:
        """See `Passes.run`."""
        return self._run(self._kinds, tokens, position_ids, cache, mask)

    def _run(
        self,
        kinds: LayerKinds | None,
        tokens: Tensor,
        position_ids: Tensor,
        cache: KVCache,
        mask: Tensor | None,
    ) -> Tensor | None:
        width = tokens.shape[1]
        position_ids = self._expanded(position_ids)
        if torch.is_autocast_enabled("cpu") or not self._is_ready(position_ids.shape[:-2]):
            return None
        if self.rounding and not all(layer.is_initialized for layer in cache.layers):
            self._reserve(cache)
        buffers = cache.whole_buffers(max(cache.lengths) + width)
        if buffers is None:
            return None
        slots = slots_of(cache.lengths, width, tokens.device)
        reach = buffers[0][0].shape[2]
        if self.is_ordered:
            reach = -(-reach // BLOCK) * BLOCK
        visible = _visible(mask, cache.lengths, slots, reach)
        readers = torch.arange(tokens.numel())
        embeds, further = self._read_tokens(tokens)
        given = Tokens(embeds, position_ids, visible, readers, further)
        return self._append(kinds, given, slots, buffers).view(*tokens.shape, -1)

    def read(self, prompt: Prompt, cache: KVCache, num_logits: int) -> Tensor | None:
        """See `Passes.read`. Attention is written out in the graph, so a prompt is read in parts of
        at most `SCORES` pairs of a query and a key."""
        rows, length = prompt.embeds.shape[:2]
        reach = max(cache.lengths) + length
        most = SCORES // (self._num_heads * rows * reach)
        if self.rounding:
            most = max(most, LEAST_PART)
        if most < LEAST_PART or torch.is_autocast_enabled("cpu"):
            return None
        if prompt.further != set(self._further):
            return None
        parts = list(pairwise([0, *ends_of_parts(prompt, min(PART, most))]))
        if any(end - start > most for start, end in parts):
            return None
        if not self._is_ready(self._expanded(prompt.position_ids).shape[:-2]):
            return None
        if not all(layer.is_initialized for layer in cache.layers):
            self._reserve(cache)
        buffers = cache.whole_buffers(reach)
        if buffers is None:
            return None
        # The last tokens of each row, as indices into the rows.
        last = torch.tensor(prompt.lengths)[:, None] - num_logits + torch.arange(num_logits)
        logits: Tensor | None = None
        lengths = cache.lengths
        try:
            for start, end in parts:
                is_here = (start <= last) & (last < end)
                readers = (last - start + (end - start) * torch.arange(rows)[:, None])[is_here]
                found = self._read_part(prompt, cache, buffers, start, end, readers)
                if logits is None:
                    logits = found.new_empty(rows, num_logits, found.shape[-1])
                logits[is_here] = found
                cache.lengths = [cached + end - start for cached in cache.lengths]
        finally:
            cache.lengths = lengths
        return logits

    def _read_part(
        self,
        prompt: Prompt,
        cache: KVCache,
        buffers: Buffers,
        start: int,
        end: int,
        readers: Tensor,
    ) -> Tensor:
        """Append tokens `start` to `end` of each row; logits after `readers`, as in `SplitPass`."""
        embeds = prompt.embeds[:, start:end]
        rows, width = embeds.shape[:2]
        reach = max(*cache.lengths, 1)  # one slot that no token attends to where all are empty
        if self.is_ordered:
            reach = slots_read(cache.lengths, width)
        visible = torch.ones(rows, 1, width, reach + width, dtype=torch.bool)
        visible[..., :reach] = (
            torch.arange(reach) < torch.tensor(cache.lengths)[:, None, None, None]
        )
        visible[..., reach:] = torch.ones(width, width, dtype=torch.bool).tril()
        slots = slots_of(cache.lengths, width, embeds.device)
        given = Tokens(
            embeds,
            self._expanded(prompt.position_ids)[..., start:end],
            visible,
            readers,
            [prompt.extra[name][:, start:end] for name in self._further],
            {kind: seen[:, start:end, start:end] for kind, seen in (prompt.ahead or {}).items()},
        )
        return self._append(self._kinds, given, slots, buffers)

    def _reserve(self, cache: KVCache) -> None:
        """Make the buffers of an empty cache."""
        rows = len(cache.lengths)
        for layer, facts in zip(cache.layers, self._layers, strict=True):
            keys = torch.zeros(rows, facts.heads, 1, facts.key_width, dtype=facts.dtype)
            values = torch.zeros(rows, facts.heads, 1, facts.value_width, dtype=facts.dtype)
            layer.update(keys, values)

    def _append(
        self, kinds: LayerKinds | None, tokens: Tokens, slots: Tensor, buffers: Buffers
    ) -> Tensor:
        """Run a pass, write its keys and values to `slots` ``[B, T]`` of the buffers, and return
        its logits."""
        width = slots.shape[1]
        every = slice(0, tokens.visible.shape[-1] - width)
        masks, part = _masks(kinds, tokens.visible, tokens.ahead), every
        if kinds is not None and kinds.window:
            part = _slots_in_windows(masks[-1], width, kinds.window)
            masks[-1] = torch.cat([masks[-1][..., part], masks[-1][..., every.stop :]], -1)
        mask, *others = masks
        if self.is_ordered:
            others.insert(0, layout_of(slots[:, 0], width))
        given = (tokens.embeds, tokens.position_ids, mask, tokens.readers, *others, *tokens.further)
        parts = [every] * len(self._layers)
        if kinds is not None:
            parts = [part if slides else every for slides in kinds.slides[: len(self._layers)]]
        states = [*buffers[0], *buffers[1]]
        cached = [_slots(layer, read) for layer, read in zip(states, parts * 2, strict=True)]
        with self._one_at_a_time:
            function = self._functions[tuple(tokens.position_ids.shape[:-2])]
            assert function is not None
            ready = [tensor.contiguous() for tensor in (*given, *cached)]
            logits, *new_states = function(ready)
            rows = torch.arange(len(slots))[:, None]
            first = int(slots[0, 0])
            for layer, new in zip(states, new_states, strict=True):
                if len(rows) == 1:  # writing by indices takes twice as long
                    layer[:, :, first : first + width] = new
                else:
                    layer[rows, :, slots] = new.transpose(1, 2)
            return self._scale(logits) if self._scale is not None else logits.clone()

    def _read_tokens(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Embeddings and further inputs of the tokens of an answer."""
        model = self._model()
        assert model is not None
        embed = model.get_input_embeddings()
        if self._others:
            embed = ReplacingEmbedding(embed, self._others)
        further: dict[str, Tensor] = {}
        if self._kinds is not None:
            further = self._kinds.token_inputs(model.get_decoder(), embed, tokens)
        return embed(tokens), list(further.values())

    def _expanded(self, position_ids: Tensor) -> Tensor:
        """Positions on the axes of M-RoPE, if the model has them."""
        return position_ids.expand(*self._axes, -1, -1) if position_ids.dim() == 2 else position_ids

    def _is_ready(self, axes: tuple[int, ...]) -> bool:
        """Whether passes whose positions have these leading sizes can run, compiled if need be.
        Where that fails in an answer, the modules go on."""
        axes = tuple(axes)
        with self._one_at_a_time:
            if axes not in self._functions:
                try:
                    self._prepare(axes)
                except Exception as error:  # conversion raises whatever its parts raise
                    _log.warning("passes do not run by %s: %s", self.label, error)
            return self._functions[axes] is not None

    def _prepare(self, axes: tuple[int, ...]) -> None:
        """Have the passes compiled whose positions have these leading sizes."""
        began = time.perf_counter()
        model = self._model()
        assert model is not None
        self._functions[axes] = None
        self.compile(Backbone.of(model), axes)
        self.seconds += time.perf_counter() - began


class SplitPass(nn.Module):
    """Decoder layers and output head of a model, as tensors to tensors.

    The attention of a layer has two parts, over the cached tokens and over the new ones, under one
    softmax: the cache is read where it is and never copied.

    Args:
        backbone: the model; its own modules are called.
        is_ordered: whether the attention is `OrderedAttention`.
    """

    def __init__(self, backbone: Backbone, is_ordered: bool = False) -> None:
        super().__init__()
        self.is_ordered = is_ordered
        self.decoder = backbone.decoder
        self.head = backbone.head
        self.is_mixed = backbone.kinds is not None and backbone.kinds.are_mixed
        self.further = tuple(backbone.token_inputs(torch.zeros(1, 1, dtype=torch.long)))

    def forward(
        self,
        embeds: Tensor,
        position_ids: Tensor,
        visible: Tensor,
        readers: Tensor,
        *others: Tensor,
    ) -> tuple[Tensor, ...]:
        """Logits after some tokens, ``[N, V]``, not yet scaled, and the new keys and values of each
        layer that keeps them, ``[B, H, T, D]``.

        Args:
            embeds: ``[B, T, D]``.
            position_ids: int64 ``[..., B, T]``.
            visible: bool ``[B, 1, T, K + T]``, which of the K cached and the T new tokens each new
                token attends to; in layers without a window, where both kinds are there.
            readers: int64 ``[N]``, the tokens that logits follow, counted through all rows.
            others: the layout of `OrderedAttention` (`layout_of`), where it is used; the same mask
                of sliding layers, where both kinds are there; further inputs of
                tokens (`Backbone.token_inputs`); the cached keys of each layer that keeps them,
                then their values, ``[B, H, K, D]``.
        """
        mask: Any = visible
        rest = list(others)
        layout = rest.pop(0) if self.is_ordered else None
        if self.is_mixed:
            sliding = rest.pop(0)
            mask = {FULL: visible, SLIDING: sliding}
        further = {name: rest.pop(0) for name in self.further}
        num_layers = len(rest) // 2
        keys = rest[:num_layers]
        values = rest[num_layers:]
        layers = [_NewStates(visible.shape[-1]) for _ in keys]
        attention: AttentionPass = _SplitAttention(keys, values, layers)
        if layout is not None:
            attention = OrderedAttention(keys, values, visible, layout)
        with dispatching(self.decoder):
            output = self.decoder(
                inputs_embeds=embeds,
                attention_mask=mask,
                position_ids=position_ids,
                use_cache=True,
                **further,
                **{ARGUMENT: attention},
                **with_cache(Cache(layers=layers)),
            )
        logits = self.head(output.last_hidden_state.flatten(0, 1).index_select(0, readers))
        new_keys = [layer.keys for layer in layers]
        new_values = [layer.values for layer in layers]
        return (logits, *new_keys, *new_values)


def example_inputs(
    backbone: Backbone, axes: tuple[int, ...], is_ordered: bool = False
) -> tuple[Tensor, ...]:
    """Inputs of `SplitPass` to trace it with."""
    prompt = backbone.text_prompt(torch.ones(ROWS, 2, dtype=torch.long))
    capacity = BLOCK if is_ordered else CAPACITY
    cache = whole_cache(backbone, prompt, room=capacity)
    backbone.prefill(prompt, cache)
    buffers = cache.whole_buffers(capacity)
    if buffers is None:
        raise UnsupportedModelError("its cache has no buffers of all tokens")
    keys, values = ([states[:, :, :capacity].contiguous() for states in part] for part in buffers)
    tokens = torch.zeros(ROWS, WIDTH, dtype=torch.long)
    positions = torch.zeros(*axes, ROWS, WIDTH, dtype=torch.long)
    visible = torch.ones(ROWS, 1, WIDTH, capacity + WIDTH, dtype=torch.bool)
    if is_ordered:
        visible[..., CAPACITY:capacity] = False
    mask, *others = _masks(backbone.kinds, visible, {})
    if is_ordered:
        others.insert(0, layout_of(torch.tensor([CAPACITY] * ROWS), BLOCK))
    others += backbone.token_inputs(tokens).values()
    readers = torch.arange(ROWS * WIDTH - 1)
    return (backbone.embed(tokens), positions, mask, readers, *others, *keys, *values)


def _slots(states: Tensor, read: slice) -> Tensor:
    """Some slots of a buffer, and zeros where it is too short."""
    states = states[:, :, read]
    missing = read.stop - read.start - states.shape[2]
    return nn.functional.pad(states, (0, 0, 0, missing)) if missing else states


def _masks(kinds: LayerKinds | None, visible: Tensor, ahead: Mapping[str, Tensor]) -> list[Tensor]:
    """The masks of `SplitPass` by kind of layer, as `prompt_blocks.masks` has them. New tokens come
    after the cached ones, as in the cache, so that windows end at the same tokens."""
    masks = {"": visible}
    if kinds is not None and kinds.window:
        sliding = within_window(visible, kinds.window)
        masks = {FULL: visible, SLIDING: sliding} if kinds.are_mixed else {"": sliding}
    for kind, later in ((kind, ahead.get(kind, ahead.get(""))) for kind in masks):
        if later is not None:
            masks[kind] = masks[kind].clone()
            masks[kind][..., -later.shape[-1] :] |= later[:, None]
    return list(masks.values())


def _slots_in_windows(mask: Tensor, width: int, window: int) -> slice:
    """The cached slots that sliding layers read, given their mask ``[B, 1, T, K + T]``: all, or at
    most half of them. Their numbers are few, since an engine prepares itself for each."""
    reach = mask.shape[-1] - width
    seen = mask[..., :reach].flatten(0, 2).any(0).nonzero().flatten()
    first, end = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 0)
    size = max(window, FEW_SLOTS)
    while size < end - first:
        size *= 2
    if 2 * size > reach:
        return slice(0, reach)
    start = max(end - size, 0)
    return slice(start, start + size)


def _visible(mask: Tensor | None, lengths: Sequence[int], slots: Tensor, capacity: int) -> Tensor:
    """The mask of `SplitPass`, bool ``[B, 1, T, capacity + T]``.

    Args:
        mask: as for `Backbone.forward`, over the slots of the cache with the new tokens in theirs.
        lengths: cached tokens of each row.
        slots: of the new tokens, int64 ``[B, T]``.
        capacity: slots of the buffers.
    """
    rows, width = slots.shape
    if mask is None:
        mask = torch.ones(rows, 1, width, max(lengths) + width, dtype=torch.bool)
    mask = mask.expand(rows, 1, width, -1)
    reach = mask.shape[-1]
    visible = torch.zeros(rows, 1, width, capacity + width, dtype=torch.bool)
    ends = torch.tensor(lengths)[:, None, None, None]
    visible[..., :reach] = mask & (torch.arange(reach) < ends)
    visible[..., capacity:] = mask.gather(3, slots[:, None, None].expand(-1, 1, width, -1))
    return visible


def _fingerprint(model: nn.Module) -> int:
    """Changes with the weights of a model: with their memory, their versions, or some elements."""
    parts: list[Any] = []
    for tensor in named_tensors(model).values():
        flat = tensor.detach().flatten()
        sample = flat[:: max(1, flat.numel() // SAMPLES)]
        version = 0 if tensor.is_inference() else tensor._version
        parts += [tensor.data_ptr(), version, tuple(sample.tolist())]
    return hash(tuple(parts))


class _NewStates(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a cache that hands the new states to the attention and keeps them."""

    is_compileable = True

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """There is nothing to reserve."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep ``[B, H, T, D]`` and return them."""
        self.keys = key_states
        self.values = value_states
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what the mask covers."""
        return self.reach, 0

    def get_seq_length(self) -> int:
        """Cached tokens."""
        return self.reach

    def get_max_length(self) -> int:
        """Tokens that can be read."""
        return self.reach


class _SplitAttention:
    """An `AttentionPass` over cached and new tokens; layers call it in their order, those that keep
    keys and values first. The others read what one of these has stored in the same pass."""

    def __init__(
        self, keys: Sequence[Tensor], values: Sequence[Tensor], layers: Sequence[_NewStates]
    ) -> None:
        self._states = list(zip(keys, values, layers, strict=True))
        self._cached = iter(zip(keys, values, strict=True))

    def _shared(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """What is cached of the layer whose new keys are given."""
        for keys, values, layer in self._states:
            if layer.keys is key:
                return keys, values
        raise UnsupportedModelError("its layers change the keys that they share")

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """See `AttentionPass`; `mask` is `visible`."""
        assert mask is not None
        cached_keys, cached_values = next(self._cached, None) or self._shared(key)
        if cached_keys.shape[1] != key.shape[1] or cached_keys.shape[3] != key.shape[3]:
            raise UnsupportedModelError("its layers attend to other keys than they keep")
        rows, heads, width, size = query.shape
        groups = key.shape[1]
        # The queries of a group lie one after the other, so that its keys are read once.
        grouped = (rows, groups, heads // groups * width)
        queries = (query * (scaling or size**-0.5)).reshape(*grouped, size)
        scores = [queries @ states.transpose(2, 3) for states in (cached_keys, key)]
        both = torch.cat(scores, -1).reshape(rows, heads, width, -1)
        both = both.masked_fill(~mask, torch.finfo(both.dtype).min)
        weights = both.softmax(-1).reshape(*grouped, -1)
        reach = cached_keys.shape[2]
        output = weights[..., :reach] @ cached_values + weights[..., reach:] @ value
        return output.reshape(rows, heads, width, -1).transpose(1, 2).contiguous(), None
