"""Greedy answers behind a prompt that is in a cache, and distributions along a given answer.

An answer is checked against a text that it probably repeats, so that it costs a few forwards
instead of one for each token. The tokens are those of decoding one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt

WIDEST = 48
"""Most draft tokens of one forward."""


@dataclass(frozen=True)
class Read:
    """A prompt in a cache.

    Args:
        prompt: what was read.
        cache: holds it.
        first: logits behind its last token, ``[V]``.
    """

    prompt: Prompt
    cache: KVCache
    first: Tensor


@dataclass(frozen=True)
class Spoken:
    """An answer.

    Args:
        tokens: with the token that ends it, if it has one.
        logits: by which each was chosen, ``[T, V]``.
    """

    tokens: list[int]
    logits: Tensor


def forward(backbone: Backbone, read: Read, tokens: Sequence[int], place: int) -> Tensor:
    """Logits behind each of some tokens of an answer, ``[T, V]``; the cache grows by them.

    Args:
        backbone: reads.
        read: the prompt, followed by the answer up to these tokens.
        tokens: of the answer.
        place: of the first of them in the answer.
    """
    steps = torch.arange(place, place + len(tokens))[None]
    length = read.cache.lengths[0]
    mask = torch.arange(length + len(tokens)) <= (length + torch.arange(len(tokens)))[:, None]
    positions = read.prompt.positions(steps)
    logits = backbone.forward(torch.tensor([tokens]), positions, read.cache, mask[None, None])
    return logits[0]


def along(backbone: Backbone, read: Read, answer: Sequence[int]) -> Tensor:
    """Logits for each token of a given answer, ``[T, V]``. The cache is as before afterwards."""
    if len(answer) == 1:
        return read.first[None]
    lengths = list(read.cache.lengths)
    logits = forward(backbone, read, answer[:-1], 0)
    read.cache.truncate(lengths)
    return torch.cat([read.first[None], logits])


def greedy(
    backbone: Backbone, read: Read, text: Sequence[int], ends: Collection[int], limit: int
) -> Spoken:
    """The greedy answer.

    Args:
        backbone: reads.
        read: the prompt; the cache grows.
        text: what the answer probably repeats.
        ends: tokens that end an answer.
        limit: most tokens.
    """
    rows = [read.first[None]]
    tokens = [int(read.first.argmax())]
    while tokens[-1] not in ends and len(tokens) < limit:
        drafted = following(text, tokens)[: min(WIDEST, limit - len(tokens) - 1)]
        length = read.cache.lengths[0]
        logits = forward(backbone, read, [tokens[-1], *drafted], len(tokens) - 1)
        chosen = logits.argmax(-1).tolist()
        count = 1
        for proposal, token in zip(drafted, chosen, strict=False):
            if proposal != token or token in ends:
                break
            count += 1
        read.cache.truncate([length + count])
        rows.append(logits[:count])
        tokens += chosen[:count]
    return Spoken(tokens, torch.cat(rows)[: len(tokens)])


def following(text: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """What follows in the text: behind the same place, or else behind the last two tokens."""
    place = len(tokens)
    if place <= len(text) and text[place - 1] == tokens[-1]:
        return list(text[place:])
    for end in range(2, len(text)):
        if list(text[end - 2 : end]) == list(tokens[-2:]):
            return list(text[end:])
    return []
