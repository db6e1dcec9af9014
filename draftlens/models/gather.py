"""A prompt with some of its tokens left out: what a pruned draft reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError, InputError, UnsupportedModelError
from draftlens.models.prompt import Prompt

POSITIONS = ("original", "compact")


def gather(prompt: Prompt, kept: Sequence[Tensor], positions: str = "original") -> Prompt:
    """The same prompt with only these tokens: embeddings, positions and deepstack features gathered
    together.

    Args:
        prompt: B rows.
        kept: per row the indices of the tokens that stay, int64 ``[K]``, strictly rising and below
            the row's length. Rows may keep different numbers.
        positions: `"original"` leaves every token at its position, so that relative distances stay
            true; `"compact"` closes the gaps that no axis uses any more, as if the rest had never
            been there.

    Raises:
        ConfigError: another word for `positions`.
        InputError: indices that do not rise or lie outside, a row without any, or another number of
            rows.
        UnsupportedModelError: the language model takes a further tensor that nobody knows how to
            gather.
    """
    if positions not in POSITIONS:
        raise ConfigError(f"unknown positions {positions!r}; known: {', '.join(POSITIONS)}")
    if len(kept) != len(prompt.lengths):
        raise InputError(f"{len(kept)} rows of kept tokens for a prompt of {len(prompt.lengths)}")
    lengths = [len(row) for row in kept]
    for row, length in zip(kept, prompt.lengths, strict=True):
        if (
            not len(row)
            or int(row[0]) < 0
            or int(row[-1]) >= length
            or bool((row.diff() <= 0).any())
        ):
            raise InputError(
                "kept tokens must be strictly rising indices inside their row, at least one"
            )
    device = prompt.embeds.device
    index = torch.zeros(len(kept), max(lengths), dtype=torch.long, device=device)
    real = torch.zeros_like(index, dtype=torch.bool)
    for number, row in enumerate(kept):
        index[number, : len(row)] = row.to(device)
        real[number, : len(row)] = True
    moved = Prompt(
        embeds=prompt.embeds.gather(1, index[..., None].expand(-1, -1, prompt.embeds.shape[-1])),
        position_ids=prompt.position_ids.gather(
            -1, index.expand(*prompt.position_ids.shape[:-1], -1)
        ),
        lengths=lengths,
        next_position=prompt.next_position,
        visual=prompt.visual.gather(1, index) & real,
        extra={
            name: _extra(name, value, prompt, index, real) for name, value in prompt.extra.items()
        },
    )
    return _closed_up(moved) if positions == "compact" else moved


def _extra(name: str, value: Any, prompt: Prompt, index: Tensor, real: Tensor) -> Any:
    """One further argument of the language model for the kept tokens only."""
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(part, Tensor) for part in value)
    ):
        return [_extra(name, part, prompt, index, real) for part in value]
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    shape = prompt.visual.shape
    if value.shape[:2] == shape:
        picked = value.gather(
            1, index.reshape(*index.shape, *[1] * (value.ndim - 2)).expand(-1, -1, *value.shape[2:])
        )
        return picked & real if picked.dtype is torch.bool else picked
    if value.shape[0] == int(
        prompt.visual.sum()
    ):  # one row a visual token of the whole batch, in order
        rank = prompt.visual.flatten().cumsum(0).view(shape) - 1
        return value[rank.gather(1, index)[prompt.visual.gather(1, index) & real]]
    raise UnsupportedModelError(
        f"the language model takes {name}, which cannot be pruned with the prompt's tokens"
    )


def _closed_up(prompt: Prompt) -> Prompt:
    """Positions that no token uses on any axis are closed up, row by row; tokens that shared one
    still do.

    Time, height and width count together; an axis before them, which counts tokens, is closed up by
    itself.
    """
    positions, following = prompt.position_ids.clone(), prompt.next_position.clone()
    new, after = (
        table if table.ndim == 3 else table[None] for table in (positions, following)
    )  # views
    axes = len(new)
    for group in (
        *(slice(axis, axis + 1) for axis in range(axes - 3)),
        slice(max(0, axes - 3), axes),
    ):
        for row, length in enumerate(prompt.lengths):
            old = new[group, row, :length]
            gap = after[group, row] - old[:, -1:]
            new[group, row, :length] = torch.unique(old, return_inverse=True)[1]
            after[group, row] = new[group, row, length - 1 : length] + gap
    return replace(prompt, position_ids=positions, next_position=following)
