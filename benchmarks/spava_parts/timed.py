"""A group that notes how long its rank waits for others."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from draftlens.models.prompt import Encoded
from draftlens.prefill.spava.hosts import Arriving, Hosts
from draftlens.prefill.spava.vision import encode_by_ranks


class TimedHosts:
    """The `Hosts` of rank 0, with the seconds of its exchanges.

    Args:
        hosts: of rank 0.

    Attributes:
        seconds: `deal` of giving jobs, `wait` of waiting inside the layers, and `collect` of
            collecting keys and values behind the pass.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.rank = hosts.rank
        self.size = hosts.size
        self.kept = hosts.kept
        self.seconds: dict[str, float] = {}
        self._hosts = hosts
        self.reset()

    @property
    def is_usable(self) -> bool:
        """See `Hosts.is_usable`."""
        return self._hosts.is_usable

    def reset(self) -> None:
        """Begin anew."""
        self.seconds = {"deal": 0.0, "wait": 0.0, "collect": 0.0}

    def new_number(self) -> int:
        """See `Hosts.new_number`."""
        return self._hosts.new_number()

    def forget(self, number: int) -> None:
        """See `Hosts.forget`."""
        self._hosts.forget(number)

    def all_gather(self, local: Tensor, sizes: Sequence[int]) -> Arriving:
        """See `Hosts.all_gather`."""
        return _Timed(self, "wait", self._hosts.all_gather(local, sizes))

    def pass_on(self, local: Tensor, size: int) -> Arriving:
        """See `Hosts.pass_on`."""
        return _Timed(self, "wait", self._hosts.pass_on(local, size))

    def gather(self, local: Tensor, sizes: Sequence[int] = ()) -> Arriving:
        """See `Hosts.gather`."""
        return _Timed(self, "collect", self._hosts.gather(local, sizes))

    def answering(self) -> AbstractContextManager[None]:
        """See `Hosts.answering`."""
        return self._hosts.answering()

    def give(self, jobs: Sequence[Any]) -> None:
        """See `Hosts.give`."""
        began = time.perf_counter()
        self._hosts.give(jobs)
        self.seconds["deal"] += time.perf_counter() - began

    def encode(self, model: Any, inputs: Mapping[str, Any]) -> Encoded:
        """See `Hosts.encode`."""
        return encode_by_ranks(model, self, inputs)


class _Timed(Arriving):
    def __init__(self, owner: TimedHosts, kind: str, arriving: Arriving) -> None:
        self._owner = owner
        self._kind = kind
        self._arriving = arriving

    def wait(self) -> list[Tensor]:
        """See `Arriving.wait`."""
        began = time.perf_counter()
        tensors = self._arriving.wait()
        self._owner.seconds[self._kind] += time.perf_counter() - began
        return tensors
