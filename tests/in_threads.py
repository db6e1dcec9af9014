"""A group of hosts whose ranks are threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any, TypeVar

from torch import Tensor

from draftlens.prefill.spava.hosts import Alone

Result = TypeVar("Result")

PATIENCE = 60.0
"""Seconds until a rank that makes other exchanges than the rest is given up."""


class InThreads(Alone):
    """One rank; exchanges as `Hosts` describes them.

    Args:
        rank: which.
        shared: of all ranks: where they leave their messages.
    """

    def __init__(self, rank: int, shared: list[Tensor | None], barrier: Barrier) -> None:
        super().__init__()
        self.rank = rank
        self.size = len(shared)
        self._shared = shared
        self._barrier = barrier

    def all_gather(self, local: Tensor, sizes: Sequence[int]) -> Any:
        self._shared[self.rank] = local.clone()
        self._barrier.wait(PATIENCE)
        arrived = [message for message in self._shared if message is not None]
        self._barrier.wait(PATIENCE)
        assert [message.numel() for message in arrived] == list(sizes)
        return SimpleNamespace(wait=lambda: arrived)


def by_all_ranks(size: int, work: Callable[[InThreads], Result]) -> list[Result]:
    """What each rank returns."""
    shared: list[Tensor | None] = [None] * size
    barrier = Barrier(size)
    with ThreadPoolExecutor(size) as ranks:
        calls = [ranks.submit(work, InThreads(rank, shared, barrier)) for rank in range(size)]
        return [call.result() for call in calls]
