"""OpenAI's Responses API: the answers are those of stock `generate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

import draftlens
from draftlens.scheduling import AnswerError
from tests.e2e.serve.running import CHATS, NEW, PICTURE, Running, text

PICTURE_ITEM = {
    "role": "user",
    "content": [
        {"type": "input_image", "image_url": PICTURE, "detail": "auto"},
        {"type": "input_text", "text": "Describe the image."},
    ],
}
WORDS = str(CHATS["words"][0]["content"])


def create(client: openai.OpenAI, **options: Any) -> Any:
    given = {"model": "embedded", "input": WORDS, "max_output_tokens": NEW, "temperature": 0}
    return client.responses.create(**{**given, **options})


def test_a_text(client: openai.OpenAI, stock: Callable[..., str]) -> None:
    response = create(client, max_output_tokens=100, metadata={"a": "b"})
    assert response.output_text == stock("words", 100)
    assert response.status == "completed"
    assert response.object == "response"
    assert (response.metadata, response.temperature) == ({"a": "b"}, 0)
    (item,) = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    again = create(client)
    assert again.output_text == stock("words")
    assert again.usage.input_tokens_details.cached_tokens == usage.input_tokens - 1


def test_a_picture_and_turns(client: openai.OpenAI, stock: Callable[..., str]) -> None:
    response = create(client, input=[PICTURE_ITEM], extra_body={"draftlens": True})
    assert response.output_text == stock("picture")
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.draftlens["lossless"] is True
    first = {"role": "user", "content": [PICTURE_ITEM["content"][0]]}
    first["content"] = [*first["content"], {"type": "input_text", "text": "What is at the top?"}]
    answered = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "A square.", "annotations": []}],
    }
    last = {"role": "user", "content": "And at the bottom?"}
    turns = create(client, instructions="You describe pictures.", input=[first, answered, last])
    assert turns.output_text == stock("turns")


def test_events_of_a_stream(client: openai.OpenAI, stock: Callable[..., str]) -> None:
    events = list(create(client, input=[PICTURE_ITEM], stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == events[-4].text == stock("picture")
    final = events[-1].response
    assert final.output_text == stock("picture")
    assert final.usage.output_tokens == NEW
    ids = {event.item_id for event in events[3:-2]}
    assert ids == {final.output[0].id}
    assert {events[0].response.id, events[1].response.id} == {final.id}


def test_the_clients_own_stream(client: openai.OpenAI, stock: Callable[..., str]) -> None:
    options = {"model": "embedded", "input": WORDS, "max_output_tokens": 100, "temperature": 0}
    with client.responses.stream(**options) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert response.output_text == stock("words", 100)


def test_lines_of_a_stream(server: Running) -> None:
    body = {"input": "Hello", "stream": True, "max_output_tokens": 2}
    response = server.post("/v1/responses", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    first, *_, last = [each for each in response.text.split("\n\n") if each]
    assert first.startswith('event: response.created\ndata: {"type":"response.created"')
    assert last.startswith("event: response.incomplete\ndata: ")


def test_drawn_answers(client: openai.OpenAI, engine: draftlens.Engine) -> None:
    options: dict[str, Any] = {"do_sample": True, "temperature": 1.2, "top_p": 0.9}
    expected = engine.generate(
        messages=CHATS["words"], seed=5, max_new_tokens=12, sequence_bias={(5,): -3.0}, **options
    )
    extra = {"seed": 5, "logit_bias": {"5": -3}}
    given = {"temperature": 1.2, "top_p": 0.9, "max_output_tokens": 12}
    response = create(client, extra_body=extra, **given)
    assert response.output_text == expected.text


def test_an_error_in_a_stream(
    client: openai.OpenAI, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftlens.serve.answering import Answer

    rounds = Answer.next_round

    async def failing(self: Answer) -> Any:
        if self.num_completion:
            raise AnswerError("the answer failed")
        return await rounds(self)

    monkeypatch.setattr(Answer, "next_round", failing)
    events = list(create(client, stream=True))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2].message == events[-1].response.error.message
    assert "send the request again" in events[-2].message
    monkeypatch.undo()
    assert create(client, max_output_tokens=2).output_text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "yaml"}}}, "response_format"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"role": "user", "content": [text("a"), {"type": "audio"}]}]}, "input"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input"),
        ({"input": [PICTURE_ITEM] * 1025}, "input"),
        ({"input": [{"role": "user", "content": [text("a")] * 1025}]}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    ],
)
def test_what_is_refused(server: Running, fields: dict[str, Any], param: str) -> None:
    response = server.post("/v1/responses", json={"input": "Hello", **fields})
    assert response.status_code == 400, response.text
    assert str(response.json()["error"]["param"]).startswith(param)


NEUTRAL = {
    "store": False,
    "background": False,
    "include": [],
    "previous_response_id": None,
    "reasoning": None,
    "text": {"format": {"type": "text"}},
    "truncation": "disabled",
    "service_tier": "auto",
    "stream_options": None,
    "user": "somebody",
    "tools": [],
    "tool_choice": "auto",
}


def test_values_that_change_nothing(server: Running, stock: Callable[..., str]) -> None:
    body = {"input": WORDS, "max_output_tokens": 3, **NEUTRAL}
    response = server.post("/v1/responses", json=body)
    content = response.json()["output"][0]["content"]
    assert content[0]["text"] == stock("words", 3)


def test_another_model_and_another_method(server: Running, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        create(client, model="another")
    assert httpx.get(f"{server.url}/v1/responses/resp_1").status_code in (404, 405)
