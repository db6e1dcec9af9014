"""Tools over HTTP: the prompt is that of the chat template, and calls in the answer are read.

The answers of the embedded pair hold no calls, so a criterion of the tests writes them: a logits
processor forces the tokens of a text, which the draft does not know.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import openai
import pytest
import torch
from langchain_core.tools import tool as as_tool
from langchain_openai import ChatOpenAI
from torch import Tensor

import draftlens
from draftlens.serve.answering import Answering
from tests.e2e.serve.running import CHATS, NEW, Running, ask

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


class Forced:
    """A logits processor that makes an answer the given tokens."""

    def __init__(self, prompt: int, tokens: list[int]) -> None:
        self.prompt = prompt
        self.tokens = tokens

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        place = ids.shape[1] - self.prompt
        forced = torch.full_like(scores, float("-inf"))
        forced[:, self.tokens[min(place, len(self.tokens) - 1)]] = 0
        return forced


@pytest.fixture
def says(calling: draftlens.Engine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes all answers from now on the given text."""
    tokenizer = calling.target.processor.tokenizer
    request = Answering.request

    def say(text: str) -> list[int]:
        tokens = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

        def forced(self: Answering, engine: Any, inputs: Any, *rest: Any, **extras: Any) -> Any:
            processor = Forced(inputs.target["input_ids"].shape[1], tokens)
            return request(self, engine, inputs, *rest, logits_processor=[processor], **extras)

        monkeypatch.setattr(Answering, "request", forced)
        return tokens

    return say


def test_a_call(tools_server: Running, says: Any) -> None:
    tokens = says(f"I look it up.\n{CALL}")
    response = ask(tools_server.client(), "picture", tools=TOOLS, max_tokens=100)
    (choice,) = response.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look it up."
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    assert response.usage.completion_tokens == len(tokens)


def test_several_calls_in_a_stream(tools_server: Running, says: Any) -> None:
    says(f"{CALL}\n{CALL.replace('Oslo', 'Rom')}")
    with tools_server.client().chat.completions.stream(
        model="embedded", messages=CHATS["words"], tools=TOOLS, max_tokens=200
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    calls = choice.message.tool_calls
    cities = [json.loads(call.function.arguments)["city"] for call in calls]
    assert cities == ["Oslo", "Rom"]
    assert len({call.id for call in calls}) == 2
    assert not choice.message.content
    done = [each for each in events if each.type == "tool_calls.function.arguments.done"]
    assert [each.name for each in done] == ["weather", "weather"]
    one = ask(
        tools_server.client(), "words", tools=TOOLS, max_tokens=200, parallel_tool_calls=False
    )
    assert len(one.choices[0].message.tool_calls) == 1


def test_answers_without_a_call_are_stocks(
    tools_server: Running, calling: draftlens.Engine
) -> None:
    """The prompt is that of the chat template with these tools, and the tokens are those of
    `generate`; so is a conversation with a call and its result."""
    call = {"id": "abc", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns = [
        *CHATS["words"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "Rain."},
    ]
    rendered = copy.deepcopy(turns)
    rendered[0]["content"] = [{"type": "text", "text": turns[0]["content"]}]
    rendered[1] = {"role": "assistant", "content": [], "tool_calls": [copy.deepcopy(call)]}
    rendered[1]["tool_calls"][0]["function"]["arguments"] = {}
    rendered[2]["content"] = [{"type": "text", "text": "Rain."}]
    processor = calling.target.processor
    for messages, chat in ((turns[:1], rendered[:1]), (turns, rendered)):
        prompt = processor.apply_chat_template(
            chat, tools=TOOLS, add_generation_prompt=True, tokenize=False
        )
        assert "The weather." in prompt
        given = dict(processor(text=[prompt], return_tensors="pt"))
        model = calling.target.backbone.model
        ids = model.generate(**given, do_sample=False, max_new_tokens=NEW)
        expected = processor.tokenizer.decode(
            ids[0, given["input_ids"].shape[1] :], skip_special_tokens=True
        )
        for stream in (False, True):
            response = ask(
                tools_server.client(), "words", messages=messages, tools=TOOLS, stream=stream
            )
            if stream:
                content = "".join(each.choices[0].delta.content or "" for each in response)
            else:
                content = response.choices[0].message.content
                assert response.usage.prompt_tokens == given["input_ids"].shape[1]
                assert response.choices[0].message.tool_calls is None
            assert content == expected


def test_a_choice_of_none(tools_server: Running, says: Any) -> None:
    """The model does not see the tools, and its answer is text."""
    says(CALL)
    client = tools_server.client()
    with_tools = ask(client, "words", tools=TOOLS, max_tokens=100)
    without = ask(client, "words", tools=TOOLS, tool_choice="none", max_tokens=100)
    assert without.choices[0].message.content == CALL
    assert without.choices[0].finish_reason == "stop"
    assert without.usage.prompt_tokens < with_tools.usage.prompt_tokens


def test_a_call_that_is_cut_off(tools_server: Running, says: Any) -> None:
    tokens = says(CALL)
    response = ask(tools_server.client(), "words", tools=TOOLS, max_tokens=len(tokens) - 3)
    (choice,) = response.choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert CALL.startswith(choice.message.content)


def test_langchain(tools_server: Running, says: Any) -> None:
    @as_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return city

    says(CALL)
    chat = ChatOpenAI(
        model="embedded", base_url=f"{tools_server.url}/v1", api_key="none"
    ).bind_tools([weather])
    answer = chat.invoke("How is the weather?")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [
        ("weather", {"city": "Oslo"})
    ]
    streamed = list(chat.stream("How is the weather?"))
    whole = streamed[0]
    for chunk in streamed[1:]:
        whole = whole + chunk
    assert whole.tool_calls[0]["args"] == {"city": "Oslo"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {
                "tools": TOOLS,
                "tool_choice": {"type": "function", "function": {"name": "stocks"}},
            },
            "tool_choice",
        ),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ],
)
def test_what_is_refused(tools_server: Running, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(tools_server.client(), "words", **fields)
    assert refused.value.param == param


def test_a_model_without_tools(client: openai.OpenAI) -> None:
    """The template of the embedded pair does not render them."""
    with pytest.raises(openai.BadRequestError, match="has no place for them") as refused:
        ask(client, "words", tools=TOOLS)
    assert refused.value.param == "tools"
    response = ask(client, "words", tools=TOOLS, tool_choice="none")
    assert response.choices[0].message.content


FLAT = [{"type": "function", **TOOLS[0]["function"]}]


def test_items_of_a_response(tools_server: Running, says: Any) -> None:
    says(f"I look it up.\n{CALL}{CALL}")
    given = {"model": "embedded", "input": "How is it?", "tools": FLAT, "max_output_tokens": 200}
    client = tools_server.client()
    response = client.responses.create(**given)
    assert response.status == "completed"
    message, *calls = response.output
    assert response.output_text == message.content[0].text == "I look it up."
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("weather", {"city": "Oslo"})
    ] * 2
    with client.responses.stream(**given) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds.count("response.function_call_arguments.done") == 2
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
    assert final.output[2].arguments == calls[1].arguments


def test_items_of_an_earlier_call(tools_server: Running, calling: draftlens.Engine) -> None:
    """They are rendered as the messages of a chat."""
    call = {"type": "function_call", "call_id": "abc", "name": "weather", "arguments": "{}"}
    other = {**call, "call_id": "def", "id": "fc_1", "status": "completed"}
    output = {"type": "function_call_output", "call_id": "abc", "output": "Rain."}
    items = [
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": "I look."},
        call,
        other,
        output,
    ]
    turns: list[Any] = [
        {"role": "user", "content": "How is it?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": number, "function": {"name": "weather", "arguments": "{}"}}
                for number in ("abc", "def")
            ],
        },
        {"role": "tool", "tool_call_id": "abc", "content": "Rain."},
    ]
    client = tools_server.client()
    response = client.responses.create(
        model="embedded", input=items, tools=FLAT, max_output_tokens=NEW
    )
    chat = ask(client, "words", messages=turns, tools=TOOLS)
    assert response.output_text == chat.choices[0].message.content
    assert response.usage.input_tokens == chat.usage.prompt_tokens


FORECAST = {
    "type": "function",
    "function": {
        "name": "forecast",
        "parameters": {
            "type": "object",
            "properties": {"days": {"enum": [1, 2]}, "unit": {"enum": ["C", "F"]}},
            "required": ["days", "unit"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_demanded_call(tools_server: Running, stream: bool) -> None:
    """The answer is a call of one of the tools, or of the one that is named, with arguments of its
    schema, although the model would say something else."""
    client = tools_server.client()
    options: dict[str, Any] = {"tools": [FORECAST, *TOOLS], "max_tokens": 200}
    forecast = {"type": "function", "function": {"name": "forecast"}}
    for choice, names in (("required", {"forecast", "weather"}), (forecast, {"forecast"})):
        if stream:
            chunks = ask(client, "words", tool_choice=choice, stream=True, **options)
            deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
            assert not any(delta.content for delta in deltas)
            (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
        else:
            (made,) = ask(client, "words", tool_choice=choice, **options).choices
            assert made.finish_reason == "tool_calls"
            assert made.message.content is None
            (call,) = made.message.tool_calls
        assert call.function.name in names
        arguments = json.loads(call.function.arguments)
        if call.function.name == "forecast":
            assert arguments["days"] in (1, 2)
            assert arguments["unit"] in ("C", "F")


def test_a_demanded_call_of_a_response(tools_server: Running) -> None:
    flat = [{"type": "function", **FORECAST["function"]}]
    response = tools_server.client().responses.create(
        model="embedded",
        input="How is it?",
        tools=flat,
        tool_choice={"type": "function", "name": "forecast"},
        max_output_tokens=200,
    )
    (call,) = response.output
    assert (call.type, call.name) == ("function_call", "forecast")
    assert json.loads(call.arguments)["days"] in (1, 2)


def test_a_form_of_a_response(tools_server: Running) -> None:
    schema = FORECAST["function"]["parameters"]
    given = {"type": "json_schema", "name": "forecast", "schema": schema, "strict": True}
    response = tools_server.client().responses.create(
        model="embedded", input="How is it?", text={"format": given}, max_output_tokens=200
    )
    assert json.loads(response.output_text)["unit"] in ("C", "F")
    assert response.text.format.schema_ == schema


def test_special_tokens_do_not_go_with_tools(tools_server: Running) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    body = {
        "messages": [{"role": "user", "content": "a"}],
        "skip_special_tokens": False,
        "tools": [tool],
    }
    response = tools_server.post(json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "skip_special_tokens"
