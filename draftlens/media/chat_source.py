"""A request's messages, kept so that further inputs of the draft can be made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftlens.media.conversation import Conversation

Process = Callable[[Sequence[Conversation]], Mapping[str, Any]]
"""Runs a model's chat template and processor on a batch of conversations: tensors by name, floats
in the model's dtype."""

Decode = Callable[[list[int]], str]
"""From token ids to text without special tokens."""


@dataclass(frozen=True)
class Processing:
    """Makes a model's inputs from conversations, and text from its tokens."""

    process: Process
    decode: Decode


@dataclass(frozen=True)
class ChatSource:
    """The messages of a request and what makes inputs of them; `target` can write captions."""

    conversations: tuple[Conversation, ...]
    process: Process
    decode: Decode
    target: Processing | None = None
