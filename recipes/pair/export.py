"""The trained models as folders that ``from_pretrained`` loads offline."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionProcessor,
)


def export(model: Any, processor: Any, folder: Path) -> None:
    """Writes weights (float16), configuration, processor and tokenizer; the folder loads by itself,
    as float32."""
    folder.mkdir(parents=True, exist_ok=True)
    half = type(model)(model.config)
    half.load_state_dict(model.state_dict())
    half = half.to(torch.float16)
    tokenizer = processor.tokenizer
    half.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    half.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # written for its owner alone otherwise
    processor.save_pretrained(folder)
    _load_as_float32(folder / "config.json")


def _load_as_float32(config: Path) -> None:
    """Half precision is for the disk only: the configuration says what to compute in."""
    config.write_text(config.read_text().replace('"float16"', '"float32"'))
    json.loads(config.read_text())


def load(folder: Path) -> tuple[Any, Any]:
    """A model in float32 evaluation mode and its processor, without touching the network."""
    model = LlavaOnevisionForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    ).eval()
    return model, LlavaOnevisionProcessor.from_pretrained(folder, local_files_only=True)


def size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
