"""Groups of processes that read prompts together. None is the default group of torch.distributed,
which belongs to the program."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo

from draftlens.core.errors import HostError
from draftlens.core.locks import ForkAware, ForkLock
from draftlens.models.prompt import Encoded
from draftlens.prefill.spava.hosts import Arriving
from draftlens.prefill.spava.processes.heartbeat import Heartbeat, Signs, ignore_loss
from draftlens.prefill.spava.processes.jobs import ALLOWED, packed, unpacked
from draftlens.prefill.spava.processes.transport import (
    LinkTransport,
    Operation,
    Transport,
    transport_of,
)
from draftlens.prefill.spava.vision import encode_by_ranks

PATIENCE_SECONDS = 40.0
"""Longest time in seconds that a rank waits for another one inside an answer."""

START_SECONDS = 300.0
"""Longest time in seconds that a rank waits until all others have loaded the model."""

IDLE = timedelta(days=365)
"""How long a rank waits for its next job; the end of rank 0 ends it."""

HEADER = 8
"""Bytes before a job: its size."""


class GroupRanks(ForkAware):
    """`Hosts` over links. Messages go from rank to rank directly.

    Args:
        patience: seconds that a rank waits for another one inside an answer. It must be longer than
            one layer takes.
        links: send and receive CPU tensors: `SocketLinks`, or a `ProcessGroupGloo`. The `wait` of
            what they return takes a timeout and raises RuntimeError if a rank was lost.
        jobs: classes of which jobs may consist.
    """

    remedy = ""
    """What the user can do about a lost group."""

    def __init__(
        self,
        rank: int,
        size: int,
        patience: float,
        links: Any,
        signs: Signs,
        jobs: Sequence[type] = ALLOWED,
    ) -> None:
        self.rank = rank
        self.size = size
        self.lost: str | None = None
        self.kept: dict[int, Any] = {}
        self._numbers = count()
        self._forgotten: deque[int] = deque()
        self._patience = timedelta(seconds=patience)
        self._answering = ForkLock()
        self._tag = 0
        self._links = links
        self._signs = signs
        self._jobs = jobs
        super().__init__()

    @property
    def is_usable(self) -> bool:
        return self.lost is None

    def leave_to_parent(self) -> None:
        """In a fork of the process that joined the group: have no part in it."""
        self.lost = "the hosts belong to the process that this one is a fork of"

    def new_number(self) -> int:
        return next(self._numbers)

    def forget(self, number: int) -> None:
        self._forgotten.append(number)

    def encode(self, model: Any, inputs: Mapping[str, Any]) -> Encoded:
        return encode_by_ranks(model, self, inputs)

    def all_gather(self, local: Tensor, sizes: Sequence[int]) -> Arriving:
        peers = [rank for rank in range(self.size) if rank != self.rank]
        return self._exchange(local, peers, {rank: sizes[rank] for rank in peers}, [*peers])

    def pass_on(self, local: Tensor, size: int) -> Arriving:
        following = (self.rank + 1) % self.size
        previous = (self.rank - 1) % self.size
        return self._exchange(local, [following], {previous: size}, [previous], with_own=False)

    def gather(self, local: Tensor, sizes: Sequence[int] = ()) -> Arriving:
        if self.rank:
            return self._exchange(local, [0], {}, [], with_own=False)
        peers = list(range(1, self.size))
        return self._exchange(local, [], {rank: sizes[rank] for rank in peers}, peers)

    def _exchange(
        self,
        local: Tensor,
        receivers: Sequence[int],
        sizes: dict[int, int],
        senders: Sequence[int],
        with_own: bool = True,
    ) -> Arriving:
        """Send `local`, flat, to `receivers` and receive `sizes` elements from `senders`;
        `with_own` puts `local` in the place of this rank in the result."""
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

    def _wire_of(self, device: torch.device) -> Transport:
        return LinkTransport(self._links)

    @contextmanager
    def answering(self) -> Iterator[None]:
        with self._answering:
            self._check()
            try:
                yield
            except BaseException:
                self.abandon("an answer was interrupted while several hosts read its prompt")
                raise

    def abandon(self, why: str) -> None:
        """Use the group no more; `why` is a sentence, replaced by an earlier cause."""
        if self.lost is None:
            self.lost = self._signs.tell(why)
        self._signs.stop()

    def give(self, jobs: Sequence[Any]) -> None:
        # They travel with the next job; `forget` may run in a finalizer, which must not send.
        forgotten = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
        for rank, job in enumerate(jobs, start=1):
            self._send_bytes(packed((forgotten, job)), rank)

    def next_job(self, device: torch.device) -> Any:
        """Wait for a job of rank 0, tensors on `device`; None if there are no more. Raises
        `HostError` if rank 0 is lost, `ValueError` if it has sent no job."""
        size = self._receive_bytes(HEADER, IDLE).view(torch.int64)
        if not int(size):
            return None
        parcel = self._receive_bytes(int(size), self._patience)
        forgotten, job = unpacked(parcel, device, self._jobs)
        for number in forgotten:
            self.kept.pop(number, None)
        return job

    def _send_bytes(self, content: memoryview, rank: int) -> None:
        header = torch.tensor([len(content)]).view(torch.uint8)
        body = torch.frombuffer(content, dtype=torch.uint8)
        for tensor in (header, body):
            self.settle(rank, self._begin(self._links.send, tensor, rank, 0))

    def _receive_bytes(self, size: int, patience: timedelta) -> Tensor:
        received = torch.empty(size, dtype=torch.uint8)
        self.settle(0, self._begin(self._links.recv, received, 0, 0), patience)
        return received

    def _begin(self, operation: Callable[..., Any], tensor: Tensor, rank: int, tag: int) -> Any:
        try:
            return operation([tensor], rank, tag)
        except RuntimeError as error:
            self._fail(rank, error)

    def settle(self, rank: int, work: Any, patience: timedelta | None = None) -> None:
        """Wait for an operation with another rank. Raises `HostError` with the lost rank."""
        try:
            work.wait(self._patience if patience is None else patience)
        except RuntimeError as error:
            self._fail(rank, error)

    def _check(self) -> None:
        if self.lost is not None:
            raise HostError(f"{self.lost}{self.remedy}")

    def _fail(self, rank: int, error: RuntimeError) -> NoReturn:
        """Raise for a failed operation with `rank`, or for a rank silent for longer."""
        silent = self._signs.silent()
        self.abandon(_sentence(silent[0] if silent else rank, bool(silent)))
        raise HostError(f"{self.lost}{self.remedy}") from error


class GlooRanks(GroupRanks):
    """A group over gloo, and over NCCL for tensors of GPUs if each rank has one of its own
    (`prefill.spava.processes.transport`). Jobs always go over gloo.

    `isend` and `irecv` are the fastest of gloo's ways between few processes and take tensors of
    different sizes. Any process that reaches the store or the ports of gloo can take part, so the
    whole network between the ranks is trusted.

    Args:
        store: the group's own client of its key-value store.
        device: of gloo, see `ProcessGroupGloo.create_device`; None for the default.
        on_lost: called from another thread with a sentence when another rank reports a loss.
    """

    remedy = ": start all processes again"

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        patience: float = PATIENCE_SECONDS,
        device: Any = None,
        on_lost: Callable[[str], None] = ignore_loss,
        jobs: Sequence[type] = ALLOWED,
    ) -> None:
        beats = Heartbeat(store.clone(), rank, size, on_lost)
        weakref.finalize(self, beats.stop).atexit = False  # which a fork would run, too
        gloo: Any = ProcessGroupGloo  # its stubs are incomplete
        options = gloo._Options()
        options._timeout = timedelta(seconds=START_SECONDS)  # of the connections
        options._devices = [device or gloo.create_default_device()]
        super().__init__(rank, size, patience, gloo(store, rank, size, options), beats, jobs)
        self._store = store
        self._wires: dict[torch.device, Transport] = {}

    def _wire_of(self, device: torch.device) -> Transport:
        """Ranks make the same exchanges, so all of them choose the transport at their first one."""
        gloo = LinkTransport(self._links)
        if device.type == "cpu":
            return gloo
        if device not in self._wires:
            self._wires[device] = transport_of(
                device, gloo, self._store, self.rank, self.size, self._patience
            )
        return self._wires[device]

    def end(self) -> None:
        """Let the others end; called by rank 0."""
        if self.lost is not None:
            return
        self.lost = "the group has ended"
        self._signs.stop()
        header = torch.zeros(HEADER, dtype=torch.uint8)
        for rank in range(1, self.size):
            with suppress(RuntimeError):  # it has ended already
                self._links.send([header], rank, 0).wait(timedelta(seconds=1))


class _Traveling(Arriving):
    """`tensors` from other ranks, in the order of ranks; `sent` must live until sent."""

    def __init__(
        self,
        hosts: GroupRanks,
        tensors: list[Tensor],
        works: Sequence[tuple[int, Any]],
        sent: Tensor,
        device: torch.device,
    ) -> None:
        super().__init__(tensors)
        self._hosts = hosts
        self._works = works
        self._sent = sent
        self._device = device

    def wait(self) -> list[Tensor]:
        for rank, work in self._works:
            self._hosts.settle(rank, work)
        return [tensor.to(self._device) for tensor in self._tensors]


def _sentence(rank: int, is_silent: bool) -> str:
    if is_silent:
        return f"host {rank} has ended or was stopped while several hosts read a prompt together"
    return f"host {rank} did not answer in time while several hosts read a prompt together"
