"""`draftlens serve` with clients of OpenAI: each answer is that of stock `generate`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
from openai.types.chat import ChatCompletionChunk

import draftlens
from draftlens.core.sampling import row_seeds
from draftlens.serve.options import ServeOptions
from draftlens.serve.protocol import NOT_READ
from tests.e2e.serve.running import (
    CHATS,
    KEY,
    NEW,
    Running,
    ask,
    image,
    said,
    serving,
    text,
)


def test_an_answer(client: openai.OpenAI, stock: Callable[..., str]) -> None:
    response = ask(client, "picture", extra_body={"draftlens": True, "chat_id": "unknown"})
    (choice,) = response.choices
    assert choice.message.content == stock("picture")
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert response.usage.completion_tokens == NEW
    assert response.usage.total_tokens == NEW + response.usage.prompt_tokens
    assert response.draftlens["lossless"] is True
    assert response.draftlens["accepted_tokens"] <= response.draftlens["draft_tokens"]
    assert response.draftlens["decode_tokens_per_second"] > 0


def test_a_stream(client: openai.OpenAI, server: Running, stock: Callable[..., str]) -> None:
    chunks = list(ask(client, "clip", stream=True, stream_options={"include_usage": True}))
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    *parts, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in parts) == stock("clip")
    assert [chunk.choices[0].finish_reason for chunk in parts[-2:]] == [None, "length"]
    assert last.choices == []
    assert last.usage.completion_tokens == NEW
    body = {"messages": CHATS["words"], "stream": True, "max_tokens": 2, "draftlens": True}
    response = server.post(json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    pieces = [
        event["draftlens"]["pieces"] for event in events if "pieces" in event.get("draftlens", ())
    ]
    assert "".join(piece for each in pieces for piece, _ in each) == stock("words", 2)


def test_many_at_once(server: Running, stock: Callable[..., str]) -> None:
    """Greedy answers are those of stock `generate`, seeded ones those that they have alone."""
    names = [*CHATS] * 4
    draws = {"temperature": 1.9, "top_p": 0.95, "max_tokens": 12}

    async def one(client: openai.AsyncOpenAI, number: int, name: str) -> str:
        await asyncio.sleep(0.02 * number)
        if number % 2:
            parts = [
                chunk.choices[0].delta.content or ""
                async for chunk in await ask(client, name, stream=True, temperature=0)
            ]
            return "".join(parts)
        return str((await ask(client, name)).choices[0].message.content)

    async def drawn(client: openai.AsyncOpenAI, seed: int) -> str:
        response = await ask(client, "words", seed=seed, **draws)
        return str(response.choices[0].message.content)

    async def all_of_them() -> tuple[list[str], list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-") as client:
            greedy = [one(client, number, name) for number, name in enumerate(names)]
            seeded = [drawn(client, seed) for seed in range(4)]
            answers = await asyncio.gather(*greedy, *seeded)
            alone = [await drawn(client, seed) for seed in range(4)]
        return answers[: len(names)], answers[len(names) :], alone

    greedy, seeded, alone = asyncio.run(all_of_them())
    for name, answer in zip(names, greedy, strict=True):
        assert answer == stock(name), name
    assert seeded == alone
    assert len(set(seeded)) > 1
    assert server.scheduler.num_rows == server.scheduler.num_waiting == 0


def test_a_conversation_is_remembered(client: openai.OpenAI, stock: Callable[..., str]) -> None:
    """Its second turn reads only what is new."""
    first = ask(client, "turns", messages=CHATS["turns"][:2])
    again = ask(client, "turns", extra_body={"draftlens": True})
    assert again.choices[0].message.content == stock("turns")
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert first.usage.prompt_tokens // 2 < cached < again.usage.prompt_tokens
    assert again.draftlens["cached_tokens"] == cached
    seconds = again.draftlens["seconds"]
    parts = seconds["waiting"] + seconds["prefill"] + seconds["decode"]
    assert 0 < seconds["prefill"] < parts < seconds["total"] + 0.1


def test_clients_of_different_keys_share_no_prompts(locked: Running) -> None:
    messages = [{"role": "user", "content": "Who reads this?"}]
    given = {"model": "shapes", "messages": messages, "max_tokens": 2}
    keys = (KEY, KEY, "another", "another")
    usages = [ask(locked.client(api_key=key), "words", **given).usage for key in keys]
    cached = [usage.prompt_tokens_details.cached_tokens for usage in usages]
    assert cached[1] == cached[3] > 0
    assert cached[2] == 0  # the first request of the second key


def test_several_answers(client: openai.OpenAI, engine: draftlens.Engine) -> None:
    response = ask(client, "picture", n=3, seed=7, temperature=1.0, max_tokens=8)
    texts = [choice.message.content for choice in response.choices]
    expected = [
        engine.generate(
            messages=CHATS["picture"],
            seed=[seed],
            do_sample=True,
            temperature=1.0,
            max_new_tokens=8,
        ).text
        for seed in row_seeds(7, 3)
    ]
    assert texts == expected
    assert response.usage.completion_tokens == 24
    indices = {
        chunk.choices[0].index for chunk in ask(client, "words", n=2, stream=True, max_tokens=3)
    }
    assert indices == {0, 1}


def test_stop_texts(client: openai.OpenAI, stock: Callable[..., str]) -> None:
    whole = stock("picture")
    words = whole.split(" ")
    stop = " ".join(words[5:7])
    before = whole[: whole.index(stop)]
    response = ask(client, "picture", stop=stop)
    assert response.choices[0].message.content == before
    assert response.choices[0].finish_reason == "stop"
    chunks = list(ask(client, "picture", stop=["nothing of it", stop], stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == before
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_prompts_without_a_template(client: openai.OpenAI, engine: draftlens.Engine) -> None:
    response = client.completions.create(
        model="embedded", prompt=["The picture", "The"], max_tokens=6
    )
    tokenizer = engine.target.processor.tokenizer
    for choice, prompt in zip(response.choices, ["The picture", "The"], strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        tokens = engine.target.backbone.model.generate(ids, do_sample=False, max_new_tokens=6)
        assert choice.text == tokenizer.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True)
    given = client.completions.create(model="embedded", prompt=ids[0].tolist(), max_tokens=6)
    assert given.choices[0].text == response.choices[1].text
    streamed = client.completions.create(model="embedded", prompt="The", max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == given.choices[0].text


def test_a_prediction(locked: Running, stock: Callable[..., str]) -> None:
    prediction = {"type": "content", "content": stock("picture")}
    client = locked.client()
    messages = said(image(f"file://{locked.app.state.answering.options.media_path}/picture.png"))
    messages[0]["content"].append(text("Describe the image."))
    response = ask(client, "picture", model="shapes", messages=messages, prediction=prediction)
    assert response.choices[0].message.content == stock("picture")
    details = response.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > NEW // 2
    assert details.rejected_prediction_tokens == 0
    assert not details.model_extra
    without = ask(client, "picture", model="shapes", messages=messages)
    counts = without.usage.completion_tokens_details
    assert not counts.model_extra
    assert (counts.accepted_prediction_tokens, counts.rejected_prediction_tokens) == (0, 0)
    another = {"type": "content", "content": "12345 67890"}
    wrong = ask(client, "picture", model="shapes", messages=messages, prediction=another)
    counts = wrong.usage.completion_tokens_details
    assert counts.accepted_prediction_tokens == 0 < counts.rejected_prediction_tokens


def test_the_default_reads_a_prediction(
    client: openai.OpenAI, engine: draftlens.Engine, stock: Callable[..., str]
) -> None:
    """By OpenAI's definition, the counts are those of its tokens that are in the completion and of
    those that are not, whatever drafted them."""
    whole = stock("picture")
    tokenizer = engine.target.processor.tokenizer
    changed = whole.replace("four", "seven hundred")
    for content in (whole, [{"type": "text", "text": f"{changed} And so on, and so forth."}]):
        prediction: Any = {"type": "content", "content": content}
        text = content if isinstance(content, str) else content[0]["text"]
        size = len(tokenizer.encode(text, add_special_tokens=False))
        response = ask(client, "picture", prediction=prediction)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *_, last = ask(client, "picture", prediction=prediction, **options)
        assert response.choices[0].message.content == whole
        for usage in (response.usage, last.usage):
            counts = usage.completion_tokens_details
            sum_of_both = counts.accepted_prediction_tokens + counts.rejected_prediction_tokens
            assert sum_of_both == size
            assert usage.completion_tokens == NEW
            if content == whole:
                assert counts.rejected_prediction_tokens == 0
            else:
                assert NEW // 2 < counts.accepted_prediction_tokens < NEW
    several = ask(client, "picture", prediction=prediction, n=2, temperature=1.0, seed=1)
    counts = several.usage.completion_tokens_details
    assert counts.accepted_prediction_tokens + counts.rejected_prediction_tokens == 2 * size


def test_a_prediction_that_the_method_does_not_read(
    engine: draftlens.Engine, stock: Callable[..., str]
) -> None:
    prediction = {"type": "content", "content": stock("picture")}
    by_model = draftlens.Engine(engine.target, engine.draft, method="speculative")
    with serving(by_model, ServeOptions()) as server:
        response = ask(
            server.client(), "picture", prediction=prediction, extra_body={"draftlens": True}
        )
    assert response.model_extra["draftlens"]["accepted_tokens"] > 0
    counts = response.usage.completion_tokens_details
    assert (counts.accepted_prediction_tokens, counts.rejected_prediction_tokens) == (0, 0)
    assert counts.model_extra == {"prediction_note": NOT_READ}


def test_figures(server: Running, client: openai.OpenAI) -> None:
    ask(client, "picture")
    figures = httpx.get(f"{server.url}/metrics").text
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert f"\nvllm:spec_decode_num_{name}_total " in figures
    assert '\nvllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} ' in figures
    for name in (
        "draftlens_requests_waiting",
        "draftlens_rows_running",
        "draftlens_generation_tokens_total",
        "draftlens_time_to_first_token_seconds_count",
        "draftlens_time_per_output_token_seconds_bucket",
        "draftlens_cache_bytes",
        "draftlens_prompt_cache_bytes",
        "draftlens_prompt_cached_tokens_total",
        "vllm:prefix_cache_hits_total",
    ):
        assert f"\n{name}" in figures
    assert httpx.get(f"{server.url}/version").json() == {"version": draftlens.__version__}
    card = client.models.retrieve("embedded")
    assert card.max_model_len == 32768


def test_the_page_needs_no_network(server: Running) -> None:
    response = httpx.get(server.url)
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "http://" not in response.text.replace("http://www.w3.org", "")
    assert "https://" not in response.text
