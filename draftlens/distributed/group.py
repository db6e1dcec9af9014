"""A group of processes over torch.distributed.

The group is no default group of torch: a program may have one of its own.
"""

from __future__ import annotations

import io
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo

from draftlens.core.errors import HostError
from draftlens.core.hosts import Arriving
from draftlens.distributed.beats import Beats, ignore
from draftlens.distributed.wires import GlooWire, Operation, Wire, wire_of

PATIENCE_SECONDS = 40.0
"""Longest time that a rank waits for another one inside an answer."""

START_SECONDS = 300.0
"""Longest time that a rank waits until all others have loaded the model."""

IDLE = timedelta(days=365)
"""How long a rank waits for its next job. The end of rank 0 ends the waiting."""

HEADER = 8
"""Bytes in front of a job: its size."""


class GlooHosts:
    """`Hosts` over gloo, and over NCCL for tensors of GPUs if each rank has one of its own
    (`distributed.wires`). Jobs always go over gloo.

    Messages go from rank to rank directly (`isend` and `irecv`), which is the fastest of gloo's
    ways between few processes and takes tensors of different sizes.

    Args:
        store: the group's key-value store; the group's own client of it.
        rank, size: which rank, of how many.
        patience: seconds that a rank waits for another one inside an answer. It must be longer than
            one layer takes.
        device: of gloo, see `ProcessGroupGloo.create_device`; None for the default.
        on_lost: called from another thread when another rank has found that the group is lost, with
            a sentence that says why.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        patience: float = PATIENCE_SECONDS,
        device: Any = None,
        on_lost: Callable[[str], None] = ignore,
    ) -> None:
        self.rank = rank
        self.size = size
        self.lost: str | None = None
        self.kept: dict[int, Any] = {}
        self._numbers = count()
        self._forgotten: deque[int] = deque()
        self._patience = timedelta(seconds=patience)
        self._beats = Beats(store.clone(), rank, size, on_lost)
        weakref.finalize(self, self._beats.stop)
        self._answering = threading.RLock()
        self._tag = 0
        gloo: Any = ProcessGroupGloo  # its stubs are incomplete
        options = gloo._Options()
        options._timeout = timedelta(seconds=START_SECONDS)  # of the connections
        options._devices = [device or gloo.create_default_device()]
        self._group: Any = gloo(store, rank, size, options)
        self._gloo = GlooWire(self._group)
        self._store = store
        self._wires: dict[torch.device, Wire] = {}

    def new_number(self) -> int:
        """See `Hosts.new_number`."""
        return next(self._numbers)

    def forget(self, number: int) -> None:
        """See `Hosts.forget`."""
        self._forgotten.append(number)

    def all_gather(self, local: Tensor, sizes: Sequence[int]) -> Arriving:
        """See `Hosts.all_gather`."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        return self._exchange(local, others, {rank: sizes[rank] for rank in others}, [*others])

    def pass_on(self, local: Tensor, size: int) -> Arriving:
        """See `Hosts.pass_on`."""
        following = (self.rank + 1) % self.size
        previous = (self.rank - 1) % self.size
        return self._exchange(local, [following], {previous: size}, [previous], with_own=False)

    def gather(self, local: Tensor, sizes: Sequence[int] = ()) -> Arriving:
        """See `Hosts.gather`."""
        if self.rank:
            return self._exchange(local, [0], {}, [], with_own=False)
        others = list(range(1, self.size))
        return self._exchange(local, [], {rank: sizes[rank] for rank in others}, others)

    def _exchange(
        self,
        local: Tensor,
        receivers: Sequence[int],
        sizes: dict[int, int],
        senders: Sequence[int],
        with_own: bool = True,
    ) -> Arriving:
        """Send `local` to some ranks and receive from others.

        Args:
            local: flat.
            receivers, senders: ranks.
            sizes: elements that each sender sends.
            with_own: whether the result has `local` in the place of this rank.
        """
        self._check()
        self._tag += 1
        wire = self._wire_of(local.device)
        sent = wire.carried(local)
        tensors: dict[int, Tensor] = {self.rank: sent} if with_own else {}
        operations: list[Operation] = []
        for rank in senders:
            tensors[rank] = sent.new_empty(sizes[rank])
            if sizes[rank]:
                operations.append(Operation(rank, tensors[rank], is_send=False))
        for rank in receivers:
            if sent.numel():
                operations.append(Operation(rank, sent, is_send=True))
        works = wire.begin(operations, self._tag, self._fail)
        ordered = [tensors[rank] for rank in sorted(tensors)]
        return _Traveling(self, ordered, works, sent, local.device)

    def _wire_of(self, device: torch.device) -> Wire:
        """The wire for tensors of a device. Ranks make the same exchanges, so all of them choose at
        their first one."""
        if device.type == "cpu":
            return self._gloo
        if device not in self._wires:
            self._wires[device] = wire_of(
                device, self._gloo, self._store, self.rank, self.size, self._patience
            )
        return self._wires[device]

    @contextmanager
    def answering(self) -> Iterator[None]:
        """See `Hosts.answering`."""
        with self._answering:
            self._check()
            try:
                yield
            except BaseException:
                self.abandon(
                    "an answer was interrupted while several hosts read its prompt: load again"
                )
                raise

    def abandon(self, why: str) -> None:
        """Use the group no more.

        Args:
            why: in a sentence, unless there is an earlier cause.
        """
        if self.lost is None:
            self.lost = self._beats.tell(why)
        self._beats.stop()

    def give(self, jobs: Sequence[Any]) -> None:
        """See `Hosts.give`."""
        forgotten = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
        for rank, job in enumerate(jobs, start=1):
            buffer = io.BytesIO()
            torch.save((forgotten, job), buffer)
            self._send_bytes(buffer.getbuffer(), rank)

    def next_job(self, device: torch.device) -> Any:
        """Wait for a job of rank 0; None if it has no more.

        Args:
            device: of the job's tensors.
        """
        size = self._receive_bytes(HEADER, IDLE).view(torch.int64)
        if not int(size):
            return None
        parcel = self._receive_bytes(int(size), self._patience)
        buffer = io.BytesIO(parcel.numpy().tobytes())
        # It comes from a process of the same user and program.
        forgotten, job = torch.load(buffer, weights_only=False, map_location=device)
        for number in forgotten:
            self.kept.pop(number, None)
        return job

    def end(self) -> None:
        """Let the others end; called by rank 0."""
        if self.lost is not None:
            return
        self.lost = "the group has ended"
        self._beats.stop()
        header = torch.zeros(HEADER, dtype=torch.uint8)
        for rank in range(1, self.size):
            with suppress(RuntimeError):  # it has ended already
                self._group.send([header], rank, 0).wait(timedelta(seconds=1))

    def _send_bytes(self, content: memoryview, rank: int) -> None:
        header = torch.tensor([len(content)]).view(torch.uint8)
        body = torch.frombuffer(content, dtype=torch.uint8)
        for tensor in (header, body):
            self.settle(rank, self._begin(self._group.send, tensor, rank, 0))

    def _receive_bytes(self, size: int, patience: timedelta) -> Tensor:
        received = torch.empty(size, dtype=torch.uint8)
        self.settle(0, self._begin(self._group.recv, received, 0, 0), patience)
        return received

    def _begin(self, operation: Callable[..., Any], tensor: Tensor, rank: int, tag: int) -> Any:
        try:
            return operation([tensor], rank, tag)
        except RuntimeError as error:
            self._fail(rank, error)

    def settle(self, rank: int, work: Any, patience: timedelta | None = None) -> None:
        """Wait for an operation with another rank.

        Raises:
            HostError: a rank was lost; the message names it.
        """
        try:
            work.wait(self._patience if patience is None else patience)
        except RuntimeError as error:
            self._fail(rank, error)

    def _check(self) -> None:
        if self.lost is not None:
            raise HostError(self.lost)

    def _fail(self, rank: int, error: RuntimeError) -> NoReturn:
        """Raise for an operation with `rank` that failed: for another one, if that one has given no
        sign of life for longer."""
        silent = self._beats.silent()
        self.abandon(_sentence(silent[0] if silent else rank, bool(silent)))
        assert self.lost is not None
        raise HostError(self.lost) from error


class _Traveling:
    """See `Arriving`.

    Args:
        hosts: the group.
        tensors: what arrives, in the order of ranks.
        works: operations and the ranks they are with.
        sent: what is sent; it must live until it has been.
        device: where the tensors are needed.
    """

    def __init__(
        self,
        hosts: GlooHosts,
        tensors: list[Tensor],
        works: Sequence[tuple[int, Any]],
        sent: Tensor,
        device: torch.device,
    ) -> None:
        self._hosts = hosts
        self._tensors = tensors
        self._works = works
        self._sent = sent
        self._device = device

    def wait(self) -> list[Tensor]:
        """See `Arriving.wait`."""
        for rank, work in self._works:
            self._hosts.settle(rank, work)
        return [tensor.to(self._device) for tensor in self._tensors]


def _sentence(rank: int, is_silent: bool) -> str:
    if is_silent:
        return f"host {rank} has ended or was stopped while several hosts read a prompt together"
    return f"host {rank} did not answer in time while several hosts read a prompt together"
