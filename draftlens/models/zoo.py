"""Pairs that are known to belong together, by name."""

from __future__ import annotations

from importlib.resources import files

EMBEDDED = "embedded"
"""The pair inside the package: trained on a procedural world of moving shapes, loads offline."""

DRAFTS = {
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
    "llava-hf/llava-onevision-qwen2-72b-ov-hf": "llava-hf/llava-onevision-qwen2-7b-ov-hf",
    "Qwen/Qwen2-VL-7B-Instruct": "Qwen/Qwen2-VL-2B-Instruct",
    "Qwen/Qwen2.5-VL-7B-Instruct": "Qwen/Qwen2.5-VL-3B-Instruct",
    "Qwen/Qwen2.5-VL-32B-Instruct": "Qwen/Qwen2.5-VL-7B-Instruct",
    "Qwen/Qwen2.5-VL-72B-Instruct": "Qwen/Qwen2.5-VL-7B-Instruct",
    "Qwen/Qwen3-VL-8B-Instruct": "Qwen/Qwen3-VL-2B-Instruct",
    "Qwen/Qwen3-VL-32B-Instruct": "Qwen/Qwen3-VL-2B-Instruct",
}
"""Target to a draft of the same tokenizer, as named on the Hugging Face Hub; what `draft="auto"`
takes."""


def path_of(name: str, role: str) -> str:
    """What `from_pretrained` is given: the packaged folder for `embedded`, else the name itself.

    Args:
        name: a folder, a Hub id, or `embedded`.
        role: `target` or `draft`.
    """
    return str(files("draftlens") / "embedded" / role) if name == EMBEDDED else name


def draft_for(target: str) -> str | None:
    """The draft known to go with a target, or None."""
    return EMBEDDED if target == EMBEDDED else DRAFTS.get(target)
