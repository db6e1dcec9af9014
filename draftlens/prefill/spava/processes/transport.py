"""Tensors from rank to rank: by way of the CPU, or over NCCL between GPUs."""

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
"""Raises for a failed operation with a rank."""


@dataclass(frozen=True)
class Operation:
    """One flat, non-empty tensor that is sent to or received from `rank`."""

    rank: int
    tensor: Tensor
    is_send: bool


@dataclass(frozen=True)
class LinkTransport:
    """Operations on CPU tensors over gloo or sockets (the links of `process_group.GroupRanks`)."""

    group: Any

    def carried(self, tensor: Tensor) -> Tensor:
        """The tensor on the device that the transport reads."""
        return tensor.cpu()

    def begin(self, operations: Sequence[Operation], tag: int, fail: Fail) -> list[tuple[int, Any]]:
        """Begin all operations of one exchange; its number `tag` is the same on all ranks. Returns
        ranks and what to wait for, or calls `fail`."""
        works = []
        for operation in operations:
            act = self.group.send if operation.is_send else self.group.recv
            try:
                works.append((operation.rank, act([operation.tensor], operation.rank, tag)))
            except RuntimeError as error:
                fail(operation.rank, error)
        return works


@dataclass(frozen=True)
class NcclTransport:
    """Operations on tensors of this rank's GPU over a `ProcessGroupNCCL`. Waiting for them with a
    timeout blocks the calling thread, so that a lost rank is noticed as with gloo."""

    group: Any
    device: torch.device

    def carried(self, tensor: Tensor) -> Tensor:
        return tensor

    def begin(self, operations: Sequence[Operation], tag: int, fail: Fail) -> list[tuple[int, Any]]:
        """All are begun together: one after the other they could deadlock in a circle."""
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


Transport = LinkTransport | NcclTransport


def transport_of(
    device: torch.device, gloo: LinkTransport, store: Any, rank: int, size: int, patience: timedelta
) -> Transport:
    """The transport for tensors of a device; called by all ranks at the same time. NCCL is used if
    each rank has a GPU of its own, which NCCL needs; otherwise `gloo`."""
    place = f"{socket.gethostname()} {device}" if device.type == "cuda" else ""
    store.set(f"device/{rank}", place)
    places = [store.get(f"device/{peer}").decode() for peer in range(size)]
    if not is_nccl_available() or "" in places or len(set(places)) < size:
        return gloo
    nccl: Any = torch.distributed.ProcessGroupNCCL  # type: ignore[attr-defined]
    options = nccl.Options()
    options._timeout = patience
    return NcclTransport(nccl(PrefixStore("nccl", store), rank, size, options), device)
