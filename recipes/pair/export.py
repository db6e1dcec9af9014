"""Export of the trained models as folders that ``from_pretrained`` loads without a network."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionProcessor,
)


def export(model: Any, processor: Any, folder: Path) -> None:
    """Write float16 weights, configuration, processor and tokenizer.

    The configuration states float32, so ``from_pretrained`` computes in float32 by default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    half = type(model)(model.config)
    half.load_state_dict(model.state_dict())
    half = half.to(torch.float16)
    tokenizer = processor.tokenizer
    half.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    half.save_pretrained(folder)
    # By default only the owner may read this file.
    (folder / "model.safetensors").chmod(0o644)
    for name in ("is_local", "local_files_only"):  # of this machine's loading, not the tokenizer's
        tokenizer.init_kwargs.pop(name, None)
    processor.save_pretrained(folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"float16"', '"float32"'))


def load(folder: Path) -> tuple[Any, Any]:
    """A float32 model in evaluation mode, and its processor, without network access."""
    model = LlavaOnevisionForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    processor = LlavaOnevisionProcessor.from_pretrained(folder, local_files_only=True)
    return model.eval(), processor


def size(folder: Path) -> int:
    """Total size of the files in a folder, in bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
