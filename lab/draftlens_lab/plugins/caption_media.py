"""Pictures and clips of conversations, and captions in their place (TABED, App. I.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftlens.core.errors import InputError
from draftlens.media.conversation import Conversation
from draftlens.media.rewriting import LINE_BREAK, MEDIA, items_of, with_text


@dataclass(frozen=True, eq=False)
class Medium:
    kind: str
    content: Any


def media_of(conversation: Conversation) -> list[Medium]:
    """The pictures and clips of a conversation, in order of appearance."""
    waiting: dict[str, list[Any]] = {
        "image": list(conversation.images),
        "video": list[Any](conversation.videos),
    }
    media = []
    for kind in _kinds(conversation):
        if not waiting[kind]:
            raise InputError(f"the messages mention an item of type {kind} that is not there")
        media.append(Medium(kind, waiting[kind].pop(0)))
    for kind, unused in waiting.items():
        if unused:
            raise InputError(f"the messages do not mention every item of type {kind}")
    return media


def with_captions(conversation: Conversation, captions: Sequence[str]) -> Conversation:
    r"""A copy of the conversation with captions in place of its pictures and clips.

    A picture becomes ``image: CAPTION`` and a clip ``video: CAPTION``, on a line of its own.
    Captions are in the order of `media_of`; another number of them raises InputError.

    Example:

        >>> from draftlens.media.conversation import Conversation
        >>> items = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
        >>> chat = Conversation([{"role": "user", "content": items}], images=["a picture"])
        >>> with_captions(chat, ["A cat."]).messages[0]["content"]
        [{'type': 'text', 'text': 'image: A cat.\nWhat is this?'}]
    """
    kinds = _kinds(conversation)
    if len(captions) != len(kinds):
        raise InputError(
            f"{len(captions)} captions are given for {len(kinds)} pictures and clips of a chat"
        )
    remaining = list(captions)

    def join(content: Sequence[dict[str, Any]]) -> str:
        text = ""
        after_caption = False
        for item in content:
            is_medium = item["type"] in MEDIA
            piece = f"{item['type']}: {remaining.pop(0)}".strip() if is_medium else item["text"]
            if (is_medium or after_caption) and _would_touch(text, piece):
                text += LINE_BREAK
            text += piece
            after_caption = is_medium
        return text

    return with_text(conversation, join)


def pixels_of(medium: Medium) -> Any:
    """The pixels of a picture, uint8 ``[H, W, 3]``, or of a clip's frames, ``[T, H, W, 3]``."""
    if medium.kind == "video":
        return np.asarray(medium.content.frames)
    return np.asarray(medium.content)


def _kinds(conversation: Conversation) -> list[str]:
    items = (item for message in conversation.messages for item in items_of(message))
    return [item["type"] for item in items if item["type"] in MEDIA]


def _would_touch(before: str, after: str) -> bool:
    """Whether no white space would be between two texts."""
    return bool(before and after) and not before[-1].isspace() and not after[0].isspace()
