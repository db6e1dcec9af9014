"""Answers of the pair's models through chat template, processor and greedy ``generate``."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

MAX_NEW_TOKENS = 320  # captions have up to 300
Frames = NDArray[np.uint8]


def inputs_for(processor: Any, media: list[Frames], prompts: list[str], still: bool) -> Any:
    """The processor's tensors for a batch.

    Args:
        processor: the pair's processor.
        media: one clip uint8 ``[T, H, W, 3]`` or one picture ``[H, W, 3]`` per prompt.
        prompts: the questions.
        still: whether the media are pictures.
    """
    texts = [_prompt_text(processor, prompt, still) for prompt in prompts]
    if still:
        return processor(text=texts, images=media, padding=True, return_tensors="pt")
    return processor(
        text=texts, videos=media, do_sample_frames=False, padding=True, return_tensors="pt"
    )


@torch.inference_mode()
def answer(
    model: Any, processor: Any, media: list[Frames], prompts: list[str], still: bool
) -> list[str]:
    """Greedy answers as text, without special tokens; arguments as in `inputs_for`."""
    inputs = inputs_for(processor, media, prompts, still)
    ids = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    new_ids = ids[:, inputs["input_ids"].shape[1] :]
    return list(processor.batch_decode(new_ids, skip_special_tokens=True))


def _prompt_text(processor: Any, prompt: str, still: bool) -> Any:
    """The chat template's text for a question about one picture or clip."""
    media_item = {"type": "image" if still else "video"}
    text_item = {"type": "text", "text": prompt}
    messages = [{"role": "user", "content": [media_item, text_item]}]
    return processor.apply_chat_template(messages, add_generation_prompt=True)
