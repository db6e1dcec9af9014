"""The words of a prompt from its token ids, compared with what a processor makes of rewritten
prompts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import FAMILIES, PLANS, Family, inputs, prompt, tokenizer

from draftlens.drafting.draft_prompt import TextPromptBuilder
from draftlens.drafting.text_inputs import text_ids, text_inputs
from draftlens.models.adapter import Backbone
from draftlens.models.support import media_ids

BARE = ("llava", "llava_next", "llava_onevision")
"""Families without markers: pictures that follow each other are one run."""

SAFE = [
    (family, kind)
    for family in FAMILIES
    for kind in family.kinds
    if kind == "text"
    or not (family.name == "smolvlm" or (family.name == "internvl" and kind in ("video", "mixed")))
]
OTHERS = [
    (family, kind) for family in FAMILIES for kind in family.kinds if (family, kind) not in SAFE
]
LINE_BREAK: int = tokenizer().convert_tokens_to_ids("Ċ")


def config_of(family: Family) -> Any:
    """Its configuration, without a model."""
    return family.model.config_class(
        text_config=dict(family.text), vision_config=dict(family.vision), **family.config
    )


def rewritten(family: Family, kind: str, instead: str) -> dict[str, Any]:
    """What the processor makes of the prompts with other text in place of media."""
    texts = []
    for row in PLANS[kind]:
        shown = row
        if family.name in BARE:
            shown = type(row)(row.letters, min(row.images, 1), min(row.videos, 1))
        texts.append(prompt(shown, instead, instead))
    return dict(family.tools(text=texts, padding=True, padding_side="left", return_tensors="pt"))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("family", "kind"), SAFE, ids=[f"{family}-{kind}" for family, kind in SAFE]
)
def test_the_ids_are_those_of_rewritten_prompts(family: Family, kind: str, side: str) -> None:
    given = inputs(family, kind, side=side)
    config = config_of(family)
    for instead, line_break in (("\n", LINE_BREAK), ("", None)):
        found = text_ids(config, given["input_ids"], given["attention_mask"], line_break)
        wanted = rewritten(family, kind, instead)
        assert found is not None
        assert torch.equal(found["attention_mask"], wanted["attention_mask"])
        hidden = found["attention_mask"] == 0
        assert torch.equal(found["input_ids"], wanted["input_ids"].masked_fill(hidden, 0))


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if (family, "images") in SAFE], ids=str
)
def test_a_model_reads_the_same_prompt(family: Family) -> None:
    """At the positions of text, without whatever else the processor returns."""
    backbone = Backbone(family.build())
    given = inputs(family, "images")
    config = backbone.model.config
    found = text_ids(config, given["input_ids"], given["attention_mask"], LINE_BREAK)
    assert found is not None
    prompts = []
    for view in (found, rewritten(family, "images", "\n")):
        prompts.append(backbone.encode(backbone.prepare_prompt(view)))
    first, second = prompts
    assert first.lengths == second.lengths
    assert torch.equal(first.position_ids, second.position_ids)
    for row, length in enumerate(first.lengths):
        assert torch.equal(first.embeds[row, :length], second.embeds[row, :length])
    assert not first.visual.any()


@pytest.mark.parametrize(
    ("family", "kind"), OTHERS, ids=[f"{family}-{kind}" for family, kind in OTHERS]
)
def test_what_cannot_be_told_from_text_is_left_alone(family: Family, kind: str) -> None:
    given = inputs(family, kind)
    config = config_of(family)
    assert text_ids(config, given["input_ids"], given["attention_mask"], LINE_BREAK) is None


def qwen(**values: Any) -> Any:
    """A configuration whose start is 1, end 2, picture 3 and clip 4."""
    ids = {
        "vision_start_token_id": 1,
        "vision_end_token_id": 2,
        "image_token_id": 3,
        "video_token_id": 4,
    }
    return SimpleNamespace(**{"model_type": "qwen3_vl", **ids, **values})


def text_of(config: Any, *row: int) -> list[int] | None:
    """The text of one row, 0 for line breaks; None if it cannot be told."""
    found = text_ids(config, torch.tensor([row]), line_break=0)
    return None if found is None else found["input_ids"][0].tolist()


def test_markers_that_do_not_match_are_left_alone() -> None:
    assert text_of(qwen(), 9, 1, 3, 3, 2, 8) == [9, 0, 8]
    assert text_of(qwen(), 9, 1, 3, 3, 8) is None
    assert text_of(qwen(), 9, 3, 3, 2, 8) is None
    assert text_of(qwen(), 9, 3, 3, 8) is None
    assert text_of(qwen(), 9, 1, 7, 2, 8) is None
    assert text_of(qwen(), 9, 1, 3, 2, 3, 8) is None


def test_frames_with_their_times_between_the_users_words_are_left_alone() -> None:
    """As processors of Qwen3-VL wrote them before transformers 5."""
    assert text_of(qwen(), 9, 1, 5, 1, 4, 2, 6, 1, 4, 2, 2, 8) == [9, 0, 8]
    assert text_of(qwen(), 9, 5, 1, 4, 2, 6, 1, 4, 2, 8) is None
    assert text_of(qwen(model_type="qwen2_vl"), 9, 1, 4, 4, 2, 8) == [9, 0, 8]


def test_pictures_between_two_tokens_without_a_name() -> None:
    internvl = SimpleNamespace(model_type="internvl", image_token_id=3)
    assert text_of(internvl, 9, 1, 3, 3, 2, 1, 3, 2, 8) == [9, 0, 0, 8]
    assert text_of(internvl, 9, 1, 3, 3, 2, 7, 1, 3, 2, 8) == [9, 0, 7, 0, 8]
    assert text_of(internvl, 9, 1, 3, 3, 2, 7, 6, 1, 3, 2, 8) is None
    assert text_of(internvl, 9, 1, 3, 3, 2, 7, 3, 2, 8) is None
    assert text_of(internvl, 3, 3, 2, 8) is None
    assert text_of(internvl, 9, 1, 3, 3) is None


def test_other_families_and_empty_rows() -> None:
    other = SimpleNamespace(model_type="other", image_token_id=3)
    assert text_of(other, 9, 8) == [9, 8]
    assert text_of(other, 9, 3, 8) is None
    assert text_of(SimpleNamespace(model_type="llama"), 9, 8) is None
    llava = SimpleNamespace(model_type="llava", image_token_index=3)
    assert text_ids(llava, torch.tensor([[3, 3, 3]])) is None
    assert text_of(llava, 3, 3, 3) == [0]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_words_of_any_family(family: Family, side: str) -> None:
    """Nothing that the configuration names as a picture is left, and of the words all."""
    given = inputs(family, "images", side=side)
    config = config_of(family)
    found = text_inputs(config, given)
    assert found.keys() == {"input_ids", "attention_mask"}
    named = media_ids(config)
    is_known = (family, "images") in SAFE
    for row in range(3):
        ids = found["input_ids"][row][found["attention_mask"][row] != 0].tolist()
        words = given["input_ids"][row][given["attention_mask"][row] != 0].tolist()
        kept = [token for token in words if token not in named]
        assert not named & set(ids)
        assert is_known or ids == kept
        assert set(ids) <= set(kept)
        assert ids[-8:] == kept[-8:]


def test_a_row_of_pictures_alone_keeps_a_token() -> None:
    llava = SimpleNamespace(model_type="llava", image_token_index=3)
    found = text_inputs(llava, {"input_ids": torch.tensor([[3, 3, 3], [7, 3, 8]])})
    assert found["input_ids"].tolist() == [[0, 3], [7, 8]]
    assert found["attention_mask"].tolist() == [[0, 1], [1, 1]]


def test_the_length_of_the_words_is_that_without_visual_tokens() -> None:
    """What reading costs before it is read: pictures cost nothing."""
    backbone: Any = SimpleNamespace()
    prompt: Any = SimpleNamespace(
        lengths=[5, 3, 2],
        visual=torch.tensor([[0, 1, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0]]).bool(),
    )
    assert TextPromptBuilder(backbone, None).lengths(prompt) == [2, 3, 1]
