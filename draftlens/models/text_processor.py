"""A processor for language models, which read text only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftlens.core.errors import UnsupportedModelError

READ = ("input_ids", "attention_mask")


class TextProcessor:
    """Tokenizer and chat template of a language model, in the form of a processor. Without a
    padding token any other pads: the mask hides it. `template` is a processor with the fallback for
    a missing chat template; raises `UnsupportedModelError` if there is none."""

    image_processor = None
    video_processor = None

    def __init__(self, tokenizer: Any, template: Any, name: str) -> None:
        has_template = bool(tokenizer.chat_template)
        if not has_template and template is None:
            raise UnsupportedModelError(f"{name} has no tokenizer with a chat template")
        self.tokenizer = tokenizer
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
        self._template = None if has_template else template

    @property
    def chat_template(self) -> Any:
        return (self._template or self.tokenizer).chat_template

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, Any]],
        add_generation_prompt: bool = False,
        tokenize: bool = False,
    ) -> str:
        """The text of a chat. Contents are strings, or items, of which `text` items are used."""
        assert not tokenize
        if self._template is not None:
            chat = [{**message, "content": _texts(message)} for message in messages]
            formatter = self._template
        else:
            # Templates of language models take strings.
            chat = [{**message, "content": _joined(message)} for message in messages]
            formatter = self.tokenizer
        text: str = formatter.apply_chat_template(
            chat, add_generation_prompt=add_generation_prompt, tokenize=False
        )
        return text

    def __call__(
        self, text: Sequence[str], return_tensors: str = "pt", padding: bool = False
    ) -> dict[str, Any]:
        """Token ids and attention mask, int64 ``[B, L]``, of texts made by the chat template."""
        start = self.tokenizer.bos_token
        has_start = bool(start) and all(chat.startswith(start) for chat in text)
        encoded = self.tokenizer(
            list(text),
            return_tensors=return_tensors,
            padding=padding,
            add_special_tokens=not has_start,
        )
        return {name: encoded[name] for name in READ}


def _texts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [item for item in content if item["type"] == "text"]


def _joined(message: dict[str, Any]) -> str:
    return "".join(item["text"] for item in _texts(message))
