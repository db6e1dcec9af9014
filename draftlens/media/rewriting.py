"""Conversations with words in place of pictures and clips, for drafts that read a prompt without
its media.

A message that holds media becomes one text item, so that chat templates that move pictures to the
front, trim each item or put something between items treat it like any other text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftlens.core.errors import InputError
from draftlens.media.conversation import Conversation

LINE_BREAK = "\n"
"""Replaces a picture in the paper on TABED (App. I.2), which found the words ``<image>``, written
as text, to do as well."""

MEDIA = ("image", "video")
"""Types of message items that carry pixels."""


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


def without_media(conversation: Conversation, instead: str = LINE_BREAK) -> Conversation:
    r"""A copy of the conversation with `instead` in place of every picture and clip.

    `instead` must not be the placeholder of the model that reads it: a placeholder without its
    picture ruins the model's output.

    Example:

        >>> from draftlens.media.conversation import Conversation
        >>> items = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
        >>> chat = Conversation([{"role": "user", "content": items}], images=["a picture"])
        >>> without_media(chat).messages[0]["content"]
        [{'type': 'text', 'text': '\nWhat is this?'}]
    """
    number = len(_kinds(conversation))
    return _with_words(conversation, [instead] * number, apart=False)


def with_captions(conversation: Conversation, captions: Sequence[str]) -> Conversation:
    r"""A copy of the conversation with captions in place of its pictures and clips (TABED, App.
    I.2).

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
    words = [f"{kind}: {caption}".strip() for kind, caption in zip(kinds, captions, strict=True)]
    return _with_words(conversation, words, apart=True)


def _kinds(conversation: Conversation) -> list[str]:
    items = (item for message in conversation.messages for item in _items(message))
    return [item["type"] for item in items if item["type"] in MEDIA]


def _items(message: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The items of a message; none if its content is a string."""
    content = message["content"]
    return () if isinstance(content, str) else content


def _with_words(conversation: Conversation, words: Sequence[str], apart: bool) -> Conversation:
    remaining = list(words)
    messages = []
    for message in conversation.messages:
        content = _items(message)
        num_media = sum(item["type"] in MEDIA for item in content)
        if num_media:
            text = _joined(content, remaining[:num_media], apart)
            del remaining[:num_media]
            message = {**message, "content": [{"type": "text", "text": text}]}
        messages.append(message)
    return Conversation(messages)


def _joined(content: Sequence[dict[str, Any]], words: Sequence[str], apart: bool) -> str:
    remaining = list(words)
    text = ""
    after_words = False
    for item in content:
        is_medium = item["type"] in MEDIA
        piece = remaining.pop(0) if is_medium else item["text"]
        if apart and (is_medium or after_words) and _would_touch(text, piece):
            text += LINE_BREAK
        text += piece
        after_words = is_medium
    return text


def _would_touch(before: str, after: str) -> bool:
    """Whether no white space would be between two texts."""
    return bool(before and after) and not before[-1].isspace() and not after[0].isspace()
