"""Loads models by name. No other module reads checkpoints for inference or selects devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TEXT_MODELS,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as VISION_MODELS,
)

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.models.backbone import Backbone
from draftlens.models.pair import check_models, check_tokenizers
from draftlens.models.zoo import EMBEDDED, draft_for, path_of

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Loaded:
    """A model with its processor.

    Args:
        name: the name that the caller gave.
        backbone: the model.
        processor: the model's processor.
    """

    name: str
    backbone: Backbone
    processor: Any


def load_model(name: str, role: str, device: str | None = None, dtype: str | None = None) -> Loaded:
    """Load a checkpoint and its processor.

    Args:
        name: a folder, a Hub id, or `embedded`.
        role: `target` or `draft`.
        device: a device such as `cpu` or `cuda:0`, or `auto` to spread the model with accelerate;
            by default a GPU if there is one, else the CPU.
        dtype: one of `DTYPES`; by default float32 on the CPU and the checkpoint's dtype elsewhere.

    Raises:
        ConfigError: nothing can be loaded from `name`, or the device or dtype is unknown.
        UnsupportedModelError: the model lacks something that draftlens needs.
    """
    if not device:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not dtype:
        dtype = "float32" if device == "cpu" else "auto"
    if dtype not in DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    _check_device(device)
    path = path_of(name, role)
    if _is_folder(path) and not Path(path).exists():
        raise ConfigError(f"cannot load the {role} {name!r}: there is no such folder")
    _check_sees(path, name, role)
    try:
        model, processor = _read_checkpoint(path, device, dtype)
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"cannot load the {role} {name!r}: {_first_line(error)}") from error
    if not hasattr(processor, "apply_chat_template"):
        raise UnsupportedModelError(f"{name} has no processor with a chat template")
    if device != "auto":
        model = model.to(device)
    return Loaded(name, Backbone.of(model), processor)


def load_pair(
    target: str, draft: str | None, device: str | None = None, dtype: str | None = None
) -> tuple[Loaded, Loaded | None]:
    """Load a target and its draft, and check that they can work together.

    Args:
        target: name of the target, as for `load_model`.
        draft: name of the draft, as for `load_model`; `auto` for the draft that is known for the
            target. None means no draft, except for `embedded`, which names a pair.
        device: as for `load_model`.
        dtype: as for `load_model`.

    Returns:
        The target and the draft; None instead of the draft if there is none.

    Raises:
        ConfigError: as for `load_model`, or no draft is known for the target.
        UnsupportedModelError: as for `load_model`.
        IncompatiblePairError: the two cannot work together.
    """
    if draft == "auto" or (draft is None and target == EMBEDDED):
        draft = draft_for(target)
        if draft is None:
            raise ConfigError(f"no draft is known for {target!r}: name one")
    target_model = load_model(target, "target", device, dtype)
    if draft is None:
        return target_model, None
    draft_model = load_model(draft, "draft", device, dtype)
    target_tokenizer = target_model.processor.tokenizer
    draft_tokenizer = draft_model.processor.tokenizer
    check_tokenizers(target_tokenizer, draft_tokenizer, target, draft)
    check_models(target_model.backbone, draft_model.backbone)
    return target_model, draft_model


def _check_sees(path: str, name: str, role: str) -> None:
    """Refuse a model of text only, of which transformers would say that it does not recognize it.

    Raises:
        UnsupportedModelError: as said. Other faults of a checkpoint are left to the loading.
    """
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError):
        return
    kind = getattr(config, "model_type", "")
    if kind in TEXT_MODELS and kind not in VISION_MODELS:
        wanted = "a vision-language model"
        if role == "draft":
            wanted = "a smaller vision-language model with the tokenizer of the target"
        raise UnsupportedModelError(
            f"the {role} {name!r} is a model of text only ({kind}), which cannot see pictures and "
            f"clips: name {wanted}"
        )


def _read_checkpoint(path: str, device: str, dtype: str) -> tuple[Any, Any]:
    """The model and the processor of a checkpoint."""
    processor = AutoProcessor.from_pretrained(path)
    model = AutoModelForImageTextToText.from_pretrained(
        path,
        dtype=dtype,
        attn_implementation="sdpa",
        device_map="auto" if device == "auto" else None,
    )
    return model.eval(), processor


def _check_device(device: str) -> None:
    """Raise `ConfigError` unless tensors can be created on the device."""
    if device == "auto":
        return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r} cannot be used: {_first_line(error)}") from error


def _is_folder(path: str) -> bool:
    """Whether a path can only be a folder and not a Hub id, which has one slash at most."""
    return Path(path).is_absolute() or path.startswith(".") or path.count("/") > 1


def _first_line(error: Exception) -> str:
    """The first line of an error's message; the name of its class if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
