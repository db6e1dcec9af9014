"""The main job on real input: clips from disk, the pair in the package, stock generate beside
it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import draftlens
from draftlens.core.errors import InputError
from draftlens.methods.base import MethodLike
from draftlens.verify import run_stock
from tests.e2e.conftest import CLIPS

WORLD = [clip for clip in sorted(CLIPS.glob("*.mp4")) if clip.with_suffix(".mp4.json").exists()]
METHODS = ["plain", {"num_speculative_tokens": 5}, {"num_speculative_tokens": 2}, {"tree": "eagle"}]


def stock_tokens(
    engine: draftlens.Engine, inputs: draftlens.Inputs, **options: object
) -> list[list[int]]:
    return run_stock(engine.target.backbone, inputs.target, do_sample=False, **options).tokens


def test_three_clips_are_shipped_and_two_of_them_are_of_the_world() -> None:
    assert len(WORLD) == 2
    assert len(list(CLIPS.glob("*.mp4"))) == 3


@pytest.mark.parametrize("clip", WORLD, ids=lambda clip: clip.stem)
def test_a_world_clip_is_described_as_its_record_says(engine: draftlens.Engine, clip: Path) -> None:
    result = engine.generate("Describe the video.", video=clip, max_new_tokens=320)
    assert (
        result.text.strip()
        == json.loads(clip.with_suffix(".mp4.json").read_text())["caption"].strip()
    )
    assert result.lossless
    assert not result.approximate


@pytest.fixture(scope="module", params=sorted(CLIPS.glob("*.mp4")), ids=lambda clip: str(clip.stem))
def described(
    request: pytest.FixtureRequest, engine: draftlens.Engine
) -> tuple[draftlens.Inputs, list[list[int]]]:
    """A bundled clip with what stock `generate` says about it."""
    inputs = engine.read("Describe the video.", video=request.param)
    return inputs, stock_tokens(engine, inputs, max_new_tokens=60)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_bundled_clips_give_the_tokens_of_stock_generate(
    engine: draftlens.Engine,
    described: tuple[draftlens.Inputs, list[list[int]]],
    method: MethodLike,
) -> None:
    inputs, expected = described
    assert engine.answer(inputs, method=method, max_new_tokens=60).run().tokens == expected


@pytest.mark.usefixtures("steady_costs")
@pytest.mark.parametrize("frames", [3, 8, 16])
def test_filmed_clips_give_the_tokens_of_stock_generate(
    engine: draftlens.Engine, filmed: list[Path], frames: int
) -> None:
    for clip in filmed:
        inputs = engine.read("Describe the video.", video=clip, num_frames=frames)
        result = engine.answer(inputs, max_new_tokens=40).run()
        assert result.tokens == stock_tokens(engine, inputs, max_new_tokens=40)
        assert result.stats.accepted > 0


def test_the_draft_agrees_partly_and_saves_target_forwards(engine: draftlens.Engine) -> None:
    results = [
        engine.generate(
            "Describe the video.",
            video=clip,
            method={"num_speculative_tokens": 5},
            max_new_tokens=320,
        )
        for clip in WORLD
    ]
    passes = sum(result.stats.passes for result in results)
    tokens = sum(result.stats.emitted - result.stats.first for result in results)
    assert 2.5 <= tokens / passes <= 5
    assert all(result.stats.target_forwards == result.stats.passes for result in results)


def test_images_and_chats_and_batches(engine: draftlens.Engine) -> None:
    red = Image.fromarray(np.full((64, 64, 3), (200, 30, 30), np.uint8))
    turn = {
        "role": "user",
        "content": [
            {"type": "image", "image": red},
            {"type": "text", "text": "Describe the image."},
        ],
    }
    clip = {
        "role": "user",
        "content": [
            {"type": "image", "image": red},
            {"type": "text", "text": "How many objects are there in all?"},
        ],
    }
    inputs = engine.read(messages=[[turn], [clip]])
    result = engine.answer(inputs, max_new_tokens=40).run()
    assert result.tokens == stock_tokens(engine, inputs, max_new_tokens=40)
    alone = [engine.generate(messages=[one], max_new_tokens=40).tokens[0] for one in (turn, clip)]
    assert result.tokens == alone
    assert result.texts == [
        engine.generate(messages=[one], max_new_tokens=40).text for one in (turn, clip)
    ]


def test_a_stream_is_the_answer_in_pieces(engine: draftlens.Engine) -> None:
    options: dict[str, Any] = {"method": {"tree": "eagle"}, "max_new_tokens": 60}
    whole = engine.generate("Describe the video.", video=WORLD[0], **options)
    stream = engine.stream("Describe the video.", video=WORLD[0], **options)
    chunks = list(stream)
    assert [token for chunk in chunks for token in chunk.tokens] == whole.tokens[0]
    assert "".join(chunk.text for chunk in chunks) == whole.text == stream.result.text
    assert [flag for chunk in chunks for flag in chunk.from_draft] == whole.from_draft[0]
    assert not chunks[0].from_draft[0]


def test_a_stream_left_early_harms_nothing(engine: draftlens.Engine) -> None:
    whole = engine.generate("Describe the video.", video=WORLD[0], max_new_tokens=60)
    stream = engine.stream("Describe the video.", video=WORLD[0], max_new_tokens=60)
    seen = [next(stream) for _ in range(4)]
    session = stream.session
    assert session.cache.lengths == [
        session.prompt_lengths[0] + len(session.sequences[0].tokens) - 1
    ]
    assert stream.result.tokens[0] == whole.tokens[0][: sum(len(chunk.tokens) for chunk in seen)]
    assert (
        engine.generate("Describe the video.", video=WORLD[0], max_new_tokens=60).tokens
        == whole.tokens
    )


def test_a_stop_string_ends_the_answer_as_in_stock(engine: draftlens.Engine) -> None:
    inputs = engine.read("Describe the video.", video=WORLD[0])
    tokenizer = engine.target.processor.tokenizer
    result = engine.answer(inputs, max_new_tokens=100, stop=".").run()
    assert result.tokens == stock_tokens(
        engine, inputs, max_new_tokens=100, stop_strings=["."], tokenizer=tokenizer
    )
    assert result.text.endswith(".")
    assert result.text.count(".") == 1


def test_sampling_is_the_same_with_and_without_a_draft(engine: draftlens.Engine) -> None:
    # The pair is so sure of itself that only a high temperature lets the noise speak.
    options = {"do_sample": True, "temperature": 5.0, "top_k": 30, "seed": 7, "max_new_tokens": 60}
    inputs = engine.read("Describe the video.", video=WORLD[1])
    plain = engine.answer(inputs, method="plain", **options).run()
    for method in METHODS[1:]:
        fast = engine.answer(inputs, method=method, **options).run()
        assert fast.tokens == plain.tokens
        assert fast.stats.target_forwards < plain.stats.target_forwards
    assert (
        engine.answer(inputs, method="plain", **{**options, "seed": 8}).run().tokens != plain.tokens
    )


def test_bfloat16_is_never_called_lossless_with_a_draft() -> None:
    engine = draftlens.load(device="cpu", dtype="bfloat16")
    fast = engine.generate("Describe the video.", video=WORLD[0], max_new_tokens=20)
    assert not fast.lossless
    assert fast.approximate == ("near-ties in bfloat16",)
    assert engine.generate(
        "Describe the video.", video=WORLD[0], max_new_tokens=20, method="plain"
    ).lossless
    chat = engine.chat(video=WORLD[0])
    first, second = (
        chat.ask(question, max_new_tokens=3, method="plain") for question in ("What?", "Where?")
    )
    assert first.lossless
    assert second.approximate == ("near-ties in bfloat16",)


def test_frames_that_do_not_go_with_an_earlier_clip_are_refused_where_they_are_added(
    engine: draftlens.Engine,
) -> None:
    """The processor of LLaVA-OneVision stacks clips; the chat goes on without these."""
    chat = engine.chat()
    chat.add(frames=np.full([4, 32, 32, 3], 90, np.uint8))
    chat.ask("What is this?", max_new_tokens=4)
    with pytest.raises(InputError, match="4 and 6 frames together: give each") as refused:
        chat.add(frames=np.full([6, 32, 32, 3], 20, np.uint8))
    assert "\n" not in str(refused.value)
    assert len(chat.ask("And now?", max_new_tokens=4).tokens[0]) == 4
    chat.add(frames=np.full([4, 48, 32, 3], 20, np.uint8))
    with pytest.raises(InputError, match="4 and 5 frames"):
        chat.add(frames=np.full([5, 32, 32, 3], 20, np.uint8))
    with pytest.raises(InputError, match="3 and 4 frames"):
        chat.ask("What is this?", video=np.full([3, 32, 32, 3], 20, np.uint8))
    assert len(chat.ask("And now?", max_new_tokens=4).tokens[0]) == 4
    kinds = [[item["type"] for item in message["content"]] for message in chat.messages[::2]]
    assert kinds == [["video", "text"], ["text"], ["video", "text"]]


def test_what_is_wrong_is_told_before_any_token(engine: draftlens.Engine) -> None:
    with pytest.raises(draftlens.InputError, match="give a prompt or messages"):
        engine.stream()
    with pytest.raises(draftlens.InputError, match="either them or prompt"):
        engine.stream("Hello.", messages=[{"role": "user", "content": "Hello."}])
    with pytest.raises(draftlens.InputError, match="not 'sound'"):
        engine.stream(messages=[{"role": "user", "content": [{"type": "sound", "path": "a.wav"}]}])
    with pytest.raises(draftlens.ConfigError, match="num_beams"):
        engine.stream("Hello.", num_beams=3, max_new_tokens=5)
    with pytest.raises(draftlens.ConfigError, match="unknown method"):
        draftlens.load(method="telepathy")
    with pytest.raises(draftlens.ConfigError, match="no such folder"):
        draftlens.load("/no/such/model")
    with pytest.raises(draftlens.ConfigError, match="no draft is known"):
        draftlens.load(str(CLIPS.parent / "draft"), method="speculative")


@pytest.mark.usefixtures("steady_costs")
def test_a_caption_that_is_asked_for_again_is_looked_up(engine: draftlens.Engine) -> None:
    """The first answer stands in the prompt. The clip's placeholders do, too: they are no text."""
    caption = json.loads(WORLD[0].with_suffix(".mp4.json").read_text())["caption"]
    question = {"type": "text", "text": "Describe the video."}
    messages = [
        {"role": "user", "content": [{"type": "video", "video": str(WORLD[0])}, question]},
        {"role": "assistant", "content": caption},
        {"role": "user", "content": [question]},
    ]
    inputs = engine.read(messages=messages, num_frames=4)
    expected = stock_tokens(engine, inputs, max_new_tokens=50)
    for length in (None, 10):
        method = {"method": "lookup", "num_speculative_tokens": length}
        result = engine.answer(inputs, method=method, max_new_tokens=50).run()
        assert result.tokens == expected
        assert result.stats.draft_forwards == 0
        assert result.stats.accepted > 25
        assert result.stats.target_forwards < 20
