"""The input of a prefill: a prompt, the cache for its keys and values, and the readings to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftlens.core.prefill_readings import NO_FEATURES, FeatureSpec, PrefillFeatures
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt


@dataclass(frozen=True)
class PrefillReading:
    """One prompt to be read.

    Args:
        prompt: what to read.
        cache: empty; made by `Prefill.new_cache` or `Backbone.new_cache`. It holds the whole of
            `prompt` afterwards.
        spec: the readings to take.
        early: receives the readings once, from inside the forward and in its thread, as soon as all
            are taken. It must not wait for the prefill. It is not called where `spec` is empty or
            needs the whole pass, as attention does. The result has all readings in any case.
    """

    prompt: Prompt
    cache: KVCache
    spec: FeatureSpec = NO_FEATURES
    early: Callable[[PrefillFeatures], None] | None = None
