"""The arguments of an engine's answers, and the options that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from transformers import StopStringCriteria

from draftlens.arguments import checked_options, names_beside_options
from draftlens.core.references import GivenReferences
from draftlens.generate_options import GenerateOptions, texts
from draftlens.media import Limits
from draftlens.methods.base import MethodLike
from draftlens.request import Seed

MAX_NEW_TOKENS = 256
"""Default length of an engine's answers, in tokens."""


class MediaOptions(TypedDict, total=False):
    """The media of a prompt (`Engine.stream`)."""

    video: Any
    images: Any
    messages: Sequence[Any] | None
    num_frames: int
    limits: Limits | None


class EngineOptions(GenerateOptions, total=False):
    """How an engine answers (`Engine.stream`)."""

    method: MethodLike
    seed: Seed
    references: GivenReferences | None
    stop: str | Sequence[str] | None
    prefill: Any


class PromptOptions(MediaOptions, EngineOptions, total=False):
    """All arguments of `Engine.stream` except the prompt."""


ARGUMENTS = ("prompt", *names_beside_options(PromptOptions))
"""Arguments of `Engine.stream` other than options of transformers."""


def completed_options(
    options: Mapping[str, Any], stop: str | Sequence[str] | None, tokenizer: Any
) -> dict[str, Any]:
    """The options of `generate` with an engine's defaults: greedy, at most `MAX_NEW_TOKENS` long.

    Raises:
        ConfigError: an option is unknown or has a value that is not allowed.
    """
    completed = checked_options(options, ARGUMENTS)
    if stop is not None:
        stop = texts("stop", stop)
        strings = [stop] if isinstance(stop, str) else list(stop)
        criteria = completed.get("stopping_criteria") or []
        completed["stopping_criteria"] = [*criteria, StopStringCriteria(tokenizer, strings)]
    if completed.get("tokenizer") is None:
        completed["tokenizer"] = tokenizer
    if "generation_config" not in completed:
        completed.setdefault("do_sample", False)
        if "max_length" not in completed:
            completed.setdefault("max_new_tokens", MAX_NEW_TOKENS)
    return completed
