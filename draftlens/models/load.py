"""Names to models: the only file that touches checkpoints and devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForImageTextToText, AutoProcessor

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.models.backbone import Backbone
from draftlens.models.pair import check_models, check_tokenizers
from draftlens.models.zoo import EMBEDDED, draft_for, path_of

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Loaded:
    """A model with its processor.

    Args:
        name: as the user gave it.
        backbone: the model behind the seam.
        processor: the model's own.
    """

    name: str
    backbone: Backbone
    processor: Any


def load_model(name: str, role: str, device: str | None = None, dtype: str | None = None) -> Loaded:
    """Load a checkpoint and its processor.

    Args:
        name: a folder, a Hub id, or `embedded`.
        role: `target` or `draft`.
        device: such as `cpu`, `cuda:0`, or `auto` to spread the model with accelerate; by default a
            GPU if there is one.
        dtype: one of `DTYPES`; by default float32 on the CPU and the checkpoint's own on a GPU.

    Raises:
        ConfigError: nothing can be loaded from `name`, or there is no such device or dtype.
        UnsupportedModelError: the model does not fit the seam.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or ("float32" if device == "cpu" else "auto")
    if dtype not in DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    _check_device(device)
    path = path_of(name, role)
    if not Path(path).exists() and (
        Path(path).is_absolute() or path.startswith(".") or path.count("/") > 1
    ):
        raise ConfigError(f"cannot load the {role} {name!r}: there is no such folder")
    try:
        processor = AutoProcessor.from_pretrained(path)
        model = AutoModelForImageTextToText.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation="sdpa",
            device_map="auto" if device == "auto" else None,
        )
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"cannot load the {role} {name!r}: {reason}") from error
    if not hasattr(processor, "apply_chat_template"):
        raise UnsupportedModelError(f"{name} has no processor with a chat template")
    return Loaded(
        name, Backbone.of(model.eval() if device == "auto" else model.eval().to(device)), processor
    )


def load_pair(
    target: str, draft: str | None, device: str | None = None, dtype: str | None = None
) -> tuple[Loaded, Loaded | None]:
    """Load a target and its draft, and refuse a pair that cannot work.

    Args:
        target, draft: names as for `load_model`; `auto` takes the draft known for the target. With
            `embedded`, which names a pair, no draft means the embedded one.
        device, dtype: as for `load_model`.

    Raises:
        ConfigError: as `load_model`, or no draft is known for the target.
        IncompatiblePairError: names both models and the cause.
    """
    if draft == "auto" or (draft is None and target == EMBEDDED):
        draft = draft_for(target)
        if draft is None:
            raise ConfigError(f"no draft is known for {target!r}: name one")
    big = load_model(target, "target", device, dtype)
    if draft is None:
        return big, None
    small = load_model(draft, "draft", device, dtype)
    check_tokenizers(big.processor.tokenizer, small.processor.tokenizer, target, draft)
    check_models(big.backbone, small.backbone)
    return big, small


def _check_device(device: str) -> None:
    if device == "auto":
        return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {device!r} cannot be used: {str(error).splitlines()[0]}"
        ) from error
