"""Conversations with pictures and clips, and a chat template that shows them."""

from __future__ import annotations

from typing import Any

from draftlens.media.conversation import Conversation

PICTURE = {"type": "image"}
CLIP = {"type": "video"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*items: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(items)}


def one_text(chat: Conversation, index: int = 0) -> str:
    """The text of a message that must be its only item."""
    (item,) = chat.messages[index]["content"]
    assert item["type"] == "text"
    words: str = item["text"]
    return words


def talk() -> Conversation:
    """Two turns: a picture and a clip between words, then a picture by itself."""
    first = user(PICTURE, text("Compare"), CLIP, text("and tell."))
    answer = {"role": "assistant", "content": [text("They differ.")]}
    messages = [first, answer, user(PICTURE)]
    clip: Any = "a clip"
    return Conversation(messages, images=["one", "two"], videos=[clip])


class Template:
    """A chat template that shows pictures first, trims each text and puts nothing between."""

    def apply_chat_template(self, messages: list[Any], **_: Any) -> str:
        items = [item for message in messages for item in message["content"]]
        pictures = ["<image>" for item in items if item["type"] == "image"]
        texts = [item["text"].strip() for item in items if item["type"] == "text"]
        return "".join(pictures + texts)

    def __call__(self, text: list[str], return_tensors: str) -> dict[str, Any]:
        return {"text": text}
