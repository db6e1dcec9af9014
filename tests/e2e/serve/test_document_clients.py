"""Requests as the pipelines of Docling and MinerU send them: their answers are those of stock
`generate`.

The fields are those of `docling.utils.api_image_request` (docling 2.130) and
`mineru_vl_utils.vlm_client.http_client` (mineru-vl-utils 2.0.7).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor

import draftlens
from tests.e2e.serve.running import NEW, PICTURE, Running, image, said, text

DOCLING = {
    "messages": said(image(PICTURE), text("Convert this page to docling.")),
    "model": "embedded",
    "max_tokens": NEW,
    "skip_special_tokens": False,
    "temperature": 0.0,
}
MINERU = {
    "model": "embedded",
    "messages": [
        {"role": "system", "content": "You are a helpful assistant."},
        *said(image(PICTURE), text("\nText Recognition:")),
    ],
    "temperature": 0.0,
    "top_p": 0.01,
    "top_k": 1,
    "presence_penalty": 1.0,
    "frequency_penalty": 0.05,
    "repetition_penalty": 1.0,
    "vllm_xargs": {"no_repeat_ngram_size": 100, "debug": False},
    "max_completion_tokens": NEW,
    "max_tokens": NEW,
    "skip_special_tokens": False,
}
LAYOUT = MINERU | {"presence_penalty": 0.0, "frequency_penalty": 0.0, "priority": 0}


class Counted(LogitsProcessor):
    """Penalties as OpenAI's API defines them, token by token."""

    def __init__(self, presence: float, frequency: float, prompt_length: int) -> None:
        self.presence, self.frequency, self.prompt_length = presence, frequency, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        lowered = scores.clone()
        for row, ids in enumerate(input_ids[:, self.prompt_length :].tolist()):
            for token, count in Counter(ids).items():
                lowered[row, token] -= self.frequency * count + self.presence
        return lowered


@pytest.fixture(scope="module")
def stock(engine: draftlens.Engine) -> Callable[[dict[str, Any]], list[int]]:
    """The tokens of stock `generate`."""
    known: dict[int, list[int]] = {}

    def answer(body: dict[str, Any]) -> list[int]:
        if id(body) not in known:
            known[id(body)] = stock_tokens(engine, body)
        return known[id(body)]

    return answer


def stock_tokens(engine: draftlens.Engine, body: dict[str, Any]) -> list[int]:
    given = engine.read(messages=body["messages"]).target
    length = given["input_ids"].shape[1]
    presence = body.get("presence_penalty", 0.0)
    penalties = Counted(presence, body.get("frequency_penalty", 0.0), length)
    ids = engine.target.backbone.model.generate(
        **given,
        do_sample=False,
        max_new_tokens=body["max_tokens"],
        logits_processor=[penalties] * bool(presence),
    )
    return list(map(int, ids[0, length:]))


@pytest.mark.parametrize("body", [DOCLING, MINERU, LAYOUT], ids=["docling", "mineru", "layout"])
def test_answers_of_document_pipelines(
    server: Running,
    engine: draftlens.Engine,
    stock: Callable[[dict[str, Any]], list[int]],
    body: dict[str, Any],
) -> None:
    response = server.post(json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    tokens = stock(body)
    words = engine.target.processor.tokenizer
    kept = [token for token in tokens if token != words.eos_token_id]
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == words.decode(kept, skip_special_tokens=False)
    assert choice["finish_reason"] == ("length" if len(tokens) == NEW else "stop")
    assert answer["usage"]["completion_tokens"] == len(tokens)
    assert {"id", "created", "object"} <= answer.keys()


def test_penalties_change_the_answer(stock: Callable[[dict[str, Any]], list[int]]) -> None:
    assert stock(MINERU) != stock(LAYOUT)


def test_drawn_answers_with_penalties(server: Running) -> None:
    """A draw follows from its seed, also beside other rows."""
    body = {**MINERU, "temperature": 1.3, "top_k": 50, "top_p": 1.0, "seed": 4}
    answers = {server.post(json=body).json()["choices"][0]["message"]["content"] for _ in range(2)}
    rows = server.post(json={**body, "n": 3}).json()["choices"]
    assert answers == {rows[0]["message"]["content"]}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_special_tokens_stay_where_they_are_asked_for(
    server: Running, engine: draftlens.Engine, path: str, stream: bool
) -> None:
    words = engine.target.processor.tokenizer
    special = next(each for each in words.all_special_ids if each != words.eos_token_id)
    asked = {"messages": said(text("a")), "prompt": "a", "max_tokens": 3, "temperature": 0}
    body = {**asked, "logit_bias": {str(special): 100}, "stream": stream}
    texts = {}
    for skip in (True, False):
        response = server.post(path, json={**body, "skip_special_tokens": skip})
        texts[skip] = _text(response, stream)
    assert texts[True] == ""
    assert texts[False].count(words.decode([special])) == 3


def _text(response: httpx.Response, stream: bool) -> str:
    assert response.status_code == 200, response.text
    lines = response.text.splitlines() if stream else [f"data: {response.text}"]
    events = [line[6:] for line in lines if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    parts = [choice.get("delta") or choice.get("message") or choice for choice in choices]
    return "".join(part.get("content") or part.get("text") or "" for part in parts)


def test_penalties_of_a_row_do_not_touch_the_prompt() -> None:
    from draftlens.serve.steering import CountPenalties

    ids = torch.tensor([[3, 3, 0, 1], [2, 2, 1, 1]])
    scores = torch.arange(8.0).view(2, 4)
    expected = Counted(0.5, 0.25, 2)(ids, scores)
    assert torch.equal(CountPenalties(0.5, 0.25, 2)(ids, scores), expected)
