"""Requests in OpenAI's form, and the options of `generate` that they become."""

from __future__ import annotations

from typing import Any

import pytest

from draftlens.core.errors import ConfigError, InputError, MediaError
from draftlens.scheduling import AnswerError, QueueFullError
from draftlens.serve.errors import ApiError, api_error
from draftlens.serve.protocol import NEUTRAL, ChatRequest, CompletionRequest, parse

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


def chat(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, {**CHAT, **fields})


@pytest.mark.parametrize(
    ("fields", "samples", "options"),
    [
        ({}, False, {"do_sample": False}),
        ({}, True, {"do_sample": True}),
        ({"temperature": 0}, True, {"do_sample": False}),
        ({"temperature": 0, "top_p": 0.5}, False, {"do_sample": False}),
        ({"temperature": 1}, False, {"do_sample": True, "temperature": 1.0}),
        ({"top_p": 1, "top_k": -1, "min_p": 0}, False, {"do_sample": False}),
        ({"top_p": 0.5}, False, {"do_sample": True, "top_p": 0.5}),
        ({"top_k": -1}, True, {"do_sample": True, "top_k": 0}),
        ({"repetition_penalty": 1}, False, {"do_sample": False}),
        (
            {"repetition_penalty": 1.2, "temperature": 0},
            False,
            {"do_sample": False, "repetition_penalty": 1.2},
        ),
    ],
)
def test_sampling(fields: dict[str, Any], samples: bool, options: dict[str, Any]) -> None:
    assert chat(**fields).sampling(samples) == options


def test_values_are_those_of_openai() -> None:
    assert chat(max_tokens=5).length == 5
    assert chat(max_tokens=5, max_completion_tokens=7).length == 7
    assert chat(stop="a").stop == ["a"]
    assert chat(stop=None, n=None, stream=None).stop == []
    assert chat(unknown=1).n == 1
    prediction = {"type": "content", "content": [{"type": "text", "text": "a"}] * 2}
    assert chat(prediction=prediction).prediction.text == "aa"  # type: ignore[union-attr]
    assert parse(CompletionRequest, {"prompt": [1, 2]}).prompt == [1, 2]
    assert parse(CompletionRequest, {"prompt": ["a", "b"]}).prompt == ["a", "b"]
    for token in (-1, 2**63):
        with pytest.raises(ApiError):
            parse(CompletionRequest, {"prompt": [token]})


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_values_pass_and_others_do_not(name: str) -> None:
    for value in (None, *NEUTRAL[name]):
        chat(**{name: value})
    with pytest.raises(ApiError) as refused:
        chat(**{name: {"type": "another value"}})
    assert (refused.value.status, refused.value.param) == (400, name)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [1]}, "stop.0"),
        ({"logprobs": 0}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages.0.content"),
    ],
)
def test_values_that_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert refused.value.status == 400
    assert str(refused.value.param).startswith(param)
    with pytest.raises(ApiError):
        parse(ChatRequest, ["no object"])


def test_errors_quote_no_other_library() -> None:
    error = InputError("transformers refuses the call: at 0x7f")
    error.__cause__ = ValueError("at 0x7f")
    for cause, status in (
        (QueueFullError("x"), 429),
        (AnswerError("the answer failed"), 503),
        (MediaError("cannot read /tmp/x: 0x7f"), 422),
        (error, 400),
        (RuntimeError("at 0x7f in /tmp"), 500),
    ):
        shown = api_error(cause)
        assert shown.status == status
        assert "0x" not in shown.message
        assert "/tmp" not in shown.message
    assert api_error(ConfigError("n must be 1")).message == "n must be 1"
    assert api_error(QueueFullError("x")).response().headers["retry-after"]
