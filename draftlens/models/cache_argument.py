"""The argument of a forward that carries the cache of keys and values; transformers 5.24 renames
`past_key_values` to `cache` in all models and in `generate`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from transformers import GenerationMixin

CACHE_ARGUMENTS = ("cache", "past_key_values")
"""In any version of transformers."""

_PREPARING = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters

CACHE_ARGUMENT = "cache" if "cache" in _PREPARING else "past_key_values"
"""In the installed version of transformers."""

PAST_REFUSAL = (
    f"{CACHE_ARGUMENT} holds an earlier turn, which the draft cannot read: "
    f"give the whole chat, pictures included, without {CACHE_ARGUMENT}"
)


def with_cache(cache: Any) -> dict[str, Any]:
    return {CACHE_ARGUMENT: cache}


def cache_in(arguments: Mapping[str, Any]) -> Any:
    caches = (arguments.get(name) for name in CACHE_ARGUMENTS)
    return next((cache for cache in caches if cache is not None), None)


def holds_tokens(cache: Any) -> bool:
    if all(getattr(cache, "is_linear", (False,))):  # has states and no length
        return any(cache.has_previous_state(layer) for layer in range(len(cache.layers)))
    return bool(cache.get_seq_length() > 0)


def without_cache(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key not in CACHE_ARGUMENTS}
