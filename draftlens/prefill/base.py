"""The seam of all prefills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from draftlens.core.options import make
from draftlens.core.prefill_readings import Readings
from draftlens.core.registry import Registry
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.reading import Reading


@dataclass(frozen=True)
class PrefillOutput:
    """The result of reading a prompt.

    Args:
        logits: behind each row's last tokens, ``[B, K, V]``.
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

    @property
    def checks_guesses(self) -> bool:
        """Whether a prompt may end with guesses, so that `num_logits` is more than 1. If not, first
        tokens are not guessed (`decoding.first_guesses`)."""
        ...

    @property
    def uses_hosts(self) -> bool:
        """Whether several hosts read a prompt together, if there are several."""
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


PREFILLS = Registry(
    "prefill",
    {
        "full": "draftlens.prefill.full:FullPrefill",
        "ring": "draftlens.prefill.spava.ring:RingPrefill",
        "spava": "draftlens.prefill.spava.config:SpavaPrefill",
        "star": "draftlens.prefill.spava.star:StarPrefill",
    },
)


def make_prefill(choice: Any) -> Prefill:
    """A prefill from a name, a mapping with `name` and options, or a prefill.

    Raises:
        ConfigError: a name or option is unknown.
    """
    prefill: Prefill = make(PREFILLS, choice, "run")
    return prefill
