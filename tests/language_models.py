"""Tiny language models of text only: with the tokenizer of the embedded pair, or with the weights
of a vision-language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from draftlens.models.known_pairs import EMBEDDED, path_of

CLASSES = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen2": (Qwen2ForCausalLM, Qwen2Config)}
PARTS: dict[str, Any] = {
    **CLASSES,
    "qwen2_vl_text": CLASSES["qwen2"],
    "qwen2_5_vl_text": CLASSES["qwen2"],
    "qwen3_vl_text": (Qwen3ForCausalLM, Qwen3Config),
}
"""Models of text only for the language models of vision-language models, by type."""
OWN_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '[' + message['role'] + '] ' + message['content'] + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
"""A template as language models have them: contents are strings."""


def embedded_tokenizer(template: str | None = None) -> Any:
    """The tokenizer of the embedded pair with another chat template, or none."""
    tokenizer = AutoTokenizer.from_pretrained(path_of(EMBEDDED, "draft"))
    tokenizer.chat_template = template
    return tokenizer


def language_model(kind: str = "qwen2", seed: int = 0) -> Any:
    """A float32 model with random weights.

    Args:
        kind: of `CLASSES`.
        seed: of the weights.
    """
    torch.manual_seed(seed)
    model_class, config_class = CLASSES[kind]
    tokenizer = embedded_tokenizer()
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )
    return model_class(config).eval()


def language_part(model: Any) -> Any:
    """The language model of a vision-language model as a model of text only with equal weights,
    whose answers to prompts without pictures are the same."""
    decoder = model.get_decoder()
    model_class, config_class = PARTS[decoder.config.model_type]
    values = {**decoder.config.to_dict(), "tie_word_embeddings": False}
    values["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": values["rope_parameters"]["rope_theta"],
    }
    part = model_class(config_class(**{k: v for k, v in values.items() if k != "model_type"}))
    part.model.load_state_dict(decoder.state_dict())
    part.lm_head.load_state_dict(model.get_output_embeddings().state_dict())
    part.generation_config.pad_token_id = model.generation_config.pad_token_id
    return part.eval()


def save_language_model(
    folder: Path, kind: str = "qwen2", template: str | None = None, padding: bool = True
) -> str:
    """Save a model of text only with its tokenizer; the name of the folder.

    Args:
        folder: is made.
        kind: as for `language_model`.
        template: the tokenizer's own chat template; None for none.
        padding: whether the tokenizer names a padding token.
    """
    tokenizer = embedded_tokenizer(template)
    if not padding:
        tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    language_model(kind).save_pretrained(folder)
    return str(folder)
