"""The reader's processor and model: Qwen2.5-VL's classes with small configurations.

Two things differ from the published models. A picture is a single frame (``temporal_patch_size=1``)
of small patches, so that a cell of the language model is 16 pixels wide. And the sections of the
rotary positions are other ones. Published models give the highest frequencies to time and the
lowest to the width. With 16 frequencies a head could then neither tell neighbouring cells apart nor
find a cell by its content from anywhere in a long answer.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from recipes.reader.tokenizer import (
    CHAT_TEMPLATE,
    END,
    IMAGE,
    MAX_LENGTH,
    PAD,
    VIDEO,
    VISION_END,
    VISION_START,
)

PATCH = 8
MERGE = 2
CELL = PATCH * MERGE  # pixels on each side of what becomes one visual token
WINDOW = 112  # pixels on each side of the tower's windows
WHITE = 1.0  # becomes 0, so that empty paper is nothing
CONTRAST = 0.3
MIN_PIXELS = CELL * CELL
MAX_PIXELS = 2048 * CELL * CELL
THETA = 1e5
# Numbers of frequencies for time, height and width, from the highest frequency on, again and again.
# Width and height share the highest eight; the lowest eight are time's, which no cell changes.
SECTIONS = [0, 0, 1] + [0, 1, 1] * 3 + [0, 1, 0] + [8, 0, 0]
INITIAL_STD = 0.02


@dataclass(frozen=True)
class Shape:
    """Sizes of a reader.

    Args:
        layers, width, inner, heads: number of layers, hidden size, size of the feed-forward layer
            and number of heads of the language model.
        tower_layers, tower_width, tower_inner, tower_heads: those of the vision tower.
    """

    layers: int
    width: int
    inner: int
    heads: int
    tower_layers: int
    tower_width: int
    tower_inner: int
    tower_heads: int


SHALLOW = Shape(5, 160, 384, 5, 4, 128, 320, 4)
DEEP = Shape(20, 160, 384, 5, 4, 128, 320, 4)


def build_processor(tokenizer: Any) -> Any:
    """The processor of every reader."""
    options = {
        "patch_size": PATCH,
        "temporal_patch_size": 1,
        "merge_size": MERGE,
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        "image_mean": [WHITE] * 3,
        "image_std": [CONTRAST] * 3,
    }
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**options),
        video_processor=Qwen2VLVideoProcessor(**options),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )


def build_config(shape: Shape, tokenizer: Any) -> Any:
    """The Qwen2.5-VL configuration of a reader."""
    token_id = tokenizer.convert_tokens_to_ids
    return Qwen2_5_VLConfig(
        vision_config={
            "depth": shape.tower_layers,
            "hidden_size": shape.tower_width,
            "intermediate_size": shape.tower_inner,
            "num_heads": shape.tower_heads,
            "out_hidden_size": shape.width,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 1,
            "window_size": WINDOW,
            "fullatt_block_indexes": [],
            "initializer_range": INITIAL_STD,
        },
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": shape.width,
            "intermediate_size": shape.inner,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.heads,
            "max_position_embeddings": MAX_LENGTH,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": THETA,
                "mrope_section": SECTIONS,
            },
            "initializer_range": INITIAL_STD,
            "bos_token_id": None,
            "eos_token_id": token_id(END),
            "pad_token_id": token_id(PAD),
        },
        image_token_id=token_id(IMAGE),
        video_token_id=token_id(VIDEO),
        vision_start_token_id=token_id(VISION_START),
        vision_end_token_id=token_id(VISION_END),
        tie_word_embeddings=False,
    )


def build_model(shape: Shape, tokenizer: Any, seed: int) -> Any:
    """A float32 model with random weights."""
    torch.manual_seed(seed)
    return Qwen2_5_VLForConditionalGeneration(build_config(shape, tokenizer)).float()
