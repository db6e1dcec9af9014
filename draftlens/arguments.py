"""Names of arguments and checks of prompts with media, for every entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from os import PathLike, fspath
from typing import Any

from draftlens.core.checks import shown, suggestion, wrong
from draftlens.core.errors import ConfigError, InputError
from draftlens.generate_options import OPTIONS, GenerateOptions, check_temperature
from draftlens.media import Limits
from draftlens.media.conversation import ask
from draftlens.media.given import is_clip, is_picture
from draftlens.models.cache_argument import CACHE_ARGUMENTS

NOT_OPTIONS = ("self", "inputs", "kwargs", "custom_generate")
"""Arguments of transformers' `generate` that this library sets itself."""

SYNONYMS = (
    ("image", "images"),
    ("picture", "images"),
    ("pictures", "images"),
    ("videos", "video"),
    ("clip", "video"),
    ("chat", "messages"),
    ("question", "prompt"),
    ("text", "prompt"),
    ("frames", "num_frames"),
    ("nframes", "num_frames"),
    ("max_tokens", "max_new_tokens"),
    ("max_completion_tokens", "max_new_tokens"),
    ("max_output_tokens", "max_new_tokens"),
    ("min_tokens", "min_new_tokens"),
    ("n", "num_return_sequences"),
    ("num_samples", "num_return_sequences"),
    ("beams", "num_beams"),
    ("beam_size", "num_beams"),
    ("sample", "do_sample"),
    ("sampling", "do_sample"),
    ("temp", "temperature"),
    ("timeout", "max_time"),
    ("stop_sequences", "stop"),
    ("stop_words", "stop"),
    ("stop", "stop_strings"),
    ("stop_token_ids", "eos_token_id"),
    ("random_seed", "seed"),
    ("draft_model", "draft"),
)
"""Names in other libraries, and the names here."""

OF_METHODS = (
    "num_speculative_tokens",
    "tree",
    "sampling_rule",
    "pruner",
    "prune_ratio",
    "schedule",
)
"""Options of methods, which are often passed next to the method instead of in it."""


def names_beside_options(kind: Any) -> tuple[str, ...]:
    """The names of a `TypedDict` of arguments that are no options of `generate`."""
    return tuple(
        name for name in kind.__annotations__ if name not in GenerateOptions.__annotations__
    )


def checked_options(
    options: Mapping[str, Any], further: Iterable[str] = (), inputs: Iterable[str] = ()
) -> dict[str, Any]:
    """The options of `generate`, numbers of numpy and torch as those of Python.

    `further` are names of other arguments, for the message about an unknown name; `inputs` are
    names in the processor's output. Raises ConfigError for an unknown name or a value that is not
    allowed.
    """
    checked = dict(options)
    for name, value in options.items():
        check = OPTIONS.get(name)
        if check is None:
            _check_name(name, [*OPTIONS, *further], inputs)
        elif value is not None:
            checked[name] = check(name, value)
    config = checked.get("generation_config")
    samples = checked.get("do_sample", getattr(config, "do_sample", False))
    check_temperature(checked.get("temperature"), samples)
    return checked


def _check_name(name: str, known: Sequence[str], inputs: Iterable[str]) -> None:
    """Refuse the name of an option that transformers does not have either."""
    if name in inputs:
        raise ConfigError(f"{name} is given as an option, and the inputs hold it already")
    if name in CACHE_ARGUMENTS or name in _names_of_transformers():
        return
    if name in OF_METHODS:
        raise ConfigError(
            f"there is no option {name!r} beside the method: give it with the method, such as "
            f"method={{'method': 'speculative', {name!r}: ...}}"
        )
    meant = suggestion(name, known, SYNONYMS)
    raise ConfigError(
        f"there is no option {name!r}{meant or '; arguments of the model belong into the inputs'}"
    )


def _names_of_transformers() -> set[str]:
    """The options of `generate` in the installed version of transformers."""
    from transformers import GenerationConfig, GenerationMixin

    names = {*signature(GenerationMixin.generate).parameters, *vars(GenerationConfig())}
    return {name for name in names if not name.startswith("_")} - {*NOT_OPTIONS}


def model_name(role: str, value: Any) -> str:
    """The name of a model as text; raises ConfigError otherwise, also for a model that is loaded
    already, which goes into an `Engine`."""
    name = fspath(value) if isinstance(value, PathLike) else value
    if not isinstance(name, str) or not name.strip():
        raise wrong(
            role,
            value,
            "the name of a model, a folder or a Hub id (draftlens.Engine takes loaded models)",
        )
    return name


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
