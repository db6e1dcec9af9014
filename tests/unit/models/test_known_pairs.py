"""Known pairs, and how copies of their targets are recognized."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

from draftlens.models.known_pairs import (
    EMBEDDED,
    LOADED,
    PAIRS,
    Shape,
    draft_for,
    draft_for_config,
    path_of,
)
from draftlens.models.load import known_draft
from draftlens.models.loading import LoadOptions


def sized(config: Any, hidden_size: int, num_layers: int) -> Any:
    text = config.get_text_config(decoder=True)
    text.hidden_size = hidden_size
    text.num_hidden_layers = num_layers
    return config


@pytest.mark.parametrize(
    ("config", "draft"),
    [
        (sized(hf.LlavaConfig(), 5120, 40), "llava-hf/llava-1.5-7b-hf"),
        (sized(hf.LlavaNextConfig(), 5120, 40), "llava-hf/llava-v1.6-vicuna-7b-hf"),
        (
            sized(hf.LlavaOnevisionConfig(), 3584, 28),
            "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
        ),
        (sized(hf.Qwen2VLConfig(), 3584, 28), "Qwen/Qwen2-VL-2B-Instruct"),
        (sized(hf.Qwen2_5_VLConfig(), 8192, 80), "Qwen/Qwen2.5-VL-7B-Instruct"),
        (sized(hf.Qwen3VLConfig(), 4096, 36), "Qwen/Qwen3-VL-2B-Instruct"),
        (sized(hf.Qwen3VLMoeConfig(), 4096, 94), "Qwen/Qwen3-VL-4B-Instruct"),
        (sized(hf.InternVLConfig(), 3584, 28), "OpenGVLab/InternVL3-1B-hf"),
        (
            sized(hf.InternVLConfig(text_config=hf.Qwen3Config()), 4096, 36),
            "OpenGVLab/InternVL3_5-1B-HF",
        ),
        (sized(hf.SmolVLMConfig(), 2048, 24), "HuggingFaceTB/SmolVLM2-256M-Video-Instruct"),
        (sized(hf.Qwen3_5Config(), 4096, 32), "Qwen/Qwen3.5-0.8B"),
        (sized(hf.Qwen3_5MoeConfig(), 2048, 40), "Qwen/Qwen3.5-0.8B"),
        (sized(hf.Gemma3Config(), 5376, 62), "google/gemma-3-4b-it"),
        (sized(hf.Gemma4Config(), 2816, 30), "google/gemma-4-E2B-it"),
        (sized(hf.Lfm2VlConfig(), 2048, 16), "LiquidAI/LFM2-VL-450M"),
        (sized(hf.Glm4vMoeConfig(), 4096, 46), "zai-org/GLM-4.6V-Flash"),
        (sized(hf.Qwen2VLConfig(), 1536, 28), None),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_every_family_is_recognized_by_its_configuration(config: Any, draft: str | None) -> None:
    assert draft_for_config(config) == draft


def test_shapes_and_names_are_unique() -> None:
    assert len({pair.shape for pair in PAIRS}) == len(PAIRS)
    assert len({pair.target for pair in PAIRS}) == len(PAIRS)
    assert draft_for("nobody/knows") is None


def test_only_what_was_run_says_so() -> None:
    assert [pair.target for pair in PAIRS if pair.checked == LOADED] == [EMBEDDED]
    config = hf.AutoConfig.from_pretrained(path_of(EMBEDDED, "target"))
    assert Shape.of(config) == PAIRS[0].shape


def test_a_quantized_copy_is_recognized(tmp_path: Path) -> None:
    folder = tmp_path / "copy-AWQ"
    folder.mkdir()
    shutil.copy(Path(path_of(EMBEDDED, "target")) / "config.json", folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    assert known_draft(str(folder), LoadOptions(device="cpu")) == EMBEDDED
