"""How a row of tokens is divided for attention in blocks (SPAVA, section 3.2 and appendix B.2).

A row is its anchor, blocks of about equal length, and the query after the last visual token::

    | anchor |  block 0  |  block 1  | ... | block N-1 |  query  |
    0       l_a                                        n        length
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Blocks:
    """The parts of one row, in tokens from its beginning.

    Args:
        length: tokens of the row.
        context: n, the end of the last block; the query, which chooses passing keys, follows it.
        edges: beginning of each block, and the end of the last one; the anchor lies before the
            first.
        passing: l_p, keys that each block passes on to later ones, at most.
    """

    length: int
    context: int
    edges: tuple[int, ...]
    passing: int

    @property
    def anchor(self) -> int:
        """l_a, tokens of the anchor."""
        return self.edges[0]

    @property
    def count(self) -> int:
        return len(self.edges) - 1

    def span(self, block: int) -> slice:
        return slice(self.edges[block], self.edges[block + 1])

    def size(self, block: int) -> int:
        return self.edges[block + 1] - self.edges[block]

    def passed(self, block: int) -> int:
        """Keys that a block passes on; 0 for the last block."""
        if block == self.count - 1:
            return 0
        return min(self.passing, self.size(block))


def near_equal_parts(total: int, count: int) -> list[int]:
    """Sizes of `count` parts of a whole that differ by one at most, larger ones first (eq. 6).

    Example:

        >>> near_equal_parts(11, 4)
        [3, 3, 3, 2]
    """
    share, rest = divmod(total, count)
    return [share + (part < rest) for part in range(count)]


def divide(length: int, context: int, anchor: int, passing: int, count: int) -> Blocks:
    """A row with `count` blocks that differ by one token at most; count <= context - anchor."""
    edges = [anchor]
    for size in near_equal_parts(context - anchor, count):
        edges.append(edges[-1] + size)
    return Blocks(length, context, tuple(edges), passing)


def dealt(count: int, size: int, zigzag: bool = True) -> list[list[int]]:
    """The blocks of each rank, rising.

    In zigzag, ranks take one block each from the front and then one each from the back of every
    2 x `size` blocks. With as many pairs as ranks, rank h has the blocks h and 2H-1-h of the paper.
    Otherwise ranks have neighbouring blocks.

    Example:

        >>> dealt(8, 2)
        [[0, 3, 4, 7], [1, 2, 5, 6]]
    """
    hands: list[list[int]] = [[] for _ in range(size)]
    if not zigzag:
        first = 0
        for rank, share in enumerate(near_equal_parts(count, size)):
            hands[rank] = list(range(first, first + share))
            first += share
        return hands
    for block in range(count):
        place = block % (2 * size)
        rank = place if place < size else 2 * size - 1 - place
        hands[rank].append(block)
    return hands


@dataclass(frozen=True)
class Share:
    """The tokens of a row on one of several ranks: the anchor, its blocks, and the query, in this
    order. Anchor and query are on every rank."""

    blocks: Blocks
    rank: int
    size: int
    zigzag: bool = True

    @property
    def mine(self) -> Sequence[int]:
        """The blocks of this rank, rising."""
        return self.of(self.rank)

    def of(self, rank: int) -> Sequence[int]:
        return dealt(self.blocks.count, self.size, self.zigzag)[rank]

    @property
    def anchor_slice(self) -> slice:
        """The part of the anchor that the query attends to on this rank."""
        sizes = near_equal_parts(self.blocks.anchor, self.size)
        first = sum(sizes[: self.rank])
        return slice(first, first + sizes[self.rank])

    @property
    def num_local(self) -> int:
        """Tokens on this rank, copies included."""
        block_tokens = sum(self.blocks.size(block) for block in self.mine)
        return self.blocks.anchor + block_tokens + self.blocks.length - self.blocks.context

    def local_spans(self) -> list[slice]:
        """The blocks of `mine` as slices of this rank's tokens."""
        spans = []
        first = self.blocks.anchor
        for block in self.mine:
            spans.append(slice(first, first + self.blocks.size(block)))
            first += self.blocks.size(block)
        return spans

    def indices(self) -> Tensor:
        """Row indices of this rank's tokens, int64, rising."""
        pieces = [torch.arange(self.blocks.anchor)]
        for block in self.mine:
            span = self.blocks.span(block)
            pieces.append(torch.arange(span.start, span.stop))
        pieces.append(torch.arange(self.blocks.context, self.blocks.length))
        return torch.cat(pieces)

    def owned(self) -> Tensor:
        """Which of these tokens the rank owns, bool: its slice of the anchor, its blocks, and on
        rank 0 the query. Every token of the row has one owner."""
        is_owned = torch.zeros(self.num_local, dtype=torch.bool)
        is_owned[self.anchor_slice] = True
        for span in self.local_spans():
            is_owned[span] = True
        if self.rank == 0:
            is_owned[self.num_local - (self.blocks.length - self.blocks.context) :] = True
        return is_owned
