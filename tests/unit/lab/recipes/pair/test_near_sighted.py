"""The near-sighted draft: what it is shown, what it starts from, and what its views are worth."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from draftlens_lab.bench.options import BenchOptions
from draftlens_lab.bench.workloads import clips_of
from draftlens_lab.world import HELD_OUT, story

from draftlens.media.conversation import process
from recipes.pair import near_sighted
from recipes.pair.data import IGNORED
from recipes.pair.export import load
from recipes.pair.models import DRAFT
from recipes.pair.near_sighted import (
    POSITIONS,
    RECIPE,
    SEEN,
    TOLD,
    fresh_model,
    reading,
    seeing,
    shortened,
    told,
)
from recipes.pair.recipe import EMBEDDED
from recipes.pair.tokenizer import IMAGE, VIDEO
from recipes.pair.views import guessed, without_media


@pytest.fixture(scope="module")
def draft() -> tuple[Any, Any]:
    return load(EMBEDDED / "draft")


def test_it_reads_text_alone(draft: tuple[Any, Any]) -> None:
    tokenizer = draft[1].tokenizer
    for batch in islice(reading(tokenizer, 0), 8):
        assert set(batch) == {"input_ids", "labels"}
        assert batch["input_ids"].shape[1] <= TOLD
        assert (batch["labels"] != IGNORED).any()


def test_it_sees_one_picture_or_eight_frames(draft: tuple[Any, Any]) -> None:
    tokenizer = draft[1].tokenizer
    kinds = set()
    for batch in islice(seeing(tokenizer, 0, RECIPE.read_every), 16):
        ids = batch["input_ids"]
        if "pixel_values_videos" in batch:
            kinds.add("video")
            assert batch["pixel_values_videos"].shape[1] == 8
        if "pixel_values" in batch:
            kinds.add("image")
            assert set(batch["batch_num_images"].tolist()) == {1}
        is_text = set(batch) == {"input_ids", "labels"}
        assert ids.shape[1] <= (TOLD if is_text else SEEN)
        placeholders = tokenizer.convert_tokens_to_ids([IMAGE, VIDEO])
        assert torch.isin(ids, torch.tensor(placeholders)).sum(1).max() <= 150
    assert kinds == {"video", "image"}


@pytest.mark.parametrize("start", [1, 3, 5])
def test_batches_go_on_where_training_stopped(draft: tuple[Any, Any], start: int) -> None:
    tokenizer = draft[1].tokenizer
    for source in (
        lambda first: reading(tokenizer, first),
        lambda first: seeing(tokenizer, first, RECIPE.read_every),
    ):
        whole = list(islice(source(0), start + 2))[start:]
        for expected, batch in zip(whole, source(start), strict=False):
            assert batch.keys() == expected.keys()
            assert torch.equal(batch["input_ids"], expected["input_ids"])


def test_its_eyes_are_the_drafts(draft: tuple[Any, Any]) -> None:
    weights = fresh_model(draft[0], draft[1].tokenizer).state_dict()
    eyes = 0
    for name, value in draft[0].state_dict().items():
        if "language_model" not in name and "lm_head" not in name:
            assert torch.equal(weights[name], value), name
            eyes += 1
    assert eyes > 20
    assert not torch.equal(weights["lm_head.weight"], draft[0].lm_head.weight)
    assert weights["model.language_model.wpe.weight"].shape == (POSITIONS, DRAFT.width)


def test_a_story_is_told_without_pictures() -> None:
    sample = told(story(5))
    assert sample.media == "none"
    assert sample.turns[0].question.startswith(story(5).captions[0])
    assert sample.turns[0].answer == story(5).turn.answer


def test_shortened() -> None:
    short = shortened(RECIPE, 3)
    assert (short.read.steps, short.see.steps) == (3, 3)
    assert near_sighted.STORIES < HELD_OUT


def test_views_of_a_prompt(draft: tuple[Any, Any]) -> None:
    model, processor = draft
    (clip,) = clips_of(BenchOptions("picture", clips=1), processor)
    chat = clip.prepare()()
    blind = without_media(chat)
    assert blind.images == []
    texts = [item["text"] for item in blind.messages[0]["content"]]
    assert texts == ["\n", clip.prompt]
    ids = process(processor, [blind])["input_ids"]
    answer = model.generate(input_ids=ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    assert guessed(model, processor, blind, answer.tolist()) == [True] * (len(answer) - 1)
    assert not all(guessed(model, processor, chat, answer.tolist()))
