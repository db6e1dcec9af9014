"""Means over blocks of visual tokens: a prompt with a quarter of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draftlens.models.prompt import Prompt
from draftlens.models.prompt_subset import gather


def pool(prompt: Prompt, size: int = 2) -> Prompt:
    """The prompt with the means over blocks of ``size x size`` cells of a frame as visual tokens.

    Blocks at the right and lower edge may be smaller. The mean replaces the block's first token,
    and gaps between positions are closed, so that the prompt reads like that of a smaller picture.
    A token that marks the end of a row of cells stays where a row of blocks ends. Deepstack
    features, if any, are pooled as well.
    """
    blocks = [_blocks(prompt, row, size) for row in range(len(prompt.lengths))]
    kept_tokens = []
    for row, length in enumerate(prompt.lengths):
        stays = ~prompt.visual[row, :length]
        _, firsts = _first_of(blocks[row])
        stays[_visual(prompt, row)[firsts]] = True
        kept_tokens.append(stays.nonzero()[:, 0])
    return gather(_averaged(prompt, blocks), kept_tokens, "compact")


def _visual(prompt: Prompt, row: int) -> Tensor:
    """Indices of the row's visual tokens, int64 ``[n]``."""
    return prompt.visual[row, : prompt.lengths[row]].nonzero()[:, 0]


def _blocks(prompt: Prompt, row: int, size: int) -> Tensor:
    """The block of each visual token of a row, int64 ``[n]``; blocks count by first appearance."""
    cells = prompt.cells[row, _visual(prompt, row)]
    if not len(cells):
        return cells.new_empty(0)
    # The end of a row of cells shares the cell of the token before it.
    ends_row = torch.zeros(len(cells), dtype=torch.bool, device=cells.device)
    ends_row[1:] = (cells.diff(dim=0) == 0).all(1)
    keys = torch.stack([cells[:, 0], cells[:, 1] // size, cells[:, 2] // size, ends_row.long()], 1)
    blocks: Tensor = torch.unique(keys, dim=0, return_inverse=True)[1]
    return blocks


def _first_of(blocks: Tensor) -> tuple[int, Tensor]:
    """The number of blocks, and for each the index of its first token."""
    number = int(blocks.max()) + 1 if len(blocks) else 0
    order = torch.arange(len(blocks), device=blocks.device)
    firsts = order.new_full((number,), len(blocks))
    firsts.scatter_reduce_(0, blocks, order, "amin")
    return number, firsts


def _averaged(prompt: Prompt, blocks: list[Tensor]) -> Prompt:
    embeds = prompt.embeds.clone()
    for row, row_blocks in enumerate(blocks):
        visual = _visual(prompt, row)
        embeds[row, visual] = _means(embeds[row, visual], row_blocks)
    num_visual = [len(row_blocks) for row_blocks in blocks]

    def averaged(features: Tensor) -> Tensor:
        parts = torch.split(features, num_visual)
        pairs = zip(parts, blocks, strict=True)
        return torch.cat([_means(part, row_blocks) for part, row_blocks in pairs])

    extra = {
        name: _per_visual_token(value, sum(num_visual), averaged)
        for name, value in prompt.extra.items()
    }
    pooled = replace(prompt, embeds=embeds, extra=extra)
    pooled.__dict__["cells"] = prompt.cells  # which follow from embeddings in some models
    return pooled


def _per_visual_token(value: Any, number: int, averaged: Callable[[Tensor], Tensor]) -> Any:
    """An argument of the language model, averaged if it holds one feature for each visual token of
    the batch (`models.prompt_subset` refuses tensors of other shapes)."""
    if isinstance(value, (list, tuple)):
        return [_per_visual_token(part, number, averaged) for part in value]
    if isinstance(value, dict):
        return {key: _per_visual_token(part, number, averaged) for key, part in value.items()}
    is_feature = isinstance(value, Tensor) and value.ndim == 2 and value.is_floating_point()
    return averaged(value) if is_feature and value.shape[0] == number else value


def _means(features: Tensor, blocks: Tensor) -> Tensor:
    """The mean of each feature's block, ``[n, D]``."""
    number, _ = _first_of(blocks)
    sums = features.new_zeros(number, features.shape[1], dtype=torch.float32)
    sums.index_add_(0, blocks, features.float())
    counts = torch.bincount(blocks, minlength=number)[:, None]
    return (sums / counts)[blocks].to(features.dtype)
