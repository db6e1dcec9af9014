"""What the cost of a forward and compiled code depend on."""

from __future__ import annotations

import platform
from typing import Any

import torch
import transformers

from draftlens.models.adapter import Backbone

FORMAT = 2
"""Version of the files; files of another version are measured again."""


def facts_of(backbone: Backbone) -> dict[str, Any]:
    """Everything that a model's cost curve depends on, as JSON values: its structure without its
    weights, the device, dtype, threads, attention, what is compiled, and versions."""
    facts = facts_by_modules(backbone)
    # Curves of forwards by the modules are kept from before there were compiled passes.
    return {**facts, "compiled": backbone.passes.label} if backbone.passes.label else facts


def facts_by_modules(backbone: Backbone) -> dict[str, Any]:
    structure = backbone.text_config.to_dict()
    structure.pop("_name_or_path", None)
    device = backbone.device
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    # Curves of other models are kept from before there were products of few rows, and from before
    # the keys of grouped queries were read in place.
    products = {"products": "oneDNN by rows"} if backbone.products.has_large else {}
    keys = {"keys": "in place"} if backbone.has_groups else {}
    return {
        **products,
        **keys,
        "model": backbone.name,
        "structure": structure,
        "quantization": getattr(backbone.model.config, "quantization_config", None),
        "dtype": str(backbone.dtype),
        "device": f"{device.type} {name}",
        "threads": torch.get_num_threads(),
        "attention": backbone.attention,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "format": FORMAT,
    }
