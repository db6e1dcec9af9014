"""A prefill that drops tokens after some layers, on an unmodified model.

Forward pre-hooks on the decoder layers replace the hidden states and all arguments that are per
token. After a drop every layer reads and caches fewer tokens, so each layer's cache has a length
of its own. Kept tokens stay at their original positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from draftlens.core.errors import ConfigError, InputError, UnsupportedModelError
from draftlens.models.adapter import Backbone
from draftlens.models.attention.dispatch import ARGUMENT, dispatching
from draftlens.models.prompt import Prompt
from draftlens.models.support import CACHE_ARGUMENTS, with_cache
from draftlens_lab.bench.lossy.base import Dropping
from draftlens_lab.bench.lossy.reading import reader_attention, scaling_of

STATES = "hidden_states"
MASK = "attention_mask"

TOKEN_AXES: Mapping[str, int] = {"position_embeddings": -2, "position_ids": -1}
"""Further arguments of a decoder layer that are per token, each with the axis of the tokens."""

IGNORED = (*CACHE_ARGUMENTS, ARGUMENT)
"""Arguments of a decoder layer that hold tensors or objects but nothing per token."""

VISUAL_MASK = "visual_pos_masks"
DEEPSTACK = "deepstack_visual_embeds"
"""Arguments of Qwen3-VL's decoder, which adds features to the visual tokens between its first
layers. The hooks add them here, since the decoder would expect all tokens."""


@dataclass(frozen=True)
class Prefilled:
    """A prompt that was read with drops.

    Args:
        logits: after the last token, ``[1, V]``.
        kept: for each layer the tokens that it caches, as indices into `prompt`, int64 ``[K]``,
            increasing.
    """

    prompt: Prompt
    logits: Tensor
    cache: DynamicCache
    kept: list[Tensor]


@torch.inference_mode()
def prefill(backbone: Backbone, prompt: Prompt, dropping: Dropping) -> Prefilled:
    """Read a prompt of one row, dropping visual tokens after layers."""
    if len(prompt.lengths) != 1:
        raise InputError(f"lossy peers answer one row at a time, not {len(prompt.lengths)}")
    prompt = dropping.shorten(prompt)
    layers = decoder_layers(backbone)
    run = _Run(backbone.name, dropping, prompt, len(layers))
    cache = DynamicCache()
    with backbone.alone(), dispatching(backbone.decoder), run.hooked(layers):
        output = backbone.decoder(
            inputs_embeds=prompt.embeds,
            attention_mask=None,
            position_ids=prompt.position_ids,
            use_cache=True,
            **with_cache(cache),
            **run.decoder_arguments(),
            **{ARGUMENT: run},
        )
        logits = backbone.head(output.last_hidden_state[:, -1])
    if len(run.kept_by_layer) != len(layers):
        raise UnsupportedModelError(
            f"{backbone.name} does not let its attention be read, which lossy peers need"
        )
    return Prefilled(prompt, logits.to(backbone.device), cache, run.kept_by_layer)


def decoder_layers(backbone: Backbone) -> Any:
    """The decoder layers of a model in their order."""
    layers = getattr(backbone.decoder, "layers", None)
    if layers is None:
        raise UnsupportedModelError(f"{backbone.name} does not list the layers of its decoder")
    return layers


class _Run:
    """The state of one prefill; the `AttentionPass` of its attention.

    Attributes:
        kept: the tokens that are left, as indices into the prompt, int64 ``[T]``.
        kept_by_layer: `kept` of each layer that has read them.
    """

    def __init__(self, name: str, dropping: Dropping, prompt: Prompt, depth: int) -> None:
        self.name = name
        self.dropping = dropping
        self.prompt = prompt
        self.drops_after = dropping.layers(depth)
        _check_layers(name, self.drops_after, depth)
        self.deepstack = _deepstack(name, prompt, depth)
        self.kept = torch.arange(prompt.lengths[0], device=prompt.embeds.device)
        self.kept_by_layer: list[Tensor] = []
        self.readers = dropping.readers(prompt).to(prompt.embeds.device)
        self.attention: Tensor | None = None
        self._arguments: dict[str, Any] = {}

    def decoder_arguments(self) -> dict[str, Any]:
        """Further arguments of the decoder, without those that the hooks apply."""
        extra = dict(self.prompt.extra)
        for name in (VISUAL_MASK, DEEPSTACK):
            extra.pop(name, None)
        return extra

    @contextmanager
    def hooked(self, layers: Any) -> Iterator[None]:
        """Let tokens be dropped in front of the layers while the context lasts."""
        handles = []
        try:
            for number, layer in enumerate(layers):
                hook = self._hook(number)
                handles.append(layer.register_forward_pre_hook(hook, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        """See `AttentionPass`. Of layers after which tokens are dropped, the attention of
        the readers is kept."""
        self.kept_by_layer.append(self.kept)
        if len(self.kept_by_layer) in self.drops_after:
            scaling = scaling_of(query, kwargs.get("scaling"))
            places = torch.searchsorted(self.kept, self.readers)
            self.attention = reader_attention(query[0], key[0], places, scaling)
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)

    def _hook(self, number: int) -> Callable[..., Any]:
        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            states = args[0] if args else kwargs[STATES]
            states = self._enriched(number, states)
            if number in self.drops_after:
                states = self._drop(states, kwargs)
            kwargs = {**kwargs, **self._arguments}
            if args:
                return (states, *args[1:]), kwargs
            return args, {**kwargs, STATES: states}

        return before

    def _enriched(self, number: int, states: Tensor) -> Tensor:
        """The states ``[1, T, D]`` with the features that belong after `number` layers."""
        if not 0 < number <= len(self.deepstack):
            return states
        visual = self._is_visual().to(states.device)
        rows = self._visual_indices().to(states.device)
        features = self.deepstack[number - 1].to(states.device, states.dtype)
        states = states.clone()
        states[:, visual] += features[rows]
        return states

    def _drop(self, states: Tensor, kwargs: Mapping[str, Any]) -> Tensor:
        """Drop visual tokens from the states ``[1, T, D]`` and from all later arguments."""
        if self.attention is None:
            raise UnsupportedModelError(
                f"{self.name} does not let its attention be read, which lossy peers need"
            )
        visual = self._is_visual()
        places = visual.nonzero()[:, 0]
        attention = self.attention.to(places.device)[:, places]
        stays = ~visual
        stays[places[self.dropping.keep(attention).to(places.device)]] = True
        self.kept = self.kept[stays]
        self._arguments = _gathered(self.name, kwargs, self.kept, self.prompt.lengths[0])
        return states[:, stays.to(states.device)]

    def _is_visual(self) -> Tensor:
        """Which of the tokens that are left are visual, bool ``[T]``."""
        return self.prompt.visual[0].to(self.kept.device)[self.kept]

    def _visual_indices(self) -> Tensor:
        """Indices of the visual tokens that are left among all visual tokens, int64 ``[n]``."""
        ranks = self.prompt.visual[0].to(self.kept.device).cumsum(0) - 1
        return ranks[self.kept[self._is_visual()]]


def _gathered(name: str, kwargs: Mapping[str, Any], kept: Tensor, length: int) -> dict[str, Any]:
    """The arguments of a layer that are per token, for some tokens of the prompt.

    Args:
        kept: the tokens, int64 ``[T]``.
    """
    chosen: dict[str, Any] = {}
    for key, value in kwargs.items():
        if key in TOKEN_AXES:
            chosen[key] = _select(value, TOKEN_AXES[key], kept)
        elif key == MASK and isinstance(value, Tensor):
            chosen[key] = _select(_select(value, -1, kept), -2, kept)
        elif key not in (STATES, *IGNORED) and _is_per_token(value, length):
            raise UnsupportedModelError(
                f"{name} gives its layers {key}, which cannot be dropped with the tokens"
            )
    return chosen


def _select(value: Any, axis: int, kept: Tensor) -> Any:
    """Entries of a tensor, or of a tuple of tensors; None stays None."""
    if isinstance(value, tuple):
        return tuple(_select(part, axis, kept) for part in value)
    if not isinstance(value, Tensor):
        return value
    return value.index_select(axis, kept.to(value.device))


def _is_per_token(value: Any, length: int) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_is_per_token(part, length) for part in value)
    return isinstance(value, Tensor) and length in value.shape


def _deepstack(name: str, prompt: Prompt, depth: int) -> list[Tensor]:
    """Features of all visual tokens after the first layers, one ``[n, D]`` for each layer."""
    for key, value in prompt.extra.items():
        is_known = key in (VISUAL_MASK, DEEPSTACK)
        if not is_known and _is_per_token(value, prompt.lengths[0]):
            raise UnsupportedModelError(
                f"{name} gives its decoder {key}, which cannot be dropped with the tokens"
            )
    features = list(prompt.extra.get(DEEPSTACK) or ())
    if len(features) >= depth:
        raise UnsupportedModelError(
            f"{name} adds features of pixels after its last layer, where no token can be dropped"
        )
    return features


def _check_layers(name: str, layers: tuple[int, ...], depth: int) -> None:
    if layers and not 0 < min(layers) <= max(layers) < depth:
        raise ConfigError(
            f"{name} has {depth} layers, so tokens can be dropped after layers 1 to {depth - 1}, "
            f"not after {list(layers)}"
        )
