"""Checks of a pair and of prompts, before a model reads anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import IncompatiblePairError, InputError
from draftlens.core.options import as_real, shown
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prepared

MAX_PADDING = 1024
"""Largest difference between the (padded) vocabulary sizes of models with the same tokenizer."""


PIXELS = frozenset({"image", "video"})


def check_vocabularies(target: Backbone, draft: Backbone) -> None:
    """Raise `IncompatiblePairError` if the sizes differ by more than padding."""
    if abs(target.vocab_size - draft.vocab_size) > MAX_PADDING:
        raise IncompatiblePairError(
            f"target {target.name} and draft {draft.name} have {target.vocab_size} and "
            f"{draft.vocab_size} token ids, so they cannot share a tokenizer"
        )


def unseen(target: Backbone, draft: Backbone) -> frozenset[str]:
    """The kinds of input (image, video) that the target takes and the draft does not."""
    return (target.modalities & PIXELS) - draft.modalities


def is_blind(target: Backbone, draft: Backbone) -> bool:
    """Whether the draft takes no pictures and no clips, and the target does."""
    return bool(unseen(target, draft)) and not draft.modalities & PIXELS


def check_modalities(target: Backbone, draft: Backbone, remedy: str = "") -> None:
    """Raise `IncompatiblePairError` plus `remedy` unless the draft takes the target's media."""
    missing = unseen(target, draft)
    if missing:
        kinds = ", ".join(sorted(missing))
        raise IncompatiblePairError(
            f"the draft {draft.name} cannot see what the target {target.name} can: {kinds}{remedy}"
        )


def check_tokenizers(target: Any, draft: Any, target_name: str, draft_name: str) -> None:
    """Raise `IncompatiblePairError` unless all token ids that both tokenizers have represent the
    same text; the message names the first difference."""
    target_tokens = _tokens_by_id(target)
    draft_tokens = _tokens_by_id(draft)
    for token_id in sorted(target_tokens.keys() & draft_tokens.keys()):
        if target_tokens[token_id] != draft_tokens[token_id]:
            raise IncompatiblePairError(
                f"the tokenizers of {target_name} and {draft_name} differ: id {token_id} is "
                f"{target_tokens[token_id]!r} in one and {draft_tokens[token_id]!r} in the other"
            )
    if abs(len(target_tokens) - len(draft_tokens)) > MAX_PADDING:
        raise IncompatiblePairError(
            f"the tokenizers of {target_name} and {draft_name} have {len(target_tokens)} and "
            f"{len(draft_tokens)} tokens"
        )


def _tokens_by_id(tokenizer: Any) -> dict[int, str]:
    return {token_id: token for token, token_id in tokenizer.get_vocab().items()}


STRETCHED = ("linear", "yarn")
"""Kinds of RoPE with configurations that may state the positions before they are multiplied by the
factor. Others (`llama3`, `longrope`) state the positions with the factor."""

UNBOUNDED = ("dynamic",)
"""Kinds of RoPE that adapt to a prompt of any length."""

ATTENDS_TO_PADDING = ("git",)
"""Model types whose `generate` shifts the mask of padded rows (transformers 5.24)."""

LONG_PROMPT = "allow_long_prompt"
"""The option that lets a prompt have more positions than the model was made for."""


def check_tokens(described: str, inputs: Any, num_ids: int | None = None) -> None:
    """Refuse token ids and a mask that are no batch of prompts.

    Args:
        described: the argument, for the message.
        inputs: the output of a processor; without `input_ids` nothing is checked.
        num_ids: token ids of the model; None to allow ids that it does not have.

    Raises:
        InputError: names the cause.
    """
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"{described} must be the output of a processor, a mapping of names to tensors, "
            f"not {shown(inputs)}"
        )
    ids = inputs.get("input_ids")
    if ids is None:
        return
    name = f"input_ids of {described}"
    _check_matrix(name, ids)
    if ids.dtype not in (torch.int64, torch.int32):
        raise InputError(f"{name} must be whole numbers, int64 or int32, not {ids.dtype}")
    if ids.numel() == 0:
        raise InputError(f"{name} must hold at least one row and one token, not {list(ids.shape)}")
    lowest, highest = torch.stack(ids.aminmax()).tolist()
    if lowest < 0:
        raise InputError(f"{name} must be at least 0, and hold {lowest}")
    if num_ids is not None and highest >= num_ids:
        raise InputError(f"{name} hold {highest}, and the model's token ids are 0 to {num_ids - 1}")
    mask = inputs.get("attention_mask")
    if mask is None:
        return
    _check_matrix(f"attention_mask of {described}", mask)
    if mask.shape != ids.shape:
        raise InputError(
            f"attention_mask of {described} must have the shape of input_ids, "
            f"{list(ids.shape)}, not {list(mask.shape)}"
        )


def _check_matrix(name: str, values: Any) -> None:
    if not isinstance(values, Tensor):
        raise InputError(f"{name} must be a tensor [rows, tokens], not {shown(values)}")
    if values.ndim != 2:
        raise InputError(f"{name} must be a tensor [rows, tokens], not {list(values.shape)}")
    if values.is_meta:
        raise InputError(f"{name} must hold values, and a tensor on the device 'meta' has none")


def num_ids_of(backbone: Backbone) -> int | None:
    """How many token ids a model can read; None if its embeddings do not show it."""
    num_embeddings = getattr(backbone.embed, "num_embeddings", None)
    if not isinstance(num_embeddings, int):
        return None
    further = getattr(backbone.embed, "num_additional_embeddings", 0)
    # Placeholders of pictures may lie above the embeddings, which they are replaced before.
    return max(num_embeddings + further, *(token + 1 for token in backbone.pixel_ids), 0)


def check_length(backbone: Backbone, prepared: Prepared, allowed: bool) -> None:
    """Raise `InputError` for a prompt of more positions than the model was made for (its answers
    are usually nonsense), unless `allowed`. Several visual tokens may share a position."""
    limit = max_positions(backbone.text_config)
    if allowed or limit is None:
        return
    needed = min(prepared.input_ids.shape[1], max(prepared.prompt_positions))
    if needed > limit:
        raise InputError(
            f"the prompt has {needed} positions and {backbone.name} is made for {limit}: use fewer "
            f"frames, smaller images or a shorter text ({LONG_PROMPT}=True answers all the same)"
        )


def check_padding(backbone: Backbone, prepared: Prepared) -> None:
    """Raise `InputError` for padded rows of a model whose own `generate` answers them wrongly, so
    that there is no answer to be equal to."""
    mask = prepared.model_kwargs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return
    if backbone.model.config.model_type in ATTENDS_TO_PADDING and bool((mask == 0).any()):
        raise InputError(
            f"{backbone.name} of transformers attends to the padding of a batch, which changes its "
            "answers: give prompts of one length, or each prompt in a call of its own"
        )
    if backbone.indexers is not None and bool((mask == 0).any()):
        backbone.indexers.check_padding()


def max_positions(text_config: Any) -> int | None:
    """The positions that a language model was made for; None if it has no bound."""
    stated = getattr(text_config, "max_position_embeddings", None)
    if not isinstance(stated, int) or stated < 1:
        return None
    num_positions = stated
    for rope in _ropes(text_config):
        kind = rope.get("rope_type", rope.get("type"))
        if kind in UNBOUNDED:
            return None
        factor = as_real(rope.get("factor"))
        if kind in STRETCHED and factor is not None:
            original = rope.get("original_max_position_embeddings") or stated
            num_positions = max(num_positions, int(original * factor))
    return num_positions


def _ropes(text_config: Any) -> Iterator[Mapping[str, Any]]:
    """RoPE parameters, several if the layers of the model differ."""
    for name in ("rope_parameters", "rope_scaling"):
        parameters = getattr(text_config, name, None)
        if isinstance(parameters, Mapping):
            yield parameters
            yield from (nested for nested in parameters.values() if isinstance(nested, Mapping))
