"""The embedded pair: loads offline, sees the bundled clips, fits in the package; and the parts that
made it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draftlens_lab.world import HELD_OUT, render, sample_scene, sample_still, still_caption
from PIL import Image

from recipes.clips import CLIPS, check, make, sampled_frames
from recipes.pair.answers import answer, inputs_for
from recipes.pair.export import load, size
from recipes.pair.grow import deepen
from recipes.pair.models import Shape, build_model
from recipes.pair.recipe import EMBEDDED
from recipes.pair.tokenizer import PAD

TINY = Shape(1, 32, 64, 2, 1, 32, 64, 2)


@pytest.fixture(scope="module")
def target() -> tuple[Any, Any]:
    return load(EMBEDDED / "target")


@pytest.fixture(scope="module")
def draft() -> tuple[Any, Any]:
    return load(EMBEDDED / "draft")


def test_deepening_keeps_the_function(fresh_processor: Any) -> None:
    tokenizer = fresh_processor.tokenizer
    shallow = build_model(TINY, tokenizer, 0).eval()
    deep = deepen(shallow, build_model(Shape(3, 32, 64, 2, 1, 32, 64, 2), tokenizer, 1)).eval()
    inputs = inputs_for(
        fresh_processor, [render(sample_scene(0), 2, 64)], ["Describe the video."], still=False
    )
    with torch.inference_mode():
        torch.testing.assert_close(
            deep(**inputs).logits, shallow(**inputs).logits, rtol=0, atol=1e-5
        )


def test_pair_shares_tokenizer_and_inputs(target: tuple[Any, Any], draft: tuple[Any, Any]) -> None:
    frames = render(sample_scene(HELD_OUT), 8, 256)
    ours, theirs = (
        inputs_for(p, [frames], ["Describe the video."], still=False) for _, p in (target, draft)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert target[1].tokenizer.get_vocab() == draft[1].tokenizer.get_vocab()


@pytest.mark.parametrize("name", ["target", "draft"])
def test_weights_are_half_on_disk_and_float32_in_memory(
    name: str, request: pytest.FixtureRequest
) -> None:
    model, processor = request.getfixturevalue(name)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.generation_config.eos_token_id == processor.tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == processor.tokenizer.convert_tokens_to_ids(PAD)
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    assert size(EMBEDDED / name) < 2.2e6 * millions + 1e6


def test_everything_embedded_is_small() -> None:
    assert size(EMBEDDED / "target") + size(EMBEDDED / "draft") < 40e6
    for clip in CLIPS.glob("*.mp4"):
        assert clip.stat().st_size < (300_000 if clip.stem == "bunny" else 250_000)


def test_target_describes_every_bundled_file_rightly(target: tuple[Any, Any]) -> None:
    results = check(*target)
    assert {"shapes.mp4", "drift.mp4", "shapes.png"} <= results.keys()
    for name, result in results.items():
        record = json.loads((CLIPS / f"{name}.json").read_text())
        assert result.num_right == result.num_facts, f"{name}: {result.text}"
        assert result.text == record["caption"]


def test_padded_batch_answers_as_single_rows_do(target: tuple[Any, Any]) -> None:
    frames = [render(sample_scene(HELD_OUT + i), 8, 64) for i in range(2)]
    prompts = ["Describe the video.", "How many shapes are there?"]
    together = answer(*target, frames, prompts, still=False)
    assert together == [
        answer(*target, [f], [p], still=False)[0] for f, p in zip(frames, prompts, strict=True)
    ]


def test_draft_depends_on_the_pixels(draft: tuple[Any, Any]) -> None:
    model, processor = draft
    frames = render(sample_scene(HELD_OUT), 8, 64)
    logits = []
    for shown in (frames, 255 - frames):
        with torch.inference_mode():
            logits.append(
                model(
                    **inputs_for(processor, [shown], ["Describe the video."], still=False)
                ).logits[0, -1]
            )
    assert not torch.allclose(logits[0], logits[1], atol=0.1)


def test_bundled_files_are_made_again_from_their_seeds(tmp_path: Path) -> None:
    make(tmp_path)
    for record in tmp_path.glob("*.json"):
        assert record.read_text() == (CLIPS / record.name).read_text()
    for name in ("shapes", "drift"):
        ours, theirs = (sampled_frames(folder / f"{name}.mp4", 8) for folder in (tmp_path, CLIPS))
        assert np.abs(ours.astype(int) - theirs).mean() < 1.0
    pictures = [np.asarray(Image.open(folder / "shapes.png")) for folder in (tmp_path, CLIPS)]
    assert np.array_equal(*pictures)


def test_record_of_the_picture_is_its_caption() -> None:
    record = json.loads((CLIPS / "shapes.png.json").read_text())
    assert record["caption"] == still_caption(sample_still(record["seed"]))
