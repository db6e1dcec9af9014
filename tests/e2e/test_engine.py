"""What people type on an engine: captions, questions, batches, stop strings."""

from __future__ import annotations

import re
from ast import literal_eval
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from language_models import language_model
from PIL import Image
from transformers import GenerationConfig

import draftlens
from draftlens.batch.map import MapOptions
from draftlens.media.given import kind_of
from draftlens.models.known_pairs import EMBEDDED, path_of

CLIPS = Path(path_of(EMBEDDED, "target")).parent / "clips"
CLIP, PICTURE = CLIPS / "drift.mp4", CLIPS / "shapes.png"
RED = Image.new("RGB", (32, 32), (255, 0, 0))
NEW = 12


@pytest.fixture(scope="module")
def engine() -> draftlens.Engine:
    return draftlens.load(device="cpu", calibrate=False)


def stock_ids(engine: draftlens.Engine, given: draftlens.Inputs, **options: Any) -> list[int]:
    """New tokens of a single row by the unmodified library."""
    model = engine.target.backbone.model
    output = model.generate(**given.target, do_sample=False, max_new_tokens=NEW, **options)
    return output[0, given.target["input_ids"].shape[1] :].tolist()


def test_a_caption_of_a_file_and_of_what_is_read_already(engine: draftlens.Engine) -> None:
    picture = engine.read("Describe the image.", images=[PICTURE])
    clip = engine.read("Describe the video.", video=CLIP, num_frames=4)
    question = engine.read("How many?", images=[PICTURE])
    expected = stock_ids(engine, picture)
    for media in (PICTURE, str(PICTURE), Image.open(PICTURE)):
        assert engine.caption(media, max_new_tokens=NEW).tokens == [expected]
    found = engine.caption(CLIP, num_frames=4, max_new_tokens=NEW, method="lookup")
    assert found.tokens == [stock_ids(engine, clip)]
    found = engine.caption(PICTURE, "How many?", max_new_tokens=NEW)
    assert found.tokens == [stock_ids(engine, question)]


@pytest.mark.parametrize(
    ("media", "kind"),
    [
        ("a.PNG", "image"),
        (Path("a.jpeg"), "image"),
        ("https://host/a.webp?size=3", "image"),
        ("https://host/a.mp4?poster=b.png", "video"),
        ("a?b.png", "image"),
        ("a.mp4", "video"),
        ("without an ending", "video"),
        (RED, "image"),
        ([RED, RED], "video"),
        (np.zeros((8, 8, 3), np.uint8), "image"),
        (np.zeros((2, 8, 8, 3), np.uint8), "video"),
    ],
    ids=lambda value: str(value)[:30].partition("<PIL")[0],
)
def test_clips_are_told_from_pictures(media: Any, kind: str) -> None:
    assert kind_of(media) == kind


def test_questions(engine: draftlens.Engine) -> None:
    words = "What is there?"
    for asked, given in (
        ({"image": RED}, {"images": [RED]}),
        ({"images": [RED, PICTURE]}, {"images": [RED, PICTURE]}),
        ({"video": [RED, RED]}, {"video": [RED, RED]}),
        ({}, {}),
    ):
        expected = stock_ids(engine, engine.read(words, **given))
        assert engine.ask(words, **asked, max_new_tokens=NEW).tokens == [expected]


@pytest.mark.parametrize(
    "media", [{"image": [RED]}, {"image": RED, "images": [RED]}], ids=["list", "both"]
)
def test_an_image_is_one(engine: draftlens.Engine, media: Any) -> None:
    with pytest.raises(draftlens.InputError, match="image is one picture"):
        engine.ask("What?", **media)


def test_a_batch_of_prompts(engine: draftlens.Engine) -> None:
    """Each row has the answer that it has alone."""
    prompts = ["What is there?", "What is this?", "Hello"]
    images = [[RED, PICTURE], RED, None]
    result = engine.generate(prompts, images=images, max_new_tokens=NEW)
    alone = [
        engine.generate(prompt, images=pictures, max_new_tokens=NEW)
        for prompt, pictures in zip(prompts, images, strict=True)
    ]
    assert result.tokens == [one.tokens[0] for one in alone]
    assert result.texts == [one.text for one in alone]
    assert (
        engine.ask(prompts[:2], images=images[:2], max_new_tokens=NEW).tokens == result.tokens[:2]
    )
    clips = engine.generate(prompts[1:], video=[[RED, RED], None], max_new_tokens=NEW)
    assert clips.tokens[1] == result.tokens[2]


@pytest.mark.parametrize("how", ["chat", "a draft in a thread or process", "another draft"])
def test_log_probabilities(engine: draftlens.Engine, how: str) -> None:
    """Of a second turn, which a prompt cache has read in part, and of drafts that run ahead."""
    options: dict[str, Any] = {"max_new_tokens": NEW, "logprobs": True, "top_logprobs": 2}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is there?"}]
    if how == "chat":
        chat = engine.chat()
        messages.append({"role": "assistant", "content": chat.ask("What is there?").text})
        messages.append({"role": "user", "content": "And next to it?"})
        result = chat.ask("And next to it?", **options)
        assert result.stats.cached_tokens > 0
    else:
        method = "parallelvlm" if how.startswith("a draft") else "specvlm"
        result = engine.generate(messages=messages, method=method, **options)
    given = engine.read(messages=messages)
    output = engine.target.backbone.model.generate(
        **given.target,
        do_sample=False,
        max_new_tokens=NEW,
        output_logits=True,
        return_dict_in_generate=True,
    )
    log_p = torch.cat(output.logits).log_softmax(-1)
    assert result.tokens == [output.sequences[0, given.target["input_ids"].shape[1] :].tolist()]
    (entries,) = result.logprobs
    own = log_p.gather(1, torch.tensor(result.tokens[0])[:, None])[:, 0]
    assert [entry.logprob for entry in entries] == pytest.approx(own.tolist(), abs=1e-4)
    assert all(len(entry.top) == 2 and entry.top[0].token == entry.token for entry in entries)
    ends = engine.target.processor.tokenizer.all_special_ids
    assert "".join(e.text for e in entries if e.token not in ends) == result.text


@pytest.mark.parametrize(
    ("prompt", "media", "message"),
    [
        (["a", "b"], {"images": [RED]}, "images is a list with an entry for each of 2 prompts"),
        (["a", "b"], {"images": RED}, "images is a list with an entry for each of 2 prompts"),
        (["a", "b"], {"video": "clip.mp4"}, "video is a list with an entry for each of 2 prompts"),
        ([], {}, "prompt must be a text, or a list of texts"),
        (["a", 5], {}, "prompt must be a text, or a list of texts"),
    ],
)
def test_batches_that_do_not_fit(
    engine: draftlens.Engine, prompt: Any, media: Any, message: str
) -> None:
    with pytest.raises(draftlens.InputError, match=message):
        engine.generate(prompt, **media)


def test_stop_strings_use_the_engines_tokenizer(engine: draftlens.Engine) -> None:
    given = engine.read("What is this?", images=[PICTURE])
    tokenizer = engine.target.processor.tokenizer
    stop = tokenizer.decode(stock_ids(engine, given)[5:7])
    expected = stock_ids(engine, given, stop_strings=stop, tokenizer=tokenizer)
    assert len(expected) < NEW
    config = GenerationConfig(max_new_tokens=NEW, do_sample=False, stop_strings=stop)
    calls: list[dict[str, Any]] = [
        {"stop_strings": stop, "max_new_tokens": NEW},
        {"stop_strings": [stop], "max_new_tokens": NEW},
        {"stop": stop, "max_new_tokens": NEW},
        {"generation_config": config},
    ]
    for options in calls:
        result = engine.generate("What is this?", images=[PICTURE], **options)
        assert result.tokens == [expected]
    answers = engine.map([PICTURE], "What is this?", options=ONE_IMAGE, **calls[0])
    assert [list(answer.tokens) for answer in answers] == [expected]


ONE_IMAGE = MapOptions(kind="image", readers=1)


def test_the_recipe_for_a_draft_of_text_only_drops_none_of_its_views(
    engine: draftlens.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """As docs/methods.md prints it."""
    text = Path(__file__).parents[2].joinpath("docs", "methods.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| a language model"))
    recipes = re.findall(r"`views=(\[.*?\])`", row)
    assert recipes
    target = engine.target
    own = draftlens.Engine(
        target.backbone.model, language_model(), "tabed", processor=target.processor
    )
    expected = engine.generate("What is this?", images=RED, method="plain", max_new_tokens=NEW)
    for recipe in recipes:
        views: list[Any] = literal_eval(recipe)
        method = {"method": "tabed", "views": views, "rest": False}
        result = own.generate("What is this?", images=RED, method=method, max_new_tokens=NEW)
        assert result.tokens == expected.tokens
        assert len(result.stats.views) == len(views)
        assert all(view.asked for view in result.stats.views.values())
    assert "view" not in caplog.text
