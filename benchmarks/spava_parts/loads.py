"""What the busiest host computes and exchanges of one prefill, for the cost model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from draftlens.prefill.spava.blocks import Share, divide
from draftlens.prefill.spava.ring_attention import Chunks
from draftlens.prefill.spava.ring_chunks import Length, tokens_of
from spava_parts.formulas import causal, pairs


@dataclass(frozen=True)
class Shape:
    """A prompt of one row, and the language model's attention.

    Args:
        context: n, tokens up to the last visual one.
        query: l_q, tokens behind.
        layers: of the language model.
        heads, groups: heads of the queries, and of the keys.
        width: of a head.
    """

    context: int
    query: int
    layers: int
    heads: int
    groups: int
    width: int

    @property
    def length(self) -> int:
        """Tokens of the row."""
        return self.context + self.query


@dataclass(frozen=True)
class Load:
    """Work of one host, all layers together.

    Args:
        tokens: that its linear layers read, each once.
        pairs: of a query and a key, of one head.
        calls: of the attention kernel.
        merged: tokens whose attention is merged with another part, once for each merge.
        copied: passing keys that are put behind each other, once for each block that sees them.
        elements: that arrive inside the layers.
        messages: that it waits for there.
        collected: elements of keys and values that other hosts send to rank 0 afterwards.
    """

    tokens: int
    pairs: int
    calls: int
    merged: int
    copied: int = 0
    elements: int = 0
    messages: int = 0
    collected: int = 0


Loader = Callable[[Shape, int], Load]
"""The load of the busiest of so many hosts."""


def full(shape: Shape, hosts: int) -> Load:
    """One causal pass; more hosts change nothing."""
    return Load(shape.length, shape.layers * causal(shape.length), shape.layers, 0)


def ring(shape: Shape, hosts: int) -> Load:
    """Rank 1, which holds the row's last token besides."""
    if hosts == 1:
        return full(shape, 1)
    chunks = Chunks(shape.length, hosts - 1, hosts)
    held = chunks.num_held(chunks.rank)
    # A late chunk attends to all chunks up to itself, an early one likewise.
    calls = sum(chunk + 1 for chunk in chunks.of(chunks.rank))
    merged = held // 2 * (calls - 2)
    per_token = 2 * shape.groups * shape.width
    return Load(
        chunks.num_local,
        shape.layers * causal(shape.length) // hosts,
        shape.layers * calls,
        shape.layers * merged,
        elements=shape.layers * per_token * (shape.length - held),
        messages=shape.layers * (hosts - 1),
        collected=shape.layers * per_token * (shape.length - chunks.num_held(0)),
    )


def in_blocks(shape: Shape, hosts: int, blocks: int, anchor: int, passing: int) -> Load:
    """The host with the most pairs, in zigzag."""
    division = divide(shape.length, shape.context, anchor, passing, blocks)
    shares = [Share(division, rank, hosts) for rank in range(hosts)]
    share = max(shares, key=pairs)
    per_token = 2 * shape.groups * shape.width
    passed = sum(division.passed(block) for block in range(blocks) if block not in share.mine)
    answers = shape.heads * shape.query * (shape.width + 1) * (hosts - 1)
    # The anchor, the query on the context and on itself; of each block itself and what it shares,
    # which with several hosts comes in two parts.
    parts = 1 if hosts == 1 else 2
    held = sum(division.size(block) for block in share.mine)
    copied = sum(division.passed(earlier) for block in share.mine for earlier in range(block))
    return Load(
        share.num_local,
        shape.layers * pairs(share),
        shape.layers * (3 + (1 + parts) * len(share.mine)),
        shape.layers * (parts * held + shape.query * hosts),
        shape.layers * copied,
        elements=shape.layers * (per_token * passed + answers) if hosts > 1 else 0,
        messages=shape.layers * 2 if hosts > 1 else 0,
        collected=shape.layers * per_token * (shape.length - int(shares[0].owned().sum())),
    )


def spava(anchor: Length = "n/64", passing: Length = "n/128", blocks: int = 0) -> Loader:
    """SPAVA; two blocks a host unless their number is given."""

    def load(shape: Shape, hosts: int) -> Load:
        l_a = tokens_of(anchor, shape.context)
        l_p = tokens_of(passing, shape.context)
        return in_blocks(shape, hosts, blocks or 2 * hosts, l_a, l_p)

    return load


def star(shape: Shape, hosts: int) -> Load:
    """Star Attention: one block a host, the first of which all others see. Its query is read in a
    second pass, which computes the same."""
    if hosts == 1:
        return full(shape, 1)
    block = shape.context // hosts
    per_query = shape.query * (block + shape.query)
    answers = shape.heads * shape.query * (shape.width + 1) * (hosts - 1)
    per_token = 2 * shape.groups * shape.width
    return Load(
        2 * block + shape.query,
        shape.layers * (2 * causal(block) + block * block + per_query),
        shape.layers * 4,
        shape.layers * (block + shape.query * hosts),
        elements=shape.layers * answers,
        messages=shape.layers,
        collected=shape.layers * per_token * (shape.length - block),
    )


LOADERS: Mapping[str, Loader] = {"ring": ring, "star": star, "spava": spava()}
"""Prefills that are tabulated, by name."""
