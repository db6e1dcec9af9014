"""Pairs of models that are known to work together."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.names import EMBEDDED as EMBEDDED
from draftlens.core.names import LAB_INSTALLATION, READER

LOADED = "loaded and run"
BY_CONFIG = "by its published sizes only"


@dataclass(frozen=True)
class Shape:
    """The sizes that all copies of a model share, quantized and fine-tuned ones included.
    `text_type` is the language model's, such as `qwen2`; empty for Qwen's own."""

    model_type: str
    text_type: str
    hidden_size: int
    num_layers: int

    @classmethod
    def of(cls, config: Any) -> Shape:
        text = config.get_text_config(decoder=True)
        text_type = str(getattr(text, "model_type", "")).removesuffix("_text")
        return cls(
            str(config.model_type),
            "" if text_type == config.model_type else text_type,
            int(getattr(text, "hidden_size", 0)),
            int(getattr(text, "num_hidden_layers", 0)),
        )


@dataclass(frozen=True)
class KnownPair:
    """A target and the draft that `draft="auto"` uses for it, both by Hub id.

    Args:
        shape: of the target, by which copies are recognized.
        checked: how the pair was checked, `LOADED` or `BY_CONFIG`; tokenizers and vocabularies are
            compared at every load all the same.
    """

    target: str
    draft: str
    shape: Shape
    checked: str = BY_CONFIG


def _pair(names: str, size: str, draft: str, *shape: Any) -> KnownPair:
    """Two sizes in the pattern of a family's names; the shape is the target's."""
    return KnownPair(names.format(size), names.format(draft), Shape(*shape))


_ONEVISION = "llava-hf/llava-onevision-qwen2-{}-ov-hf"
_SMOL = "HuggingFaceTB/SmolVLM2-{}-Instruct"
_GEMMA3 = "google/gemma-3-{}-it"
_GEMMA4 = "google/gemma-4-{}-it"

PAIRS: tuple[KnownPair, ...] = (
    KnownPair(EMBEDDED, EMBEDDED, Shape("llava_onevision", "qwen2", 128, 20), LOADED),
    _pair("llava-hf/llava-1.5-{}-hf", "13b", "7b", "llava", "llama", 5120, 40),
    _pair("llava-hf/llava-v1.6-vicuna-{}-hf", "13b", "7b", "llava_next", "llama", 5120, 40),
    _pair(_ONEVISION, "7b", "0.5b", "llava_onevision", "qwen2", 3584, 28),
    _pair(_ONEVISION, "72b", "7b", "llava_onevision", "qwen2", 8192, 80),
    _pair("Qwen/Qwen2-VL-{}-Instruct", "7B", "2B", "qwen2_vl", "", 3584, 28),
    _pair("Qwen/Qwen2-VL-{}-Instruct", "72B", "7B", "qwen2_vl", "", 8192, 80),
    _pair("Qwen/Qwen2.5-VL-{}-Instruct", "7B", "3B", "qwen2_5_vl", "", 3584, 28),
    _pair("Qwen/Qwen2.5-VL-{}-Instruct", "32B", "7B", "qwen2_5_vl", "", 5120, 64),
    _pair("Qwen/Qwen2.5-VL-{}-Instruct", "72B", "7B", "qwen2_5_vl", "", 8192, 80),
    _pair("Qwen/Qwen3-VL-{}-Instruct", "8B", "2B", "qwen3_vl", "", 4096, 36),
    _pair("Qwen/Qwen3-VL-{}-Instruct", "32B", "2B", "qwen3_vl", "", 5120, 64),
    _pair("Qwen/Qwen3-VL-{}-Instruct", "235B-A22B", "4B", "qwen3_vl_moe", "", 4096, 94),
    _pair("OpenGVLab/InternVL3-{}-hf", "8B", "1B", "internvl", "qwen2", 3584, 28),
    _pair("OpenGVLab/InternVL3-{}-hf", "14B", "1B", "internvl", "qwen2", 5120, 48),
    _pair("OpenGVLab/InternVL3-{}-hf", "38B", "2B", "internvl", "qwen2", 5120, 64),
    _pair("OpenGVLab/InternVL3-{}-hf", "78B", "2B", "internvl", "qwen2", 8192, 80),
    _pair("OpenGVLab/InternVL3_5-{}-HF", "8B", "1B", "internvl", "qwen3", 4096, 36),
    _pair("OpenGVLab/InternVL3_5-{}-HF", "14B", "1B", "internvl", "qwen3", 5120, 40),
    _pair("OpenGVLab/InternVL3_5-{}-HF", "38B", "2B", "internvl", "qwen3", 5120, 64),
    _pair(_SMOL, "2.2B", "256M-Video", "smolvlm", "llama", 2048, 24),
    _pair("Qwen/Qwen3.5-{}", "4B", "0.8B", "qwen3_5", "", 2560, 32),
    _pair("Qwen/Qwen3.5-{}", "9B", "0.8B", "qwen3_5", "", 4096, 32),
    _pair("Qwen/Qwen3.5-{}", "27B", "0.8B", "qwen3_5", "", 5120, 64),
    _pair("Qwen/Qwen3.5-{}", "35B-A3B", "0.8B", "qwen3_5_moe", "", 2048, 40),
    _pair("Qwen/Qwen3.5-{}", "122B-A10B", "2B", "qwen3_5_moe", "", 3072, 48),
    _pair("Qwen/Qwen3.5-{}", "397B-A17B", "4B", "qwen3_5_moe", "", 4096, 60),
    _pair(_GEMMA3, "12b", "4b", "gemma3", "", 3840, 48),
    _pair(_GEMMA3, "27b", "4b", "gemma3", "", 5376, 62),
    _pair(_GEMMA4, "26B-A4B", "E2B", "gemma4", "", 2816, 30),
    _pair(_GEMMA4, "31B", "E4B", "gemma4", "", 5376, 60),
    _pair("LiquidAI/LFM2-VL-{}", "1.6B", "450M", "lfm2_vl", "lfm2", 2048, 16),
    _pair("LiquidAI/LFM2-VL-{}", "3B", "450M", "lfm2_vl", "lfm2", 2048, 30),
    _pair("zai-org/GLM-4.6V{}", "", "-Flash", "glm4v_moe", "", 4096, 46),
)


GROUP = "draftlens.models"
"""Entry points of this group are functions that return a folder of weights."""


def path_of(name: str, role: str) -> str:
    """The path or id to pass to `from_pretrained`, for a folder, a Hub id, `embedded` (the packaged
    pair) or the name of an entry point `draftlens.models`; the role is `target` or `draft`.

    Raises:
        ConfigError: the name is `reader`, and the package that holds it is not installed.
    """
    if name == EMBEDDED:
        return str(files("draftlens") / "embedded" / role)
    for point in entry_points(group=GROUP, name=name):
        return str(point.load()())
    if name == READER:
        raise ConfigError(
            f"the model {name!r} is part of the package draftlens-lab: {LAB_INSTALLATION}"
        )
    return name


def draft_for(target: str) -> str | None:
    return next((pair.draft for pair in PAIRS if pair.target == target), None)


def draft_for_config(config: Any) -> str | None:
    """The known draft for models of this transformers configuration; None if there is none."""
    shape = Shape.of(config)
    return next((pair.draft for pair in PAIRS if pair.shape == shape), None)


def remedy() -> str:
    """A clause for messages about a target without a known draft."""
    targets = ", ".join(pair.target for pair in PAIRS)
    return f"name one; drafts are known for {targets} (`draftlens pairs` lists them)"
