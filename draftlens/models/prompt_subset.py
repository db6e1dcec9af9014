"""Selects some of a prompt's tokens: the prompt that a draft with pruning reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError, InputError, UnsupportedModelError
from draftlens.models.prompt import Prompt

POSITIONS = ("original", "compact")


@dataclass(frozen=True)
class _Selection:
    """Selected tokens of B rows, padded to the longest: indices int64 ``[B, K]`` (0 at padding),
    which of them are real, bool ``[B, K]``, and the prompt's visual tokens, bool ``[B, L]``."""

    index: Tensor
    real: Tensor
    visual: Tensor


def gather(prompt: Prompt, kept_indices: Sequence[Tensor], positions: str = "original") -> Prompt:
    """The prompt with only the given tokens: embeddings, positions and all other arguments per
    token, such as deepstack features.

    Args:
        kept_indices: for each row the indices of the tokens to keep, int64 ``[K]``, strictly rising
            and below the row's length. K may differ between rows.
        positions: `"original"` leaves every token at its position, which preserves relative
            distances. `"compact"` closes the gaps on all axes.

    Raises:
        ConfigError: `positions` is not one of `POSITIONS`.
        InputError: invalid indices, a row that keeps no token, or another number of rows.
        UnsupportedModelError: the language model takes a further tensor of unknown shape.
    """
    if positions not in POSITIONS:
        raise ConfigError(f"unknown positions {positions!r}; known: {', '.join(POSITIONS)}")
    _check_indices(prompt, kept_indices)
    selection = _select(prompt, kept_indices)
    axes = prompt.position_ids.shape[:-1]
    pruned = Prompt(
        embeds=_gather_tokens(prompt.embeds, selection),
        position_ids=prompt.position_ids.gather(-1, selection.index.expand(*axes, -1)),
        lengths=[len(indices) for indices in kept_indices],
        next_position=prompt.next_position,
        visual=_gather_tokens(prompt.visual, selection),
        extra={
            name: _gather_argument(name, value, selection) for name, value in prompt.extra.items()
        },
        ahead=_gather_ahead(prompt, selection),
    )
    if positions == "compact":
        return _close_gaps(pruned)
    return pruned


def _check_indices(prompt: Prompt, kept_indices: Sequence[Tensor]) -> None:
    if len(kept_indices) != len(prompt.lengths):
        raise InputError(
            f"{len(kept_indices)} rows of kept tokens for a prompt of {len(prompt.lengths)}"
        )
    for indices, length in zip(kept_indices, prompt.lengths, strict=True):
        if not _are_valid(indices, length):
            raise InputError(
                "kept tokens must be strictly rising indices inside their row, at least one"
            )


def _are_valid(indices: Tensor, length: int) -> bool:
    """Whether indices ``[K]`` are strictly rising, inside a row of this length, and not empty."""
    if not len(indices):
        return False
    if int(indices[0]) < 0 or int(indices[-1]) >= length:
        return False
    return bool((indices.diff() > 0).all())


def _select(prompt: Prompt, kept_indices: Sequence[Tensor]) -> _Selection:
    device = prompt.embeds.device
    shape = (len(kept_indices), max(len(indices) for indices in kept_indices))
    index = torch.zeros(shape, dtype=torch.long, device=device)
    real = torch.zeros(shape, dtype=torch.bool, device=device)
    for row, indices in enumerate(kept_indices):
        index[row, : len(indices)] = indices.to(device)
        real[row, : len(indices)] = True
    return _Selection(index, real, prompt.visual)


def _gather_argument(name: str, value: Any, selection: _Selection) -> Any:
    """One further argument of the language model: tensors, also in sequences and dicts, are
    selected, other values stay. Raises `UnsupportedModelError` for any other tensor."""
    if _is_tensor_sequence(value):
        return [_gather_argument(name, part, selection) for part in value]
    if isinstance(value, dict):
        return {key: _gather_argument(name, part, selection) for key, part in value.items()}
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    if value.shape[:2] == selection.visual.shape:
        return _gather_tokens(value, selection)
    if value.shape[0] == int(selection.visual.sum()):
        return _gather_visual_tokens(value, selection)
    raise UnsupportedModelError(
        f"the language model takes {name}, which cannot be pruned with the prompt's tokens"
    )


def _gather_ahead(prompt: Prompt, selection: _Selection) -> Mapping[str, Tensor] | None:
    if prompt.ahead is None:
        return None
    from draftlens.models import prompt_blocks

    return prompt_blocks.selected(prompt.ahead, selection.index, selection.real)


def _is_tensor_sequence(value: Any) -> bool:
    if not isinstance(value, (list, tuple)) or not value:
        return False
    return all(isinstance(part, Tensor) for part in value)


def _gather_tokens(value: Tensor, selection: _Selection) -> Tensor:
    """From ``[B, L, ...]`` to ``[B, K, ...]``; masks are False at padding."""
    feature_shape = value.shape[2:]
    shape = (*selection.index.shape, *[1] * len(feature_shape))
    picked = value.gather(1, selection.index.reshape(shape).expand(-1, -1, *feature_shape))
    if picked.dtype is torch.bool:
        return picked & selection.real.reshape(shape)
    return picked


def _gather_visual_tokens(value: Tensor, selection: _Selection) -> Tensor:
    """Select from a tensor with one row for each visual token of the whole batch, in order."""
    rank = selection.visual.flatten().cumsum(0).view(selection.visual.shape) - 1
    kept_visual = _gather_tokens(selection.visual, selection)
    return value[rank.gather(1, selection.index)[kept_visual]]


def _close_gaps(prompt: Prompt) -> Prompt:
    """Renumber the positions of each row so that no position between two tokens is unused; tokens
    that share a position still do. Time, height and width are renumbered together, an axis before
    them (a token count) by itself."""
    position_ids = prompt.position_ids.clone()
    next_position = prompt.next_position.clone()
    # Views of the clones with an axis dimension: what is written to them changes the clones.
    positions = position_ids if position_ids.ndim == 3 else position_ids[None]
    following = next_position if next_position.ndim == 3 else next_position[None]
    for axes in _joint_axes(len(positions)):
        for row, length in enumerate(prompt.lengths):
            old = positions[axes, row, :length]
            new = torch.unique(old, return_inverse=True)[1]
            gap = following[axes, row] - old[:, -1:]
            positions[axes, row, :length] = new
            following[axes, row] = new[:, -1:] + gap
    return replace(prompt, position_ids=position_ids, next_position=next_position)


def _joint_axes(num_axes: int) -> list[slice]:
    """The last three axes together, and each one before them alone."""
    first_joint = max(0, num_axes - 3)
    groups = [slice(axis, axis + 1) for axis in range(first_joint)]
    return [*groups, slice(first_joint, num_axes)]
