"""Profiles of document models: which one a model has, and how much of an answer in its notation
the drafts propose."""

from __future__ import annotations

from typing import Any

import pytest
import simulated_answers as simulated
import transformers as hf
from forcing import Forced
from language_models import embedded_tokenizer, language_model

import draftlens
from draftlens import ConfigError
from draftlens.documents.reading.formats import (
    Canvas,
    DraftFormat,
    LearningFormat,
    make_format,
)
from draftlens.documents.reading.formats.base import page_drafts
from draftlens.documents.reading.targets import (
    GENERAL,
    NAMED,
    PROFILES,
    named_profile,
    profile_of,
)

CANVAS = Canvas(simulated.PAGE, 1200, 1600)
HSD = {"method": "hsd", "num_speculative_tokens": 16}


@pytest.fixture(scope="module")
def model() -> Any:
    """Random: it says what it is made to say."""
    return language_model()


def proposed_share(model: Any, form: DraftFormat, answer: str) -> float:
    """The share of an answer's tokens that are accepted draft tokens."""
    tokenizer = embedded_tokenizer()
    tokens = tokenizer.encode(answer, add_special_tokens=False)
    prompt = tokenizer("Read the page.", return_tensors="pt")
    result = draftlens.generate(
        model,
        dict(prompt),
        method=HSD,
        references=[page_drafts(form, simulated.REGIONS, CANVAS)],
        tokenizer=tokenizer,
        logits_processor=[Forced([tokens], prompt["input_ids"].shape[1])],
        max_new_tokens=len(tokens),
        eos_token_id=None,
        do_sample=False,
    )
    assert result.tokens == [tokens]
    return result.stats.accepted / len(tokens)


SHARES = {
    "glm_ocr": 0.92,
    "hunyuan_vl": 0.92,
    "lighton_ocr": 0.83,  # its answer has HTML with indentation, which its profile does not state
    "paddleocr_vl": 0.92,
    "deepseek_ocr2": 0.92,
    "granite_docling": 0.9,
    "qianfan_ocr": 0.92,
    "mineru": 0.92,
    "olmocr": 0.91,
    "minicpm_ocr": 0.92,
    "dots_ocr": 0.88,
    "got_ocr2": 0.92,
    "idefics3": 0.88,
}
"""Least shares of a first page. What is left are places and one token at the ends of regions."""


@pytest.mark.parametrize("name", simulated.ANSWERS)
def test_the_first_page_is_drafted_in_the_notation_of_its_model(model: Any, name: str) -> None:
    form = named_profile(name).make_form()
    assert proposed_share(model, form, simulated.ANSWERS[name]) >= SHARES[name]


def test_boxes_are_drafted_where_the_prompt_asks_for_them(model: Any) -> None:
    markdown = PROFILES["deepseek_ocr2"].make_form()
    plain = proposed_share(model, markdown, simulated.GROUNDED)
    assert proposed_share(model, make_format("grounding"), simulated.GROUNDED) > plain + 0.05


@pytest.mark.parametrize("name", ["lighton_ocr", "qianfan_ocr"])
def test_the_second_page_follows_the_answer_of_the_first(model: Any, name: str) -> None:
    """The notation of the vendor is not known for every model."""
    form = named_profile(name).make_form()
    assert isinstance(form, LearningFormat)
    answer = simulated.ANSWERS["olmocr"].removeprefix(simulated.FRONT_MATTER)
    assert proposed_share(model, form.after(answer), answer) > 0.9


CONFIGS = {
    "glm_ocr": hf.GlmOcrConfig,
    "hunyuan_vl": hf.HunYuanVLConfig,
    "lighton_ocr": hf.LightOnOcrConfig,
    "got_ocr2": hf.GotOcr2Config,
    "paddleocr_vl": hf.PaddleOCRVLConfig,
    "deepseek_ocr2": hf.DeepseekOcr2Config,
    "qianfan_ocr": hf.QianfanOCRConfig,
    "minicpm_ocr": hf.MiniCPMOcrConfig,
    "granite_docling": hf.GraniteDoclingConfig,
    "idefics3": hf.Idefics3Config,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_architecture_names_the_profile(name: str) -> None:
    assert profile_of(CONFIGS[name](), "some/folder") is PROFILES[name]


@pytest.mark.parametrize(
    ("kind", "folder", "expected"),
    [
        (hf.Qwen2VLConfig, "opendatalab/MinerU2.5-2509-1.2B", NAMED["mineru"]),
        (hf.Qwen2VLConfig, "models/mineru2.5-pro/", NAMED["mineru"]),
        (hf.Qwen2_5_VLConfig, "allenai/olmOCR-2-7B-1025-FP8", NAMED["olmocr"]),
        (hf.Qwen2_5_VLConfig, "hub/models--allenai--olmOCR-2-7B/snapshots/1a", NAMED["olmocr"]),
        (hf.Qwen2_5_VLConfig, "C:\\models\\olmOCR-2-7B", NAMED["olmocr"]),
        (hf.Qwen2_5_VLConfig, "olmocr/Qwen2.5-VL-7B-Instruct", GENERAL),
        (hf.Qwen2VLConfig, "", GENERAL),
        (hf.GlmOcrConfig, "teachers/olmOCR-2", PROFILES["glm_ocr"]),
    ],
)
def test_a_name_decides_where_the_architecture_is_that_of_a_general_model(
    kind: Any, folder: str, expected: object
) -> None:
    assert profile_of(kind(), folder) is expected
    config = kind()
    config._name_or_path = folder
    assert profile_of(config) is expected


def test_a_profile_has_a_name() -> None:
    assert named_profile("mineru") is NAMED["mineru"]
    with pytest.raises(ConfigError, match="unknown profile 'olmorc': did you mean 'olmocr'"):
        named_profile("olmorc")
