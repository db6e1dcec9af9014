"""`transformers.pipeline` with `SpeculativeGenerate`: the same answer, or a refusal in words."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
from PIL import Image
from transformers import pipeline

import draftlens
from draftlens.core.errors import ConfigError

PICTURE = files("draftlens") / "embedded" / "clips" / "shapes.png"


@pytest.fixture(scope="module")
def engine() -> draftlens.Engine:
    return draftlens.load(device="cpu")


@pytest.fixture(scope="module")
def pipe(engine: draftlens.Engine) -> Any:
    return pipeline(
        "image-text-to-text", model=engine.target.backbone.model, processor=engine.target.processor
    )


def ask(pipe: Any, content: list[dict[str, Any]], **options: Any) -> str:
    generate = {"max_new_tokens": 16, "do_sample": False, **options}
    chat = [{"role": "user", "content": content}]
    (answer,) = pipe(text=chat, generate_kwargs=generate, return_full_text=False)
    return str(answer["generated_text"])


def test_a_pipeline_says_the_same(engine: draftlens.Engine, pipe: Any) -> None:
    assert engine.draft is not None
    picture = Image.open(str(PICTURE))
    text = {"type": "text", "text": "Describe the image."}
    content = [{"type": "image", "image": picture}, text]
    for seen, images in (([text], []), (content, [picture])):
        inputs = engine.read("Describe the image.", images=images).target
        custom = draftlens.SpeculativeGenerate(
            engine.draft.backbone.model, draft_inputs=inputs, method={"tree": "eagle"}
        )
        answer = ask(pipe, seen, custom_generate=custom)
        assert answer == ask(pipe, seen)
        assert custom.last is not None
        assert custom.last.stats.drafted > 0


def test_a_picture_without_the_drafts_inputs_is_refused(
    engine: draftlens.Engine, pipe: Any
) -> None:
    assert engine.draft is not None
    custom = draftlens.SpeculativeGenerate(engine.draft.backbone.model)
    content = [{"type": "image", "image": Image.open(str(PICTURE))}]
    with pytest.raises(ConfigError, match="give SpeculativeGenerate the draft_inputs"):
        ask(pipe, content, custom_generate=custom)
