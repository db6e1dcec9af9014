"""From a prompt with clips and images, or chat messages, to what the model's own processor makes of
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from draftlens.core.errors import InputError
from draftlens.media import Limits, Video, load_image, load_video

Message = Mapping[str, Any]


@dataclass
class Conversation:
    """Chat messages with their media taken out, as processors want them.

    Args:
        messages: chat-template messages whose media items carry no data.
        images: PIL images in order of appearance.
        videos: sampled clips in order of appearance.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    images: list[Any] = field(default_factory=list)
    videos: list[Video] = field(default_factory=list)


def ask(prompt: str, video: Any = None, images: Any = None) -> list[dict[str, Any]]:
    """One user message: the clip, the images, then the prompt.

    Args:
        prompt: the question or instruction.
        video: path of a clip.
        images: one image or several: paths, PIL images or arrays.
    """
    several = images if isinstance(images, (list, tuple)) else [] if images is None else [images]
    content: list[dict[str, Any]] = [] if video is None else [{"type": "video", "video": video}]
    content += [{"type": "image", "image": image} for image in several]
    return [{"role": "user", "content": [*content, {"type": "text", "text": prompt}]}]


def read(
    messages: Iterable[Message],
    num_frames: int,
    limits: Limits | None = None,
    on_frame: Callable[[int, int], None] | None = None,
) -> Conversation:
    """Load the media of chat messages.

    Args:
        messages: `role` and `content`, a string or a list of items ``{"type": "text" | "image" |
            "video", ...}`` whose media stand under `image`, `video`, `path` or `url` (a local
            path).
        num_frames: frames to sample from each clip.
        limits: what is refused as absurd.
        on_frame: told (frames read, frames wanted) while a clip is read.

    Raises:
        InputError: a message or item has another form.
        MediaError: a file cannot be read.
    """
    limits = limits or Limits()
    conversation = Conversation()

    def load_clip(source: Any) -> Video:
        return load_video(source, num_frames=num_frames, limits=limits, on_progress=on_frame)

    def load_picture(source: Any) -> Any:
        return load_image(source, limits=limits)

    loaders = {
        "video": (load_clip, conversation.videos),
        "image": (load_picture, conversation.images),
    }
    for message in messages:
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise InputError("a message is a dict with role and content")
        content = message["content"]
        items = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(items, Sequence) or not all(isinstance(item, Mapping) for item in items):
            raise InputError(
                f"the content of a message is a string or a list of items, not {content!r:.80}"
            )
        kept = [_take(item, loaders) for item in items]
        conversation.messages.append({"role": message["role"], "content": kept})
    return conversation


def _take(
    item: Message, loaders: Mapping[str, tuple[Callable[[Any], Any], list[Any]]]
) -> dict[str, Any]:
    """Load an item's media into its list; what is left of the item goes to the chat template."""
    kind = str(item.get("type"))
    if kind == "text":
        if not isinstance(item.get("text"), str):
            raise InputError("an item of type text needs a string under 'text'")
        return {"type": "text", "text": item["text"]}
    if kind not in loaders:
        raise InputError(f"an item of a message is text, image or video, not {kind!r}")
    source = next((item[key] for key in (kind, "path", "url") if item.get(key) is not None), None)
    if source is None:
        raise InputError(f"an item of type {kind} needs {kind!r} or 'path'")
    if kind == "video" and not isinstance(source, (str, PathLike)):
        raise InputError(f"a video is the path of a file, not {type(source).__name__}")
    load, loaded = loaders[kind]
    loaded.append(load(source))
    return {"type": kind}


def process(processor: Any, conversations: Sequence[Conversation]) -> dict[str, Any]:
    """What the processor makes of a batch of conversations, as `generate` takes it.

    Raises:
        InputError: the processor cannot show what the messages hold.
    """
    texts = [_prompt(processor, conversation.messages) for conversation in conversations]
    for conversation, text in zip(conversations, texts, strict=True):
        _check_shown(processor, conversation, text)
    videos = [video for c in conversations for video in c.videos]
    options: dict[str, Any] = {"padding": True} if len(texts) > 1 else {}
    if any(c.images for c in conversations):
        # A list per chat also for one chat: LLaVA-OneVision takes a flat list for as many chats of
        # one image each.
        options["images"] = [c.images for c in conversations]
    if videos:
        # Frames are sampled already, by timestamp; the processor learns when each was shown.
        options["videos"] = [video.frames for video in videos]
        options["video_metadata"] = [video.metadata for video in videos]
        options["do_sample_frames"] = False
    try:
        return dict(processor(text=texts, return_tensors="pt", **options))
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{type(processor).__name__} refused the input: {error}") from error


def _prompt(processor: Any, messages: list[dict[str, Any]]) -> str:
    text: str = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return text


def _check_shown(processor: Any, conversation: Conversation, text: str) -> None:
    """Refuse media that processor or chat template would drop: a model that sees nothing answers
    all the same."""
    name = type(processor).__name__
    for kind, media in (("image", conversation.images), ("video", conversation.videos)):
        if not media:
            continue
        if (
            getattr(processor, f"{kind}_token", None) is None
            and getattr(processor, f"{kind}_processor", None) is None
        ):
            more = ": show its frames as images" if kind == "video" else ""
            raise InputError(f"{name} takes no {kind}{more}")
        # What stands for media differs from template to template; that something does can be seen
        # without knowing it.
        if (
            _prompt(processor, [_without(kind, message) for message in conversation.messages])
            == text
        ):
            raise InputError(f"the chat template of {name} leaves out every {kind}")


def _without(kind: str, message: dict[str, Any]) -> dict[str, Any]:
    nothing = {"type": "text", "text": ""}
    return {
        **message,
        "content": [nothing if item["type"] == kind else item for item in message["content"]],
    }


def same_processing(one: Any, other: Any) -> bool:
    """Whether two processors make the same of the same input, so that it needs to be processed only
    once."""
    if (
        type(one) is not type(other)
        or one.chat_template != other.chat_template
        or _own(one) != _own(other)
    ):
        return False
    return all(
        _settings(one, name) == _settings(other, name)
        for name in ("image_processor", "video_processor")
    )


def _own(processor: Any) -> dict[str, Any]:
    """Its plain settings: some say how many tokens stand for a picture, such as LLaVA's
    `patch_size`."""
    plain = (str, int, float, tuple, list, type(None))
    return {name: value for name, value in vars(processor).items() if isinstance(value, plain)}


def _settings(processor: Any, part: str) -> Any:
    return (
        getattr(processor, part).to_dict() if getattr(processor, part, None) is not None else None
    )
