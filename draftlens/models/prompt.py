"""A prompt as the language model sees it, and how stock `generate` is asked to prepare one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import StopStringCriteria

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.models.cells import UNKNOWN, Layout, cells

DROPPED = (
    *("input_ids", "inputs_embeds", "attention_mask", "position_ids"),
    *("past_key_values", "use_cache", "return_dict"),
)
"""Arguments of the language model that we pass ourselves."""

ASSISTED = ("prompt_lookup_num_tokens", "assistant_early_exit")
"""Options of a GenerationConfig that ask for stock assisted generation."""

OF_THE_PROMPT = ("visual_pos_masks", "deepstack_visual_embeds")
"""Tensors that a language model takes besides, and that matter to the prompt's own tokens only."""


@dataclass(frozen=True)
class Prepared:
    """A call of `generate`, ready to decode.

    Args:
        input_ids: int64 ``[B, L]``, left-padded.
        processors: transformers logits processors, in order, options included.
        criteria: transformers stopping criteria.
        config: the resolved GenerationConfig.
        model_kwargs: what the model's forward gets besides the ids; vision features may be encoded
            already.
    """

    input_ids: Tensor
    processors: tuple[Any, ...]
    criteria: tuple[Any, ...]
    config: Any
    model_kwargs: dict[str, Any]


def capture_call(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **kwargs: Any,
) -> Prepared:
    """A `custom_generate` that hands back what it was given.

    Raises:
        ConfigError: beam search and other strategies that are not one token after the other.
    """
    if generation_config.num_beams != 1 or generation_config.num_return_sequences != 1:
        raise ConfigError(
            "only greedy decoding and sampling of one answer work: num_beams and "
            "num_return_sequences must be 1"
        )
    own = [name for name in ASSISTED if getattr(generation_config, name, None) is not None]
    if own:
        raise ConfigError(
            f"{', '.join(own)} would draft too, in stock generate's own way: choose one"
        )
    return Prepared(
        input_ids, tuple(logits_processor), tuple(stopping_criteria), generation_config, kwargs
    )


@dataclass(frozen=True)
class Prompt:
    """What the language model is called with, rows left-aligned (padding, if any, at the end).

    Args:
        embeds: ``[B, L, D]``, vision features in place.
        position_ids: int64 ``[B, L]``, or ``[axes, B, L]`` under M-RoPE.
        lengths: tokens of each row, padding not counted.
        next_position: position of the first new token, int64 ``[B, 1]`` or ``[axes, B, 1]``.
        visual: which tokens stand for pixels, bool ``[B, L]``.
        extra: whatever else the language model takes, such as Qwen3-VL's deepstack features.
        layout: how pictures and videos became tokens, as far as it is known.
    """

    embeds: Tensor
    position_ids: Tensor
    lengths: list[int]
    next_position: Tensor
    visual: Tensor
    extra: dict[str, Any]
    layout: Layout = UNKNOWN

    @cached_property
    def cells(self) -> Tensor:
        """The (t, h, w) cell of every visual token, int64 ``[B, L, 3]`` (`models.cells`); of a
        whole prompt only."""
        newline = self.layout.newline
        newlines = None if newline is None else (self.embeds == newline.to(self.embeds)).all(-1)
        return cells(self.visual, self.position_ids, self.layout, newlines)

    def positions(self, steps: Tensor) -> Tensor:
        """Positions of answer tokens, int64 ``[..., B, T]``, from their indices in the answer,
        int64 ``[B, T]``."""
        return self.next_position + steps


def left_padded(inputs: dict[str, Any]) -> dict[str, Any]:
    """The same inputs with padding moved to the left, where stock `generate` needs it."""
    mask = inputs.get("attention_mask")
    if mask is None or bool((mask[:, -1] != 0).all()):
        return inputs
    length = mask.shape[1]
    last = length - 1 - (mask != 0).long().flip(1).argmax(1)
    order = (torch.arange(length, device=mask.device)[None] - (length - 1 - last)[:, None]) % length
    return {
        key: value.gather(1, order) if _per_token(value, mask.shape) else value
        for key, value in inputs.items()
    }


def with_stop_strings(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options of `generate` with `stop_strings` as a criterion.

    A callable `custom_generate` makes `generate` lose the tokenizer that it needs for them
    (transformers 5.23).

    Raises:
        ConfigError: no tokenizer is given.
    """
    given = dict(options)
    strings, tokenizer = given.pop("stop_strings", None), given.pop("tokenizer", None)
    if strings is None:
        return given
    if tokenizer is None:
        raise ConfigError("stop_strings need the model's tokenizer: give it as tokenizer")
    criteria = [*(given.get("stopping_criteria") or ()), StopStringCriteria(tokenizer, strings)]
    return {**given, "stopping_criteria": criteria}


def build_prompt(
    name: str, kwargs: dict[str, Any], embed: Callable[[Tensor], Tensor], visual: Tensor
) -> Prompt:
    """A `Prompt` from the keyword arguments that a model hands to its language model.

    Raises:
        UnsupportedModelError: the model brings its own attention mask, or something else that
            answers may need too.
    """
    embeds, mask = kwargs.get("inputs_embeds"), kwargs.get("attention_mask")
    if embeds is None:
        embeds = embed(kwargs["input_ids"])
    rows, length = embeds.shape[:2]
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
        raise UnsupportedModelError(
            f"{name} builds its own attention mask for the prompt, which is not supported"
        )
    positions = kwargs.get("position_ids")
    if positions is None:
        positions = (
            torch.arange(length, device=embeds.device)[None]
            if mask is None
            else (mask.cumsum(-1) - 1)
        )
    positions = positions.expand(*positions.shape[:-2], rows, length)
    extra = {k: v for k, v in kwargs.items() if k not in DROPPED and v is not None}
    unknown = [k for k, v in extra.items() if k not in OF_THE_PROMPT and _holds_tensors(v)]
    if unknown:
        raise UnsupportedModelError(
            f"{name} hands its language model {', '.join(unknown)}, which later tokens may need "
            f"as well as the prompt"
        )
    lengths = [length] * rows if mask is None else mask.sum(-1).tolist()
    if mask is not None and not bool((mask != 0).all()):
        # Stable: real tokens keep their order and come first.
        order = (mask == 0).to(torch.uint8).argsort(dim=1, stable=True)
        embeds = embeds.gather(1, order[..., None].expand_as(embeds))
        positions = positions.gather(-1, order.expand_as(positions))
        visual = visual.gather(1, order)
        extra = {
            k: v.gather(1, order) if _per_token(v, mask.shape) else v for k, v in extra.items()
        }
    last = torch.tensor(lengths, device=positions.device)[:, None] - 1
    next_position = positions.gather(-1, last.expand(*positions.shape[:-1], 1)) + 1
    return Prompt(embeds, positions, lengths, next_position, visual, extra)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (
        isinstance(value, (list, tuple)) and any(map(_holds_tensors, value))
    )


def _per_token(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape
