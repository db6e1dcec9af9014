"""Pairs of models that are known to work together."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.names import AUTO, EMBEDDED, LAB_INSTALLATION, READER

__all__ = [
    "AUTO",
    "EMBEDDED",
    "PAIRS",
    "KnownPair",
    "Shape",
    "draft_for",
    "draft_for_config",
    "path_of",
    "remedy",
]

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


def _llava(size: str, hidden_size: int, num_layers: int) -> KnownPair:
    return KnownPair(
        f"llava-hf/llava-1.5-{size}-hf",
        "llava-hf/llava-1.5-7b-hf",
        Shape("llava", "llama", hidden_size, num_layers),
    )


def _llava_next(size: str, hidden_size: int, num_layers: int) -> KnownPair:
    return KnownPair(
        f"llava-hf/llava-v1.6-vicuna-{size}-hf",
        "llava-hf/llava-v1.6-vicuna-7b-hf",
        Shape("llava_next", "llama", hidden_size, num_layers),
    )


def _onevision(size: str, draft: str, hidden_size: int, num_layers: int) -> KnownPair:
    return KnownPair(
        f"llava-hf/llava-onevision-qwen2-{size}-ov-hf",
        f"llava-hf/llava-onevision-qwen2-{draft}-ov-hf",
        Shape("llava_onevision", "qwen2", hidden_size, num_layers),
    )


def _qwen(series: str, size: str, draft: str, hidden_size: int, num_layers: int) -> KnownPair:
    model_types = {"2": "qwen2_vl", "2.5": "qwen2_5_vl", "3": "qwen3_vl"}
    model_type = model_types[series]
    if "-A" in size:  # a mixture of experts
        model_type += "_moe"
    return KnownPair(
        f"Qwen/Qwen{series}-VL-{size}-Instruct",
        f"Qwen/Qwen{series}-VL-{draft}-Instruct",
        Shape(model_type, "", hidden_size, num_layers),
    )


def _internvl(series: str, size: str, draft: str, hidden_size: int, num_layers: int) -> KnownPair:
    text_type = "qwen2" if series == "3" else "qwen3"
    return KnownPair(
        f"OpenGVLab/InternVL{series}-{size}{'-hf' if series == '3' else '-HF'}",
        f"OpenGVLab/InternVL{series}-{draft}{'-hf' if series == '3' else '-HF'}",
        Shape("internvl", text_type, hidden_size, num_layers),
    )


def _smolvlm(size: str, draft: str, hidden_size: int, num_layers: int) -> KnownPair:
    return KnownPair(
        f"HuggingFaceTB/SmolVLM2-{size}",
        f"HuggingFaceTB/SmolVLM2-{draft}",
        Shape("smolvlm", "llama", hidden_size, num_layers),
    )


PAIRS: tuple[KnownPair, ...] = (
    KnownPair(EMBEDDED, EMBEDDED, Shape("llava_onevision", "qwen2", 128, 20), LOADED),
    _llava("13b", 5120, 40),
    _llava_next("13b", 5120, 40),
    _onevision("7b", "0.5b", 3584, 28),
    _onevision("72b", "7b", 8192, 80),
    _qwen("2", "7B", "2B", 3584, 28),
    _qwen("2", "72B", "7B", 8192, 80),
    _qwen("2.5", "7B", "3B", 3584, 28),
    _qwen("2.5", "32B", "7B", 5120, 64),
    _qwen("2.5", "72B", "7B", 8192, 80),
    _qwen("3", "8B", "2B", 4096, 36),
    _qwen("3", "32B", "2B", 5120, 64),
    _qwen("3", "235B-A22B", "4B", 4096, 94),
    _internvl("3", "8B", "1B", 3584, 28),
    _internvl("3", "14B", "1B", 5120, 48),
    _internvl("3", "38B", "2B", 5120, 64),
    _internvl("3", "78B", "2B", 8192, 80),
    _internvl("3_5", "8B", "1B", 4096, 36),
    _internvl("3_5", "14B", "1B", 5120, 40),
    _internvl("3_5", "38B", "2B", 5120, 64),
    _smolvlm("2.2B-Instruct", "256M-Video-Instruct", 2048, 24),
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
    for pair in PAIRS:
        if pair.target == target:
            return pair.draft
    return None


def draft_for_config(config: Any) -> str | None:
    """The known draft for models of this transformers configuration; None if there is none."""
    shape = Shape.of(config)
    for pair in PAIRS:
        if pair.shape == shape:
            return pair.draft
    return None


def remedy() -> str:
    """A clause for messages about a target without a known draft."""
    targets = ", ".join(pair.target for pair in PAIRS)
    return f"name one; drafts are known for {targets} (`draftlens pairs` lists them)"
