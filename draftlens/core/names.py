"""Special names of models, names of other libraries, and former names of options; kept free of
heavy imports."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from draftlens.core.errors import ConfigError

Renamed = TypeVar("Renamed", bound=Callable[..., Any])

EMBEDDED = "embedded"
"""The toy pair inside the package, trained on a procedural world; loads without a network."""

READER = "reader"
"""The toy document model of draftlens-lab, trained on pages of one generator."""

LAB_INSTALLATION = "pip install ./lab in a checkout of draftlens"
"""How the package draftlens-lab is installed, for the errors where it is missing."""

AUTO = "auto"
"""Selects the known draft of a target."""

UNQUANTIZED = "none"
"""Leaves the weights of a model as they are, where they may be quantized by default."""

IMAGE_PROMPT = "Describe the image."
VIDEO_PROMPT = "Describe the video."
"""Default prompt about pictures and clips."""

SYNONYMS = (
    ("image", "images"),
    ("picture", "images"),
    ("pictures", "images"),
    ("videos", "video"),
    ("clip", "video"),
    ("chat", "messages"),
    ("question", "prompt"),
    ("text", "prompt"),
    ("frames", "num_frames"),
    ("nframes", "num_frames"),
    ("max_tokens", "max_new_tokens"),
    ("max_completion_tokens", "max_new_tokens"),
    ("max_output_tokens", "max_new_tokens"),
    ("min_tokens", "min_new_tokens"),
    ("n", "num_return_sequences"),
    ("num_samples", "num_return_sequences"),
    ("beams", "num_beams"),
    ("beam_size", "num_beams"),
    ("sample", "do_sample"),
    ("sampling", "do_sample"),
    ("temp", "temperature"),
    ("timeout", "max_time"),
    ("stop_sequences", "stop"),
    ("stop_words", "stop"),
    ("stop", "stop_strings"),
    ("stop_token_ids", "eos_token_id"),
    ("random_seed", "seed"),
    ("draft_model", "draft"),
    ("response_format", "form"),
    ("json_schema", "form"),
    ("guided_json", "form"),
)
"""Names in other libraries, and the names here."""


def renamed(**former: str) -> Callable[[Renamed], Renamed]:
    """Keeps former names of the keyword arguments of a function, or of a dataclass's options.

    A former name works as the present one and raises a DeprecationWarning that says it. Both names
    at once are a ConfigError. The signature has the present names only.

    Args:
        former: present names by former ones.

    Example:

        >>> @renamed(words="max_new_tokens")
        ... def answer(*, max_new_tokens):
        ...     return max_new_tokens
        >>> answer(max_new_tokens=3)
        3
    """

    def decorate(subject: Renamed) -> Renamed:
        is_class = isinstance(subject, type)
        call: Callable[..., Any] = vars(subject)["__init__"] if is_class else subject

        @wraps(call)
        def accept(*args: Any, **options: Any) -> Any:
            for old in former.keys() & options.keys():
                new = former[old]
                if new in options:
                    raise ConfigError(f"{old!r} is the former name of {new!r}: give {new!r} only")
                text = f"the option {old!r} is deprecated: use {new!r}"
                warnings.warn(text, DeprecationWarning, stacklevel=_level_of_user())
                options[new] = options.pop(old)
            return call(*args, **options)

        if not is_class:
            return accept  # type: ignore[return-value]
        subject.__init__ = accept  # type: ignore[method-assign]
        subject.former = former  # type: ignore[attr-defined]
        return subject

    return decorate


def _level_of_user() -> int:
    """How many frames above its caller the first line outside of draftlens is: Python shows
    DeprecationWarnings about lines of the main program only."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("draftlens."):
        frame, level = frame.f_back, level + 1
    return level
