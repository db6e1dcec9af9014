"""Groups of processes that read prompts together.

None is a default group of torch.distributed: a program may have one of its own.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo

from draftlens.core.errors import HostError
from draftlens.core.locks import ForkAware, ForkLock
from draftlens.core.process_group import Arriving, Encoded
from draftlens.prefill.spava.processes.heartbeat import Beats, ignore
from draftlens.prefill.spava.processes.jobs import ALLOWED, packed, unpacked
from draftlens.prefill.spava.processes.transport import LinkWire, Operation, Wire, wire_of
from draftlens.prefill.spava.vision import encode_by_hosts

PATIENCE_SECONDS = 40.0
"""Longest time that a rank waits for another one inside an answer."""

START_SECONDS = 300.0
"""Longest time that a rank waits until all others have loaded the model."""

IDLE = timedelta(days=365)
"""How long a rank waits for its next job. The end of rank 0 ends the waiting."""

HEADER = 8
"""Bytes in front of a job: its size."""


class Links(Protocol):
    """How tensors of the CPU reach other ranks. Both begin an operation, and return an object whose
    `wait` takes a timeout; RuntimeError says that a rank was lost."""

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        """Send one tensor."""
        ...

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        """Receive into one tensor."""
        ...


class Signs(Protocol):
    """How a rank learns which of the others was lost, and tells them."""

    def silent(self) -> list[int]:
        """The ranks that give no sign of life, those that fell silent first in front."""
        ...

    def tell(self, why: str) -> str:
        """Tell the others that the group is lost; returns what was told first."""
        ...

    def stop(self) -> None:
        """The group is used no more."""
        ...


class GroupHosts(ForkAware):
    """`Hosts` over `Links`. Messages go from rank to rank directly.

    Args:
        rank, size: which rank, of how many.
        patience: seconds that a rank waits for another one inside an answer. It must be longer than
            one layer takes.
        links: to the other ranks.
        signs: of their life.
        jobs: classes of which jobs may consist.
    """

    remedy = ""
    """What can be done about a group that is lost."""

    def __init__(
        self,
        rank: int,
        size: int,
        patience: float,
        links: Links,
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
        """In a fork of the process that has met the others: have no part in the group."""
        self.lost = "the hosts belong to the process that this one is a fork of"

    def new_number(self) -> int:
        return next(self._numbers)

    def forget(self, number: int) -> None:
        self._forgotten.append(number)

    def encode(self, model: Any, inputs: Mapping[str, Any]) -> Encoded:
        return encode_by_hosts(model, self, inputs)

    def all_gather(self, local: Tensor, sizes: Sequence[int]) -> Arriving:
        others = [rank for rank in range(self.size) if rank != self.rank]
        return self._exchange(local, others, {rank: sizes[rank] for rank in others}, [*others])

    def pass_on(self, local: Tensor, size: int) -> Arriving:
        following = (self.rank + 1) % self.size
        previous = (self.rank - 1) % self.size
        return self._exchange(local, [following], {previous: size}, [previous], with_own=False)

    def gather(self, local: Tensor, sizes: Sequence[int] = ()) -> Arriving:
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
        """The wire for tensors of a device."""
        return LinkWire(self._links)

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
        """Use the group no more.

        Args:
            why: in a sentence, unless there is an earlier cause.
        """
        if self.lost is None:
            self.lost = self._signs.tell(why)
        self._signs.stop()

    def give(self, jobs: Sequence[Any]) -> None:
        forgotten = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
        for rank, job in enumerate(jobs, start=1):
            self._send_bytes(packed((forgotten, job)), rank)

    def next_job(self, device: torch.device) -> Any:
        """Wait for a job of rank 0; None if it has no more.

        Args:
            device: of the job's tensors.

        Raises:
            HostError: rank 0 is lost.
            ValueError: it has sent no job.
        """
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
            raise HostError(f"{self.lost}{self.remedy}")

    def _fail(self, rank: int, error: RuntimeError) -> NoReturn:
        """Raise for an operation with `rank` that failed: for another one, if that one has given no
        sign of life for longer."""
        silent = self._signs.silent()
        self.abandon(_sentence(silent[0] if silent else rank, bool(silent)))
        raise HostError(f"{self.lost}{self.remedy}") from error


class GlooHosts(GroupHosts):
    """A group over gloo, and over NCCL for tensors of GPUs if each rank has one of its own
    (`prefill.spava.processes.transport`). Jobs always go over gloo.

    `isend` and `irecv` are the fastest of gloo's ways between few processes and take tensors of
    different sizes. Whoever reaches the store or the ports of gloo can take part, so all of the
    network between the ranks is trusted.

    Args:
        store: the group's key-value store; the group's own client of it.
        rank, size, patience, jobs: as for `GroupHosts`.
        device: of gloo, see `ProcessGroupGloo.create_device`; None for the default.
        on_lost: called from another thread when another rank has found that the group is lost, with
            a sentence that says why.
    """

    remedy = ": start all processes again"

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        patience: float = PATIENCE_SECONDS,
        device: Any = None,
        on_lost: Callable[[str], None] = ignore,
        jobs: Sequence[type] = ALLOWED,
    ) -> None:
        beats = Beats(store.clone(), rank, size, on_lost)
        weakref.finalize(self, beats.stop).atexit = False  # which a fork would run, too
        gloo: Any = ProcessGroupGloo  # its stubs are incomplete
        options = gloo._Options()
        options._timeout = timedelta(seconds=START_SECONDS)  # of the connections
        options._devices = [device or gloo.create_default_device()]
        super().__init__(rank, size, patience, gloo(store, rank, size, options), beats, jobs)
        self._store = store
        self._wires: dict[torch.device, Wire] = {}

    def _wire_of(self, device: torch.device) -> Wire:
        """The wire for tensors of a device. Ranks make the same exchanges, so all of them choose at
        their first one."""
        gloo = LinkWire(self._links)
        if device.type == "cpu":
            return gloo
        if device not in self._wires:
            self._wires[device] = wire_of(
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
        hosts: GroupHosts,
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
        for rank, work in self._works:
            self._hosts.settle(rank, work)
        return [tensor.to(self._device) for tensor in self._tensors]


def _sentence(rank: int, is_silent: bool) -> str:
    if is_silent:
        return f"host {rank} has ended or was stopped while several hosts read a prompt together"
    return f"host {rank} did not answer in time while several hosts read a prompt together"
