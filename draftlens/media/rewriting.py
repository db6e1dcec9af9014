"""Conversations with words in place of pictures and clips, for drafts that read a prompt without
its media.

A message that holds media becomes one text item, so that chat templates that move pictures to the
front, trim each item or put something between items treat it like any other text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from draftlens.media.conversation import Conversation

LINE_BREAK = "\n"
"""Replaces a picture in the paper on TABED (App. I.2), which found the words ``<image>``, written
as text, to do as well."""

MEDIA = ("image", "video")
"""Types of message items that carry pixels."""


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

    def join(content: Sequence[dict[str, Any]]) -> str:
        return "".join(instead if item["type"] in MEDIA else item["text"] for item in content)

    return with_text(conversation, join)


def with_text(
    conversation: Conversation, join: Callable[[Sequence[dict[str, Any]]], str]
) -> Conversation:
    """A copy without media: `join` makes one text of the items of each message that holds some,
    in order."""
    messages = []
    for message in conversation.messages:
        content = items_of(message)
        if any(item["type"] in MEDIA for item in content):
            message = {**message, "content": [{"type": "text", "text": join(content)}]}
        messages.append(message)
    return Conversation(messages, template=conversation.template)


def items_of(message: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The items of a message; none if its content is a string."""
    content = message["content"]
    return () if isinstance(content, str) else content
