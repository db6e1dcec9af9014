"""The seam of all prefills."""

from __future__ import annotations

from dataclasses import dataclass
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
        logits: behind each row's last token, ``[B, 1, V]``.
        readings: the readings that were requested.
    """

    logits: Tensor
    readings: Readings


class Prefill(Protocol):
    """Reads prompts with the target."""

    @property
    def approximate(self) -> tuple[str, ...]:
        """What differs from the model's own prefill, in words for the user; empty if exact."""
        ...

    def run(
        self, backbone: Backbone, prompt: Prompt, cache: KVCache, spec: ReadingSpec
    ) -> PrefillOutput:
        """Fill an empty cache with a prompt and take the readings of `spec`."""
        ...


PREFILLS = Registry("prefill", {"full": "draftlens.prefill.full:FullPrefill"})


def make_prefill(choice: Any) -> Prefill:
    """A prefill from a name, a mapping with `name` and options, or a prefill.

    Raises:
        ConfigError: a name or option is unknown.
    """
    prefill: Prefill = make(PREFILLS, choice, "run")
    return prefill
