"""Passes that read a cache and return what belongs into it, for engines that cannot write the
buffers of the caller."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from draftlens.models.adapter import Backbone
from draftlens.models.attention.dispatch import ARGUMENT, AttentionPass, dispatching
from draftlens.models.forward_backend import Passes
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.models.support import with_cache
from draftlens.passes.ordered_attention import OrderedAttention
from draftlens.passes.structure import (
    check_pass,
    kept_by_layers,
    named_tensors,
    position_axes,
    slots_of,
)

_log = logging.getLogger("draftlens")

Function = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""From the inputs of `SplitPass.forward`, all contiguous, to its outputs, which may be overwritten
by the next call."""

ROWS, WIDTH, CAPACITY = 2, 3, 96
"""Sizes of the tensors that a pass is traced with. Their dimensions are variables afterwards."""

PART = 256
"""Most tokens of a row that are read at once."""

SCORES = 2**24
"""Most pairs of a query and a key in all heads of a layer: 64 MiB in float32."""

LEAST_PART = 64
"""A prompt whose parts would be smaller is read by the modules, whose attention keeps no pairs; or
in parts of this size, where passes round weights."""

SAMPLES = 8
"""Elements of each weight that are compared to notice that a model has changed."""


class SplitPasses(Passes):
    """Passes by an engine that makes a function of a `SplitPass`.

    Keys and values stay in the buffers of the cache: the function reads them in place and returns
    those of the new tokens.

    Args:
        backbone: the model, on the CPU, which is not kept alive.
        bound: of the logits' differences from those of the modules (`check_pass`); None for the
            rounding of the dtype.

    Attributes:
        seconds: that making the functions took.
        has_changed: whether the model's weights have changed since the start.

    Raises:
        UnsupportedModelError: its logits differ from those of the modules.
        Exception: whatever the engine raises on code that it does not support.
    """

    def __init__(self, backbone: Backbone, bound: float | None = None) -> None:
        self.seconds = 0.0
        self.has_changed = False
        self._bound = bound
        self._model = weakref.ref(backbone.model)
        self._functions: dict[tuple[int, ...], Function | None] = {}
        self._layers = kept_by_layers(backbone)
        self._num_heads = backbone.text_config.num_attention_heads
        self._weights = _fingerprint(backbone.model)
        self._one_at_a_time = threading.RLock()
        self._prepare(position_axes(backbone))

    def compile(self, backbone: Backbone, axes: tuple[int, ...]) -> None:
        """Make the function of passes whose positions have these leading sizes (empty, or the axes
        of M-RoPE), and give it to `start`."""
        raise NotImplementedError

    def start(self, backbone: Backbone, axes: tuple[int, ...], function: Function) -> None:
        """Use a function, if it computes the logits of the modules; raises
        `UnsupportedModelError` otherwise. It is called by one thread at a time."""
        try:
            self._functions[axes] = function
            self.check(backbone, axes)
        except Exception:
            self._functions[axes] = None  # never run what differs from the modules
            raise

    def check(self, backbone: Backbone, axes: tuple[int, ...]) -> None:
        """Raise `UnsupportedModelError` unless the function computes the logits of the modules."""
        check_pass(backbone, self.run, 2, 3, axes, self._bound)
        check_pass(backbone, self.run, 1, 1, axes, self._bound)

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
        width = tokens.shape[1]
        if torch.is_autocast_enabled("cpu") or not self._is_ready(position_ids.shape[:-2]):
            return None
        if self.rounding and not all(layer.is_initialized for layer in cache.layers):
            self._reserve(cache)
        buffers = cache.whole_buffers(max(cache.lengths) + width)
        if buffers is None:
            return None
        slots = slots_of(cache.lengths, width, tokens.device)
        visible = _visible(mask, cache.lengths, slots, buffers[0][0].shape[2])
        readers = torch.arange(tokens.numel())
        inputs = (self._embeds(tokens), position_ids, visible, readers)
        return self._append(inputs, slots, buffers).view(*tokens.shape, -1)

    def read(self, prompt: Prompt, cache: KVCache, num_logits: int) -> Tensor | None:
        """See `Passes.read`. Attention is written out in the graph, so a prompt is read in parts of
        at most `SCORES` pairs of a query and a key."""
        rows, length = prompt.embeds.shape[:2]
        reach = max(cache.lengths) + length
        size = min(PART, SCORES // (self._num_heads * rows * reach))
        if self.rounding:
            size = max(size, LEAST_PART)
        if size < LEAST_PART or torch.is_autocast_enabled("cpu"):
            return None
        if not self._is_ready(prompt.position_ids.shape[:-2]):
            return None
        # The last tokens of each row, as indices into the rows.
        last = torch.tensor(prompt.lengths)[:, None] - num_logits + torch.arange(num_logits)
        logits: Tensor | None = None
        lengths = cache.lengths
        try:
            for start in range(0, length, size):
                end = min(start + size, length)
                is_here = (start <= last) & (last < end)
                readers = (last - start + (end - start) * torch.arange(rows)[:, None])[is_here]
                found = self._read_part(prompt, cache, start, end, readers)
                if logits is None:
                    logits = found.new_empty(rows, num_logits, found.shape[-1])
                logits[is_here] = found
                cache.lengths = [cached + end - start for cached in cache.lengths]
        finally:
            cache.lengths = lengths
        return logits

    def _read_part(
        self, prompt: Prompt, cache: KVCache, start: int, end: int, readers: Tensor
    ) -> Tensor:
        """Append tokens `start` to `end` of each row; logits after `readers`, as in `SplitPass`."""
        embeds = prompt.embeds[:, start:end]
        rows, width = embeds.shape[:2]
        if not all(layer.is_initialized for layer in cache.layers):
            self._reserve(cache)
        buffers = cache.whole_buffers(max(cache.lengths) + width)
        assert buffers is not None
        reach = max(*cache.lengths, 1)  # one slot that no token attends to where all are empty
        visible = torch.ones(rows, 1, width, reach + width, dtype=torch.bool)
        visible[..., :reach] = (
            torch.arange(reach) < torch.tensor(cache.lengths)[:, None, None, None]
        )
        visible[..., reach:] = torch.ones(width, width, dtype=torch.bool).tril()
        slots = slots_of(cache.lengths, width, embeds.device)
        inputs = (embeds, prompt.position_ids[..., start:end], visible, readers)
        return self._append(inputs, slots, buffers)

    def _reserve(self, cache: KVCache) -> None:
        """Make the buffers of an empty cache."""
        rows = len(cache.lengths)
        for layer, facts in zip(cache.layers, self._layers, strict=True):
            keys = torch.zeros(rows, facts.heads, 1, facts.key_width, dtype=facts.dtype)
            values = torch.zeros(rows, facts.heads, 1, facts.value_width, dtype=facts.dtype)
            layer.update(keys, values)

    def _append(
        self,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor],
        slots: Tensor,
        buffers: tuple[list[Tensor], list[Tensor]],
    ) -> Tensor:
        """Run a pass with the first four inputs of `SplitPass`, write its keys and values to
        `slots` ``[B, T]`` of the buffers, and return its logits."""
        embeds, _, visible, _ = inputs
        reach = visible.shape[-1] - embeds.shape[1]
        states = [*buffers[0], *buffers[1]]
        cached = states
        if reach < states[0].shape[2]:
            cached = [layer[:, :, :reach].contiguous() for layer in states]
        with self._one_at_a_time:
            function = self._functions[tuple(inputs[1].shape[:-2])]
            assert function is not None
            ready = [*(tensor.contiguous() for tensor in inputs), *cached]
            logits, *new_states = function(ready)
            rows = torch.arange(len(slots))[:, None]
            for layer, new in zip(states, new_states, strict=True):
                layer[rows, :, slots] = new.transpose(1, 2)
            return logits.clone()

    def _embeds(self, tokens: Tensor) -> Tensor:
        model = self._model()
        assert model is not None
        embeds: Tensor = model.get_input_embeddings()(tokens)
        return embeds

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
        model: of transformers; its own modules are called.
        divisor: of the logits (`Backbone.divisor`).
        is_ordered: whether the attention is `OrderedAttention`.
    """

    def __init__(self, model: Any, divisor: float, is_ordered: bool = False) -> None:
        super().__init__()
        self.is_ordered = is_ordered
        self.decoder = model.get_decoder()
        self.head = model.get_output_embeddings()
        self.divisor = divisor

    def forward(
        self,
        embeds: Tensor,
        position_ids: Tensor,
        visible: Tensor,
        readers: Tensor,
        *cached: Tensor,
    ) -> tuple[Tensor, ...]:
        """Logits after some tokens, ``[N, V]``, and the new keys and values of each layer,
        ``[B, H, T, D]``.

        Args:
            embeds: ``[B, T, D]``.
            position_ids: int64 ``[..., B, T]``.
            visible: bool ``[B, 1, T, K + T]``, which of the K cached and the T new tokens each new
                token attends to.
            readers: int64 ``[N]``, the tokens that logits follow, counted through all rows.
            cached: keys of each layer, then values of each layer, ``[B, H, K, D]``.
        """
        num_layers = len(cached) // 2
        keys = cached[:num_layers]
        values = cached[num_layers:]
        layers = [_NewStates(visible.shape[-1]) for _ in keys]
        attention: AttentionPass = _SplitAttention(keys, values)
        if self.is_ordered:
            attention = OrderedAttention(keys, values, visible)
        with dispatching(self.decoder):
            output = self.decoder(
                inputs_embeds=embeds,
                attention_mask=visible,
                position_ids=position_ids,
                use_cache=True,
                **{ARGUMENT: attention},
                **with_cache(Cache(layers=layers)),
            )
        logits = self.head(output.last_hidden_state.flatten(0, 1).index_select(0, readers))
        if self.divisor != 1:
            logits = logits / self.divisor
        new_keys = [layer.keys for layer in layers]
        new_values = [layer.values for layer in layers]
        return (logits, *new_keys, *new_values)


def example_inputs(backbone: Backbone, axes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Inputs of `SplitPass` to trace it with."""
    prompt = backbone.text_prompt(torch.ones(ROWS, 2, dtype=torch.long))
    cache = backbone.new_cache(prompt, room=CAPACITY)
    backbone.prefill(prompt, cache)
    buffers = cache.whole_buffers(CAPACITY)
    assert buffers is not None
    keys, values = ([states[:, :, :CAPACITY].contiguous() for states in part] for part in buffers)
    embeds = backbone.embed(torch.zeros(ROWS, WIDTH, dtype=torch.long))
    positions = torch.zeros(*axes, ROWS, WIDTH, dtype=torch.long)
    visible = torch.ones(ROWS, 1, WIDTH, CAPACITY + WIDTH, dtype=torch.bool)
    readers = torch.arange(ROWS * WIDTH - 1)
    return (embeds, positions, visible, readers, *keys, *values)


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
    """An `AttentionPass` over cached and new tokens; layers call it in their order."""

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        self._cached = iter(zip(keys, values, strict=True))

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
        cached_keys, cached_values = next(self._cached)
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
