"""Features of pictures and videos, encoded once for each content (`PromptCache`)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftlens.models.pixel_split import PIXELS, Shares, pixel_items
from draftlens.models.prompt import FEATURES_OF
from draftlens.models.prompt_cache import PromptCache, content_digest

MODALITIES = ("image", "video")

ENCODED = "mm_encoder_outputs"
"""The argument of `generate` that holds features."""


def with_features(cache: PromptCache, model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `generate` with features, from the cache if it has them, in place of pixels.
    Pixels stay where the model takes no features, its family is unknown, or no namespace is given
    (`remembering`)."""
    remaining = dict(inputs)
    if FEATURES_OF.get() is None or ENCODED not in inspect.signature(model.forward).parameters:
        return remaining
    outputs: dict[str, Any] = dict(remaining.get(ENCODED) or {})
    for modality in MODALITIES:
        arguments = encoder_arguments(model, modality, remaining)
        if not any(name in arguments for name in PIXELS):
            continue
        shares = pixel_items(model.config.model_type, modality, arguments)
        if shares is None:
            continue
        outputs[modality] = _features(cache, model, modality, shares)
        for name in PIXELS:
            if name in arguments:
                del remaining[name]
    if outputs:
        remaining[ENCODED] = outputs
    return remaining


def encoder_arguments(model: Any, modality: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `generate` for the encoder of a modality; empty without such an encoder."""
    encoder = getattr(model.base_model, f"get_{modality}_features", None)
    if encoder is None:
        return {}
    names = inspect.signature(encoder).parameters
    return {name: inputs[name] for name in names if inputs.get(name) is not None}


@torch.no_grad()
def encode(model: Any, modality: str, arguments: Mapping[str, Any]) -> Any:
    """The output of a model's encoder."""
    return getattr(model.base_model, f"get_{modality}_features")(**arguments, return_dict=True)


@dataclass(frozen=True)
class FeaturePieces:
    """Features of some pixels: for each level a tensor ``[n, D]`` per piece. The first level takes
    the place of pixels; the model adds further ones in deeper layers (deepstack)."""

    levels: Sequence[Sequence[Tensor]]

    @classmethod
    def of(cls, output: Any, dropped: int = 0) -> FeaturePieces:
        """From an encoder's output, without `dropped` tokens at the end of each piece."""
        levels = [output.pooler_output, *(getattr(output, "deepstack_features", None) or ())]
        return cls([[piece[: len(piece) - dropped] for piece in level] for level in levels])


def completed(output: Any, levels: Sequence[list[Tensor]], num_states: int | None) -> Any:
    """An encoder's output with the features of all pixels. Hidden states before pooling are left
    out, because models do not read them; only their number is filled in."""
    is_stacked = isinstance(output.pooler_output, Tensor)
    output.pooler_output = torch.stack(levels[0]) if is_stacked else levels[0]
    if len(levels) > 1:
        output.deepstack_features = list(levels[1:])
    if num_states is not None:
        states = output.last_hidden_state
        output.last_hidden_state = states.new_zeros(()).expand(num_states, *states.shape[1:])
    return output


def _features(cache: PromptCache, model: Any, modality: str, shares: Shares) -> Any:
    """The encoder's output for all pixels of a modality, from its outputs for each item."""
    spans = shares.items()
    outputs = [_remembered(cache, model, modality, shares.arguments(*span)) for span in spans]
    if len(outputs) == 1:
        return outputs[0]
    pieces = [FeaturePieces.of(output) for output in outputs]
    groups = [shares.groups_of(*span) for span in spans]
    return completed(outputs[0], _grouped(pieces, groups, shares), shares.num_states)


def _remembered(cache: PromptCache, model: Any, modality: str, arguments: Mapping[str, Any]) -> Any:
    """The output of the encoder, from the cache if it has it. Nobody may change its tensors."""
    digest = content_digest(
        [("namespace", FEATURES_OF.get()), ("modality", modality), *sorted(arguments.items())]
    )
    output = cache.find_features(model, digest)
    if output is None:
        output = _slim(encode(model, modality, arguments))
        cache.store_features(model, digest, output, _num_bytes(output))
    return copy(output)


def _slim(output: Any) -> Any:
    """The output without hidden states and attention weights, of which the model reads none."""
    # A new one: setting an attribute to None leaves the tensors among the items of the old one.
    unread = ("hidden_states", "attentions")
    output = type(output)(**{name: value for name, value in output.items() if name not in unread})
    states = getattr(output, "last_hidden_state", None)
    if states is not None:
        output.last_hidden_state = states.new_zeros(()).expand(states.shape)
    return output


def _num_bytes(output: Any) -> int:
    tensors = [tensor for level in FeaturePieces.of(output).levels for tensor in level]
    return sum(tensor.nbytes for tensor in tensors)


def _grouped(
    pieces: Sequence[FeaturePieces], groups: Sequence[Sequence[int]], shares: Shares
) -> list[list[Tensor]]:
    """Features by level and group, from the pieces of each item and the groups of these."""
    levels: list[list[Tensor]] = []
    for level in range(len(pieces[0].levels)):
        parts: list[list[Tensor]] = [[] for _ in range(shares.groups)]
        for item, of_pieces in zip(pieces, groups, strict=True):
            for piece, group in zip(item.levels[level], of_pieces, strict=True):
                parts[group].append(piece)
        levels.append([torch.cat(group) for group in parts if group])
    return levels
