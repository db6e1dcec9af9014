"""The protocol of all prefills."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from torch import Tensor

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

    def device(self, device: str | None) -> str | None:
        """The device of this process's model, before it is loaded; `device` is as for
        `draftlens.load`."""
        ...

    def prepare(self, backbone: Backbone, inputs: Mapping[str, Any] = NO_INPUTS) -> None:
        """Get ready to read prompts of a model, once it is loaded and before each request.

        Args:
            backbone: of the model.
            inputs: of the request; empty if there is none yet.

        Raises:
            ConfigError, InputError, HostError: this prefill cannot read them.
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
    """The members of `Prefill` for one that reads whole prompts and needs no preparation."""

    divides_prompts: ClassVar[bool] = False

    def device(self, device: str | None) -> str | None:
        return device

    def prepare(self, backbone: Backbone, inputs: Mapping[str, Any] = NO_INPUTS) -> None: ...

    def run_parts(
        self: Prefill, backbone: Backbone, reading: PrefillReading, size: Callable[[], int | None]
    ) -> Iterator[PrefillOutput | None]:
        yield self.run(backbone, reading)


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
