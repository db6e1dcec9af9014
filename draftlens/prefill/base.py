"""The protocol of all prefills."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from torch import Tensor

from draftlens.core.checks import shown
from draftlens.core.errors import ConfigError
from draftlens.core.options import make
from draftlens.core.prefill_readings import PrefillFeatures
from draftlens.core.registry import Registry
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.reading import PrefillReading

NO_INPUTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class PrefillOutput:
    """The result of reading a prompt.

    Args:
        logits: after each row's last token, ``[B, 1, V]``.
        readings: the readings that were requested.
        approximate: what differed from the model's own prefill for these rows, in words for the
            user: all or nothing of `Prefill.approximate`.
        notes: messages to the user, by row.
        cached: tokens of each row that were not read, since a prompt cache had them; empty for
            none.
    """

    logits: Tensor
    readings: PrefillFeatures
    approximate: tuple[str, ...] = ()
    notes: Mapping[int, str] = field(default_factory=dict)
    cached: Sequence[int] = ()


class Prefill(Protocol):
    """Reads prompts with the target."""

    @property
    def approximate(self) -> tuple[str, ...]:
        """What differs from the model's own prefill, in words for the user; empty if exact."""
        ...

    def check_hosts(self, hosts: Any) -> None:
        """Refuse a number of processes before a model is loaded.

        Args:
            hosts: number of processes that read prompts together; None for those of torchrun, or
                this one alone.

        Raises:
            ConfigError: it is no number of at least 1, or this prefill cannot use it.
        """
        ...

    def own_device(self, device: str | None) -> str | None:
        """The device of this process's model, where several processes of a machine have one each;
        `device` is as for `draftlens.load`."""
        ...

    def meet(
        self, backbone: Backbone, hosts: int | None = None, inputs: Mapping[str, Any] = NO_INPUTS
    ) -> None:
        """Let a model read its prompts together with other processes, if there are any.

        Args:
            backbone: of the model.
            hosts: as for `check_hosts`.
            inputs: of the request in this process; empty if there is none yet.

        Raises:
            ConfigError: the model reads its prompts with another number of processes already.
            InputError: the inputs differ between processes of torchrun.
            HostError: the other processes did not start.
        """
        ...

    def check(self, backbone: Backbone) -> None:
        """Refuse a model whose prompts cannot be read in this way.

        Raises:
            UnsupportedModelError: the message names the reason.
        """
        ...

    def new_cache(self, backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
        """An empty cache for what `run` reads; arguments as for `Backbone.new_cache`."""
        ...

    def run(self, backbone: Backbone, reading: PrefillReading) -> PrefillOutput:
        """Read a prompt into an empty cache and take the requested readings."""
        ...

    @property
    def divides_prompts(self) -> bool:
        """Whether `run_parts` divides long prompts."""
        ...

    def run_parts(
        self, backbone: Backbone, reading: PrefillReading, size: Callable[[], int | None]
    ) -> Iterator[PrefillOutput | None]:
        """`run` in parts of at most `size()` tokens of each row, None for all at once. Yields None
        after each part but the last."""
        ...


class AtOnce:
    """`Prefill.run_parts` of a prefill that does not divide prompts."""

    divides_prompts: ClassVar[bool] = False

    def run_parts(
        self: Prefill, backbone: Backbone, reading: PrefillReading, size: Callable[[], int | None]
    ) -> Iterator[PrefillOutput | None]:
        yield self.run(backbone, reading)


class OneProcess(AtOnce):
    """The parts of `Prefill` about several processes, for a prefill that one process runs."""

    def check_hosts(self, hosts: Any) -> None:
        check_is_number_of_hosts(hosts)
        if hosts is not None and hosts > 1:
            raise ConfigError("several hosts read prompts by prefill 'ring' or 'spava': name one")

    def own_device(self, device: str | None) -> str | None:
        return device

    def meet(
        self, backbone: Backbone, hosts: int | None = None, inputs: Mapping[str, Any] = NO_INPUTS
    ) -> None: ...


def check_is_number_of_hosts(hosts: Any) -> None:
    """Raise `ConfigError` unless `hosts` is None or a whole number of at least 1."""
    if hosts is not None and (type(hosts) is not int or hosts < 1):
        raise ConfigError(f"hosts must be a whole number of at least 1, not {shown(hosts)}")


PREFILLS = Registry(
    "prefill",
    {
        "full": "draftlens.prefill.full:FullPrefill",
        "ring": "draftlens.prefill.spava.ring:RingPrefill",
        "spava": "draftlens.prefill.spava.config:SpavaPrefill",
    },
    group="draftlens.prefills",
    lab=("spava-ablation", "star"),
)


def make_prefill(choice: Any) -> Prefill:
    """A prefill from a name, a mapping with `name` and options, or itself. Raises `ConfigError`."""
    prefill: Prefill = make(PREFILLS, choice, "run")
    return prefill
