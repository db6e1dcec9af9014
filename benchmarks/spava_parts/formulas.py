"""Work of one host a layer by SPAVA's equation 7, by the exact count, and by the ring's."""

from __future__ import annotations

from dataclasses import dataclass

from draftlens.prefill.spava.blocks import Share


@dataclass(frozen=True)
class Sizes:
    """One prompt and one layer.

    Args:
        context: n, tokens up to the last visual one.
        query: l_q, tokens behind.
        hosts: H; there are two blocks a host.
        anchor, passing: l_a and l_p.
        heads, groups: heads of the queries, and of the keys.
        width: of a head.
    """

    context: int
    query: int
    hosts: int
    anchor: int
    passing: int
    heads: int
    groups: int
    width: int

    @property
    def block(self) -> float:
        """l_b."""
        return (self.context - self.anchor) / (2 * self.hosts)

    @property
    def model_width(self) -> int:
        """d of equation 7: heads times width."""
        return self.heads * self.width


def equation_7(sizes: Sizes) -> float:
    """FLOPs of one host a layer as the paper has them: 2 l_a² d + 4 l_b² d + 4 (2H-1) l_p l_b d."""
    passed = (2 * sizes.hosts - 1) * sizes.passing * sizes.block
    return sizes.model_width * (2 * sizes.anchor**2 + 4 * sizes.block**2 + 4 * passed)


def omitted(sizes: Sizes) -> float:
    """What it leaves out: blocks on the anchor, and the query on its share of all keys, and on
    itself on one host; a causal square of l tokens has l/2 products more than l²/2."""
    anchor = 8 * sizes.anchor * sizes.block
    seen = sizes.anchor / sizes.hosts + 2 * sizes.block
    query = 4 * sizes.query * seen
    diagonal = 2 * (sizes.anchor + 2 * sizes.block)
    return sizes.model_width * (anchor + query + diagonal)


def itself(sizes: Sizes) -> float:
    """The query on itself, which one host computes."""
    return sizes.model_width * 2 * sizes.query * (sizes.query + 1)


def ring(sizes: Sizes) -> float:
    """FLOPs of one host a layer of exact attention in zigzag: 1/H of a causal square."""
    length = sizes.context + sizes.query
    return sizes.model_width * 2 * length * (length + 1) / sizes.hosts


def received_by_spava(sizes: Sizes) -> float:
    """Elements that a host receives a layer: passing keys and values of all others' blocks but the
    last, which nobody needs, and the query's partial outputs with their log-sum-exps."""
    keys = 2 * sizes.groups * sizes.width * sizes.passing * (2 * sizes.hosts - 3)
    answers = sizes.heads * sizes.query * (sizes.width + 1) * (sizes.hosts - 1)
    return keys + answers


def received_by_ring(sizes: Sizes) -> float:
    """Elements that a host receives a layer: keys and values of all others."""
    length = sizes.context + sizes.query
    return 2 * sizes.groups * sizes.width * length * (sizes.hosts - 1) / sizes.hosts


def pairs(share: Share) -> int:
    """Pairs of a query and a key that one host computes of a row, exactly (eq. 4 and 5)."""
    blocks = share.blocks
    total = causal(blocks.anchor)
    seen_by_query = share.anchor_slice.stop - share.anchor_slice.start
    for block in share.mine:
        size = blocks.size(block)
        passed = sum(blocks.passed(earlier) for earlier in range(block))
        total += causal(size) + size * (blocks.anchor + passed)
        seen_by_query += size
    behind = blocks.length - blocks.context
    total += behind * int(seen_by_query)
    return total + (causal(behind) if share.rank == 0 else 0)


def causal(length: int) -> int:
    """Pairs of a query and a key in a causal square."""
    return length * (length + 1) // 2
