"""The pair's processor and models: classes of transformers with small configurations."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    Qwen2Config,
    SiglipVisionConfig,
)

from recipes.pair.tokenizer import CHAT_TEMPLATE, END, IMAGE, PAD, VIDEO

SIDE = 64  # pixels; every frame and picture is resized to this square
PATCH = 8
PATCHES = (SIDE // PATCH) ** 2  # visual tokens of a picture, without newlines
FRAME_TOKENS = PATCHES // 4  # a video frame is pooled to a quarter of its patches
MAX_POSITIONS = 8192
FAR_POSITIONS = 32_768  # of a model whose slow rotary pairs are slowed down
SLOWING = 64.0
POSITION_STD = 0.5


@dataclass(frozen=True)
class Shape:
    """Sizes of one model.

    Args:
        layers, width, inner, heads: number of layers, hidden size, size of the feed-forward layer
            and number of heads of the language model.
        vision_layers, vision_width, vision_inner, vision_heads: those of the vision encoder.
    """

    layers: int
    width: int
    inner: int
    heads: int
    vision_layers: int
    vision_width: int
    vision_inner: int
    vision_heads: int


# Targets are trained shallow and deepened afterwards (see grow.py).
TARGET_SHALLOW = Shape(4, 128, 384, 4, 3, 128, 384, 4)
TARGET = Shape(20, 128, 384, 4, 3, 128, 384, 4)
LARGE_SHALLOW = Shape(4, 320, 896, 5, 4, 224, 640, 4)
LARGE = Shape(12, 320, 896, 5, 4, 224, 640, 4)
DRAFT = Shape(2, 96, 256, 3, 1, 64, 128, 2)


def build_processor(tokenizer: Any) -> Any:
    """The processor of both models."""
    size = {"height": SIDE, "width": SIDE}
    return LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(
            size=size, image_grid_pinpoints=[[SIDE, SIDE]]
        ),
        video_processor=LlavaOnevisionVideoProcessor(size=size),
        tokenizer=tokenizer,
        num_image_tokens=PATCHES,
        vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_1",
        chat_template=CHAT_TEMPLATE,
    )


def build_config(shape: Shape, tokenizer: Any) -> Any:
    """The LLaVA-OneVision configuration of one model of the pair."""
    return LlavaOnevisionConfig(
        vision_config=_vision_config(shape),
        text_config=_text_config(shape, tokenizer),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        video_token_index=tokenizer.convert_tokens_to_ids(VIDEO),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        image_grid_pinpoints=[[SIDE, SIDE]],
        vision_aspect_ratio="anyres_max_1",
        tie_word_embeddings=False,
    )


def build_model(shape: Shape, tokenizer: Any, seed: int) -> Any:
    """A float32 model with random weights."""
    torch.manual_seed(seed)
    model = LlavaOnevisionForConditionalGeneration(build_config(shape, tokenizer)).float()
    # The default of a tenth of this is so small, compared with the patches' colours, that attention
    # does not learn to use positions.
    positions = model.model.vision_tower.embeddings.position_embedding
    torch.nn.init.normal_(positions.weight, std=POSITION_STD)
    return model


def slow_down(model: Any, turn: int) -> None:
    """Slow down the slowest pairs of the rotary positions of a model, in place.

    A pair of dimensions compares contents only over distances at which its rotation is small. With
    16 pairs and a base of 10,000 these are five pairs over 256 tokens, three over 1,024 and none
    over 4,096. Here the pairs that need more than ``turn`` positions for a turn become
    `SLOWING` times as slow, those of half as many positions stay as they are, and those between
    change in part (the static rope type of Llama 3). Answers about few frames are as good as
    before at once, since their distances hardly turn the slow pairs.

    Args:
        model: the model.
        turn: positions; 0 to leave the model as it is.
    """
    if not turn:
        return
    language_model = model.model.language_model
    language_model.config.rope_parameters |= {
        "rope_type": "llama3",
        "factor": SLOWING,
        "low_freq_factor": 1.0,
        "high_freq_factor": 2.0,
        "original_max_position_embeddings": turn,
    }
    language_model.config.max_position_embeddings = FAR_POSITIONS
    rotary = type(language_model.rotary_emb)(language_model.config)
    language_model.rotary_emb = rotary.to(model.device)


def _vision_config(shape: Shape) -> Any:
    return SiglipVisionConfig(
        hidden_size=shape.vision_width,
        intermediate_size=shape.vision_inner,
        num_hidden_layers=shape.vision_layers,
        num_attention_heads=shape.vision_heads,
        image_size=SIDE,
        patch_size=PATCH,
        vision_use_head=False,
    )


def _text_config(shape: Shape, tokenizer: Any) -> Any:
    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
        initializer_range=0.05,
        tie_word_embeddings=False,
    )
