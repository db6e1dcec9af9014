"""How tensors travel from rank to rank: by way of the CPU, or over NCCL between GPUs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed import PrefixStore, is_nccl_available  # type: ignore[attr-defined]

Fail = Callable[[int, RuntimeError], NoReturn]
"""Raises for an operation with a rank that failed."""


@dataclass(frozen=True)
class Operation:
    """One tensor that is sent or received.

    Args:
        rank: the other side.
        tensor: flat, not empty.
        is_send: whether it is sent.
    """

    rank: int
    tensor: Tensor
    is_send: bool


@dataclass(frozen=True)
class LinkWire:
    """Operations over gloo or sockets, of tensors of the CPU.

    Args:
        group: the links (`distributed.group.Links`).
    """

    group: Any

    def carried(self, tensor: Tensor) -> Tensor:
        """The tensor where the wire takes it from."""
        return tensor.cpu()

    def begin(self, operations: Sequence[Operation], tag: int, fail: Fail) -> list[tuple[int, Any]]:
        """Begin all operations of one exchange.

        Args:
            operations: of this rank.
            tag: number of the exchange, the same on all ranks.
            fail: called if one cannot be begun.

        Returns:
            Ranks and what to wait for.
        """
        works = []
        for operation in operations:
            act = self.group.send if operation.is_send else self.group.recv
            try:
                works.append((operation.rank, act([operation.tensor], operation.rank, tag)))
            except RuntimeError as error:
                fail(operation.rank, error)
        return works


@dataclass(frozen=True)
class NcclWire:
    """Operations over NCCL, of tensors of this rank's GPU. Waiting for them with a timeout holds up
    the calling thread, so that a lost rank is noticed as with gloo.

    Args:
        group: a `ProcessGroupNCCL`.
        device: of this rank.
    """

    group: Any
    device: torch.device

    def carried(self, tensor: Tensor) -> Tensor:
        """The tensor where the wire takes it from."""
        return tensor

    def begin(self, operations: Sequence[Operation], tag: int, fail: Fail) -> list[tuple[int, Any]]:
        """See `LinkWire.begin`. All are begun together: one after the other they could wait
        for each other in a circle."""
        if not operations:
            return []
        rank = operations[0].rank
        try:
            self.group._start_coalescing(self.device)
            for operation in operations:
                act = self.group.send if operation.is_send else self.group.recv
                act([operation.tensor], operation.rank, 0)
            return [(rank, self.group._end_coalescing(self.device))]
        except RuntimeError as error:
            fail(rank, error)


Wire = LinkWire | NcclWire
"""How the tensors of a device travel: `carried` is a tensor where the wire takes it from, and
`begin` begins all operations of one exchange."""


def wire_of(
    device: torch.device, gloo: LinkWire, store: Any, rank: int, size: int, patience: timedelta
) -> Wire:
    """The wire for tensors of a device; called by all ranks at the same time.

    NCCL is used if each rank has a GPU of its own, which NCCL needs.

    Args:
        device: of this rank's tensors.
        gloo: for everything else.
        store: key-value store of the group.
        rank, size: which rank, of how many.
        patience: longest time of an operation.
    """
    place = f"{socket.gethostname()} {device}" if device.type == "cuda" else ""
    store.set(f"device/{rank}", place)
    places = [store.get(f"device/{other}").decode() for other in range(size)]
    if not is_nccl_available() or "" in places or len(set(places)) < size:
        return gloo
    nccl: Any = torch.distributed.ProcessGroupNCCL  # type: ignore[attr-defined]
    options = nccl.Options()
    options._timeout = patience
    return NcclWire(nccl(PrefixStore("nccl", store), rank, size, options), device)
