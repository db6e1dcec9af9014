"""Arguments that stock `generate` keeps from a callable `custom_generate`.

With a callable `custom_generate`, transformers 5.17 to 5.24 pass neither the streamer on, nor say
whether the cache that they pass was given by the user. A streamer that is never ended leaves its
reader waiting for ever, and a cache of an earlier turn must not be dropped silently. So both are
read from the frame of the running `generate`. This is the only place that looks at the stack.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from transformers import GenerationMixin

from draftlens.core.errors import UnsupportedModelError
from draftlens.models.cache_argument import cache_in

_ARGUMENTS = ("custom_generate", "streamer", "kwargs")


@dataclass(frozen=True)
class CallersArguments:
    """Arguments of the running `generate`.

    Args:
        streamer: None if there is none.
        cache: a cache of the user's; None if there is none.
    """

    streamer: Any = None
    cache: Any = None


def check_version() -> None:
    """Refuse a version of transformers whose `generate` has no such arguments.

    Raises:
        UnsupportedModelError: the arguments have other names.
    """
    parameters = inspect.signature(GenerationMixin.generate).parameters
    missing = [name for name in _ARGUMENTS if name not in parameters]
    if missing:
        raise UnsupportedModelError(
            f"this version of transformers has no {', '.join(missing)} in generate, so "
            "custom_generate cannot be supported: use draftlens.generate"
        )


def callers_arguments() -> CallersArguments:
    """The arguments of the innermost `generate` with a `custom_generate` that is running."""
    check_version()
    frame = inspect.currentframe()
    while frame is not None:
        arguments = frame.f_locals
        if frame.f_code.co_name == "generate" and "custom_generate" in arguments:
            given = arguments.get("kwargs", {})
            return CallersArguments(arguments.get("streamer"), cache_in(given))
        frame = frame.f_back
    return CallersArguments()
