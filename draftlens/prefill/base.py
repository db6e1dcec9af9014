"""The seam of all prefills."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from draftlens.core.options import make
from draftlens.core.readings import Readings, ReadingSpec
from draftlens.core.registry import Registry
from draftlens.models.backbone import Backbone
from draftlens.models.cache import KVCache
from draftlens.models.prompt import Prompt


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
        tokens are not guessed (`draft.first_guesses`)."""
        ...

    def check(self, backbone: Backbone) -> None:
        """Refuse a model whose prompts cannot be read in this way.

        Raises:
            UnsupportedModelError: the message says why.
        """
        ...

    def run(
        self,
        backbone: Backbone,
        prompt: Prompt,
        cache: KVCache,
        spec: ReadingSpec,
        num_logits: int = 1,
        early: Callable[[Readings], None] | None = None,
    ) -> PrefillOutput:
        """Fill an empty cache with a prompt and take the readings of `spec`.

        Args:
            backbone: reads.
            prompt: what to read. With guesses, these are the last tokens of each row.
            cache: empty; holds the whole of `prompt` afterwards.
            spec: the readings to take; none if the prompt ends with guesses.
            num_logits: K, for how many of each row's last tokens logits are returned: the last
                token of the prompt itself and all guesses.
            early: receives the readings once, from inside the forward and in its thread, as soon as
                all of them are taken, so that others can work with them while the prefill goes on.
                It must not wait for the prefill. It is not called where `spec` is empty or needs
                the whole pass, as attention does. The result has all readings in any case.
        """
        ...


PREFILLS = Registry(
    "prefill",
    {
        "full": "draftlens.prefill.full:FullPrefill",
        "ring": "draftlens.prefill.ring:RingPrefill",
        "spava": "draftlens.prefill.spava:SpavaPrefill",
        "star": "draftlens.prefill.star:StarPrefill",
    },
)


def make_prefill(choice: Any) -> Prefill:
    """A prefill from a name, a mapping with `name` and options, or a prefill.

    Raises:
        ConfigError: a name or option is unknown.
    """
    prefill: Prefill = make(PREFILLS, choice, "run")
    return prefill
