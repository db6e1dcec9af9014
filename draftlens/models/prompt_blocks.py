"""Prompts whose tokens attend to later ones: the tokens of a picture to each other, or a whole
prefix.

`Prompt.ahead` has by kind of layer which later tokens each token attends to, bool ``[B, L, L]``; an
empty name stands for all layers. Earlier tokens are visible to all, but for the windows of a kind
of layer. A block is a smallest run of tokens that no token before its end looks beyond: the keys
and values of a prompt are final at the ends of blocks only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from draftlens.core import tree as trees
from draftlens.core.errors import UnsupportedModelError
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prepared, Prompt

Ahead = Mapping[str, Tensor]


def read_ahead(name: str, masks: Any, real: Tensor, both_ways: bool) -> dict[str, Tensor] | None:
    """`Prompt.ahead` of the masks with which a model calls its language model, in their order of
    tokens; None if no token attends to a later one.

    Args:
        masks: boolean ``[B, 1, L, L]`` or additive ones by kind of layer, or one for all layers;
            None in place of those that hide nothing but later tokens.
        real: which tokens are no padding, bool ``[B, L]``.
        both_ways: whether a call without a mask lets tokens attend to later ones.

    Raises:
        UnsupportedModelError: a token does not attend to all earlier ones, though the layer has no
            window, or not in all heads.
    """
    by_kind = masks if isinstance(masks, Mapping) else {"": masks}
    pairs = real[:, :, None] & real[:, None, :]
    later = torch.ones_like(pairs[0]).triu(1)
    ahead = {}
    for kind, mask in by_kind.items():
        if not isinstance(mask, Tensor) or mask.ndim != 4:  # the model makes its own
            ahead[kind] = pairs & later if both_ways and bool(real.all()) else pairs & False
            continue
        visible = (mask if mask.dtype is torch.bool else mask == 0)[:, 0].to(pairs.device) & pairs
        ahead[kind] = visible & later
        sees_all_earlier = torch.equal(visible | later, pairs | later)
        if mask.shape[1] > 1 or not (sees_all_earlier or kind.startswith("sliding")):
            raise UnsupportedModelError(
                f"{name} hides earlier tokens of a prompt by an attention mask of its own, which "
                "is not supported"
            )
    if both_ways or any(bool(seen.any()) for seen in ahead.values()):
        return ahead
    return None


def reordered(ahead: Ahead, order: Tensor) -> dict[str, Tensor]:
    """The same for tokens selected by indices ``[B, K]``, as queries and as keys."""
    rows = torch.arange(len(order), device=order.device)[:, None, None]
    return {kind: seen[rows, order[:, :, None], order[:, None]] for kind, seen in ahead.items()}


def selected(ahead: Ahead, index: Tensor, real: Tensor) -> dict[str, Tensor]:
    """`reordered`, for rows that are padded after their tokens (bool ``[B, K]``)."""
    pairs = real[:, :, None] & real[:, None, :]
    return {kind: seen & pairs for kind, seen in reordered(ahead, index).items()}


def extended(ahead: Ahead, count: int) -> dict[str, Tensor]:
    """The same with `count` slots more, whose tokens attend to no later ones."""
    return {kind: nn.functional.pad(seen, (0, count, 0, count)) for kind, seen in ahead.items()}


def masks(ahead: Ahead, cache: KVCache, backbone: Any) -> Any:
    """Masks of the tokens of a prompt, or of a part of one, that follow those of a cache, in the
    form that the attention of the model takes: one, or a mapping of them by kind of layer."""
    seen = next(iter(ahead.values()))
    # A token attends to itself, also at padding: its softmax would have no entry otherwise.
    made = trees.attention_mask(cache.lengths, torch.ones_like(seen[0]).tril())
    if backbone.kinds is not None:
        made = backbone.kinds.masks(made, cache, seen.device)
    convert = backbone.attention_mask
    if not isinstance(made, Mapping):
        return convert(_with_later(made, ahead, "", cache.starts))
    slides = {kind: kind.startswith("sliding") for kind in made}
    return {
        kind: convert(
            _with_later(mask, ahead, kind, cache.starts if slides[kind] else cache.lengths)
        )
        for kind, mask in made.items()
    }


def _with_later(
    mask: Tensor | None, ahead: Ahead, kind: str, prefix: Sequence[int]
) -> Tensor | None:
    """A mask that also shows later tokens; `prefix` are the slots before the first token of each
    row that the layers read."""
    later = ahead.get(kind, ahead.get(""))
    if mask is None or later is None:
        return mask
    mask = mask.clone()
    for row, start in enumerate(prefix):
        mask[row, 0, :, start : start + later.shape[1]] |= later[row]
    return mask


def block_ends(prompt: Prompt, row: int) -> Tensor:
    """Where the block of each token of a row ends (the index after its last token), int64
    ``[length]``."""
    length = prompt.lengths[row]
    own = torch.arange(1, length + 1)
    if prompt.ahead is None:
        return own
    furthest = own.clone()
    for seen in prompt.ahead.values():
        places = (seen[row, :length, :length].cpu() * own).amax(1)
        furthest = torch.maximum(furthest, places)
    # A prefix is closed if none of its tokens looks beyond it.
    closed = own[furthest.cummax(0).values == own]
    return closed[torch.searchsorted(closed, own)]


def end_of_part(prompt: Prompt, row: int, start: int, most: int) -> int:
    """Where a part of a row ends that begins at `start`: after at most `most` tokens, or after the
    first block if that is longer."""
    length = prompt.lengths[row]
    end = min(start + most, length)
    if prompt.ahead is None or end in (start, length):
        return end
    ends = block_ends(prompt, row)
    first = int(ends[start])
    return first if first > end else int(ends[ends <= end].max())


def ends_of_parts(prompt: Prompt, most: int) -> list[int]:
    """Where parts end in which all rows of a prompt are read together: after at most `most` tokens,
    or after the first block if that is longer."""
    length = prompt.embeds.shape[1]
    is_end = torch.ones(length + 1, dtype=torch.bool)
    for row, own in enumerate(prompt.lengths if prompt.ahead is not None else ()):
        is_closed = torch.zeros(length + 1, dtype=torch.bool)
        is_closed[block_ends(prompt, row)] = True
        is_closed[own:] = True
        is_end &= is_closed
    ends: list[int] = []
    start = last = 0
    for place in is_end[1:].nonzero().flatten().add(1).tolist():
        if place - start > most and last > start:
            ends.append(last)
            start = last
        last = place
    return [*ends, length]


def with_blocks(prompt: Prompt, row: int, digests: list[bytes]) -> list[bytes]:
    """Digests of a row's tokens, each with those of its whole block: the keys of a token follow
    from later tokens of the block, too."""
    ends = block_ends(prompt, row).tolist()
    mixed: list[bytes] = []
    for end in dict.fromkeys(ends):
        block = digests[len(mixed) : end]
        if len(block) > 1:
            whole = blake2b(b"".join(block), digest_size=len(block[0]))
            for kind, seen in sorted((prompt.ahead or {}).items()):
                whole.update(kind.encode())
                whole.update(seen[row, len(mixed) : end, len(mixed) : end].cpu().numpy().tobytes())
            block = [
                blake2b(digest + whole.digest(), digest_size=len(digest)).digest()
                for digest in block
            ]
        mixed += block
    return mixed


def by_steps(backbone: Any, prepared: Prepared, tokens: Tensor) -> tuple[Tensor, Prompt]:
    """The logits ``[B, V]`` after the last of the tokens ``[B, T]`` as the loop of `generate` finds
    them, token by token after a prompt: in one pass the prompt would see the tokens, too. And the
    prompt."""
    from draftlens.models.stock_rows import Loop

    prompt: Prompt = backbone.encode(prepared)
    loop = Loop(prepared.model, prepared.input_ids, dict(prepared.model_kwargs))
    logits = loop.read()
    for token in tokens.unbind(1):
        logits = loop.advance(range(len(tokens)), token[:, None])
    return logits[:, -1], prompt
