"""`Engine.agenerate` and `Engine.astream`: one batch for all tasks of an event loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import torch
from streamers import Recorder

import draftlens
from draftlens import ConfigError, MediaError
from tests.e2e.conftest import CLIPS

PICTURE = str(CLIPS / "shapes.png")
CALLS: list[dict[str, Any]] = [
    {"prompt": "Describe the image.", "images": PICTURE, "max_new_tokens": 20},
    {"prompt": "Hello", "max_new_tokens": 12, "do_sample": True, "temperature": 1.9, "seed": 3},
    {"prompt": ["Hello", "Describe it."], "max_new_tokens": 10, "stop": "nothing"},
    {"prompt": "Hello", "max_new_tokens": 8, "method": "plain"},
]


def test_answers_are_those_of_generate(engine: draftlens.Engine) -> None:
    alone = [engine.generate(**call) for call in CALLS]

    async def together() -> list[draftlens.Result]:
        return await asyncio.gather(*(engine.agenerate(**call) for call in CALLS * 2))

    for number, result in enumerate(asyncio.run(together())):
        expected = alone[number % len(CALLS)]
        assert result.tokens == expected.tokens
        assert result.texts == expected.texts
        assert result.lossless
        stats = result.stats
        assert stats.emitted == sum(map(len, result.tokens)) == expected.stats.emitted
        assert stats.accepted == sum(map(sum, result.from_draft)) <= stats.drafted
        # The last pass of a row that ends within its path has no bonus token.
        bonus = stats.emitted - stats.first - stats.accepted
        assert stats.passes - len(result.tokens) <= bonus <= stats.passes
        assert 0 < stats.ttft <= stats.e2e


def test_log_probabilities(engine: draftlens.Engine) -> None:
    """Of calls that share a batch, each gets those that it asks for, with the texts of tokens."""
    calls = [
        {**call, "logprobs": True, "top_logprobs": count} for count, call in enumerate(CALLS[:3])
    ]
    alone = [engine.generate(**call) for call in calls]

    async def streamed() -> list[draftlens.TokenLogprob]:
        return [entry async for chunk in engine.astream(**calls[0]) for entry in chunk.logprobs]

    async def together() -> tuple[list[Any], ...]:
        results = asyncio.gather(*(engine.agenerate(**call) for call in [*calls, CALLS[3]]))
        return await results, await streamed()

    (*results, silent), chunks = asyncio.run(together())
    assert silent.logprobs == []
    for count, (result, expected) in enumerate(zip(results, alone, strict=True)):
        assert result.tokens == expected.tokens
        rows = zip(result.logprobs, expected.logprobs, result.texts, strict=True)
        for entries, others, text in rows:
            special = engine.target.processor.tokenizer.all_special_ids
            said = "".join(entry.text for entry in entries if entry.token not in special)
            assert said == text
            ours = [(e.token, e.text, len(e.top)) for e in entries]
            assert ours == [(e.token, e.text, count) for e in others]
            logprobs = [entry.logprob for entry in entries]
            assert logprobs == pytest.approx([entry.logprob for entry in others], abs=1e-4)
    assert [entry.text for entry in chunks] == [entry.text for entry in results[0].logprobs[0]]


def test_chunks_add_up_and_the_loop_goes_on(engine: draftlens.Engine) -> None:
    call = CALLS[0]

    async def streamed() -> tuple[str, list[int], int]:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.005)
                beats += 1

        beating = asyncio.create_task(beat())
        text, tokens = "", []
        async for chunk in engine.astream(**call):
            text += chunk.text
            tokens += chunk.tokens
        beating.cancel()
        return text, tokens, beats

    text, tokens, beats = asyncio.run(streamed())
    expected = engine.generate(**call)
    assert (text, tokens) == (expected.text, expected.tokens[0])
    assert beats > 3


def test_a_cancelled_task_frees_its_row(engine: draftlens.Engine) -> None:
    long = {**CALLS[0], "max_new_tokens": 2000, "repetition_penalty": 1.3}

    async def cancelled() -> None:
        task = asyncio.create_task(engine.agenerate(**long))
        while engine.scheduler.num_rows == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stream = engine.astream(**long)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        end = time.monotonic() + 10
        while engine.scheduler.num_rows:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)

    asyncio.run(cancelled())


def test_streamers_are_told_what_generate_tells_them(engine: draftlens.Engine) -> None:
    told, streamed, cancelled = [Recorder(), Recorder()], Recorder(), Recorder()
    heard = [Recorder(), Recorder()]
    calls = CALLS[:2]
    for call, streamer in zip(calls, told, strict=True):
        engine.generate(**call, streamer=streamer)

    async def answers() -> None:
        await asyncio.gather(
            *(
                engine.agenerate(**call, streamer=streamer)
                for call, streamer in zip(calls, heard, strict=True)
            )
        )
        async for _ in engine.astream(**calls[0], streamer=streamed):
            pass
        stream = engine.astream(**calls[0], streamer=cancelled)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        long = {**calls[0], "max_new_tokens": 2000, "repetition_penalty": 1.3}
        with pytest.raises(ValueError, match="the caller's own"):
            await engine.agenerate(**long, streamer=Failing())

    class Failing(Recorder):
        def put(self, value: torch.Tensor) -> None:
            super().put(value)
            if len(self.ids) > len(told[0].ids):
                raise ValueError("the caller's own")

    asyncio.run(answers())
    assert [one.ids for one in heard] == [one.ids for one in told]
    assert streamed.ids == told[0].ids
    assert cancelled.ids == told[0].ids[: len(cancelled.ids)]
    for streamer in (*told, *heard, streamed, cancelled):
        assert streamer.ends == 1


def test_refusals(engine: draftlens.Engine) -> None:
    with pytest.raises(ConfigError, match="max_new_tokens"):
        asyncio.run(engine.agenerate("Hello", max_new_tokens=0))
    with pytest.raises(MediaError):
        asyncio.run(engine.agenerate("Hello", images="nowhere.png"))
    with pytest.raises(ConfigError, match="schedule 'fastest'"):
        asyncio.run(engine.agenerate("Hello", method={"schedule": "fastest"}))
