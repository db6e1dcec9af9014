"""Forms of answers over HTTP: the texts of stock `generate` with a processor of the same form."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import openai
import pytest
from forming import StockForm
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

import draftlens
from draftlens.core.forms import Form
from tests.e2e.serve.running import CHATS, Running, ask

NEW = 120


class Thing(BaseModel):
    shape: Literal["circle", "square", "triangle"]
    colour: Literal["red", "green", "blue"]


class Picture(BaseModel):
    things: tuple[Thing, Thing]
    is_dark: bool


SCHEMA = openai.lib._pydantic.to_strict_json_schema(Picture)
PATTERN = "The [a-z ]{3,12} is (red|green)[.]"
WORDS = ["a circle", "a square", 'no "shape"']
GRAMMAR = 'start: item ("," item){1,2}\nitem: "red" | "green" | "blue"'
FORMS: dict[str, tuple[dict[str, Any], Form]] = {
    "strict schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "picture", "schema": SCHEMA, "strict": True},
            }
        },
        Form.json(SCHEMA),
    ),
    "schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "picture", "schema": {**SCHEMA, "uniqueItems": True}},
            }
        },
        Form.json(SCHEMA),
    ),
    "any object": ({"response_format": {"type": "json_object"}}, Form.json()),
    "guided schema": ({"guided_json": SCHEMA}, Form.json(SCHEMA)),
    "guided schema as a text": ({"guided_json": json.dumps(SCHEMA)}, Form.json(SCHEMA)),
    "expression": ({"guided_regex": PATTERN}, Form.regex(PATTERN)),
    "choice": ({"structured_outputs": {"choice": WORDS}}, Form.choice(WORDS)),
    "grammar": ({"structured_outputs": {"grammar": GRAMMAR}}, Form.lark(GRAMMAR)),
    "object of vLLM": ({"structured_outputs": {"json_object": True}}, Form.json()),
}


@pytest.fixture(scope="module")
def stock_of(engine: draftlens.Engine) -> Callable[[str, Form], str]:
    """What the unmodified library answers with the processor of the tests."""

    @cache
    def answer(name: str, form: Form) -> str:
        given = engine.read(messages=CHATS[name]).target
        model, words = engine.target.backbone.model, engine.target.processor.tokenizer
        length = given["input_ids"].shape[1]
        ends = model.generation_config.eos_token_id
        eos = [ends] if isinstance(ends, int) else ends
        masks = [StockForm(form.grammar, length, eos, words)]
        options: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW}
        ids = model.generate(**given, **options, logits_processor=masks)
        return str(words.decode(ids[0, length:], skip_special_tokens=True))

    return answer


@pytest.mark.parametrize("name", FORMS)
def test_the_texts_of_stock_generate(
    client: openai.OpenAI, stock_of: Callable[[str, Form], str], name: str
) -> None:
    """Whole and in a stream, about words, and of one form about a clip."""
    body, form = FORMS[name]
    for chat in ("clip", "words") if name == "strict schema" else ("words",):
        expected = stock_of(chat, form)
        whole = ask(client, chat, max_tokens=NEW, extra_body=body)
        assert whole.choices[0].message.content == expected
        ended = whole.choices[0].finish_reason == "stop"
        assert ended or whole.usage.completion_tokens == NEW
        parts = ask(client, chat, max_tokens=NEW, stream=True, extra_body=body)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == expected
        if ended and "schema" in name:
            Picture.model_validate_json(expected)


def test_rows_of_one_batch_have_forms_of_their_own(
    client: openai.OpenAI, stock: Callable[..., str], stock_of: Callable[[str, Form], str]
) -> None:
    """Streams that run beside each other."""
    asked: dict[str, dict[str, Any]] = {
        name: FORMS[name][0] for name in ("strict schema", "choice")
    }
    streams = {
        name: ask(client, "clip", max_tokens=NEW, stream=True, extra_body=body)
        for name, body in {**asked, "": {}}.items()
    }
    texts = dict.fromkeys(streams, "")
    for name, stream in streams.items():
        texts[name] = "".join(part.choices[0].delta.content or "" for part in stream)
    assert texts == {
        **{name: stock_of("clip", FORMS[name][1]) for name in asked},
        "": stock("clip", NEW),
    }


def test_several_samples(client: openai.OpenAI) -> None:
    """Each is drawn with a seed of its own and has the form."""
    body = FORMS["strict schema"][0]
    options: dict[str, Any] = {"n": 3, "temperature": 1.5, "seed": 4, "max_tokens": NEW}
    answers = [ask(client, "clip", extra_body=body, **options) for _ in range(2)]
    texts = [[choice.message.content for choice in answer.choices] for answer in answers]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1
    for text in texts[0]:
        Picture.model_validate_json(str(text))


def test_forced_tokens_are_drafts(client: openai.OpenAI) -> None:
    """An object with long keys takes fewer passes than it has keys' tokens."""
    answer = ask(
        client,
        "clip",
        max_tokens=NEW,
        extra_body={**FORMS["strict schema"][0], "draftlens": True},
    )
    assert answer.draftlens["accepted_tokens"] > answer.usage.completion_tokens / 2


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"guided_json": {"enum": []}}, "Unsatisfiable"),
        ({"guided_json": "{"}, "Expecting"),
        ({"guided_regex": "("}, "unclosed group"),
        ({"guided_choice": []}, "list of texts"),
        ({"guided_grammar": "nothing"}, "Expected"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "names several"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "schema": {"type": "array", "uniqueItems": True},
                        "strict": True,
                    },
                }
            },
            "uniqueItems",
        ),
    ],
)
def test_refusals(server: Running, body: dict[str, Any], cause: str) -> None:
    """Before anything is answered, in one sentence."""
    response = server.post(json={"messages": CHATS["words"], **body})
    assert response.status_code == 400, response.text
    message = response.json()["error"]["message"]
    assert cause in message
    assert "\n" not in message


def test_openai_parses_an_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="embedded",
        messages=CHATS["clip"],  # type: ignore[arg-type]
        response_format=Picture,
        max_tokens=NEW,
    )
    assert isinstance(answer.choices[0].message.parsed, Picture)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_langchain(server: Running) -> None:
    chat = ChatOpenAI(model="embedded", base_url=f"{server.url}/v1", api_key="none")
    picture = chat.with_structured_output(Picture, method="json_schema").invoke(CHATS["clip"])
    assert isinstance(picture, Picture)
