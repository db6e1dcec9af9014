"""Captions of pictures and clips: who writes them, how often, and what fails."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from draftlens_lab.evaluate.answers import conversation as world_chat
from draftlens_lab.world.samples import draw
from language_models import language_model
from PIL import Image

import draftlens
from draftlens.core.errors import ConfigError
from draftlens.media import Video
from draftlens.media.conversation import CaptionError, ChatSource, Conversation, Processing
from draftlens.methods.base import Models
from draftlens.methods.tabed.caption_writers import BATCH, CallableWriter
from draftlens.methods.tabed.captions import (
    REMEMBERED,
    Captioner,
    Captioning,
    Captions,
    captioned,
    captions_of,
    make_captions,
    shortened_caption,
)
from draftlens.models.adapter import Backbone

SIDE = 64


def picture(shade: int, width: int = 16) -> Image.Image:
    return Image.new("RGB", (width, 16), (shade, 0, 0))


def clip(shade: int, frames: int = 2) -> Video:
    pixels = np.full((frames, 16, 16, 3), shade, np.uint8)
    times = tuple(map(float, range(frames)))
    return Video("clip.mp4", pixels, times, tuple(range(frames)), 1.0, frames, float(frames))


def chat(*media: Any) -> Conversation:
    """One turn with these pictures and clips."""
    talk = Conversation()
    items: list[dict[str, Any]] = []
    for medium in media:
        kind = "video" if isinstance(medium, Video) else "image"
        (talk.videos if kind == "video" else talk.images).append(medium)
        items.append({"type": kind})
    items.append({"type": "text", "text": "What?"})
    talk.messages.append({"role": "user", "content": items})
    return talk


def source(*chats: Conversation) -> ChatSource:
    """Chats whose draft has no processor."""

    def process(conversations: Sequence[Conversation]) -> Mapping[str, Any]:
        return {"chats": list(conversations)}

    return ChatSource(chats, process, str)


class Describing:
    """Counts what it describes."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, content: Any) -> str:
        self.seen.append(content)
        return f"number {len(self.seen)}"


def described(captions: Captions, *chats: Conversation) -> list[list[str]]:
    return captions.of(source(*chats))


def forwards_of(captions: Any) -> int:
    """Decode forwards of the model that wrote them."""
    number: int = captions._writer.forwards
    return number


def of_callable(describe: Any, max_tokens: int = 32) -> Captioner:
    return Captioner(CallableWriter(describe), max_tokens)


def test_a_callable_describes_pictures_and_clips_in_order() -> None:
    describe = Describing()
    first, second, third = picture(1), clip(2), picture(3)
    found = described(of_callable(describe), chat(first, second), chat(), chat(third))
    assert found == [["number 1", "number 2"], [], ["number 3"]]
    assert describe.seen == [first, second, third]


def test_each_picture_is_described_once() -> None:
    """Also if it was read from its file again, or appears twice."""
    describe = Describing()
    captions = of_callable(describe)
    assert described(captions, chat(picture(1), picture(2), picture(1))) == [
        ["number 1", "number 2", "number 1"]
    ]
    assert described(captions, chat(picture(2)), chat(picture(3))) == [["number 2"], ["number 3"]]
    assert len(describe.seen) == 3


def test_pictures_of_other_sizes_and_clips_are_told_apart() -> None:
    describe = Describing()
    media = [picture(1, 16), picture(1, 32), clip(1), clip(1, frames=3), clip(2)]
    assert len(set(described(of_callable(describe), chat(*media))[0])) == 5


def test_a_captioner_forgets_the_oldest() -> None:
    describe = Describing()
    captions = of_callable(describe)
    many = [Image.new("RGB", (2, 2), (index, shade, 0)) for index in range(150) for shade in (0, 1)]
    assert len(described(captions, chat(*many))[0]) == 300
    described(captions, chat(*many[-REMEMBERED:]))
    assert len(describe.seen) == 300
    described(captions, chat(many[0]))
    assert len(describe.seen) == 301


def test_captions_of_earlier_calls_are_remembered_without_their_models() -> None:
    describe = Describing()
    model = torch.nn.Linear(1, 1)
    models: Any = SimpleNamespace(target=SimpleNamespace(model=model), draft=None)
    for _ in range(2):
        captions = captions_of(Captioning(describe), models)
        assert described(captions, chat(picture(1))) == [["number 1"]]
    other = captions_of(Captioning(Describing()), models)
    assert described(other, chat(picture(2))) == [["number 1"]]
    written = captions_of(Captioning("target"), models)
    gone = weakref.ref(model)
    del model, models, captions, other, written
    gc.collect()
    assert gone() is None


def test_given_captions_follow_the_order_of_appearance() -> None:
    captions = make_captions(Captioning(["a cat", "a dog"]), Models(None))  # type: ignore[arg-type]
    assert described(captions, chat(picture(1)), chat(clip(2))) == [["a cat"], ["a dog"]]
    assert described(captions, chat(picture(5), picture(5))) == [["a cat", "a dog"]]
    assert described(captions, chat()) == [[]]
    with pytest.raises(CaptionError, match="2 captions are given for 1 pictures and clips"):
        described(captions, chat(picture(1)))


def test_the_draft_reads_captions_in_place_of_media() -> None:
    captions = of_callable(Describing())
    (talk,) = captioned(captions, source(chat(picture(1), clip(2))))["chats"]
    (item,) = talk.messages[0]["content"]
    assert item["text"] == "image: number 1\nvideo: number 2\nWhat?"
    assert not talk.images


def test_captions_are_one_line_of_limited_length() -> None:
    assert shortened_caption(" A cat\n sits.  ", 32) == "A cat sits."
    assert shortened_caption("one two three four", 2) == "one two"
    assert shortened_caption("猫" * 100, 5) == "猫" * 40
    assert shortened_caption("", 5) == ""
    assert (
        shortened_caption("A<image>cat.<|im_end|> [IMG] 1 < 2 > 0 [1]", 9) == "A cat. 1 < 2 > 0 [1]"
    )
    long = of_callable(lambda _: "word " * 100, max_tokens=4)
    assert described(long, chat(picture(1))) == [["word word word word"]]


def test_whatever_a_captioner_raises_is_one_kind_of_error() -> None:
    def fail(content: Any) -> str:
        raise OSError("no such service")

    with pytest.raises(CaptionError, match="the captioner failed: OSError: no such service"):
        described(of_callable(fail), chat(picture(1)))
    assert described(of_callable(fail), chat()) == [[]]
    with pytest.raises(CaptionError, match="returned int in place of a string"):
        described(of_callable(lambda _: 7), chat(picture(1)))


def test_a_failure_is_not_remembered() -> None:
    answers = iter([7, "a cat"])
    captions = of_callable(lambda _: next(answers))
    with pytest.raises(CaptionError):
        described(captions, chat(picture(1)))
    assert described(captions, chat(picture(1))) == [["a cat"]]


@pytest.mark.parametrize("captioner", ["florence", "", None, 3, [1, 2]])
def test_what_cannot_write_is_refused(captioner: Any) -> None:
    with pytest.raises(ConfigError, match="a captioner is 'draft', 'target', a callable"):
        Captioning(captioner)


@pytest.mark.parametrize("length", [0, -1, 2.5, True, None])
def test_lengths_that_make_no_sense_are_refused(length: Any) -> None:
    with pytest.raises(ConfigError, match="the length of captions is a whole number"):
        Captioning(max_tokens=length)
    with pytest.raises(ConfigError, match="the prompt of captions is a string, not 3"):
        Captioning(prompt=3)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engine() -> draftlens.Engine:
    return draftlens.load(device="cpu", calibrate=False)


def models(engine: draftlens.Engine) -> Models:
    assert engine.draft is not None
    return Models(engine.target.backbone, engine.draft.backbone)


def world_source(engine: draftlens.Engine, *chats: Conversation) -> ChatSource:
    """Chats with the processors of the embedded pair."""
    assert engine.draft is not None
    processor = engine.draft.processor

    def process(conversations: Sequence[Conversation]) -> Mapping[str, Any]:
        return engine.process(conversations).target

    def decode(ids: list[int]) -> str:
        text: str = processor.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    return ChatSource(chats, process, decode, Processing(process, decode))


def world_picture(seed: int) -> Any:
    return world_chat(draw("picture", seed), 4, SIDE).images[0]


def answer(engine: draftlens.Engine, model: Any, medium: Any, prompt: str, length: int) -> str:
    """What the stock library answers about a picture or clip."""
    talk = chat(medium)
    talk.messages[0]["content"][-1]["text"] = prompt
    inputs = engine.process([talk]).target
    ids = model.generate(**inputs, max_new_tokens=length, do_sample=False)
    new = ids[0, inputs["input_ids"].shape[1] :].tolist()
    text: str = engine.target.processor.tokenizer.decode(new, skip_special_tokens=True)
    return " ".join(text.split())


@pytest.mark.parametrize("writer", ["draft", "target"])
def test_a_model_writes_what_the_stock_library_would(writer: str, engine: draftlens.Engine) -> None:
    chats = [chat(world_picture(0), clip(90, 3)), chat(world_picture(1))]
    captions = make_captions(Captioning(writer, max_tokens=12), models(engine))
    found = captions.of(world_source(engine, *chats))
    pair = models(engine)
    backbone = pair.target if writer == "target" else pair.draft
    assert backbone is not None
    wanted = [
        [
            answer(engine, backbone.model, chats[0].images[0], "Describe the image.", 12),
            answer(engine, backbone.model, chats[0].videos[0], "Describe the video.", 12),
        ],
        [answer(engine, backbone.model, chats[1].images[0], "Describe the image.", 12)],
    ]
    assert found == wanted
    assert any(caption for captions in found for caption in captions)
    assert 0 < forwards_of(captions) <= 2 * 11


def test_another_prompt_and_pictures_in_batches(engine: draftlens.Engine) -> None:
    pictures = [world_picture(seed) for seed in range(BATCH + 2)]
    options = Captioning("draft", prompt="How many are there?", max_tokens=6)
    captions = make_captions(options, models(engine))
    (found,) = captions.of(world_source(engine, chat(*pictures)))
    draft = models(engine).draft
    assert draft is not None
    wanted = [answer(engine, draft.model, one, "How many are there?", 6) for one in pictures]
    assert found == wanted
    assert forwards_of(captions) <= 2 * 5  # two batches


def test_without_a_draft_the_target_writes(engine: draftlens.Engine) -> None:
    pair = models(engine)
    talk = chat(world_picture(0))
    alone = make_captions(Captioning("draft", max_tokens=4), Models(pair.target))
    target = make_captions(Captioning("target", max_tokens=4), pair)
    assert alone.of(world_source(engine, talk)) == target.of(world_source(engine, talk))


def test_a_target_whose_processor_is_unknown_writes_nothing(engine: draftlens.Engine) -> None:
    captions = make_captions(Captioning("target"), models(engine))
    with pytest.raises(CaptionError, match="the target's processor is not known"):
        captions.of(source(chat(picture(1))))


def test_a_model_that_sees_nothing_writes_nothing(engine: draftlens.Engine) -> None:
    blind = Backbone(language_model())
    captions = make_captions(Captioning("draft"), Models(models(engine).target, blind))
    with pytest.raises(CaptionError, match="Qwen2ForCausalLM takes no image"):
        captions.of(source(chat(picture(1))))


def test_a_caption_is_a_view_of_a_request(engine: draftlens.Engine) -> None:
    talk = chat(world_picture(0))
    captions = make_captions(Captioning(["a red ball"]), models(engine))
    made = captioned(captions, world_source(engine, talk))
    wanted = engine.read("image: a red ball\nWhat?").target
    assert torch.equal(made["input_ids"], wanted["input_ids"])
