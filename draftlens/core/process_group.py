"""The processes that read a prompt together, as the layers below `distributed` see them.

Every rank holds the same model. Rank 0 answers: it owns rows, sampling, drafter and output. The
others follow it: they wait for jobs and take part in exchanges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from torch import Tensor


class Arriving(Protocol):
    """Tensors on their way."""

    def wait(self) -> list[Tensor]:
        """The tensors; may be called once.

        Raises:
            HostError: a host has ended, or has not sent its tensor in time.
        """
        ...


@dataclass(frozen=True)
class Encoded:
    """Arguments of `generate` after the processes have encoded pixels.

    Args:
        inputs: with features in place of the pixels that were divided.
        notes: which pixels rank 0 encodes alone, and why.
    """

    inputs: dict[str, Any]
    notes: tuple[str, ...] = ()


class Hosts(Protocol):
    """A group of processes. All exchanges are of flat tensors of one device; every rank knows the
    sizes of all, and every rank makes the same exchanges in the same order."""

    rank: int
    size: int

    kept: dict[int, Any]
    """What jobs have kept on this rank for later ones, by number."""

    @property
    def is_usable(self) -> bool:
        """Whether no rank is lost, as far as that is known."""
        ...

    def new_number(self) -> int:
        """A number under which jobs may keep something, given to nobody else; called by rank 0."""
        ...

    def forget(self, number: int) -> None:
        """Let all ranks drop what they have kept under a number, before their next job.

        Called by rank 0, from any thread and at any time, also while garbage is collected.
        """
        ...

    def all_gather(self, local: Tensor, sizes: Sequence[int]) -> Arriving:
        """Exchange a tensor of every rank.

        Args:
            local: of this rank, ``[sizes[rank]]``. It must not change until the result has arrived.
            sizes: elements of each rank's tensor; 0 is allowed.

        Returns:
            The tensors of all ranks, in their order.
        """
        ...

    def pass_on(self, local: Tensor, size: int) -> Arriving:
        """Send a tensor to the next rank and receive one of `size` elements from the previous."""
        ...

    def gather(self, local: Tensor, sizes: Sequence[int] = ()) -> Arriving:
        """Send a tensor of every rank to rank 0.

        Args:
            local: of this rank.
            sizes: elements of each rank's tensor; only rank 0 needs them.

        Returns:
            On rank 0 the tensors of all ranks, in their order; nothing on others.
        """
        ...

    def answering(self) -> AbstractContextManager[None]:
        """Entered by rank 0 around `give` and the exchanges that belong to it. One thread is inside
        at a time. If it is left by an exception, the hosts are lost: nobody knows which exchanges
        the others have made."""
        ...

    def give(self, jobs: Sequence[Any]) -> None:
        """Give a job to each rank above 0, in order: rank h runs ``jobs[h - 1].run(backbone,
        hosts)`` with its own backbone and group. Called by rank 0."""
        ...

    def encode(self, model: Any, inputs: Mapping[str, Any]) -> Encoded:
        """Encode the pixels among some arguments of `generate`, as far as they can be divided.

        Args:
            model: of rank 0, which calls this.
            inputs: the arguments, on the model's device.

        Raises:
            HostError: a process is lost.
        """
        ...


class Alone:
    """The group of a single process, which exchanges nothing."""

    rank = 0
    size = 1
    is_usable = True

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}
        self._numbers = count()

    def new_number(self) -> int:
        """See `Hosts.new_number`."""
        return next(self._numbers)

    def forget(self, number: int) -> None:
        """See `Hosts.forget`."""
        self.kept.pop(number, None)

    def all_gather(self, local: Tensor, sizes: Sequence[int]) -> Arriving:
        """See `Hosts.all_gather`."""
        return _Here([local])

    def pass_on(self, local: Tensor, size: int) -> Arriving:
        """See `Hosts.pass_on`."""
        return _Here([local])

    def gather(self, local: Tensor, sizes: Sequence[int] = ()) -> Arriving:
        """See `Hosts.gather`."""
        return _Here([local])

    def answering(self) -> AbstractContextManager[None]:
        """See `Hosts.answering`."""
        return nullcontext()

    def give(self, jobs: Sequence[Any]) -> None:
        """There is nobody to give them to."""

    def encode(self, model: Any, inputs: Mapping[str, Any]) -> Encoded:
        """The model encodes its own pixels."""
        return Encoded(dict(inputs))


class _Here:
    """What needs no journey."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def wait(self) -> list[Tensor]:
        """See `Arriving.wait`."""
        return self._tensors


ALONE = Alone()
