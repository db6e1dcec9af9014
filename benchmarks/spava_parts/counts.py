"""FLOPs and elements of every host, counted by the code and compared with the formulas."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from shared import Benchmark, Report, grid, table
from torch import Tensor

from draftlens.prefill.spava.blocks import Share, divide
from draftlens.prefill.spava.flops import Work
from draftlens.prefill.spava.hosts import Alone, Arriving
from draftlens.prefill.spava.rank_attention import ShardAttention
from draftlens.prefill.spava.ring_attention import Chunks, RingAttention
from spava_parts.formulas import (
    Sizes,
    equation_7,
    itself,
    omitted,
    received_by_ring,
    received_by_spava,
    ring,
)

QUERY = 24
HEADS = 8
GROUPS = 4
WIDTH = 32


class Silent(Alone):
    """A rank of a group whose others send zeros: what is counted does not depend on values.

    Args:
        rank, size: which rank, of how many.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def all_gather(self, local: Tensor, sizes: Sequence[int]) -> Arriving:
        """See `Hosts.all_gather`."""
        return Arriving([local.new_zeros(size) for size in sizes])

    def pass_on(self, local: Tensor, size: int) -> Arriving:
        """See `Hosts.pass_on`."""
        return Arriving([local.new_zeros(size)])


def compared(sizes: Sizes) -> dict[str, Any]:
    """Counts and formulas of one prompt."""
    zigzag = [spava_work(sizes, rank, True) for rank in range(sizes.hosts)]
    neighbours = [spava_work(sizes, rank, False) for rank in range(sizes.hosts)]
    around = [ring_work(sizes, rank) for rank in range(sizes.hosts)]
    expected = equation_7(sizes) + omitted(sizes)
    # The last host has no query on itself, which is rank 0's.
    return {
        **vars(sizes),
        "flops": [work.flops for work in zigzag],
        "flops of neighbours": [work.flops for work in neighbours],
        "equation 7": equation_7(sizes),
        "with omitted terms": expected,
        "error": max(abs(work.flops / expected - 1) for work in zigzag[1:]),
        "error of rank 0": abs(zigzag[0].flops / (expected + itself(sizes)) - 1),
        "spread": spread(zigzag),
        "spread of neighbours": spread(neighbours),
        "spread of the ring": spread(around),
        "ring": ring(sizes),
        "error of the ring": max(abs(work.flops / ring(sizes) - 1) for work in around),
        "received": max(work.received for work in zigzag),
        "error of received": mismatch(zigzag, received_by_spava(sizes)),
        "received by the ring": max(work.received for work in around),
        "error of received by the ring": mismatch(around, received_by_ring(sizes)),
    }


def spava_work(sizes: Sizes, rank: int, zigzag: bool) -> Work:
    """What one host computes and receives in one layer."""
    blocks = divide(
        sizes.context + sizes.query,
        sizes.context,
        sizes.anchor,
        sizes.passing,
        2 * sizes.hosts,
    )
    share = Share(blocks, rank, sizes.hosts, zigzag)
    hosts = Silent(rank, sizes.hosts)
    attention = ShardAttention([share], [share.num_local], hosts)
    attention(None, *states(share.num_local), None, scaling=1.0)
    return attention.work


def ring_work(sizes: Sizes, rank: int) -> Work:
    """The same of the ring."""
    chunks = Chunks(sizes.context + sizes.query, rank, sizes.hosts)
    attention = RingAttention([chunks], [chunks.num_local], Silent(rank, sizes.hosts))
    attention(None, *states(chunks.num_local), None, scaling=1.0)
    return attention.work


def states(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one layer."""
    keys = torch.zeros(1, GROUPS, length, WIDTH)
    return torch.zeros(1, HEADS, length, WIDTH), keys, keys


def spread(works: Sequence[Work]) -> float:
    """Largest difference between hosts, in relation to their mean."""
    flops = [work.flops for work in works]
    return (max(flops) - min(flops)) * len(flops) / sum(flops)


def mismatch(works: Sequence[Work], expected: float) -> float:
    """Largest difference between what the busiest host receives and a formula for it."""
    return abs(max(work.received for work in works) / expected - 1)


def crossing(sizes: Sizes) -> int | None:
    """The fewest hosts, a power of two, at which the ring needs no more FLOPs than spava."""
    for exponent in range(1, 13):
        hosts = 1 << exponent
        if 2 * hosts > sizes.context - sizes.anchor:
            return None
        more = replace(sizes, hosts=hosts)
        if ring(more) <= equation_7(more) + omitted(more):
            return hosts
    return None


def measure(args: argparse.Namespace) -> Report:
    """Counts by length and number of hosts."""
    sizes = [
        Sizes(context, QUERY, hosts, context // 64, context // 128, HEADS, GROUPS, WIDTH)
        for context in args.contexts
        for hosts in args.hosts
    ]
    return {"rows": [compared(each) for each in sizes]}


def page(report: Report) -> list[str]:
    """Counts and formulas, and where the ring needs less."""
    columns: dict[str, Any] = {
        "n": "{context:,}",
        "hosts": "{hosts}",
        "counted": lambda row: f"{max(row['flops']) / 1e6:.1f}",
        "eq. 7": lambda row: f"{row['equation 7'] / 1e6:.1f}",
        "with omitted": lambda row: f"{row['with omitted terms'] / 1e6:.1f}",
        "error": lambda row: f"{max(row['error'], row['error of rank 0']):.2%}",
        "spread": "{spread:.1%}",
        "neighbours": "{spread of neighbours:.0%}",
        "ring": lambda row: f"{row['ring'] / 1e6:.1f}",
        "received": "{received:,}",
        "error of received": "{error of received:.1%}",
        "by ring": "{received by the ring:,}",
        "error of it": "{error of received by the ring:.1%}",
    }

    lengths = {f"{context:,}": context for context in (1025, 4097, 16001, 65537, 262145)}

    def fewest(length: str, _: str) -> str:
        context = lengths[length]
        sizes = Sizes(context, QUERY, 1, context // 64, context // 128, HEADS, GROUPS, WIDTH)
        return str(crossing(sizes))

    return [
        f"One layer, {HEADS} heads of {WIDTH} over {GROUPS} heads of keys, a query of {QUERY} "
        "tokens, l_a = n/64, l_p = n/128, two blocks a host. MFLOPs of the busiest host; `error`: "
        "largest difference of a host from the formula; `spread`: largest difference between "
        "hosts; `neighbours`: the same without zigzag; `received`: elements of the host that "
        "receives most, 4 bytes each in float32, and how far it is from the formula.",
        table(report["rows"], columns),
        "## Where the ring needs fewer FLOPs",
        grid("n", lengths, ["from hosts"], fewest),
    ]


BENCHMARK = Benchmark(
    "spava_counts",
    __doc__,
    "Work of every host",
    measure,
    page,
    {"--contexts": [1025, 4097, 16001], "--hosts": [2, 4, 8, 16, 32, 64]},
)
