"""Attention scores of visual tokens, measured on the ranks with their keys (SpecVLM, eq. 4 and 5).

Each rank computes the log-sum-exp of the readers' scaled products with its own keys; merged over
the ranks these are the normalizers of the softmax over all keys. Then each sums the weights of its
own keys. `models.attention.scores` is the reference in one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlens.models.attention.scores import BLOCK
from draftlens.prefill.spava.hosts import Hosts


@dataclass(frozen=True)
class Readers:
    """The measured tokens of one row, int64 ``[R]``, rising, and the ranks with their queries."""

    places: Tensor
    owners: Tensor

    def number_of(self, rank: int) -> int:
        return int((self.owners == rank).sum())


@dataclass(frozen=True)
class Local:
    """One rank's part of one row in one layer: rotated queries of its readers ``[H, r, D]``,
    rotated keys of its tokens ``[H', n, D]``, and the places of these in the row, int64 ``[n]``."""

    queries: Tensor
    keys: Tensor
    places: Tensor


def probe_by_ranks(
    layers: Sequence[Sequence[Local]],
    scalings: Sequence[float],
    readers: Sequence[Readers],
    hosts: Hosts,
) -> list[list[Tensor]]:
    """Scores of this rank's tokens by layer and row, float32 ``[n]``; every rank calls it at the
    same time. The scalings are by layer; `readers` is the same on all ranks.

    For every token the score is the sum over heads and readers after it of the softmax over all
    tokens up to the reader, text and visual alike.
    """
    queries = _all_queries(layers, readers, hosts)
    rows = range(len(readers))
    normalizers = [
        [_normalizers(queries[number][row], layer[row], readers[row], scaling) for row in rows]
        for number, (layer, scaling) in enumerate(zip(layers, scalings, strict=True))
    ]
    merged = _merged(normalizers, hosts)
    return [
        [
            _weights(queries[number][row], layer[row], readers[row], scaling, merged[number][row])
            for row in rows
        ]
        for number, (layer, scaling) in enumerate(zip(layers, scalings, strict=True))
    ]


def _all_queries(
    layers: Sequence[Sequence[Local]], readers: Sequence[Readers], hosts: Hosts
) -> list[list[Tensor]]:
    """The queries of all readers, ``[H, R, D]`` by layer and row."""
    heads, _, width = layers[0][0].queries.shape
    message = torch.cat([local.queries.flatten() for layer in layers for local in layer])
    numbers = [[row.number_of(rank) for row in readers] for rank in range(hosts.size)]
    sizes = [len(layers) * heads * width * sum(of_rank) for of_rank in numbers]
    queries = [
        [
            local.queries.new_empty(heads, len(row.places), width)
            for local, row in zip(layer, readers, strict=True)
        ]
        for layer in layers
    ]
    for rank, piece in enumerate(hosts.all_gather(message, sizes).wait()):
        first = 0
        for layer in queries:
            for row, states in zip(readers, layer, strict=True):
                number = row.number_of(rank)
                end = first + heads * number * width
                states[:, row.owners == rank] = piece[first:end].view(heads, number, width)
                first = end
    return queries


def _products(
    queries: Tensor, local: Local, readers: Readers, scaling: float
) -> Iterator[tuple[int, slice, Tensor]]:
    """Scaled products of readers and keys, in parts that bound the memory: the head of the keys, a
    slice of its queries (reader by reader within each of its query heads), and their products,
    float32 ``[S, n]``, -inf where a key comes after a reader."""
    key_heads, num_keys, width = local.keys.shape
    grouped = queries.reshape(key_heads, -1, width)
    last_visible = readers.places.repeat(grouped.shape[1] // max(len(readers.places), 1))
    queries_per_part = max(1, BLOCK // max(num_keys, 1))
    for head in range(key_heads):
        keys = local.keys[head].float().transpose(0, 1)
        for begin in range(0, grouped.shape[1], queries_per_part):
            part = slice(begin, begin + queries_per_part)
            # In float32 from the start: unscaled products exceed the largest float16.
            products = (grouped[head, part].float() @ keys) * scaling
            hidden = local.places > last_visible[part, None]
            yield head, part, products.masked_fill_(hidden.to(products.device), -torch.inf)


def _normalizers(queries: Tensor, local: Local, readers: Readers, scaling: float) -> Tensor:
    """Log-sum-exp of each reader's products with the keys of this rank, float32 ``[H', S]``."""
    num_queries = queries.shape[0] * queries.shape[1] // local.keys.shape[0]
    normalizers = queries.new_empty(local.keys.shape[0], num_queries, dtype=torch.float32)
    for head, part, products in _products(queries, local, readers, scaling):
        normalizers[head, part] = products.logsumexp(-1)
    return normalizers


def _merged(normalizers: Sequence[Sequence[Tensor]], hosts: Hosts) -> list[list[Tensor]]:
    """Log-sum-exp over the keys of all ranks."""
    message = torch.cat([normalizer.flatten() for layer in normalizers for normalizer in layer])
    arrived = hosts.all_gather(message, [len(message)] * hosts.size).wait()
    total = torch.stack(arrived).logsumexp(0)
    merged = []
    first = 0
    for layer in normalizers:
        rows = []
        for normalizer in layer:
            rows.append(total[first : first + normalizer.numel()].view_as(normalizer))
            first += normalizer.numel()
        merged.append(rows)
    return merged


def _weights(
    queries: Tensor, local: Local, readers: Readers, scaling: float, normalizers: Tensor
) -> Tensor:
    """Attention of all readers and heads to each key of this rank, float32 ``[n]``."""
    total = torch.zeros(local.keys.shape[1], dtype=torch.float32, device=local.keys.device)
    for head, part, products in _products(queries, local, readers, scaling):
        total += torch.exp(products - normalizers[head, part, None]).sum(0)
    return total
