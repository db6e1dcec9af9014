"""Arguments that stock `generate` does not pass to a callable `custom_generate`.

transformers 5.23 to 5.24 pass neither the streamer nor whether the cache is the user's. A streamer
that is never ended blocks its reader for ever, and a cache of an earlier turn must not be dropped
silently. So both are read from the frame of the running `generate`; no other module inspects the
stack.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from transformers import GenerationMixin

from draftlens.core.errors import UnsupportedModelError
from draftlens.models.support import cache_in

_ARGUMENTS = ("custom_generate", "streamer", "kwargs")


@dataclass(frozen=True)
class CallersArguments:
    """The streamer and the user's cache of the running `generate`, None if absent."""

    streamer: Any = None
    cache: Any = None


def check_version() -> None:
    """Raise UnsupportedModelError if transformers' `generate` names these arguments differently."""
    parameters = inspect.signature(GenerationMixin.generate).parameters
    missing = [name for name in _ARGUMENTS if name not in parameters]
    if missing:
        raise UnsupportedModelError(
            f"this version of transformers has no {', '.join(missing)} in generate, so "
            "custom_generate cannot be supported: use draftlens.generate"
        )


def callers_arguments() -> CallersArguments:
    """The arguments of the innermost running `generate` with a `custom_generate`."""
    check_version()
    frame = inspect.currentframe()
    while frame is not None:
        arguments = frame.f_locals
        if frame.f_code.co_name == "generate" and "custom_generate" in arguments:
            kwargs = arguments.get("kwargs", {})
            return CallersArguments(arguments.get("streamer"), cache_in(kwargs))
        frame = frame.f_back
    return CallersArguments()
