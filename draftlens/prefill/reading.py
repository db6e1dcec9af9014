"""What the ways to read a prompt have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftlens.core.readings import Readings, ReadingSpec
from draftlens.models.cache import KVCache
from draftlens.models.prompt import Prompt


@dataclass(frozen=True)
class Reading:
    """One prompt that is to be read.

    Args:
        prompt, cache, spec, num_logits, early: as for `Prefill.run`.
    """

    prompt: Prompt
    cache: KVCache
    spec: ReadingSpec
    num_logits: int = 1
    early: Callable[[Readings], None] | None = None
