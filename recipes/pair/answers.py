"""Asking a model of the pair the way a user would: chat template, processor, greedy
``generate``."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

MAX_NEW_TOKENS = 320  # captions have up to 300
Frames = NDArray[np.uint8]


def inputs_for(processor: Any, media: list[Frames], prompts: list[str], still: bool) -> Any:
    """The processor's tensors for a batch: one clip ``[T, H, W, 3]`` or picture ``[H, W, 3]`` and
    one prompt a row."""
    kind = "image" if still else "video"
    texts = [
        processor.apply_chat_template(
            [{"role": "user", "content": [{"type": kind}, {"type": "text", "text": prompt}]}],
            add_generation_prompt=True,
        )
        for prompt in prompts
    ]
    shown: dict[str, Any] = (
        {"images": media} if still else {"videos": media, "do_sample_frames": False}
    )
    return processor(text=texts, padding=True, return_tensors="pt", **shown)


@torch.inference_mode()
def answer(
    model: Any, processor: Any, media: list[Frames], prompts: list[str], still: bool
) -> list[str]:
    """Greedy answers as text, without special tokens."""
    inputs = inputs_for(processor, media, prompts, still)
    ids = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    return list(
        processor.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    )
