"""Every supported family as a tiny random float32 model, with the inputs that its real processor
makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, cached_property
from string import ascii_lowercase, printable
from typing import Any

import numpy as np
import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.models.smolvlm import processing_smolvlm
from transformers.video_utils import VideoMetadata

SPECIAL = (
    *(
        "<pad>",
        "</s>",
        "<image>",
        "<video>",
        "<|image_pad|>",
        "<|video_pad|>",
        "<|vision_start|>",
        "<|vision_end|>",
    ),
    *("<IMG_CONTEXT>", "<img>", "</img>", "<fake_token_around_image>", "<global-img>"),
)
VOCAB = 208
SIDE = 16
"""Pixels of a vision tower's square input."""


@cache
def tokenizer(**named: str) -> Any:
    """A byte-level BPE of printable characters, some pairs of letters and every family's special
    tokens.

    Args:
        named: special tokens that the family's processor asks its tokenizer for, by attribute.
    """
    to_byte = {character: character for character in printable[:95]} | {" ": "Ġ", "\n": "Ċ"}
    characters = list(to_byte.values())
    pairs = [(a, b) for a in ascii_lowercase[:9] for b in ascii_lowercase[:12]]
    pairs = pairs[: VOCAB - len(SPECIAL) - len(characters)]
    tokens = [*characters, *(a + b for a, b in pairs)]
    bpe = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, pairs))
    bpe.pre_tokenizer, bpe.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        eos_token="</s>",
        padding_side="left",
        extra_special_tokens=named,
        model_max_length=4096,
    )


@dataclass(frozen=True)
class Row:
    """What one prompt of a batch holds."""

    letters: int
    images: int = 0
    videos: int = 0


PLANS: Mapping[str, tuple[Row, ...]] = {
    "text": (Row(19), Row(6), Row(31)),
    "image": (Row(17, images=1), Row(34, images=1), Row(4, images=1)),
    "images": (Row(12, images=2), Row(25, images=1), Row(3, images=3)),
    "video": (Row(15, videos=1), Row(4, videos=1), Row(28, videos=1)),
    "mixed": (Row(14, images=1, videos=1), Row(23), Row(8, images=2)),
}
"""Kind of input to the rows of a ragged batch; the first row alone is the batch of one."""


def settings(**values: Any) -> dict[str, Any]:
    """A part of a configuration."""
    return values


TEXT = settings(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=2048,
    initializer_range=0.2,  # ten times the usual: weights this small answer with one token for ever
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)
VISION = settings(hidden_size=32, intermediate_size=48, initializer_range=0.2)
LAYERS = settings(num_hidden_layers=2, num_attention_heads=2)
CLIP = settings(
    **VISION,
    **LAYERS,
    model_type="clip_vision_model",
    image_size=SIDE,
    patch_size=4,
    projection_dim=16,
)
SIGLIP = {**CLIP, "model_type": "siglip_vision_model", "vision_use_head": False}
QWEN_VISION = settings(
    depth=2, num_heads=2, patch_size=4, spatial_merge_size=2, temporal_patch_size=2, **VISION
)
QWEN_PIXELS = settings(patch_size=4, merge_size=2, temporal_patch_size=2)
MROPE = settings(rope_type="default", mrope_section=[4, 2, 2], rope_theta=10000.0)
PINPOINTS = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]
SQUARE = settings(height=SIDE, width=SIDE)


@dataclass(frozen=True, eq=False)
class Family:
    """One architecture of transformers.

    Args:
        name: of the test.
        model: its class.
        text, vision: what sets its tiny configuration apart.
        config: the rest of its configuration.
        processor: makes its processor.
        image, video: what stands for media in the text of a prompt; None where there are none.
    """

    name: str
    model: Any
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    config: Mapping[str, Any]
    processor: Callable[[], Any]
    image: str
    video: str | None = None
    kinds: tuple[str, ...] = field(default=("image", "images", "video", "mixed", "text"))

    def __str__(self) -> str:
        return self.name

    def build(self, seed: int = 0, **text: Any) -> Any:
        """A model with random weights; `text` overrides the language model's configuration."""
        torch.manual_seed(seed)
        language = {**TEXT, **self.text, **text}
        config = self.model.config_class(
            text_config=language, vision_config=dict(self.vision), **self.config
        )
        model = self.model(config).eval()
        with torch.no_grad():
            model.lm_head.weight[tokenizer().pad_token_id] = (
                0  # no answer holds it, so that padding can be told apart
            )
        model.generation_config.pad_token_id = tokenizer().pad_token_id
        return model

    @property
    def richest(self) -> str:
        """The kind of input that asks most of it."""
        return "mixed" if "mixed" in self.kinds else "images"

    @cached_property
    def tools(self) -> Any:
        """Its processor, made once."""
        return self.processor()


def prompt(row: Row, image: str, video: str) -> str:
    """The text of a prompt, with what stands for each picture and each clip."""
    words = "".join(random.Random(row.letters).choices(ascii_lowercase, k=row.letters))
    return "User: " + video * row.videos + image * row.images + words + "\nAssistant:"


def inputs(
    family: Family, kind: str, rows: Sequence[int] = (0, 1, 2), side: str = "left", seed: int = 0
) -> dict[str, Any]:
    """What the processor returns for some rows of a kind of input; each row is the same in whatever
    batch it stands. A test may change it.

    Args:
        side: where padding goes.
        seed: other pictures, of other sizes, for the same words.
    """
    return deepcopy(_inputs(family, kind, tuple(rows), side, seed))


@cache
def _inputs(
    family: Family, kind: str, rows: tuple[int, ...], side: str, seed: int
) -> dict[str, Any]:
    texts, images, videos = [], [], []
    for row in (PLANS[kind][index] for index in rows):
        noise = np.random.default_rng([row.letters, row.images, row.videos, seed])
        texts.append(prompt(row, family.image, family.video or ""))
        sizes = noise.choice([16, 20, 28, 32], (row.images, 2))
        images.append([noise.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes])
        videos += [
            noise.integers(0, 256, (4 + seed, 16, 24, 3), dtype=np.uint8) for _ in range(row.videos)
        ]
    options: dict[str, Any] = {"images": images} if any(images) else {}
    if videos:
        metadata = VideoMetadata(
            total_num_frames=4 + seed, fps=2.0, frames_indices=list(range(4 + seed))
        )
        options |= {
            "videos": videos,
            "video_metadata": [metadata] * len(videos),
            "do_sample_frames": False,
        }
    return dict(
        family.tools(text=texts, padding=True, padding_side=side, return_tensors="pt", **options)
    )


def _id(token: str) -> int:
    index: int = tokenizer().convert_tokens_to_ids(token)
    return index


def _llava() -> Any:
    images = hf.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=SQUARE)
    return hf.LlavaProcessor(images, tokenizer(), 4, "default", num_additional_image_tokens=1)


def _llava_next() -> Any:
    images = hf.LlavaNextImageProcessor(
        size={"shortest_edge": SIDE}, crop_size=SQUARE, image_grid_pinpoints=PINPOINTS
    )
    return hf.LlavaNextProcessor(images, tokenizer(), 4, "default", num_additional_image_tokens=1)


def _llava_onevision() -> Any:
    images = hf.LlavaOnevisionImageProcessor(size=SQUARE, image_grid_pinpoints=PINPOINTS)
    videos = hf.LlavaOnevisionVideoProcessor(size=SQUARE)
    return hf.LlavaOnevisionProcessor(images, tokenizer(), videos, (SIDE // 4) ** 2, "full")


def _qwen(processor: type, videos: type) -> Any:
    images = hf.Qwen2VLImageProcessor(**QWEN_PIXELS, min_pixels=64, max_pixels=1024)
    limits = {"size": {"shortest_edge": 64, "longest_edge": 4096}, "cap_pixels_per_frame": True}
    return processor(images, tokenizer(), videos(**QWEN_PIXELS, **limits))


def _internvl() -> Any:
    images = hf.GotOcr2ImageProcessor(
        size=SQUARE, crop_to_patches=True, min_patches=1, max_patches=3
    )
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
    }
    words = tokenizer(**named, video_token="<video>")
    return hf.InternVLProcessor(
        images, words, hf.InternVLVideoProcessor(size=SQUARE), image_seq_length=4
    )


def _smolvlm() -> Any:
    processing_smolvlm.num2words = (
        processing_smolvlm.num2words or str
    )  # the package that spells out a number
    options = {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    images, videos = hf.SmolVLMImageProcessor(**options), hf.SmolVLMVideoProcessor(**options)
    return hf.SmolVLMProcessor(images, tokenizer(), videos, image_seq_len=4)


QWEN_IDS = settings(
    image_token_id=_id("<|image_pad|>"),
    video_token_id=_id("<|video_pad|>"),
    vision_start_token_id=_id("<|vision_start|>"),
    vision_end_token_id=_id("<|vision_end|>"),
)
QWEN_IMAGE, QWEN_VIDEO = (
    f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("image", "video")
)

FAMILIES = (
    Family(
        "llava",
        hf.LlavaForConditionalGeneration,
        text=settings(model_type="llama", num_key_value_heads=4),
        vision=CLIP,
        config=settings(image_token_index=_id("<image>"), image_seq_length=16),
        processor=_llava,
        image="<image>",
        kinds=("image", "images", "text"),
    ),
    Family(
        "llava_next",
        hf.LlavaNextForConditionalGeneration,
        text=settings(model_type="llama"),
        vision=CLIP,
        config=settings(image_token_index=_id("<image>"), image_grid_pinpoints=PINPOINTS),
        processor=_llava_next,
        image="<image>",
        kinds=("image", "images", "text"),
    ),
    Family(
        "llava_onevision",
        hf.LlavaOnevisionForConditionalGeneration,
        text=settings(model_type="qwen2"),
        vision=SIGLIP,
        config=settings(
            image_token_index=_id("<image>"),
            video_token_index=_id("<video>"),
            image_grid_pinpoints=PINPOINTS,
        ),
        processor=_llava_onevision,
        image="<image>",
        video="<video>",
    ),
    Family(
        "qwen2_vl",
        hf.Qwen2VLForConditionalGeneration,
        text=settings(rope_parameters=MROPE),
        vision={key: value for key, value in QWEN_VISION.items() if key != "intermediate_size"}
        | settings(embed_dim=32, hidden_size=64),
        config=QWEN_IDS,
        processor=lambda: _qwen(hf.Qwen2VLProcessor, hf.Qwen2VLVideoProcessor),
        image=QWEN_IMAGE,
        video=QWEN_VIDEO,
    ),
    Family(
        "qwen2_5_vl",
        hf.Qwen2_5_VLForConditionalGeneration,
        text=settings(rope_parameters=MROPE),
        vision=settings(
            **QWEN_VISION, out_hidden_size=64, window_size=16, fullatt_block_indexes=[1]
        ),
        config=QWEN_IDS,
        processor=lambda: _qwen(hf.Qwen2_5_VLProcessor, hf.Qwen2VLVideoProcessor),
        image=QWEN_IMAGE,
        video=QWEN_VIDEO,
    ),
    Family(
        "qwen3_vl",
        hf.Qwen3VLForConditionalGeneration,
        text=settings(
            rope_parameters={**MROPE, "mrope_interleaved": True},
            head_dim=16,
            num_hidden_layers=3,
            initializer_range=0.3,  # its norms of queries and keys tame the weights
        ),
        vision=settings(
            **QWEN_VISION,
            out_hidden_size=64,
            deepstack_visual_indexes=[0, 1],
            num_position_embeddings=64,
        ),
        config=QWEN_IDS,
        processor=lambda: _qwen(hf.Qwen3VLProcessor, hf.Qwen3VLVideoProcessor),
        image=QWEN_IMAGE,
        video=QWEN_VIDEO,
    ),
    Family(
        "internvl",
        hf.InternVLForConditionalGeneration,
        text=settings(model_type="qwen2"),
        vision=settings(**VISION, **LAYERS, image_size=[SIDE, SIDE], patch_size=[4, 4]),
        config=settings(
            image_token_id=_id("<IMG_CONTEXT>"), image_seq_length=4, tie_word_embeddings=False
        ),
        processor=_internvl,
        image="<IMG_CONTEXT>",
        video="<video>",
    ),
    Family(
        "smolvlm",
        hf.SmolVLMForConditionalGeneration,
        text=settings(model_type="llama"),
        vision=settings(**VISION, **LAYERS, image_size=SIDE, patch_size=4),
        config=settings(image_token_id=_id("<image>"), scale_factor=2, tie_word_embeddings=True),
        processor=_smolvlm,
        image="<image>",
        video="<video>",
        kinds=("image", "images", "video", "text"),
    ),
)
