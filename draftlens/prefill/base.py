"""The seam of all prefills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor

from draftlens.core.checks import shown
from draftlens.core.errors import ConfigError
from draftlens.core.options import make
from draftlens.core.prefill_readings import Readings
from draftlens.core.registry import Registry
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.reading import Reading

NO_INPUTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class PrefillOutput:
    """The result of reading a prompt.

    Args:
        logits: after each row's last token, ``[B, 1, V]``.
        readings: the readings that were requested.
        approximate: what differed from the model's own prefill for these rows, in words for the
            user: all or nothing of `Prefill.approximate`.
        notes: what the user should know about a row, by row.
    """

    logits: Tensor
    readings: Readings
    approximate: tuple[str, ...] = ()
    notes: Mapping[int, str] = field(default_factory=dict)


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
        """The device of this process's model, where several processes of a machine have one each.

        Args:
            device: as for `draftlens.load`.
        """
        ...

    def meet(
        self, backbone: Backbone, hosts: int | None = None, inputs: Mapping[str, Any] = NO_INPUTS
    ) -> None:
        """Let a model read its prompts together with other processes, if there are any.

        Args:
            backbone: of the model.
            hosts: as for `check_hosts`.
            inputs: what this process asks; empty if nothing yet.

        Raises:
            ConfigError: the model reads its prompts with another number of processes already.
            InputError: processes of torchrun ask different things.
            HostError: the other processes did not start.
        """
        ...

    def check(self, backbone: Backbone) -> None:
        """Refuse a model whose prompts cannot be read in this way.

        Raises:
            UnsupportedModelError: the message says why.
        """
        ...

    def new_cache(self, backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
        """An empty cache for what `run` reads; arguments as for `Backbone.new_cache`."""
        ...

    def run(self, backbone: Backbone, reading: Reading) -> PrefillOutput:
        """Read a prompt into an empty cache and take the readings that are wanted.

        Args:
            backbone: reads.
            reading: what, and what is wanted of it.
        """
        ...


class OneProcess:
    """What a prefill that one process runs says about several."""

    def check_hosts(self, hosts: Any) -> None:
        check_is_number_of_hosts(hosts)
        if hosts is not None and hosts > 1:
            raise ConfigError("several hosts read prompts by prefill 'ring' or 'spava': name one")

    def own_device(self, device: str | None) -> str | None:
        return device

    def meet(
        self, backbone: Backbone, hosts: int | None = None, inputs: Mapping[str, Any] = NO_INPUTS
    ) -> None:
        """See `Prefill.meet`."""


def check_is_number_of_hosts(hosts: Any) -> None:
    """Refuse what is neither None nor a whole number of at least 1.

    Raises:
        ConfigError: it is something else.
    """
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
    """A prefill from a name, a mapping with `name` and options, or a prefill.

    Raises:
        ConfigError: a name or option is unknown.
    """
    prefill: Prefill = make(PREFILLS, choice, "run")
    return prefill
