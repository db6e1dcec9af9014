"""Every family from a folder on disk and files: load, read, process, answer, as a user's own models
would be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, Family
from stock import noisy
from transformers import AutoProcessor

import draftlens
from draftlens.media.conversation import ask
from draftlens.verify import run_stock
from tests.e2e.conftest import CLIPS

TEMPLATE = """{%- for message in messages %}{{ message['role'] }}: {% for item in message['content'] -%}
{%- if item['type'] == 'image' %}IMAGE{% elif item['type'] == 'video' %}VIDEO{% else %}{{ item['text'] }}{% endif -%}
{%- endfor %} {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
PICTURE = CLIPS / "shapes.png"


def save_pair(family: Family, folder: Path, **text: Any) -> tuple[str, str]:
    """A target and a half-agreeing draft with their processors, as checkpoints; `text` as for
    `Family.build`."""
    processor, model = family.processor(), family.build(**text)
    processor.chat_template = TEMPLATE.replace("IMAGE", family.image).replace(
        "VIDEO", family.video or ""
    )
    for role, weights in (("target", model), ("draft", noisy(model))):
        weights.save_pretrained(folder / role)
        processor.save_pretrained(folder / role)
    return str(folder / "target"), str(folder / "draft")


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_files_in_stock_tokens_out(family: Family, tmp_path: Path) -> None:
    engine = draftlens.load(*save_pair(family, tmp_path), device="cpu")
    asked: list[dict[str, Any]] = [{}, {"images": PICTURE}, {"images": [PICTURE, PICTURE]}]
    if family.video:
        asked.append({"video": CLIPS / "drift.mp4", "num_frames": 4})
    accepted = 0
    for media in asked:
        inputs = engine.read("what is it", **media)
        expected = run_stock(engine.target.backbone, inputs.target, max_new_tokens=15).tokens
        assert engine.answer(inputs, max_new_tokens=15).run().tokens == expected
        method = {"num_speculative_tokens": 5}
        result = engine.answer(inputs, method=method, max_new_tokens=15).run()
        assert result.tokens == expected
        accepted += result.stats.accepted
    assert accepted > 0


def test_a_draft_whose_pictures_are_fewer_tokens(tmp_path: Path) -> None:
    """The same pixels, larger patches: only the processor's own setting says so."""
    llava = next(family for family in FAMILIES if family.name == "llava")
    target, folder = save_pair(llava, tmp_path)
    coarse = replace(
        llava,
        vision={**llava.vision, "patch_size": 8},
        config={**llava.config, "image_seq_length": 4},
    )
    coarse.build(1).save_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder)
    processor.patch_size = 8
    processor.save_pretrained(folder)
    engine = draftlens.load(target, folder, device="cpu")
    inputs = engine.read("what is it", images=PICTURE)
    assert inputs.draft is not None
    assert len(inputs.draft["input_ids"][0]) < len(inputs.target["input_ids"][0])
    for method in ("speculative", "specvlm"):
        result = engine.answer(inputs, method=method, max_new_tokens=15).run()
        assert (
            result.tokens
            == run_stock(engine.target.backbone, inputs.target, max_new_tokens=15).tokens
        )


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_batch_of_chats(family: Family, tmp_path: Path) -> None:
    """Each chat gets the answer that it gets alone, whatever the others show."""
    engine = draftlens.load(*save_pair(family, tmp_path), device="cpu")
    chats = [
        ask("what", images=PICTURE),
        ask("and what is this"),
        ask("both", images=[PICTURE, PICTURE]),
    ]
    together = engine.answer(engine.read(messages=chats), max_new_tokens=12).run()
    assert together.tokens == [
        engine.generate(messages=chat, max_new_tokens=12).tokens[0] for chat in chats
    ]
