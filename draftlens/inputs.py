"""`Inputs`: what the processors of a pair make of conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

from torch import Tensor

from draftlens.core.errors import InputError
from draftlens.core.options import shown, whole, wrong
from draftlens.media import Limits
from draftlens.media.conversation import (
    ChatSource,
    Conversation,
    Processing,
    ask,
    process,
    read,
    same_processing,
)
from draftlens.media.given import is_clip, is_picture
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
            counts = count(**sizes)
        except Exception:  # some processors fail for sizes that they refuse later
            return 0
        return sum(counts.num_image_tokens or ()) + sum(counts.num_video_tokens or ())

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


PROMPT = "a text, or a list of texts"
PICTURES = "a path, an address, a PIL image, an array or a tensor, or a list of these"
CLIP = "a path, an address or frames (an array, a tensor, a list of pictures)"


def check_question(prompt: Any, video: Any, images: Any, messages: Any, limits: Any) -> None:
    """Raise InputError for prompt and media of a wrong form, ConfigError for invalid limits, before
    any medium is read. The arguments are those of `Engine.stream`."""
    if prompt == [] or not (prompt is None or _all(prompt, lambda each: isinstance(each, str))):
        raise InputError(f"prompt must be {PROMPT}, not {shown(prompt)}")
    # With several prompts, media are a list with an entry for each; None for no media.
    is_batch = isinstance(prompt, (list, tuple))
    for pictures in images if is_batch and isinstance(images, (list, tuple)) else [images]:
        if pictures is not None and not _all(pictures, is_picture):
            raise InputError(f"images must be {PICTURES}, not {shown(images)}")
    for clip in video if is_batch and isinstance(video, (list, tuple)) else [video]:
        if clip is not None and not is_clip(clip):
            raise InputError(f"video must be {CLIP}, not {shown(video)}")
    if messages is not None:
        _check_messages(messages)
    if limits is not None and not isinstance(limits, Limits):
        raise wrong("limits", limits, "a draftlens.media.Limits")


def check_clips(clips: Any, prompt: Any) -> None:
    """Raise InputError unless `clips` is a series of clips and `prompt` a prompt."""
    if isinstance(clips, (str, bytes, PathLike)) or not isinstance(clips, Iterable):
        raise InputError(f"clips must be several clips, such as a list, not {shown(clips)}")
    if not isinstance(prompt, str):
        raise InputError(f"prompt must be a text, not {shown(prompt)}")


def _all(value: Any, fits: Callable[[Any], bool]) -> bool:
    """Whether a value, or every member of a list, fits."""
    return all(map(fits, value)) if isinstance(value, (list, tuple)) else fits(value)


def _check_messages(messages: Any) -> None:
    allowed = "a list of messages, or a list of such lists"
    if not isinstance(messages, (list, tuple)):
        raise InputError(f"messages must be {allowed}, not {shown(messages)}")
    if not messages:
        raise InputError("messages are empty")
    chats = messages if isinstance(messages[0], (list, tuple)) else [messages]
    for chat in chats:
        if not isinstance(chat, (list, tuple)) or not chat:
            raise InputError(f"messages must be {allowed}, none of them empty, not {shown(chat)}")
        for message in chat:
            if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
                raise InputError(
                    f"messages must be {allowed}, and a message is a dict with role and content, "
                    f"not {shown(message)}"
                )
            if not isinstance(message["role"], str):
                raise InputError(
                    "messages must be dicts whose role is a text, such as 'user', not "
                    f"{shown(message['role'])}"
                )


def _batch(prompts: Sequence[str], video: Any, images: Any) -> list[Any]:
    """The chats of several prompts, each with its own clip and images. Raises InputError unless
    there are as many media as prompts."""
    clips = _per_prompt("video", video, len(prompts))
    pictures = _per_prompt("images", images, len(prompts))
    return [ask(*row) for row in zip(prompts, clips, pictures, strict=True)]


def _per_prompt(name: str, media: Any, count: int) -> Sequence[Any]:
    if media is None:
        return [None] * count
    if not isinstance(media, (list, tuple)) or len(media) != count:
        description = (
            f"{len(media)} entries" if isinstance(media, (list, tuple)) else repr(media)[:80]
        )
        raise InputError(
            f"{name} is a list with an entry for each of {count} prompts, not {description}"
        )
    return media


def chats_of(
    prompt: str | Sequence[str] | None, video: Any, images: Any, messages: Sequence[Any] | None
) -> list[Any]:
    """The chats of a question. Raises InputError if there is none, it is given twice, or the
    numbers of media and prompts differ."""
    if messages is None:
        if prompt is None:
            raise InputError("give a prompt or messages")
        if isinstance(prompt, str):
            return [ask(prompt, video, images)]
        return _batch(prompt, video, images)
    if prompt is not None or video is not None or images is not None:
        raise InputError(
            "messages hold the whole prompt: give either them or prompt, video and images"
        )
    if not messages:
        raise InputError("messages are empty")
    return list(messages) if isinstance(messages[0], (list, tuple)) else [messages]
