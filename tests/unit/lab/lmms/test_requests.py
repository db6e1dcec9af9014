"""Requests of lmms-eval become calls of an engine, or are refused."""

from __future__ import annotations

from typing import Any

import pytest
from draftlens_lab.lmms.requests import (
    batches,
    check_chat,
    cut,
    generation,
    method_of,
    same_media,
)

from draftlens.core.errors import ConfigError, InputError


def chat(*kinds: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": kind, kind: "x"} for kind in kinds]}]


@pytest.mark.parametrize(
    ("value", "method"),
    [
        (None, None),
        ("", None),
        ("specvlm", "specvlm"),
        ('{"method": "specvlm", "prune_ratio": 0.5}', {"method": "specvlm", "prune_ratio": 0.5}),
    ],
)
def test_a_method_is_a_name_or_json(value: Any, method: Any) -> None:
    assert method_of(value) == method


def test_a_method_that_is_broken_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="a name or a JSON object"):
        method_of('{"method": specvlm}')


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"max_new_tokens": 9, "do_sample": False}),
        ({"max_new_tokens": 3, "temperature": 0.0}, {"max_new_tokens": 3, "do_sample": False}),
        (
            {"temperature": 0.7, "top_p": 0.9},
            {"max_new_tokens": 9, "do_sample": True, "temperature": 0.7, "top_p": 0.9},
        ),
        (
            {"temperature": 0.7, "do_sample": False, "top_p": None, "num_beams": 1},
            {"max_new_tokens": 9, "do_sample": False, "num_beams": 1},
        ),
        ({"do_sample": True}, {"max_new_tokens": 9, "do_sample": True}),
        ({"do_sample": True, "temperature": 0}, {"max_new_tokens": 9, "do_sample": False}),
    ],
)
def test_options_of_a_task_are_those_of_generate(given: Any, expected: Any) -> None:
    assert generation(given, 9) == (expected, [], [])


@pytest.mark.parametrize(
    ("until", "strings"), [(None, []), ([], []), ("\n", ["\n"]), (["", "END"], ["END"])]
)
def test_strings_that_end_an_answer(until: Any, strings: list[str]) -> None:
    _, ends, unknown = generation({"until": until, "image_aspect_ratio": "pad"}, 9)
    assert (ends, unknown) == (strings, ["image_aspect_ratio"])


def test_an_answer_ends_before_the_first_of_the_strings() -> None:
    assert cut("one\ntwo END", ["END", "\n"]) == "one"
    assert cut("one", ["END", "\n"]) == cut("one", []) == "one"


def test_a_part_of_a_clip_is_refused() -> None:
    """The chat form and the form in which tasks give excerpts; whole clips are taken."""
    assert check_chat(chat("video", "text")) == chat("video", "text")
    for item in (
        {"type": "video", "video": "clip.mp4", "video_start": 1.0},
        {"type": "video", "video": {"url": "clip.mp4", "video_end": 2.0}},
    ):
        with pytest.raises(InputError, match="a part of a clip"):
            check_chat([{"role": "user", "content": [item]}])


def test_rows_of_a_batch_have_the_same_media() -> None:
    chats = [chat("text"), chat("image", "text"), chat("text", "text"), chat("image", "image")]
    assert list(same_media(chats)) == [[0, 2], [1], [3]]


def test_requests_with_the_same_options_are_answered_together() -> None:
    options: list[dict[str, Any]] = [{"a": 1}, {"a": 2}, {"a": 1}, {"a": 1}]
    assert list(batches(options, 2)) == [[0, 2], [3], [1]]
