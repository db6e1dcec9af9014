"""`Inputs`: what the processors of a pair make of conversations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from draftlens.arguments import chats_of, check_question
from draftlens.core.checks import whole
from draftlens.media import Limits
from draftlens.media.chat_source import ChatSource, Processing
from draftlens.media.conversation import Conversation, process, read, same_processing
from draftlens.media.rewriting import without_media
from draftlens.models.load import Loaded


@dataclass(frozen=True)
class Inputs:
    """The processors' output for one prompt, or for a batch of prompts.

    Args:
        target: keyword arguments of the target's `generate`.
        draft: those of the draft, None if they are the same.
        chats: the conversations that they were made of, one for each row; empty if unknown. Methods
            whose draft reads the prompt in several views need them.

    Example:

        >>> import draftlens
        >>> sorted(draftlens.load(device="cpu").read("Hello").target)
        ['attention_mask', 'input_ids']
    """

    target: dict[str, Any]
    draft: dict[str, Any] | None = None
    chats: tuple[Conversation, ...] = ()


def read_conversations(
    prompt: str | Sequence[str] | None,
    video: Any,
    images: Any,
    messages: Sequence[Any] | None,
    num_frames: int,
    limits: Limits | None,
    on_frame: Callable[[int, int], None] | None,
) -> list[Conversation]:
    """The conversations of a question, with their media loaded (`draftlens.Engine.read`).

    Raises:
        InputError, ConfigError, MediaError: before a processor runs.
    """
    check_question(prompt, video, images, messages, limits)
    num_frames = whole(1)("num_frames", num_frames)
    chats = chats_of(prompt, video, images, messages)
    return [read(chat, num_frames, limits, on_frame) for chat in chats]


class Processors:
    """The processors of a target and its draft, run once if they process alike."""

    def __init__(self, target: Loaded, draft: Loaded | None) -> None:
        self.target = target
        self.draft = target if draft is None else draft
        self._shared = draft is None or (
            draft.backbone.retokenizer is None
            and same_processing(target.processor, draft.processor)
        )

    def process(self, conversations: Sequence[Conversation]) -> Inputs:
        """Make inputs of conversations with loaded media. A draft without vision reads a line
        break in place of each medium."""
        chats = tuple(conversations)
        inputs = _process(self.target, chats)
        if self._shared:
            return Inputs(inputs, chats=chats)
        readable = [_readable(chat, self.draft.backbone.modalities) for chat in chats]
        return Inputs(inputs, _process(self.draft, readable), chats)

    def num_visual_tokens(self, conversation: Conversation) -> int:
        """Tokens of the pictures and clips for the target, computed from their sizes; 0 if its
        processor cannot tell."""
        count = getattr(self.target.processor, "_get_num_multimodal_tokens", None)
        sizes: dict[str, list[Any]] = {
            "image_sizes": [(image.height, image.width) for image in conversation.images],
            "video_sizes": [video.frames.shape[:3] for video in conversation.videos],
        }
        sizes = {name: values for name, values in sizes.items() if values}
        if count is None or not sizes:
            return 0
        try:
            told = count(**sizes)
        except Exception:  # some processors fail for sizes that they refuse later
            return 0
        return sum(told.num_image_tokens or ()) + sum(told.num_video_tokens or ())

    def chat_source(self, inputs: Inputs) -> ChatSource | None:
        """The messages that inputs were made of, from which a method can make further inputs of the
        draft; None if unknown."""
        if not inputs.chats:
            return None
        drafting = _processing(self.draft)
        return ChatSource(inputs.chats, drafting.process, drafting.decode, _processing(self.target))


def _processing(model: Loaded) -> Processing:
    tokenizer = model.processor.tokenizer
    return Processing(
        process=partial(_process, model),
        decode=partial(tokenizer.decode, skip_special_tokens=True),
    )


def _process(model: Loaded, conversations: Sequence[Conversation]) -> dict[str, Any]:
    inputs = process(model.processor, conversations)
    for key, value in inputs.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            inputs[key] = value.to(model.backbone.dtype)
    return inputs


def _readable(chat: Conversation, modalities: frozenset[str]) -> Conversation:
    """The conversation, without its media if the model cannot read one of their kinds."""
    sees_pictures = not chat.images or "image" in modalities
    sees_clips = not chat.videos or "video" in modalities
    return chat if sees_pictures and sees_clips else without_media(chat)
