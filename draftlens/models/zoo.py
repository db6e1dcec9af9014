"""Names of models that are known to work together."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

EMBEDDED = "embedded"
"""Name of the pair inside the package. It is trained on a procedural world of moving shapes and
loads without a network."""

DRAFTS: Mapping[str, str] = MappingProxyType(
    {
        "llava-hf/llava-onevision-qwen2-7b-ov-hf": "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
        "llava-hf/llava-onevision-qwen2-72b-ov-hf": "llava-hf/llava-onevision-qwen2-7b-ov-hf",
        "Qwen/Qwen2-VL-7B-Instruct": "Qwen/Qwen2-VL-2B-Instruct",
        "Qwen/Qwen2.5-VL-7B-Instruct": "Qwen/Qwen2.5-VL-3B-Instruct",
        "Qwen/Qwen2.5-VL-32B-Instruct": "Qwen/Qwen2.5-VL-7B-Instruct",
        "Qwen/Qwen2.5-VL-72B-Instruct": "Qwen/Qwen2.5-VL-7B-Instruct",
        "Qwen/Qwen3-VL-8B-Instruct": "Qwen/Qwen3-VL-2B-Instruct",
        "Qwen/Qwen3-VL-32B-Instruct": "Qwen/Qwen3-VL-2B-Instruct",
    }
)
"""The draft that `draft="auto"` uses for each target: Hugging Face Hub ids of models with the same
tokenizer."""


def path_of(name: str, role: str) -> str:
    """The path or id to pass to `from_pretrained`.

    Args:
        name: a folder, a Hub id, or `embedded` for the packaged pair.
        role: `target` or `draft`.
    """
    if name == EMBEDDED:
        return str(files("draftlens") / "embedded" / role)
    return name


def draft_for(target: str) -> str | None:
    """The name of the draft that is known for a target; None if there is none."""
    if target == EMBEDDED:
        return EMBEDDED
    return DRAFTS.get(target)
