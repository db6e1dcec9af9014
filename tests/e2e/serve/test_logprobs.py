"""`logprobs` with OpenAI's client: the log probabilities of stock `generate`, with their texts."""

from __future__ import annotations

from typing import Any

import openai
import pytest
import torch

import draftlens
from tests.e2e.serve.running import CHATS, NEW, Running, ask

TOP = 3


def stock_log_p(engine: draftlens.Engine, given: dict[str, Any]) -> tuple[list[int], torch.Tensor]:
    """The tokens of a greedy answer by the unmodified library, and all log probabilities
    ``[T, V]``."""
    output = engine.target.backbone.model.generate(
        **given,
        do_sample=False,
        max_new_tokens=NEW,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = output.sequences[0, given["input_ids"].shape[1] :].tolist()
    return tokens, torch.cat(output.logits).log_softmax(-1)


def check_content(engine: draftlens.Engine, name: str, content: Any, text: str) -> None:
    tokens, log_p = stock_log_p(engine, engine.read(messages=CHATS[name]).target)
    texts = engine.token_texts
    assert len(content) == len(tokens)
    for entry, token, scores in zip(content, tokens, log_p, strict=True):
        assert entry.token == texts.text(token)
        assert entry.logprob == pytest.approx(float(scores[token]), abs=1e-4)
        best = scores.topk(TOP)
        assert [other.token for other in entry.top_logprobs] == [
            texts.text(other) for other in best.indices.tolist()
        ]
        values = [other.logprob for other in entry.top_logprobs]
        assert values == pytest.approx(best.values.tolist(), abs=1e-4)
    assert b"".join(bytes(entry.bytes or []) for entry in content).decode() == text


def check_equal(streamed: Any, whole: Any) -> None:
    """Entries of two answers, whose passes may round differently."""
    assert [(each.token, each.bytes) for each in streamed] == [
        (each.token, each.bytes) for each in whole
    ]
    pairs = [(streamed, whole)]
    pairs += [(a.top_logprobs, b.top_logprobs) for a, b in zip(streamed, whole, strict=True)]
    for ours, others in pairs:
        expected = pytest.approx([each.logprob for each in others], abs=1e-4)
        assert [each.logprob for each in ours] == expected


@pytest.mark.parametrize("name", ["picture", "words", "turns"])
def test_messages(engine: draftlens.Engine, client: openai.OpenAI, name: str) -> None:
    options: dict[str, Any] = {"temperature": 0, "logprobs": True, "top_logprobs": TOP}
    (choice,) = ask(client, name, **options).choices
    check_content(engine, name, choice.logprobs.content, choice.message.content)
    chunks = [chunk.choices[0] for chunk in ask(client, name, stream=True, **options)]
    text = "".join(chunk.delta.content or "" for chunk in chunks)
    streamed = [entry for chunk in chunks if chunk.logprobs for entry in chunk.logprobs.content]
    assert text == choice.message.content
    check_equal(streamed, choice.logprobs.content)
    assert chunks[-1].logprobs is None
    said = ""
    for chunk in chunks:
        said += chunk.delta.content or ""
        assert said or not chunk.logprobs


def test_without_them_nothing_is_returned(client: openai.OpenAI) -> None:
    for options in ({}, {"logprobs": False}, {"logprobs": None, "top_logprobs": 0}):
        (choice,) = ask(client, "words", **options).choices
        assert choice.logprobs is None


def test_several_choices(client: openai.OpenAI) -> None:
    """Each has its own; no likely tokens are asked for."""
    options: dict[str, Any] = {"n": 3, "seed": 5, "temperature": 1.5, "logprobs": True}
    whole = ask(client, "words", **options).choices
    assert len({choice.message.content for choice in whole}) > 1
    for choice in whole:
        content = choice.logprobs.content
        assert len(content) == NEW
        assert all(entry.top_logprobs == [] for entry in content)
        added = b"".join(bytes(entry.bytes or []) for entry in content)
        assert added.decode("utf-8", "replace") == choice.message.content
    streamed: list[list[Any]] = [[], [], []]
    for chunk in ask(client, "words", stream=True, **options):
        for choice in chunk.choices:
            if choice.logprobs:
                streamed[choice.index] += choice.logprobs.content
    for entries, choice in zip(streamed, whole, strict=True):
        check_equal(entries, choice.logprobs.content)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text_within_a_token(client: openai.OpenAI, stream: bool) -> None:
    """The token that it cuts is the last one, whole."""
    options: dict[str, Any] = {"temperature": 0, "logprobs": True}
    (choice,) = ask(client, "words", **options).choices
    content = choice.logprobs.content
    place = next(i for i, entry in enumerate(content) if i > 4 and len(entry.token.strip()) > 2)
    before = "".join(entry.token for entry in content[:place])
    stop = choice.message.content[len(before) + 2 : len(before) + 12]
    assert choice.message.content.index(stop) == len(before) + 2
    answer = ask(client, "words", stop=stop, stream=stream, **options)
    if stream:
        events = [event.choices[0] for event in answer]
        text = "".join(event.delta.content or "" for event in events)
        got = [entry for event in events if event.logprobs for entry in event.logprobs.content]
    else:
        text, got = answer.choices[0].message.content, answer.choices[0].logprobs.content
    assert text == choice.message.content[: len(before) + 2]
    check_equal(got, content[: place + 1])


@pytest.mark.parametrize("count", [0, 2])
def test_completions(engine: draftlens.Engine, client: openai.OpenAI, count: int) -> None:
    """Two prompts, whole and streamed."""
    options: dict[str, Any] = {"model": "embedded", "max_tokens": NEW, "temperature": 0}
    words = ["A red square is", "Then a blue"]
    whole = client.completions.create(prompt=words, logprobs=count, **options).choices
    tokenizer, texts = engine.target.processor.tokenizer, engine.token_texts
    for choice, prompt in zip(whole, words, strict=True):
        tokens, log_p = stock_log_p(engine, dict(tokenizer(prompt, return_tensors="pt")))
        found = choice.logprobs
        assert found.tokens == [texts.text(token) for token in tokens]
        own = log_p.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        assert found.token_logprobs == pytest.approx(own, abs=1e-4)
        assert found.text_offset[0] == 0
        assert found.text_offset == sorted(found.text_offset)
        for best, token, scores in zip(found.top_logprobs, tokens, log_p, strict=True):
            ids = {*scores.topk(count).indices.tolist(), token}
            expected = {texts.text(each): float(scores[each]) for each in ids}
            assert best == pytest.approx(expected, abs=1e-4)
    streamed: list[dict[str, list[Any]]] = [{}, {}]
    for chunk in client.completions.create(prompt=words, logprobs=count, stream=True, **options):
        for choice in chunk.choices:
            for name, values in choice.logprobs.model_dump().items() if choice.logprobs else ():
                streamed[choice.index].setdefault(name, []).extend(values)
    for parts, choice in zip(streamed, whole, strict=True):
        expected = choice.logprobs.model_dump()
        for name in ("tokens", "text_offset"):
            assert parts[name] == expected[name]
        assert parts["token_logprobs"] == pytest.approx(expected["token_logprobs"], abs=1e-4)
        for best, other in zip(parts["top_logprobs"], expected["top_logprobs"], strict=True):
            assert best == pytest.approx(other, abs=1e-4)


def test_the_end_of_an_answer(engine: draftlens.Engine, server: Running) -> None:
    """The end-of-sequence token has an entry without bytes; the usage counts it, too."""
    body = {"messages": CHATS["picture"], "temperature": 0, "logprobs": True, "max_tokens": 400}
    response = server.post(json=body).json()
    (choice,) = response["choices"]
    assert choice["finish_reason"] == "stop"
    content = choice["logprobs"]["content"]
    assert len(content) == response["usage"]["completion_tokens"]
    assert content[-1]["bytes"] is None
    assert content[-1]["token"] == engine.target.processor.tokenizer.eos_token
    joined = b"".join(bytes(entry["bytes"] or []) for entry in content)
    assert joined.decode() == choice["message"]["content"]
