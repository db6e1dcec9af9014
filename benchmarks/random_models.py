"""Models with the sizes of real ones and random weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

from draftlens.models.adapter import Backbone

SIZES: Mapping[str, Mapping[str, int]] = {
    "tiny": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "1.5B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    "3B": {
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
    },
    "7B": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
}
"""Layers of Qwen2.5 by size, and tiny ones."""


def random_model(
    size: str,
    layers: int,
    vocab_size: int = 8192,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Any:
    """A language model with the layers of a size and a tiny vision tower, whose answers do not end.

    Args:
        size: a key of `SIZES`.
        layers: their number.
        vocab_size: number of tokens; input and output embeddings are the same matrix.
        dtype, device: of the weights, which are drawn there, so that a large model takes neither a
            copy in float32 nor minutes of the CPU. What transformers keeps in float32, such as
            rotary frequencies, stays so.
    """
    torch.manual_seed(0)
    text = {
        "model_type": "qwen2",
        **SIZES[size],
        "num_hidden_layers": layers,
        "vocab_size": vocab_size,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32768,
    }
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
        "vision_use_head": False,
    }
    config = LlavaOnevisionConfig(text_config=text, vision_config=vision, tie_word_embeddings=True)
    with torch.device(device):
        model = LlavaOnevisionForConditionalGeneration._from_config(config, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


@contextmanager
def by_mkl(backbone: Backbone) -> Iterator[None]:
    """Let MKL compute all products, as the model's modules do."""
    backbone.products.has_large = False
    try:
        yield
    finally:
        backbone.products.has_large = True
