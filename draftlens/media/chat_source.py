"""A request's messages, kept so that further inputs of the draft can be made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftlens.core.errors import DraftlensError
from draftlens.media.conversation import Conversation

Process = Callable[[Sequence[Conversation]], Mapping[str, Any]]
"""Runs a model's chat template and processor on a batch of conversations: tensors by name, floats
in the dtype that the model computes in."""

Decode = Callable[[list[int]], str]
"""From token ids to text without special tokens."""


class CaptionError(DraftlensError):
    """No captions could be made: a draft that would have read them goes without.

    It never reaches a user, because the answer does not depend on captions.
    """


@dataclass(frozen=True)
class Processing:
    """How a model's inputs are made of conversations, and text of its tokens."""

    process: Process
    decode: Decode


@dataclass(frozen=True)
class ChatSource:
    """The messages of a request, and what makes inputs of them.

    Args:
        target: those of the target, for captions that it writes; None if they are not known.
    """

    conversations: tuple[Conversation, ...]
    process: Process
    decode: Decode
    target: Processing | None = None
