"""Every family from a folder on disk and files: load, read, process, answer, as a user's own models would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, Family
from stock import noisy

import draftlens
from draftlens.compare import run_stock
from draftlens.conversation import ask
from tests.e2e.conftest import CLIPS

TEMPLATE = """{%- for message in messages %}{{ message['role'] }}: {% for item in message['content'] -%}
{%- if item['type'] == 'image' %}IMAGE{% elif item['type'] == 'video' %}VIDEO{% else %}{{ item['text'] }}{% endif -%}
{%- endfor %} {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
PICTURE = CLIPS / "shapes.png"


def save_pair(family: Family, folder: Path) -> tuple[str, str]:
    """A target and a half-agreeing draft with their processors, as checkpoints."""
    processor, model = family.processor(), family.build()
    processor.chat_template = TEMPLATE.replace("IMAGE", family.image).replace("VIDEO", family.video or "")
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
        result = engine.answer(inputs, max_new_tokens=15).run()
        assert result.tokens == run_stock(engine.target.backbone, inputs.target, max_new_tokens=15).tokens
        accepted += result.stats.accepted
    assert accepted > 0


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_batch_of_chats(family: Family, tmp_path: Path) -> None:
    """Each chat gets the answer that it gets alone, whatever the others show."""
    engine = draftlens.load(*save_pair(family, tmp_path), device="cpu")
    chats = [ask("what", images=PICTURE), ask("and what is this"), ask("both", images=[PICTURE, PICTURE])]
    together = engine.answer(engine.read(messages=chats), max_new_tokens=12).run()
    assert together.tokens == [engine.generate(messages=chat, max_new_tokens=12).tokens[0] for chat in chats]
