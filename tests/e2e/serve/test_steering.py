"""Fields about which tokens an answer has and where it ends: the tokens are those of stock
`generate` with the same options."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping
from typing import Any

import openai
import pytest

import draftlens
from tests.e2e.serve.running import CHATS, NEW, Running, ask

LONG = 100
"""Tokens, more than the answers have before their end."""

END = 2
"""The token that ends answers of the embedded pair."""

Fields = Mapping[str, Any]


class Stock:
    """Stock `generate`, with the tokens and the text of its answers."""

    def __init__(self, engine: draftlens.Engine) -> None:
        self.tokenizer = engine.target.processor.tokenizer
        self._engine = engine

    def ids(self, name: str, ends: bool = True, new: int = NEW, **options: Any) -> list[int]:
        given = self._engine.read(messages=CHATS[name]).target
        model = self._engine.target.backbone.model
        if not ends:
            model = copy.copy(model)
            model.generation_config = copy.deepcopy(model.generation_config)
            model.generation_config.eos_token_id = None
        ids = model.generate(**given, do_sample=False, max_new_tokens=new, **options)
        return list(map(int, ids[0, given["input_ids"].shape[1] :]))

    def text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


@pytest.fixture(scope="module")
def plain(engine: draftlens.Engine) -> Stock:
    return Stock(engine)


def fields_and_options(kind: str, plain: Stock, name: str) -> tuple[dict[str, Any], Fields]:
    """The fields of a request, and the options of stock `generate` that mean the same."""
    ids = plain.ids(name)
    word = plain.tokenizer.decode(ids[2:4]).strip()
    encode = plain.tokenizer.encode
    banned = [encode(word, add_special_tokens=False), encode(f" {word}", add_special_tokens=False)]
    banned = [list(each) for each in dict.fromkeys(map(tuple, banned))]
    return {
        "logit_bias": (
            {"logit_bias": {str(ids[1]): -100, str(ids[5]): 3.5}},
            {"sequence_bias": {(ids[1],): -100.0, (ids[5],): 3.5}},
        ),
        "bad_words": ({"extra_body": {"bad_words": [word]}}, {"bad_words_ids": banned}),
        "no_repeat_ngram_size": (
            {"extra_body": {"no_repeat_ngram_size": 1}},
            {"no_repeat_ngram_size": 1},
        ),
        "stop_token_ids": (
            {"extra_body": {"stop_token_ids": [ids[7]]}},
            {"eos_token_id": [END, ids[7]]},
        ),
        "several": (
            {
                "logit_bias": {str(ids[0]): -100},
                "extra_body": {"bad_words": [word], "repetition_penalty": 1.1},
            },
            {
                "sequence_bias": {(ids[0],): -100.0},
                "bad_words_ids": banned,
                "repetition_penalty": 1.1,
            },
        ),
    }[kind]


KINDS = ("logit_bias", "bad_words", "no_repeat_ngram_size", "stop_token_ids", "several")


@pytest.mark.parametrize("name", ["picture", "words"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers(client: openai.OpenAI, plain: Stock, kind: str, name: str) -> None:
    fields, options = fields_and_options(kind, plain, name)
    expected = plain.ids(name, **options)
    assert expected != plain.ids(name)
    response = ask(client, name, **fields)
    assert response.choices[0].message.content == plain.text(expected)
    assert response.usage.completion_tokens == len(expected)
    ends = options.get("eos_token_id", [END])
    assert response.choices[0].finish_reason == ("stop" if expected[-1] in ends else "length")
    chunks = ask(client, name, stream=True, **fields)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == plain.text(expected)


def test_drawn_answers_in_one_batch(server: Running, engine: draftlens.Engine) -> None:
    """Rows of different options join one batch; each draws what it draws alone."""
    plain = Stock(engine)
    cases = [fields_and_options(kind, plain, "words") for kind in KINDS]

    async def drawn(client: openai.AsyncOpenAI, seed: int, fields: dict[str, Any]) -> str:
        given = {"temperature": 1.5, "seed": seed, "max_tokens": 12, **fields}
        response = await ask(client, "words", **given)
        return str(response.choices[0].message.content)

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-") as client:
            rows = [drawn(client, seed, fields) for seed, (fields, _) in enumerate(cases)]
            return await asyncio.gather(*rows)

    sampling = {"do_sample": True, "temperature": 1.5, "max_new_tokens": 12}
    expected = [
        engine.generate(messages=CHATS["words"], seed=seed, **sampling, **options).text
        for seed, (_, options) in enumerate(cases)
    ]
    assert asyncio.run(together()) == expected


def test_where_an_answer_ends(client: openai.OpenAI, plain: Stock) -> None:
    name = "words"
    natural = plain.ids(name, new=LONG)
    assert len(natural) < LONG - 10
    response = ask(client, name, max_tokens=LONG)
    assert response.usage.completion_tokens == len(natural)

    unused = next(token for token in range(20, 200) if token not in natural)
    response = ask(client, name, max_tokens=LONG, extra_body={"stop_token_ids": [unused]})
    assert response.usage.completion_tokens == len(natural)

    least = len(natural) + 5
    longer = plain.ids(name, new=LONG, min_new_tokens=least)
    response = ask(client, name, max_tokens=LONG, extra_body={"min_tokens": least})
    assert response.choices[0].message.content == plain.text(longer)
    assert response.usage.completion_tokens == len(longer) >= least

    endless = plain.ids(name, ends=False, new=LONG)
    response = ask(client, name, max_tokens=LONG, extra_body={"ignore_eos": True})
    assert response.choices[0].message.content == plain.text(endless)
    assert response.usage.completion_tokens == LONG
    assert response.choices[0].finish_reason == "length"

    both = {"ignore_eos": True, "min_tokens": 3, "stop_token_ids": [natural[9]]}
    expected = plain.ids(name, new=LONG, eos_token_id=[natural[9]], min_new_tokens=3)
    response = ask(client, name, max_tokens=LONG, extra_body=both)
    assert response.usage.completion_tokens == len(expected)
    assert response.choices[0].finish_reason == "stop"


def test_more_tokens_than_the_answer_may_have(client: openai.OpenAI, plain: Stock) -> None:
    response = ask(client, "words", max_tokens=3, extra_body={"min_tokens": 1000})
    assert response.choices[0].message.content == plain.text(plain.ids("words", new=3))


def test_many_stop_texts(client: openai.OpenAI, plain: Stock) -> None:
    whole = plain.text(plain.ids("picture"))
    words = whole.split(" ")
    stop = " ".join(words[4:6])
    stops = [*(f"nothing {number}" for number in range(15)), stop]
    response = ask(client, "picture", stop=stops)
    assert response.choices[0].message.content == whole[: whole.index(stop)]
    with pytest.raises(openai.BadRequestError, match="more than 16"):
        ask(client, "picture", stop=[*stops, "one more"])


def test_a_message_that_is_continued(client: openai.OpenAI, engine: draftlens.Engine) -> None:
    begun = [*CHATS["words"], {"role": "assistant", "content": "The picture shows"}]
    processor = engine.target.processor
    prompt = processor.apply_chat_template(begun, continue_final_message=True, tokenize=False)
    assert prompt.endswith("The picture shows")
    given = dict(processor(text=[prompt], return_tensors="pt"))
    ids = engine.target.backbone.model.generate(**given, do_sample=False, max_new_tokens=NEW)
    expected = processor.tokenizer.decode(
        ids[0, given["input_ids"].shape[1] :], skip_special_tokens=True
    )
    for fields in ({}, {"add_generation_prompt": False}):
        body = {"continue_final_message": True, **fields}
        response = ask(client, "words", messages=begun, extra_body=body)
        assert response.choices[0].message.content == expected
        assert response.usage.prompt_tokens == given["input_ids"].shape[1]
    both = {"continue_final_message": True, "add_generation_prompt": True}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "words", messages=begun, extra_body=both)
    assert refused.value.param == "add_generation_prompt"  # type: ignore[attr-defined]
    without = ask(client, "words", messages=begun, extra_body={"add_generation_prompt": False})
    closed = processor.apply_chat_template(begun, tokenize=False)
    assert without.usage.prompt_tokens == len(processor.tokenizer(closed)["input_ids"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"many": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"5": float("inf")}}, None),
        ({"bad_words": [""]}, "bad_words.0"),
        ({"bad_words": ["a"] * 129}, "bad_words"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": "1"}, "presence_penalty"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
    ],
)
def test_values_that_are_refused(server: Running, fields: Fields, param: str | None) -> None:
    content = json.dumps({"messages": CHATS["words"], **fields}).encode()
    response = server.post(content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert str(response.json()["error"]["param"]).startswith(str(param))
