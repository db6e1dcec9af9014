"""Several models behind one address: each answers with its own tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import httpx
import openai
import pytest

import draftlens
from draftlens.scheduling import SchedulerLimits
from draftlens.serve.app import create_app
from draftlens.serve.options import ServeOptions
from tests.e2e.serve.running import CHATS, KEY, NEW, Running, ask, serving
from tests.e2e.serve.test_gateways import families_of

LIMITS = SchedulerLimits(max_rows=4, max_cache_bytes=2**27)


@pytest.fixture(scope="module")
def small(engine: draftlens.Engine) -> draftlens.Engine:
    """The draft of the embedded pair as a target."""
    assert engine.draft is not None
    return draftlens.Engine(replace(engine.draft, name="small"), method="lookup")


@pytest.fixture(scope="module")
def both(engine: draftlens.Engine, small: draftlens.Engine) -> Iterator[Running]:
    options = ServeOptions(batch=LIMITS, prompt_cache=2**28, api_keys=(KEY, "another"))
    with serving(engine, options, further=[small]) as running:
        yield running


def expected(engine: draftlens.Engine, name: str) -> str:
    given = engine.read(messages=CHATS[name]).target
    ids = engine.target.backbone.model.generate(**given, do_sample=False, max_new_tokens=NEW)
    tokens = ids[0, given["input_ids"].shape[1] :]
    return str(engine.target.processor.tokenizer.decode(tokens, skip_special_tokens=True))


def test_models_are_listed(both: Running) -> None:
    client = both.client()
    assert [card.id for card in client.models.list()] == ["embedded", "small"]
    assert client.models.retrieve("small").id == "small"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_answers_of_both_at_once(
    both: Running, engine: draftlens.Engine, small: draftlens.Engine
) -> None:
    texts = {
        (model, name): expected(each, name)
        for model, each in (("embedded", engine), ("small", small))
        for name in ("clip", "two pictures", "words")
    }
    assert any(texts["embedded", name] != texts["small", name] for _, name in texts)

    async def one(client: openai.AsyncOpenAI, model: str, name: str) -> str:
        return str((await ask(client, name, model=model)).choices[0].message.content)

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{both.url}/v1", api_key=KEY) as client:
            return await asyncio.gather(*(one(client, *key) for key in texts))

    assert dict(zip(texts, asyncio.run(together()), strict=True)) == texts
    client = both.client()
    for model in ("embedded", "small"):
        response = client.responses.create(
            model=model, input=CHATS["words"][0]["content"], max_output_tokens=NEW
        )
        assert response.output_text == texts[model, "words"]
        assert response.model == model
        completion = client.completions.create(model=model, prompt="The", max_tokens=4)
        assert completion.model == model


def test_which_model_is_meant(both: Running, engine: draftlens.Engine) -> None:
    """Without a name it is the first one; a wrong name is none."""
    key = {"authorization": f"Bearer {KEY}"}
    for model in (None, "", "auto"):
        body = {"messages": CHATS["words"], "max_tokens": NEW, "model": model}
        response = both.post(json=body, headers=key).json()
        assert response["model"] == "embedded"
        assert response["choices"][0]["message"]["content"] == expected(engine, "words")
    with pytest.raises(openai.NotFoundError) as refused:
        ask(both.client(), "words", model="another")
    assert refused.value.code == "model_not_found"


def test_they_share_memory_and_readers(both: Running) -> None:
    first = both.app.state.answering
    ask(both.client(), "words", model="small")
    key = {"authorization": f"Bearer {KEY}"}
    families = families_of(httpx.get(f"{both.url}/metrics", headers=key).text)
    running = families["vllm:num_requests_running"].samples
    assert [sample.labels["model_name"] for sample in running] == ["embedded", "small"]
    (rows,) = families["draftlens_rows_max"].samples
    assert rows.value == 2 * LIMITS.max_rows
    assert first.scheduler._max_cache == 2**26
    assert first.options.prompt_cache == 2**27
    tokens = families["draftlens_generation_tokens"].samples[0].value
    assert tokens > first.scheduler.counters.tokens > 0


def test_models_of_one_name_are_refused(engine: draftlens.Engine) -> None:
    with pytest.raises(draftlens.ConfigError, match="different names, not embedded, embedded"):
        create_app(engine, ServeOptions(), further=[engine])
