"""Models that read pages, as tiny random float32 models with pictures of their own processors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import families
import numpy as np
import torch
import transformers as hf
from families import MROPE, TEXT, settings
from PIL import Image

SPECIAL = (
    *("<imgpad>", "<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>"),
    *("<im_start>", "<im_end>", "<im_newline>", "<row_break>", "<image_end>"),
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
"""Further special tokens of these models' processors."""

LAYERS = settings(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
TILES = settings(**LAYERS, image_size=16, patch_size=4, initializer_range=0.2)
SAM = settings(
    hidden_size=32,
    output_channels=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    patch_size=4,
    window_size=4,
    global_attn_indexes=[1],
    mlp_dim=48,
    initializer_range=0.2,
)
PATCHES = settings(patch_size=4, merge_size=2)
QWEN3 = settings(model_type="qwen3", head_dim=16)
SQUARE = settings(height=16, width=16)

SIZES = ((16, 28), (32, 20))
"""Height and width of the picture of each row."""

WORDS = ("Read {}abc:", "Please read {}it all now:")


@dataclass(frozen=True, eq=False)
class Pictured:
    """A model with the processor of its pictures.

    Args:
        name: of the model.
        processor: makes its processor with a tokenizer.
        image: what stands for a picture in a prompt.
        ids: fields of the configuration that hold the id of a token.
        named: special tokens that the processor asks its tokenizer for, by attribute.
        call: options of the processor's call.
        nested: whether it takes the pictures of each row as a list.
    """

    name: str
    processor: Callable[[Any], Any]
    image: str
    ids: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)
    nested: bool = True

    def __str__(self) -> str:
        return self.name

    def tokenizer(self) -> Any:
        """A new one: processors add tokens of their own."""
        words = families.tokenizer.__wrapped__(**self.named)
        words.add_tokens(list(SPECIAL), special_tokens=True)
        return words

    def build(self) -> tuple[Any, Any]:
        """The model with random weights, and its processor."""
        raise NotImplementedError

    def inputs(
        self, processor: Any, dark: float = 1.0, rows: Sequence[int] = (0, 1)
    ) -> dict[str, Any]:
        """Two rows of different lengths with pictures of different sizes, or some of them.

        Args:
            dark: the brightness of the pictures.
        """
        rng = np.random.default_rng(0)
        pictures = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in SIZES]
        pictures = [Image.fromarray((dark * pictures[row]).astype(np.uint8)) for row in rows]
        images: Sequence[Any] = [[picture] for picture in pictures] if self.nested else pictures
        return dict(
            processor(
                text=[WORDS[row].format(self.image) for row in rows],
                images=images,
                padding=True,
                padding_side="left",
                return_tensors="pt",
                **self.call,
            )
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Reader(Pictured):
    """One model that reads pages, by the name of its class without `ForConditionalGeneration`.

    Args:
        text, vision, config: its configuration.
    """

    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> tuple[Any, Any]:
        torch.manual_seed(0)
        words = self.tokenizer()
        processor = self.processor(words)
        ids = {name: words.convert_tokens_to_ids(token) for name, token in self.ids.items()}
        config = getattr(hf, f"{self.name}Config")(
            text_config={**TEXT, "vocab_size": len(words), **self.text},
            vision_config=dict(self.vision),
            **self.config,
            **ids,
        )
        model = getattr(hf, f"{self.name}ForConditionalGeneration")(config).eval()
        model.generation_config.pad_token_id = words.pad_token_id
        model.generation_config.eos_token_id = None
        return model, processor


READERS = (
    Reader(
        name="LightOnOcr",
        text=QWEN3,
        vision=settings(**LAYERS, model_type="pixtral", head_dim=16, image_size=32, patch_size=4),
        processor=lambda words: hf.LightOnOcrProcessor(
            hf.PixtralImageProcessor(
                size={"longest_edge": 32}, patch_size=settings(height=4, width=4)
            ),
            words,
            patch_size=4,
            spatial_merge_size=2,
        ),
        image="<image>",
        ids={"image_token_id": "<image>"},
        named={
            "image_token": "<image>",
            "image_break_token": "<row_break>",
            "image_end_token": "<image_end>",
        },
    ),
    Reader(
        name="GotOcr2",
        text=settings(model_type="qwen2"),
        vision=settings(**SAM, image_size=32),
        processor=lambda words: hf.GotOcr2Processor(
            hf.GotOcr2ImageProcessor(size=settings(height=32, width=32)), words
        ),
        image="<img><imgpad></img>",
        ids={"image_token_index": "<imgpad>"},
        config=settings(image_seq_length=4),
        call=settings(num_image_tokens=4),
        nested=False,
    ),
    Reader(
        name="PaddleOCRVL",
        text=settings(rope_parameters=MROPE, head_dim=16),
        vision=settings(**LAYERS, image_size=32, patch_size=4, spatial_merge_size=2),
        processor=lambda words: hf.PaddleOCRVLProcessor(
            hf.PaddleOCRVLImageProcessor(
                **PATCHES, size=settings(shortest_edge=64, longest_edge=1024)
            ),
            words,
        ),
        image="<|vision_start|><|image_pad|><|vision_end|>",
        ids={
            "image_token_id": "<|image_pad|>",
            "video_token_id": "<|video_pad|>",
            "vision_start_token_id": "<|vision_start|>",
            "vision_end_token_id": "<|vision_end|>",
        },
        named={"image_token": "<|image_pad|>"},
    ),
    Reader(
        name="GlmOcr",
        text=settings(rope_parameters={**MROPE, "partial_rotary_factor": 1.0}, head_dim=16),
        vision=settings(
            depth=2,
            hidden_size=32,
            num_heads=2,
            patch_size=4,
            spatial_merge_size=2,
            out_hidden_size=64,
            intermediate_size=48,
            image_size=32,
        ),
        processor=lambda words: hf.Glm46VProcessor(
            hf.Glm46VImageProcessor(
                **PATCHES,
                temporal_patch_size=2,
                size=settings(shortest_edge=64, longest_edge=2048),
            ),
            words,
            hf.Glm46VVideoProcessor(**PATCHES),
        ),
        image="<|begin_of_image|><|image|><|end_of_image|>",
        ids={
            "image_token_id": "<|image|>",
            "video_token_id": "<|video|>",
            "image_start_token_id": "<|begin_of_image|>",
            "image_end_token_id": "<|end_of_image|>",
        },
        named={"image_token": "<|image|>", "video_token": "<|video|>"},
    ),
    Reader(
        name="HunYuanVL",
        text=settings(
            head_dim=16,
            rope_parameters=settings(
                rope_type="default", rope_theta=10000.0, mrope_section=[2, 2, 2, 2]
            ),
        ),
        vision=settings(
            **LAYERS,
            patch_size=4,
            spatial_merge_size=2,
            out_hidden_size=64,
            text_hidden_size=64,
            img_max_token_num=64,
            max_image_size=64,
            min_image_size=16,
            max_vit_seq_len=256,
        ),
        processor=lambda words: hf.HunYuanVLProcessor(
            hf.HunYuanVLImageProcessor(
                **PATCHES, size=settings(shortest_edge=64, longest_edge=1024)
            ),
            words,
        ),
        image="<im_start><|image|><im_end>",
        ids={
            "image_token_id": "<|image|>",
            "im_start_id": "<im_start>",
            "im_end_id": "<im_end>",
            "im_newline_id": "<im_newline>",
        },
        named={
            "image_token": "<|image|>",
            "image_start_token": "<im_start>",
            "image_end_token": "<im_end>",
        },
    ),
    Reader(
        name="DeepseekOcr2",
        text=settings(
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            n_shared_experts=1,
            mlp_layer_types=["dense", "sparse"],
            head_dim=16,
        ),
        vision=settings(
            sam_config=settings(
                **{**SAM, "num_hidden_layers": 1, "global_attn_indexes": []},
                image_size=192,
                downsample_channels=[24, 32],
            ),
            encoder_config=settings(**LAYERS, num_key_value_heads=2),
        ),
        processor=lambda words: hf.DeepseekOcr2Processor(
            hf.DeepseekOcr2ImageProcessor(
                size=settings(height=256, width=256), tile_size=192, crop_to_patches=False
            ),
            words,
            patch_size=4,
            downsample_ratio=4,
        ),
        image="<image>",
        ids={"image_token_id": "<image>"},
        named={"image_token": "<image>"},
    ),
    Reader(
        name="QianfanOCR",
        text=QWEN3,
        vision=settings(**{**TILES, "image_size": [16, 16], "patch_size": [4, 4]}),
        processor=lambda words: hf.QianfanOCRProcessor(
            hf.GotOcr2ImageProcessor(
                size=SQUARE, crop_to_patches=True, min_patches=1, max_patches=3
            ),
            words,
            image_seq_length=4,
        ),
        image="<image>",
        ids={"image_token_id": "<IMG_CONTEXT>"},
        config=settings(image_seq_length=4),
        named={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
        },
    ),
    Reader(
        name="Idefics3",
        text=settings(model_type="llama"),
        vision=TILES,
        processor=lambda words: hf.Idefics3Processor(
            hf.Idefics3ImageProcessor(
                size={"longest_edge": 32}, max_image_size={"longest_edge": 16}
            ),
            words,
            image_seq_len=4,
        ),
        image="<image>",
        ids={"image_token_id": "<image>"},
        config=settings(scale_factor=2),
    ),
    Reader(
        name="GraniteDocling",
        text=settings(
            # Its own factors tame weights this small; the divisor of its logits stays.
            embedding_multiplier=1.0,
            attention_multiplier=0.25,
            residual_multiplier=1.0,
            tie_word_embeddings=False,
        ),
        vision=settings(**TILES, scale_factor=2, out_hidden_size=64),
        processor=lambda words: hf.GraniteDoclingProcessor(
            hf.GraniteDoclingImageProcessor(size=SQUARE, max_patches=2), words, image_seq_len=4
        ),
        image="<image>",
        ids={"image_token_id": "<image>"},
        config=settings(pad_token_id=0, tie_word_embeddings=False),
        named={"image_token": "<image>"},
    ),
)
