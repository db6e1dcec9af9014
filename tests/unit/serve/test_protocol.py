"""Requests in OpenAI's form, and the options of `generate` that they become."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from draftlens.core.errors import ConfigError, InputError, MediaError
from draftlens.scheduling import AnswerError, QueueFullError
from draftlens.serve.errors import ApiError, api_error
from draftlens.serve.messages import NEUTRAL, PARTS, Part
from draftlens.serve.options import ServeOptions
from draftlens.serve.protocol import ChatRequest, CompletionRequest, load_json, parse

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
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [1]}, "stop.0"),
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": "true"}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
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


@pytest.mark.parametrize("named", ["audio", "input_audio", "x" * 1000])
def test_parts_of_other_types_are_refused_by_name(named: str) -> None:
    part = {"type": named, named: {"data": "", "format": "wav"}}
    with pytest.raises(ApiError, match="a part is text, image_url, video_url, file") as refused:
        chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, part]}])
    assert repr(named)[:9] in str(refused.value)
    assert len(str(refused.value)) < 500
    assert refused.value.param == "messages.0.content"


def test_the_types_of_parts_are_those_that_are_read() -> None:
    (kinds, _) = get_args(Part)
    assert tuple(get_args(kind.model_fields["type"].annotation)[0] for kind in get_args(kinds)) == (
        PARTS
    )


@pytest.mark.parametrize(
    ("kind", "fields", "options"),
    [
        (ChatRequest, {}, {}),
        (ChatRequest, {"logprobs": None, "top_logprobs": None}, {}),
        (ChatRequest, {"logprobs": False, "top_logprobs": 0}, {}),
        (ChatRequest, {"logprobs": True}, {"logprobs": True, "top_logprobs": None}),
        (
            ChatRequest,
            {"logprobs": True, "top_logprobs": 20},
            {"logprobs": True, "top_logprobs": 20},
        ),
        (CompletionRequest, {}, {}),
        (CompletionRequest, {"logprobs": None, "top_logprobs": 0}, {}),
        (CompletionRequest, {"logprobs": False}, {}),
        (CompletionRequest, {"logprobs": 0}, {"logprobs": True, "top_logprobs": 0}),
        (CompletionRequest, {"logprobs": 5}, {"logprobs": True, "top_logprobs": 5}),
    ],
)
def test_log_probabilities(kind: Any, fields: dict[str, Any], options: dict[str, Any]) -> None:
    assert parse(kind, {**CHAT, "prompt": "a", **fields}).logprob_options == options


@pytest.mark.parametrize(
    "fields",
    [{"logprobs": True}, {"logprobs": 21}, {"logprobs": -1}, {"top_logprobs": 2}],
    ids=str,
)
def test_log_probabilities_of_completions_that_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        parse(CompletionRequest, {"prompt": "a", **fields})
    assert (refused.value.status, refused.value.param) == (400, next(iter(fields)))


NUMBERS = (
    "n",
    "seed",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "max_tokens",
    "max_completion_tokens",
    "top_logprobs",
    "logit_bias",
    "stop_token_ids",
    "no_repeat_ngram_size",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
)
SIGNED = ("seed", "presence_penalty", "frequency_penalty")
NO_NUMBERS = {
    "negative": -2,
    "huge": 10**30,
    "minus huge": -(10**30),
    "nan": float("nan"),
    "inf": float("inf"),
    "minus inf": float("-inf"),
    "text": "1",
    "words": "many",
    "true": True,
    "list": [1],
    "object": {"value": 1},
}


def test_all_numbers_are_tested() -> None:
    fields = ChatRequest.model_fields
    numbers = [name for name in fields if _is_number(fields[name].annotation)]
    assert sorted(numbers) == sorted(NUMBERS)


def _is_number(annotation: Any) -> bool:
    text = str(annotation)
    return "int" in text or "float" in text


@pytest.mark.parametrize("kind", NO_NUMBERS)
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_of_the_field(name: str, kind: str) -> None:
    if name in SIGNED and kind == "negative":
        assert getattr(chat(**{name: -2}), name) == -2
        return
    if (name, kind) == ("stop_token_ids", "list"):
        assert chat(stop_token_ids=[1]).stop_token_ids == [1]
        return
    with pytest.raises(ApiError) as refused:
        chat(**{name: NO_NUMBERS[kind]})
    assert (refused.value.status, str(refused.value.param).split(".")[0]) == (400, name)


@pytest.mark.parametrize("value", [*NO_NUMBERS.values(), 2**31])
def test_what_is_no_token(value: Any) -> None:
    if isinstance(value, str):
        assert parse(CompletionRequest, {"prompt": [value]}).prompt == [value]
        value = [value]
    for prompt in ([value], [1, value], [value, 1]):
        with pytest.raises(ApiError) as refused:
            parse(CompletionRequest, {"prompt": prompt})
        assert refused.value.status == 400


def test_sampling_that_gives_infinite_scores() -> None:
    for fields in ({"temperature": 1e-300}, {"repetition_penalty": 1e-300}):
        with pytest.raises(ApiError):
            chat(**fields)
    assert chat(temperature=1e-6).temperature == 1e-6


def test_stop_texts_are_few() -> None:
    options = ServeOptions(max_stops=2)
    assert parse(ChatRequest, {**CHAT, "stop": ["a", "b"]}, options).stop == ["a", "b"]
    with pytest.raises(ApiError, match="3 stop texts are more than 2"):
        parse(ChatRequest, {**CHAT, "stop": ["a", "b", "c"]}, options)


def test_stop_texts_are_short() -> None:
    most = ServeOptions().max_stop_length
    assert chat(stop=["a" * most]).stop == ["a" * most]
    for stop in ("a" * (most + 1), ["a", "b" * 1_000_000]):
        with pytest.raises(ApiError) as refused:
            chat(stop=stop)
        assert (refused.value.status, refused.value.param) == (400, "stop")
        assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [[]] * 500},
        {"messages": [{"role": "user", "content": [[]] * 500}]},
        {"messages": CHAT["messages"], "stop": [[]] * 500},
        {"messages": CHAT["messages"], "prediction": {"content": [[]] * 500}},
    ],
)
def test_one_error_for_each_list(body: dict[str, Any]) -> None:
    """An error for each of its values takes long, and only the first one is shown."""
    with pytest.raises(ValidationError) as raised:
        ChatRequest.model_validate(body)
    assert raised.value.error_count() <= 2  # a text is allowed, too
    for prompt in ([[]] * 500, [-1] * 500):
        with pytest.raises(ValidationError) as raised:
            CompletionRequest.model_validate({"prompt": prompt})
        assert raised.value.error_count() <= 3


def test_messages_and_parts_are_counted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    most = ServeOptions().max_messages
    part = {"type": "text", "text": "a"}
    message = {"role": "user", "content": [part] * (most // 2)}
    assert len(chat(messages=CHAT["messages"] * most).messages) == most
    assert len(chat(messages=[message] * 2).messages) == 2
    monkeypatch.setattr(ChatRequest, "model_validate", None)
    for messages in (CHAT["messages"] * (most + 1), [message, message, *CHAT["messages"]]):
        with pytest.raises(ApiError) as refused:
            chat(messages=messages)
        assert (refused.value.status, refused.value.param) == (400, "messages")


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[' + b"[]," * 200 + b"[]]}",
        b'{"prompt":[' + b"1," * 200 + b"1]}",
        b"[" * 200 + b"]" * 200,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b"[" + b'"",' * 200 + b'""]',
        b'"' * 2000 + b"," * 2000,
    ],
)
def test_the_values_of_a_body_are_counted_first(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("json.loads", None)
    with pytest.raises(ApiError) as refused:
        load_json(body, max_items=150)
    assert (refused.value.status, refused.value.code) == (400, "too_many_values")


@pytest.mark.parametrize("text", [",:[{" * 500, 'a", \\" \\' * 300, '",' * 500, "\\" * 999])
def test_marks_in_texts_are_no_values(text: str) -> None:
    body = {"prompt": text, text[:9]: [1, 2]}
    assert load_json(json.dumps(body).encode(), max_items=8 * 500) == body


def test_commas_of_a_long_text() -> None:
    body = {"prompt": 'one, two: [three] "four" \\' * 1000}
    assert load_json(json.dumps(body).encode(), max_items=1000) == body


def test_whole_numbers_have_few_digits() -> None:
    for digits in ("9" * 41, "-" + "9" * 4300):
        with pytest.raises(ApiError, match="not valid JSON"):
            load_json(f'{{"seed": {digits}}}'.encode(), 100)


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
