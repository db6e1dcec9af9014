"""The ranks that read a prompt together. Each holds the same model; rank 0 owns rows, sampling,
drafter and output, the others wait for jobs and take part in exchanges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, Protocol

from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.models.model_state import Slot
from draftlens.models.prompt import Encoded, unencoded


class Arriving:
    """Tensors that are being received; here they have arrived already."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def wait(self) -> list[Tensor]:
        """The tensors; may be called once. Raises HostError if a rank has ended or timed out."""
        return self._tensors


class Hosts(Protocol):
    """A group of ranks that exchange flat tensors of one device, all in the same order."""

    rank: int
    size: int

    kept: dict[int, Any]
    """Values that jobs keep on this rank for later jobs, by number."""

    @property
    def is_usable(self) -> bool:
        """False once a rank is known to be lost."""
        ...

    def new_number(self) -> int:
        """A unique key for `kept`; called by rank 0."""
        ...

    def forget(self, number: int) -> None:
        """Drop `kept` values before the next job; by any thread of rank 0, at any time."""
        ...

    def all_gather(self, local: Tensor, sizes: Sequence[int]) -> Arriving:
        """Tensors of all ranks; `local` ``[sizes[rank]]`` must not change before the result."""
        ...

    def pass_on(self, local: Tensor, size: int) -> Arriving:
        """Send a tensor to the next rank and receive one of `size` elements from the previous."""
        ...

    def gather(self, local: Tensor, sizes: Sequence[int] = ()) -> Arriving:
        """Send tensors to rank 0, which alone needs `sizes` and receives them in order."""
        ...

    def answering(self) -> AbstractContextManager[None]:
        """Entered by one thread of rank 0 around `give` and its exchanges. An exception inside
        loses the group, because the ranks' exchanges no longer match."""
        ...

    def give(self, jobs: Sequence[Any]) -> None:
        """Give a job to each rank above 0: rank h runs ``jobs[h - 1].run(backbone, hosts)`` with
        its own backbone and group. Called by rank 0."""
        ...

    def encode(self, model: Any, inputs: Mapping[str, Any]) -> Encoded:
        """Encode pixels among `generate`'s arguments, divided over the ranks as far as possible;
        the notes name the pixels that rank 0 encodes alone. Called by rank 0; raises HostError if a
        rank is lost."""
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
        return next(self._numbers)

    def forget(self, number: int) -> None:
        self.kept.pop(number, None)

    def all_gather(self, local: Tensor, sizes: Sequence[int]) -> Arriving:
        return Arriving([local])

    def pass_on(self, local: Tensor, size: int) -> Arriving:
        return Arriving([local])

    def gather(self, local: Tensor, sizes: Sequence[int] = ()) -> Arriving:
        return Arriving([local])

    def answering(self) -> AbstractContextManager[None]:
        return nullcontext()

    def give(self, jobs: Sequence[Any]) -> None:
        """No other rank exists."""

    def encode(self, model: Any, inputs: Mapping[str, Any]) -> Encoded:
        return Encoded(dict(inputs))


ALONE = Alone()

_HOSTS = Slot[Hosts]("ranks of a backbone")


def hosts_of(backbone: Backbone) -> Hosts:
    """The ranks that read the prompts of a backbone."""
    return _HOSTS.get(backbone) or ALONE


def set_hosts(backbone: Backbone, hosts: Hosts) -> None:
    """Let these ranks read the prompts of a backbone and encode its pixels."""
    _HOSTS.set(backbone, hosts)
    backbone.encode_pixels = unencoded if hosts.size == 1 else hosts.encode
