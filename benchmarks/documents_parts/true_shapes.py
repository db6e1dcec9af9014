"""Document models with the layers of real ones, random weights and a tokenizer of these docs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import transformers as hf
from document_models import SPECIAL, Reader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

DOCS = Path(__file__).resolve().parents[2] / "docs"
VOCABULARY = 8192

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SMALL = {"hidden_size": 1024, "num_attention_heads": 16}
SPREAD = {"initializer_range": 0.02}
"""Larger weights, as those of tests, let float32 differ from itself."""
PATCHES = {"patch_size": 14, "merge_size": 2}


def _pixels(least: int, most: int) -> dict[str, int]:
    return {"shortest_edge": least, "longest_edge": most}


@dataclass(frozen=True, eq=False, kw_only=True)
class TrueShape(Reader):
    """A model with the layers of a real one, whose tokenizer has the words of these docs.

    Args:
        depth: the field of the tower's configuration with its number of layers.
        layers: that number.
    """

    depth: str = "num_hidden_layers"
    layers: int = 27

    def tokenizer(self) -> Any:
        words = hf.PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(_pieces()),
            pad_token="<pad>",
            eos_token="</s>",
            padding_side="left",
            extra_special_tokens=dict(self.named),
            model_max_length=32768,
        )
        added = [*SPECIAL, *self.named.values(), *self.ids.values()]
        words.add_tokens(list(dict.fromkeys(added)), special_tokens=True)
        return words

    def with_layers(self, of_tower: int, of_text: int | None = None) -> TrueShape:
        text = self.text if of_text is None else {**self.text, "num_hidden_layers": of_text}
        return replace(self, text=text, vision={**self.vision, self.depth: of_tower})

    def build(self) -> tuple[Any, Any]:
        model, processor = super().build()
        processor.chat_template = (
            "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'image' %}"
            + self.image
            + "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
        )
        return model, processor


@cache
def _pieces() -> str:
    """A byte-level BPE of these docs, as JSON."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(each, special=True) for each in ("<pad>", "</s>")],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train([str(file) for file in sorted(DOCS.glob("*.md"))], trainer)
    return str(bpe.to_str())


SHAPES: Mapping[str, TrueShape] = {
    "Granite-Docling 258M": TrueShape(
        name="Idefics3",
        text={
            "model_type": "llama",
            **SPREAD,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
        },
        vision={
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_attention_heads": 12,
            "image_size": 512,
            "patch_size": 16,
        },
        layers=12,
        processor=lambda words: hf.Idefics3Processor(
            hf.Idefics3ImageProcessor(
                size={"longest_edge": 2048}, max_image_size={"longest_edge": 512}
            ),
            words,
            image_seq_len=64,
        ),
        image="<image>",
        ids={"image_token_id": "<image>"},
        config={"scale_factor": 4},
    ),
    "GLM-OCR": TrueShape(
        name="GlmOcr",
        text={
            **SMALL,
            **SPREAD,
            "intermediate_size": 4096,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rope_parameters": {
                **ROPE,
                "mrope_section": [16, 24, 24],
                "partial_rotary_factor": 1.0,
            },
        },
        vision={**SMALL, "num_heads": 16, "out_hidden_size": 1024, "intermediate_size": 4096},
        depth="depth",
        layers=24,
        processor=lambda words: hf.Glm46VProcessor(
            hf.Glm46VImageProcessor(**PATCHES, size=_pixels(112 * 112, 28 * 28 * 15000)),
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
    "PaddleOCR-VL 0.9B": TrueShape(
        name="PaddleOCRVL",
        text={
            **SMALL,
            **SPREAD,
            "intermediate_size": 3072,
            "num_hidden_layers": 18,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "rope_parameters": {**ROPE, "mrope_section": [16, 24, 24]},
        },
        vision={
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "image_size": 384,
            "patch_size": 14,
            "spatial_merge_size": 2,
        },
        processor=lambda words: hf.PaddleOCRVLProcessor(
            hf.PaddleOCRVLImageProcessor(**PATCHES, size=_pixels(384 * 384, 1536 * 1536)), words
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
    "LightOnOCR-2 1B": TrueShape(
        name="LightOnOcr",
        text={
            "model_type": "qwen3",
            **SMALL,
            **SPREAD,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
        vision={
            "model_type": "pixtral",
            **SMALL,
            "intermediate_size": 4096,
            "head_dim": 64,
            "image_size": 1540,
            "patch_size": 14,
        },
        layers=24,
        processor=lambda words: hf.LightOnOcrProcessor(
            hf.PixtralImageProcessor(
                size={"longest_edge": 1540}, patch_size={"height": 14, "width": 14}
            ),
            words,
            patch_size=14,
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
    "HunyuanOCR 1B": TrueShape(
        name="HunYuanVL",
        text={
            **SMALL,
            **SPREAD,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rope_parameters": {**ROPE, "mrope_section": [16, 16, 16, 16]},
        },
        vision={
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "out_hidden_size": 1024,
            "text_hidden_size": 1024,
        },
        processor=lambda words: hf.HunYuanVLProcessor(
            hf.HunYuanVLImageProcessor(
                patch_size=16, merge_size=2, size=_pixels(512 * 512, 2048 * 2048)
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
}
"""Sizes are those of the published configurations, resolutions those of the processors."""
