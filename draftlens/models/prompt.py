"""A prompt as the language model reads it, and how stock `generate` prepares one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, StopStringCriteria
from transformers.generation.configuration_utils import GenerationMode

from draftlens.core.errors import ConfigError, InputError, UnsupportedModelError
from draftlens.core.text import tokenizer_of
from draftlens.core.tree import upload
from draftlens.models.support import (
    CACHE_ARGUMENTS,
    PAST_REFUSAL,
    cache_in,
    holds_tokens,
    without_cache,
)
from draftlens.models.visual_grid import UNKNOWN, GridLayout, cells

PASSED_SEPARATELY = (
    "input_ids",
    "inputs_embeds",
    "attention_mask",
    "position_ids",
    *CACHE_ARGUMENTS,
    "use_cache",
    "return_dict",
)
"""Arguments of the language model that every pass sets itself."""

ASSISTED = ("prompt_lookup_num_tokens", "assistant_early_exit")
"""Options of a GenerationConfig that request stock assisted generation."""

TOKEN_INPUTS = "per_layer_inputs"
"""Inputs ``[B, L, layers, D]`` of each token for each layer, of Gemma 3n and 4. `LayerKinds` makes
those of text."""

PROMPT_ONLY = (
    *("visual_pos_masks", "deepstack_visual_embeds"),
    *("vision_mask", "deepstack_features"),  # of Granite 4 Vision
    TOKEN_INPUTS,
    "moe_mm_token_type_ids",  # of ERNIE 4.5 VL
)
"""Further tensors of a language model that concern the prompt's own tokens only."""


FEATURES_OF: ContextVar[str | None] = ContextVar("namespace of features", default=None)
"""The namespace of media features that this thread uses. It is no argument, because drafters of
other packages read prompts, too: what they read outside of `remembering` is not remembered, so
nothing is shared by omission."""


@contextmanager
def remembering(namespace: str | None) -> Iterator[None]:
    """Let the prompts that this thread reads in the block use features of a namespace, and add to
    them; None for none."""
    token = FEATURES_OF.set(namespace)
    try:
        yield
    finally:
        FEATURES_OF.reset(token)


@dataclass(frozen=True)
class Encoded:
    """Arguments of `generate`, with features in place of pixels that were encoded before it, and
    messages to the user about the others."""

    inputs: dict[str, Any]
    notes: tuple[str, ...] = ()


PixelEncoder = Callable[[Any, Mapping[str, Any]], Encoded]
"""Encodes pixels among the arguments of a model's `generate`."""


def unencoded(model: Any, inputs: Mapping[str, Any]) -> Encoded:
    """Leaves all pixels to `generate`."""
    return Encoded(dict(inputs))


@dataclass(frozen=True)
class Prepared:
    """A call of `generate`, ready to decode.

    Args:
        input_ids: int64 ``[B, L]``, left-padded.
        processors: transformers logits processors, in order, options included.
        model_kwargs: further arguments of the model's forward, vision features possibly encoded.
        notes: messages to the user about how pixels were encoded.
        model: whose loop it is: the model, or its language model where `generate` of the model
            calls that of the latter.
    """

    input_ids: Tensor
    processors: tuple[Any, ...]
    criteria: tuple[Any, ...]
    config: Any
    model_kwargs: dict[str, Any]
    notes: tuple[str, ...] = ()
    model: Any = None

    @property
    def pad_token_id(self) -> int:
        """The id that `generate` writes after rows that have ended; 0 where there is none."""
        names = ("pad_token_id", "eos_token_id")
        given = [getattr(self.config, name, None) for name in names]
        pad = next((id for id in given if id is not None), 0)
        return int(pad[0] if isinstance(pad, (list, tuple)) else pad)

    @cached_property
    def prompt_positions(self) -> list[int]:
        """How many positions the prompt of each row has, padding not counted; several visual tokens
        may share a position."""
        num_rows, length = self.input_ids.shape
        positions = self.model_kwargs.get("position_ids")
        if isinstance(positions, Tensor) and positions.ndim == 3:  # M-RoPE
            axes = positions[-3:]  # the first of 4 counts tokens
            furthest: list[int] = (axes.amax((0, 2)) + 1).expand(num_rows).tolist()
            return furthest
        mask = self.model_kwargs.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 2:
            counts: list[int] = (mask != 0).sum(-1).tolist()
            return counts
        return [length] * num_rows


def capture_call(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **kwargs: Any,
) -> Prepared:
    """A `custom_generate` that returns its arguments. Raises `ConfigError` for beam search and the
    like, `InputError` for a cache that holds tokens."""
    _check_strategy(generation_config)
    cache = cache_in(kwargs)
    if cache is not None and holds_tokens(cache):
        raise InputError(PAST_REFUSAL)
    return Prepared(
        input_ids,
        tuple(logits_processor),
        tuple(stopping_criteria),
        generation_config,
        kwargs,
        model=model,
    )


def _check_strategy(config: Any) -> None:
    if config.num_beams != 1 or config.num_return_sequences != 1:
        raise ConfigError(
            "only greedy decoding and sampling of one answer work: "
            "num_beams and num_return_sequences must be 1"
        )
    assisted = [name for name in ASSISTED if getattr(config, name, None) is not None]
    if assisted:
        raise ConfigError(
            f"{', '.join(assisted)} would draft too, in stock generate's own way: choose one"
        )
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ConfigError(
            f"only greedy decoding and sampling work, and these options request "
            f"{mode.value.replace('_', ' ')}"
        )


@dataclass(frozen=True)
class Prompt:
    """What the language model is called with, rows left-aligned (padding, if any, at the end).

    Args:
        embeds: ``[B, L, D]``, vision features in place.
        position_ids: int64 ``[B, L]``, or ``[axes, B, L]`` under M-RoPE.
        lengths: tokens of each row, padding not counted.
        next_position: position of the first new token, int64 ``[B, 1]`` or ``[axes, B, 1]``.
        visual: which tokens represent pixels, bool ``[B, L]``.
        extra: further arguments of the language model, such as Qwen3-VL's deepstack features.
        ahead: which later tokens each token attends to, by kind of layer (`models.prompt_blocks`);
            None for a causal prompt.
        namespace: whose entries of the prompt cache it may use, and adds to; None for none.
    """

    embeds: Tensor
    position_ids: Tensor
    lengths: list[int]
    next_position: Tensor
    visual: Tensor
    extra: dict[str, Any]
    layout: GridLayout = UNKNOWN
    ahead: Mapping[str, Tensor] | None = None
    namespace: str | None = None

    @cached_property
    def cells(self) -> Tensor:
        """Each visual token's (t, h, w) cell, int64 ``[B, L, 3]``; of a whole prompt only."""
        newline = self.layout.newline
        newlines = None
        if newline is not None:
            newlines = (self.embeds == newline.to(self.embeds)).all(-1)
        return cells(self.visual, self.position_ids, self.layout, newlines)

    @property
    def kind(self) -> str:
        """`video`, `picture` or, without either, `text`."""
        if not bool(self.visual.any()):
            return "text"
        is_video = self.layout.is_video
        return "video" if is_video is not None and bool(is_video.any()) else "picture"

    @property
    def further(self) -> set[str]:
        """Arguments with tensors that the language model reads beside embeddings and positions."""
        return {name for name, value in self.extra.items() if _holds_tensors(value)}

    def outline(self) -> Prompt:
        """The prompt without embeddings and further tensors, with the cells of its tokens."""
        outline = replace(self, embeds=self.embeds[..., :0], extra={}, ahead=None)
        # Cells follow from the embeddings, too, where a model marks the ends of rows by them.
        outline.__dict__["cells"] = self.cells
        return outline

    def positions(self, steps: Tensor) -> Tensor:
        """Positions int64 ``[..., B, T]`` of answer tokens; `steps` are their indices
        ``[B, T]``."""
        return self.next_position + steps

    def last(self, hidden: Tensor, count: int) -> Tensor:
        """The hidden states ``[B, L, D]`` of each row's last `count` tokens."""
        ends = upload(self.lengths, hidden.device)[:, None]
        last = ends - count + torch.arange(count, device=hidden.device)
        rows = torch.arange(len(self.lengths), device=hidden.device)[:, None]
        return hidden[rows, last]

    def followed_by(self, embeds: Tensor, further: Mapping[str, Tensor] | None = None) -> Prompt:
        """The prompt with embeddings ``[B, T, D]`` and further arguments of text tokens after each
        row's last token."""
        num_rows, num_tokens = embeds.shape[:2]
        steps = torch.arange(num_tokens, device=self.next_position.device).expand(num_rows, -1)
        slots = torch.tensor(self.lengths)[:, None] + torch.arange(num_tokens)
        rows = torch.arange(num_rows)[:, None]
        positions = self.positions(steps)
        position_ids = torch.cat([self.position_ids, positions], -1)
        position_ids[..., rows, slots] = positions

        def extended(values: Tensor, new: Tensor) -> Tensor:
            longer = torch.cat([values, new], 1)
            longer[rows, slots] = new
            return longer

        extra = dict(self.extra)
        for name, value in self.extra.items():
            if further and name in further:
                extra[name] = extended(value, further[name])
            elif _per_token(name, value, self.visual.shape):  # which tokens represent pixels
                new = value.new_zeros(num_rows, num_tokens, *value.shape[2:])
                extra[name] = extended(value, new)
        return replace(
            self,
            embeds=extended(self.embeds, embeds),
            position_ids=position_ids,
            lengths=[length + num_tokens for length in self.lengths],
            next_position=self.next_position + num_tokens,
            visual=extended(self.visual, self.visual.new_zeros(num_rows, num_tokens)),
            extra=extra,
            ahead=None if self.ahead is None else blocks().extended(self.ahead, num_tokens),
        )


def checked_inputs(inputs: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """A processor's output as stock `generate` needs it: on the model's device, left-padded. Raises
    `InputError` without `input_ids`, for an empty row, or with an earlier turn's cache."""
    if inputs.get("input_ids") is None:
        raise InputError("inputs must hold the processor's input_ids")
    if cache_in(inputs) is not None:
        raise InputError(PAST_REFUSAL)
    padded = left_padded(with_checked_mask(without_cache(inputs)))
    return {
        name: each.to(device, non_blocking=not each.is_cuda) if isinstance(each, Tensor) else each
        for name, each in padded.items()
    }


def with_checked_mask(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments with an integer mask, if any. Raises `InputError` for an empty row."""
    checked = dict(inputs)
    mask = checked.get("attention_mask")
    if mask is None:
        return checked
    empty = (mask == 0).all(-1).nonzero().flatten().tolist()
    if empty:
        raise InputError(f"the attention_mask hides every token of row {empty[0]}")
    if mask.is_floating_point():  # some models count positions with it, and only whole numbers do
        checked["attention_mask"] = (mask != 0).long()
    return checked


def left_padded(inputs: dict[str, Any]) -> dict[str, Any]:
    mask = inputs.get("attention_mask")
    if mask is None or bool((mask[:, -1] != 0).all()):
        return inputs
    length = mask.shape[1]
    last = length - 1 - (mask != 0).long().flip(1).argmax(1)
    order = (torch.arange(length, device=mask.device)[None] - (length - 1 - last)[:, None]) % length
    return _gather_tokens(inputs, order, mask.shape)


def neutral_config(max_new_tokens: int, own: GenerationConfig) -> GenerationConfig:
    """Greedy decoding without further options; answers of several tokens end where the model's own
    configuration ends them."""
    ends = ("eos_token_id", "pad_token_id") if max_new_tokens > 1 else ()
    return GenerationConfig(
        **{name: getattr(own, name) for name in ends},
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        use_cache=True,
        return_dict_in_generate=False,
    )


def with_config(model: Any, config: GenerationConfig) -> Any:
    """The same modules and weights under another generation config; the model keeps its own, since
    other threads may be using it."""
    clone = copy(model)
    clone.generation_config = config
    return clone


def prompt_options(options: Mapping[str, Any], model_config: Any) -> dict[str, Any]:
    """Options of `generate` without a cache, with `stop_strings` as a criterion. Raises
    `InputError` for a cache, `ConfigError` for an assistant or for lack of a tokenizer."""
    if options.get("assistant_model") is not None:
        raise ConfigError("assistant_model is for stock generate: give it as draft")
    if cache_in(options) is not None:
        raise InputError(PAST_REFUSAL)
    return with_stop_strings(without_cache(options), model_config)


def with_stop_strings(options: Mapping[str, Any], model_config: Any = None) -> dict[str, Any]:
    """The same options of `generate` with `stop_strings` as a criterion: with a callable
    `custom_generate`, `generate` loses the tokenizer that they need (transformers 5.24). The
    model's own config applies if neither the options nor their `generation_config` have them.
    Raises `ConfigError` without a tokenizer."""
    remaining = dict(options)
    tokenizer = tokenizer_of(remaining.pop("tokenizer", None))
    if "stop_strings" in remaining:
        strings = remaining["stop_strings"]
    else:
        strings = getattr(remaining.get("generation_config"), "stop_strings", None)
        if strings is None:
            strings = getattr(model_config, "stop_strings", None)
    if strings is None:
        return remaining
    if tokenizer is None:
        raise ConfigError("stop_strings need the model's tokenizer: give it as tokenizer")
    criteria = [*(remaining.get("stopping_criteria") or ()), StopStringCriteria(tokenizer, strings)]
    return {**remaining, "stop_strings": None, "stopping_criteria": criteria}


def build_prompt(
    name: str,
    kwargs: dict[str, Any],
    embed: Callable[[Tensor], Tensor],
    visual: Tensor,
    given: Tensor | None = None,
    both_ways: bool = False,
) -> Prompt:
    """A `Prompt` from the keyword arguments that a model passes to its language model; `embed` maps
    ids to embeddings, `visual` is bool ``[B, L]``.

    Args:
        given: the mask of padding ``[B, L]`` that the model was called with, if any.
        both_ways: whether the language model lets tokens attend to later ones where it gets no
            mask.

    Raises:
        UnsupportedModelError: the model makes its own attention mask, or passes something else that
            answers may need too.
    """
    embeds = kwargs.get("inputs_embeds")
    if embeds is None:
        embeds = embed(kwargs["input_ids"])
    num_rows, length = embeds.shape[:2]
    mask = kwargs.get("attention_mask")
    ahead = None
    if both_ways or not (mask is None or (isinstance(mask, Tensor) and mask.ndim == 2)):
        if given is not None and given.ndim != 2:
            raise UnsupportedModelError(
                f"{name} was given an attention mask of {given.ndim} dimensions, and only masks "
                "of padding with 2 can be read"
            )
        own, mask = mask, given
        real = (embeds.new_ones(num_rows, length) if mask is None else mask) != 0
        ahead = blocks().read_ahead(name, own, real, both_ways)
    positions = _position_ids(kwargs, mask, length, embeds.device)
    positions = positions.expand(*positions.shape[:-2], num_rows, length)
    extra = _further_arguments(name, kwargs)
    lengths = [length] * num_rows if mask is None else mask.sum(-1).tolist()
    if min(lengths) < length and mask is not None:
        # Stable: real tokens keep their order and come first.
        order = (mask == 0).to(torch.uint8).argsort(dim=1, stable=True)
        embeds = embeds.gather(1, order[..., None].expand_as(embeds))
        positions = positions.gather(-1, order.expand_as(positions))
        visual = visual.gather(1, order)
        extra = _gather_tokens(extra, order, mask.shape)
        ahead = None if ahead is None else blocks().reordered(ahead, order)
    last = upload(lengths, positions.device)[:, None] - 1
    next_position = positions.gather(-1, last.expand(*positions.shape[:-1], 1)) + 1
    return Prompt(embeds, positions, lengths, next_position, visual, extra, ahead=ahead)


def blocks() -> Any:
    """The module of what few models need."""
    from draftlens.models import prompt_blocks

    return prompt_blocks


def _position_ids(
    kwargs: Mapping[str, Any], mask: Tensor | None, length: int, device: torch.device
) -> Tensor:
    positions = kwargs.get("position_ids")
    if positions is not None:
        return positions  # type: ignore[no-any-return]
    if mask is None:
        return torch.arange(length, device=device)[None]
    return mask.cumsum(-1) - 1


def _further_arguments(name: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that not every pass sets. Raises `UnsupportedModelError` for unknown tensors."""
    extra = {
        key: value
        for key, value in kwargs.items()
        if key not in PASSED_SEPARATELY and value is not None
    }
    unknown = [
        key for key, value in extra.items() if key not in PROMPT_ONLY and _holds_tensors(value)
    ]
    if unknown:
        raise UnsupportedModelError(
            f"{name} hands its language model {', '.join(unknown)}, which later tokens may need "
            "as well as the prompt"
        )
    return extra


def _gather_tokens(values: Mapping[str, Any], order: Tensor, shape: torch.Size) -> dict[str, Any]:
    """The same values, tensors of one entry per token reordered by ``[B, L]``."""
    gathered = dict(values)
    for key, value in values.items():
        if _per_token(key, value, shape):
            index = order.view(*shape, *[1] * (value.ndim - 2)).expand(*shape, *value.shape[2:])
            gathered[key] = value.gather(1, index)
    return gathered


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensors, value))
    return isinstance(value, Tensor)


def _per_token(name: str, value: Any, shape: torch.Size) -> bool:
    """Whether a value is a tensor ``[B, L]`` or ``[B, L, 1]``, or else is known to be of tokens."""
    is_known = name == TOKEN_INPUTS
    return isinstance(value, Tensor) and (is_known or value.shape in (shape, (*shape, 1)))
