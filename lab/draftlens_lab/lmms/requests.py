"""From requests of lmms-eval to the arguments of an engine; nothing here needs lmms-eval."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftlens.core.errors import ConfigError, InputError
from draftlens.options import OPTIONS

Message = Mapping[str, Any]

EXCERPT = ("video_start", "video_end")
"""Keys of a video of which only a part is shown, in seconds."""

OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p")
"""Options of `generate` without a meaning in greedy decoding."""

UNTIL = "until"
"""The option of lmms-eval with the strings that end an answer."""


def method_of(value: Any) -> Any:
    """A method as `load` takes it: a name, or JSON of a dict of its options; empty for None."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("{"):
        return value or None
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ConfigError(f"method is a name or a JSON object, and {value!r} is neither") from error


def check_chat(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages, which `Engine.read` takes as they are.

    Raises InputError where it would show something else than the task asks for.
    """
    for message in messages:
        for item in message["content"]:
            source = item.get(item["type"])
            keys = {*item, *(source if isinstance(source, Mapping) else ())}
            if keys.intersection(EXCERPT):
                raise InputError(
                    "a part of a clip (video_start, video_end) cannot be shown: cut the file"
                )
    return messages


def generation(
    options: Mapping[str, Any], max_new_tokens: int
) -> tuple[dict[str, Any], list[str], list[str]]:
    """The options of a task as those of `generate`, the strings that end an answer, and the names
    of options that `generate` does not have.

    As in the models of lmms-eval, a temperature of 0 is greedy decoding, and a temperature above 0
    is sampling unless `do_sample` is false.

    Args:
        options: `generation_kwargs` of a task.
        max_new_tokens: for a task that names no length.
    """
    given = {name: value for name, value in options.items() if value is not None}
    known = {name: value for name, value in given.items() if name in OPTIONS}
    unknown = sorted(given.keys() - known.keys() - {UNTIL})
    known.setdefault("max_new_tokens", max_new_tokens)
    temperature = known.get("temperature")
    samples = known.get("do_sample", temperature is not None) and temperature != 0
    if not samples:
        known = {name: value for name, value in known.items() if name not in OF_SAMPLING}
    known["do_sample"] = bool(samples)
    return known, _strings(given.get(UNTIL)), unknown


def _strings(until: Any) -> list[str]:
    strings = [until] if isinstance(until, str) else list(until or [])
    return [string for string in strings if string]


def cut(text: str, until: Sequence[str]) -> str:
    """The text before the first of the strings that end an answer."""
    ends = [text.find(string) for string in until if string in text]
    return text[: min(ends, default=len(text))]


def same_media(chats: Sequence[Sequence[Message]]) -> Iterator[list[int]]:
    """Rows of a batch with the same number of images and of clips: not all processors take others
    together."""
    rows: dict[tuple[int, int], list[int]] = {}
    for row, messages in enumerate(chats):
        kinds = [item["type"] for message in messages for item in message["content"]]
        rows.setdefault((kinds.count("image"), kinds.count("video")), []).append(row)
    yield from rows.values()


def batches(options: Sequence[Mapping[str, Any]], size: int) -> Iterator[list[int]]:
    """Numbers of requests with the same options, at most `size` together, in their order."""
    groups: dict[str, list[int]] = {}
    for number, each in enumerate(options):
        groups.setdefault(json.dumps(each, sort_keys=True, default=str), []).append(number)
    for numbers in groups.values():
        for start in range(0, len(numbers), size):
            yield numbers[start : start + size]
