"""From a prompt with clips and images, or chat messages, to the inputs of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

from jinja2 import TemplateError

from draftlens.core.errors import InputError
from draftlens.core.options import shown
from draftlens.media import Limits, Video, load_image, load_video
from draftlens.media.given import is_clip, is_given, is_picture, video_of

Message = Mapping[str, Any]

# Types of processor attributes that are settings, as opposed to parts.
_SETTING_TYPES = (str, int, float, tuple, list, type(None))


@dataclass
class Conversation:
    """Chat messages, with their media in separate lists as processors expect them, and options of
    the chat template."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    images: list[Any] = field(default_factory=list)
    videos: list[Video] = field(default_factory=list)
    template: dict[str, Any] = field(default_factory=lambda: {"add_generation_prompt": True})


def ask(prompt: str, video: Any = None, images: Any = None) -> list[dict[str, Any]]:
    """One user message: the clip, the images, then the prompt.

    `video` is a path or address of a clip, or its frames: an array or a tensor, a list of PIL
    images, or a `Video`. `images` is one image or a list: paths, addresses, PIL images, arrays or
    tensors.
    """
    content: list[dict[str, Any]] = []
    if video is not None:
        content.append({"type": "video", "video": video})
    if isinstance(images, (list, tuple)):
        content += [{"type": "image", "image": image} for image in images]
    elif images is not None:
        content.append({"type": "image", "image": images})
    content.append({"type": "text", "text": prompt})
    return [{"role": "user", "content": content}]


def read(
    messages: Iterable[Message],
    num_frames: int,
    limits: Limits | None = None,
    on_frame: Callable[[int, int], None] | None = None,
) -> Conversation:
    """Load the media of chat messages.

    Messages are dicts with `role` and `content`, a string or a list of items ``{"type": "text" |
    "image" | "video", ...}``. The value of a media item, in the forms of the function `ask`, is
    under `image`, `video`, `path` or `url`. A clip that is given as frames may have its rate under
    `fps`. OpenAI's items of type `image_url` and `video_url` are read as well.
    """
    limits = limits or Limits()
    conversation = Conversation()
    for message in messages:
        content: list[dict[str, Any]] = []
        for item in _items(message):
            kind = str(item.get("type"))
            if kind == "text":
                content.append({"type": "text", "text": _text(item)})
                continue
            source = _media_source(item, kind)
            if kind == "video":
                fps = item.get("fps")
                conversation.videos.append(_video(source, fps, num_frames, limits, on_frame))
            else:
                conversation.images.append(load_image(source, limits=limits))
            content.append({"type": kind})
        conversation.messages.append({"role": message["role"], "content": content})
    return conversation


def _video(
    source: Any,
    fps: float | None,
    num_frames: int,
    limits: Limits,
    on_frame: Callable[[int, int], None] | None,
) -> Video:
    if is_given(source):
        return video_of(source, fps, limits)
    return load_video(source, num_frames=num_frames, limits=limits, on_progress=on_frame)


def _items(message: Message) -> Sequence[Message]:
    if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
        raise InputError("a message is a dict with role and content")
    content = message["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    is_list = isinstance(content, Sequence)
    if not is_list or not all(isinstance(item, Mapping) for item in content):
        raise InputError(
            f"the content of a message is a string or a list of items, not {content!r:.80}"
        )
    return [_with_own_type(item) for item in content]


def _with_own_type(item: Message) -> Message:
    """Converts OpenAI's ``{"type": "image_url", "image_url": {"url": ...}}`` to an image, likewise
    for a video."""
    key = item.get("type")
    if key not in ("image_url", "video_url"):
        return item
    value = item.get(key)
    address = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(address, str):
        raise InputError(f"an item of type {key} needs a string under {key!r}, 'url'")
    kind = key.removesuffix("_url")
    return {"type": kind, kind: address}


def _text(item: Message) -> str:
    text = item.get("text")
    if not isinstance(text, str):
        raise InputError("an item of type text needs a string under 'text'")
    return text


def _media_source(item: Message, kind: str) -> Any:
    if kind not in ("image", "video"):
        raise InputError(f"an item of a message is text, image or video, not {kind!r:.80}")
    for key in (kind, "path", "url"):
        source = item.get(key)
        if source is not None:
            break
    else:
        raise InputError(f"an item of type {kind} needs {kind!r} or 'path'")
    if kind == "video" and not isinstance(source, (str, PathLike)) and not is_given(source):
        raise InputError(
            f"a video is the path of a file or its frames, not {type(source).__name__}"
        )
    if kind == "image" and not is_picture(source):
        raise InputError(
            "an image is a path, an address, a PIL image, an array or a tensor, "
            f"not {type(source).__name__}"
        )
    if kind == "video" and not is_clip(source):
        raise InputError(f"the frames of a video are pictures, not {shown(source)}")
    return source


def process(processor: Any, conversations: Sequence[Conversation]) -> dict[str, Any]:
    """Run a processor on a batch of conversations: inputs for `generate`, as tensors by name."""
    texts = [apply_template(processor, chat) for chat in conversations]
    for conversation, text in zip(conversations, texts, strict=True):
        _check_media(processor, conversation, text)
    options = _processor_options(conversations)
    try:
        return dict(processor(text=texts, return_tensors="pt", **options))
    except (TypeError, ValueError, AttributeError) as error:
        name = type(processor).__name__
        counts = sorted({len(video.frames) for chat in conversations for video in chat.videos})
        if len(counts) > 1:
            raise InputError(
                f"{name} refused clips of {' and '.join(map(str, counts))} frames together: give "
                "each clip the same number of frames"
            ) from error
        raise InputError(f"{name} refused the input: {error}") from error


def _processor_options(conversations: Sequence[Conversation]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if len(conversations) > 1:
        options["padding"] = True
    if any(chat.images for chat in conversations):
        # A list per chat, even for a single chat: LLaVA-OneVision treats a flat list as a batch of
        # chats with one image each.
        options["images"] = [chat.images for chat in conversations]
    videos = [video for chat in conversations for video in chat.videos]
    if videos:
        # The frames are sampled already; the metadata gives the processor their timestamps.
        options["videos"] = [video.frames for video in videos]
        options["video_metadata"] = [video.metadata for video in videos]
        options["do_sample_frames"] = False
    return options


def apply_template(processor: Any, chat: Conversation) -> str:
    """The text of a conversation. Raises InputError where the chat template refuses it."""
    try:
        return str(processor.apply_chat_template(chat.messages, tokenize=False, **chat.template))
    except InputError:  # of another processor around the model's
        raise
    except (TemplateError, TypeError, ValueError) as error:
        raise InputError(f"the chat template refuses the conversation: {error}") from error


def _check_media(processor: Any, conversation: Conversation, text: str) -> None:
    """Refuse media that the processor or the chat template would drop.

    A model that receives no picture still answers, so the loss would go unnoticed.
    """
    if conversation.images:
        _check_kind(processor, conversation, text, "image", "")
    if conversation.videos:
        _check_kind(processor, conversation, text, "video", ": show its frames as images")


def _check_kind(processor: Any, chat: Conversation, text: str, kind: str, hint: str) -> None:
    name = type(processor).__name__
    has_token = getattr(processor, f"{kind}_token", None) is not None
    has_part = getattr(processor, f"{kind}_processor", None) is not None
    if not has_token and not has_part:
        raise InputError(f"{name} takes no {kind}{hint}")
    # The placeholder of a picture differs between templates. If the text is the same without the
    # pictures, the template has no placeholder for them.
    without_media = [_replace_media(kind, message) for message in chat.messages]
    if apply_template(processor, replace(chat, messages=without_media)) == text:
        raise InputError(f"the chat template of {name} leaves out every {kind}")


def _replace_media(kind: str, message: dict[str, Any]) -> dict[str, Any]:
    empty = {"type": "text", "text": ""}
    content = [empty if item["type"] == kind else item for item in message["content"]]
    return {**message, "content": content}


def same_processing(first: Any, second: Any) -> bool:
    """Whether two processors give the same outputs, so that inputs need processing only once."""
    if type(first) is not type(second) or first.chat_template != second.chat_template:
        return False
    if _settings(first) != _settings(second):
        return False
    return all(
        _part_settings(first, part) == _part_settings(second, part)
        for part in ("image_processor", "video_processor")
    )


def _settings(processor: Any) -> dict[str, Any]:
    """The processor's own settings. Some of them determine how many tokens represent a picture,
    such as LLaVA's `patch_size`."""
    return {
        name: value for name, value in vars(processor).items() if isinstance(value, _SETTING_TYPES)
    }


def _part_settings(processor: Any, name: str) -> Any:
    """The settings of the image or video processor; None if there is none."""
    part = getattr(processor, name, None)
    if part is None:
        return None
    return part.to_dict()


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
