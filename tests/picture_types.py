"""Types of the census with pictures of their own processors, which are made from their classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import transformers as hf
from document_models import PATCHES, SQUARE, Pictured
from families import settings
from multimodal_types import build

LIMITS = settings(size=settings(shortest_edge=64, longest_edge=1024))
TWO_FRAMES = settings(**PATCHES, temporal_patch_size=2)
QWEN = settings(
    image_token_id="<|image_pad|>",
    video_token_id="<|video_pad|>",
    vision_start_token_id="<|vision_start|>",
    vision_end_token_id="<|vision_end|>",
)
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
GLM = settings(
    image_token_id="<|image|>",
    video_token_id="<|video|>",
    image_start_token_id="<|begin_of_image|>",
    image_end_token_id="<|end_of_image|>",
    video_start_token_id="<|begin_of_video|>",
    video_end_token_id="<|end_of_video|>",
)
GLM_IMAGE = "<|begin_of_image|><|image|><|end_of_image|>"
GLM_NAMED = settings(image_token="<|image|>", video_token="<|video|>")


@dataclass(frozen=True, eq=False, kw_only=True)
class PictureType(Pictured):
    """One type, by its name.

    Args:
        changes: fields of the census's configuration.
        sizes: fields of its text that hold the size of the vocabulary.
        has_size: whether the whole has such a field, too.
        lists: fields that hold the ids of several tokens.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[str, ...] = ("vocab_size",)
    has_size: bool = False
    lists: Mapping[str, list[str]] = field(default_factory=dict)

    def tokenizer(self) -> Any:
        words = super().tokenizer()
        added = [*self.named.values(), *self.ids.values(), *chain(*self.lists.values())]
        words.add_tokens(added, special_tokens=True)
        return words

    def build(self) -> tuple[Any, Any]:
        words = self.tokenizer()
        processor = self.processor(words)
        ids = {name: words.convert_tokens_to_ids(token) for name, token in self.ids.items()}
        sizes = dict.fromkeys(self.sizes, len(words))
        changes = {**self.changes, **ids, "text_config": sizes}
        changes |= {name: words.convert_tokens_to_ids(each) for name, each in self.lists.items()}
        changes |= {"vocab_size": len(words)} if self.has_size else {}
        model = build(self.name, changes, sorted({words.pad_token_id, *ids.values()}))
        model.generation_config.pad_token_id = words.pad_token_id
        return model, processor


def _qwen(processor: Any, videos: Any = hf.Qwen3VLVideoProcessor) -> Callable[[Any], Any]:
    return lambda words: processor(
        image_processor=hf.Qwen2VLImageProcessor(**TWO_FRAMES, **LIMITS),
        tokenizer=words,
        video_processor=videos(**TWO_FRAMES),
    )


def _omni(processor: Any) -> Callable[[Any], Any]:
    return lambda words: processor(
        image_processor=hf.Qwen2VLImageProcessor(**TWO_FRAMES, **LIMITS),
        video_processor=hf.Qwen2VLVideoProcessor(**TWO_FRAMES),
        feature_extractor=hf.WhisperFeatureExtractor(),
        tokenizer=words,
    )


def _with_start(words: Any) -> Any:
    """A tokenizer with a token for the start of a text."""
    words.add_special_tokens({"bos_token": "<bos>"})
    return words


OMNI_NAMED = settings(
    image_token="<|image_pad|>",
    video_token="<|video_pad|>",
    audio_token="<|audio_pad|>",
    vision_bos_token="<|vision_start|>",
    vision_eos_token="<|vision_end|>",
    audio_bos_token="<|audio_start|>",
    audio_eos_token="<|audio_end|>",
)
OMNI = settings(
    **QWEN,
    audio_token_id="<|audio_pad|>",
    audio_start_token_id="<|audio_start|>",
    audio_end_token_id="<|audio_end|>",
)

MINICPM_NAMED = settings(
    image_token="<|image_pad|>",
    video_token="<|video_pad|>",
    image_start_token="<image_start>",
    image_end_token="<image_end>",
    slice_start_token="<slice>",
    slice_end_token="</slice>",
    image_id_start_token="<image_id>",
    image_id_end_token="</image_id>",
)

PICTURE_TYPES = (
    *(
        PictureType(name, processor=_qwen(hf.Qwen3VLProcessor), image=QWEN_IMAGE, ids=QWEN)
        for name in ("qwen3_5", "qwen3_5_moe", "qwen3_vl_moe")
    ),
    *(
        PictureType(name, processor=_omni(processor), image=QWEN_IMAGE, ids=OMNI, named=OMNI_NAMED)
        for name, processor in (
            ("qwen2_5_omni_thinker", hf.Qwen2_5OmniProcessor),
            ("qwen3_omni_moe_thinker", hf.Qwen3OmniMoeProcessor),
        )
    ),
    PictureType(
        "glm46v",
        processor=lambda words: hf.Glm46VProcessor(
            hf.Glm46VImageProcessor(**TWO_FRAMES, **LIMITS),
            words,
            hf.Glm46VVideoProcessor(**PATCHES),
        ),
        image=GLM_IMAGE,
        ids=GLM,
        named=GLM_NAMED,
    ),
    *(
        PictureType(
            name,
            processor=lambda words: hf.Glm4vProcessor(
                hf.Glm4vImageProcessor(**TWO_FRAMES, **LIMITS),
                words,
                hf.Glm4vVideoProcessor(**PATCHES),
            ),
            image=GLM_IMAGE,
            ids=GLM,
            named=GLM_NAMED,
        )
        for name in ("glm4v", "glm4v_moe")
    ),
    PictureType(
        "gemma3",
        processor=lambda words: hf.Gemma3Processor(
            hf.Gemma3ImageProcessor(size=SQUARE), words, image_seq_length=4
        ),
        image="<start_of_image>",
        ids={"image_token_id": "<image_soft_token>", "boi_token_id": "<start_of_image>"},
        named=settings(
            boi_token="<start_of_image>",
            eoi_token="<end_of_image>",
            image_token="<image_soft_token>",
        ),
    ),
    PictureType(
        "gemma4",
        processor=lambda words: hf.Gemma4Processor(
            hf.Gemma4AudioFeatureExtractor(),
            hf.Gemma4ImageProcessor(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70),
            words,
            hf.Gemma4VideoProcessor(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70),
        ),
        image="<|image|>",
        ids={"image_token_id": "<|image|>", "video_token_id": "<|video|>"},
        named=settings(
            boi_token="<start_of_image>",
            eoi_token="<end_of_image>",
            image_token="<|image|>",
            audio_token="<|audio|>",
            boa_token="<start_of_audio>",
            eoa_token="<end_of_audio>",
        ),
        sizes=("vocab_size", "vocab_size_per_layer_input"),
    ),
    PictureType(
        "lfm2_vl",
        processor=lambda words: hf.Lfm2VlProcessor(
            hf.Lfm2VlImageProcessor(
                encoder_patch_size=4,
                tile_size=16,
                min_image_tokens=4,
                max_image_tokens=16,
                max_tiles=4,
            ),
            words,
        ),
        image="<image>",
        ids={"image_token_id": "<image>"},
        named=settings(
            image_token="<image>",
            image_start_token="<|image_start|>",
            image_end_token="<|image_end|>",
            image_thumbnail_token="<|img_thumbnail|>",
        ),
    ),
    PictureType(
        "minicpm_ocr",
        processor=lambda words: hf.MiniCPMOcrProcessor(
            hf.MiniCPMOcrImageProcessor(patch_size=4, scale_resolution=32, max_slice_nums=2),
            hf.MiniCPMOcrVideoProcessor(patch_size=4, scale_resolution=32, max_slice_nums=2),
            words,
        ),
        image="<|image_pad|>",
        ids={"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
        named=MINICPM_NAMED,
    ),
    PictureType(
        "molmo2",
        processor=lambda words: hf.Molmo2Processor(
            hf.Molmo2ImageProcessor(size=SQUARE, patch_size=4, max_crops=2, overlap_margins=[1, 1]),
            hf.Molmo2VideoProcessor(size=SQUARE, patch_size=4),
            words,
        ),
        image="<|image|>",
        ids=settings(
            image_patch_id="<im_patch>",
            image_start_token_id="<im_start>",
            low_res_image_start_token_id="<low_res_im_start>",
            image_end_token_id="<im_end>",
            image_col_id="<im_col>",
            frame_start_token_id="<frame_start>",
            frame_end_token_id="<frame_end>",
        ),
        named=settings(image_token="<|image|>", low="<im_low>"),
    ),
    PictureType(
        "mistral3",
        processor=lambda words: hf.PixtralProcessor(
            hf.PixtralImageProcessor(
                size={"longest_edge": 32}, patch_size=settings(height=4, width=4)
            ),
            words,
            patch_size=4,
            spatial_merge_size=2,
        ),
        image="[IMG]",
        ids={"image_token_id": "[IMG]"},
        named=settings(
            image_token="[IMG]", image_break_token="[IMG_BREAK]", image_end_token="[IMG_END]"
        ),
        changes=settings(vision_config=settings(image_size=32)),
    ),
    PictureType(
        "aya_vision",
        processor=lambda words: hf.AyaVisionProcessor(
            hf.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, max_patches=2),
            words,
            patch_size=4,
            img_size=16,
            downsample_factor=2,
        ),
        image="<image>",
        ids={"image_token_id": "<|IMG_PATCH|>"},
        named=settings(start="<|START_OF_IMG|>", end="<|END_OF_IMG|>", line="<|IMG_LINE_BREAK|>"),
    ),
    PictureType(
        "cohere2_vision",
        processor=lambda words: hf.Cohere2VisionProcessor(
            hf.Cohere2VisionImageProcessor(size=SQUARE, patch_size=2, max_patches=2), words
        ),
        image="<|IMG_PATCH|>",
        ids={"image_token_id": "<|IMG_PATCH|>"},
        named=settings(
            image_token="<|IMG_PATCH|>",
            boi_token="<|START_OF_IMG|>",
            eoi_token="<|END_OF_IMG|>",
            img_line_break_token="<|IMG_LINE_BREAK|>",
        ),
    ),
    PictureType(
        "ovis2",
        processor=lambda words: hf.Ovis2Processor(
            hf.Ovis2ImageProcessor(size=SQUARE), words, image_seq_length=16
        ),
        image="<image>",
        ids={"image_token_id": "<IMG_ATOM>"},
        named=settings(start="<IMG_START>", end="<IMG_END>", grid="<IMG_GRID>"),
        lists={
            "visual_indicator_token_ids": [
                *("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
            ]
        },
        has_size=True,
    ),
    PictureType(
        "janus",
        processor=lambda words: hf.JanusProcessor(
            hf.JanusImageProcessor(size=SQUARE, min_size=4), words, num_image_tokens=16
        ),
        image="<image_placeholder>",
        ids={"image_token_id": "<image_placeholder>"},
        named=settings(
            image_token="<image_placeholder>",
            boi_token="<begin_of_image>",
            eoi_token="<end_of_image>",
        ),
    ),
    PictureType(
        "kimi_k25",
        processor=lambda words: hf.Kimi_K25Processor(
            hf.Kimi_K25ImageProcessor(**PATCHES, size=settings(max_height=32, max_width=32)),
            words,
            hf.Kimi_K25VideoProcessor(**PATCHES),
        ),
        image="<|image|>",
        ids={"image_token_id": "<|image|>", "video_token_id": "<|video|>"},
        named=GLM_NAMED,
    ),
    PictureType(
        "ernie4_5_vl_moe",
        processor=lambda words: hf.Ernie4_5_VLMoeProcessor(
            hf.Ernie4_5_VLMoeImageProcessor(**PATCHES, **LIMITS),
            words,
            hf.Ernie4_5_VLMoeVideoProcessor(**PATCHES),
        ),
        image=GLM_IMAGE,
        ids=GLM,
        named=settings(
            image_token="<|image|>",
            image_start_token="<|begin_of_image|>",
            image_end_token="<|end_of_image|>",
            video_token="<|video|>",
            video_start_token="<|begin_of_video|>",
            video_end_token="<|end_of_video|>",
        ),
    ),
    PictureType(
        "aria",
        processor=lambda words: hf.AriaProcessor(
            hf.AriaImageProcessor(), words, size_conversion={490: 4}
        ),
        image="<image>",
        ids={"image_token_id": "<image>"},
        named={"image_token": "<image>"},
        call=settings(max_image_size=490),
        changes=settings(
            vision_config=settings(image_size=490, patch_size=70),
            projector_patch_to_query_dict={49: 4},
        ),
    ),
    PictureType(
        "paligemma",
        processor=lambda words: hf.PaliGemmaProcessor(
            hf.SiglipImageProcessor(size=SQUARE, image_seq_length=16), _with_start(words)
        ),
        image="<image>",
        ids={"image_token_id": "<image>"},
        named={"image_token": "<image>"},
    ),
    PictureType(
        "video_llama_3",
        processor=lambda words: hf.VideoLlama3Processor(
            hf.VideoLlama3ImageProcessor(patch_size=4, merge_size=2, **LIMITS),
            words,
            hf.VideoLlama3VideoProcessor(patch_size=4, merge_size=2),
        ),
        image="<|image_pad|>",
        ids={"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
    ),
    PictureType(
        "idefics2",
        processor=lambda words: hf.Idefics2Processor(
            hf.Idefics2ImageProcessor(size=settings(shortest_edge=8, longest_edge=16)),
            words,
            image_seq_len=64,
        ),
        image="<image>",
        ids={"image_token_id": "<image>"},
    ),
    *(
        PictureType(
            name, processor=_qwen(processor, hf.Qwen2VLVideoProcessor), image=QWEN_IMAGE, ids=QWEN
        )
        for name, processor in (
            ("exaone4_5", hf.Exaone4_5_Processor),
            ("hyperclovax_vision_v2", hf.HyperCLOVAXVisionV2Processor),
        )
    ),
    PictureType(
        "vipllava",
        processor=lambda words: hf.LlavaProcessor(
            hf.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=SQUARE),
            words,
            4,
            "default",
            num_additional_image_tokens=1,
        ),
        image="<image>",
        ids={"image_token_id": "<image>"},
    ),
    PictureType(
        "cosmos3_edge",
        processor=lambda words: hf.Cosmos3EdgeProcessor(
            hf.Cosmos3EdgeImageProcessor(**PATCHES, **LIMITS),
            words,
            hf.Cosmos3EdgeVideoProcessor(**PATCHES),
        ),
        image=QWEN_IMAGE,
        ids=QWEN,
        call=settings(return_mm_token_type_ids=True),
    ),
    PictureType("lfm3_vl", processor=_qwen(hf.Lfm3VlProcessor), image=QWEN_IMAGE, ids=QWEN),
    *(
        PictureType(
            name,
            processor=lambda words: hf.MiniCPMV4_6Processor(
                hf.MiniCPMV4_6ImageProcessor(patch_size=4, scale_resolution=32, max_slice_nums=2),
                hf.MiniCPMV4_6VideoProcessor(patch_size=4, scale_resolution=32, max_slice_nums=2),
                words,
            ),
            image="<|image_pad|>",
            ids={"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
            named=MINICPM_NAMED,
        )
        for name in ("minicpmv4_6", "minicpmv4_7")
    ),
    PictureType(
        "deepseek_vl",
        processor=lambda words: hf.DeepseekVLProcessor(
            hf.DeepseekVLImageProcessor(size=SQUARE, min_size=4), words, num_image_tokens=16
        ),
        image="<image_placeholder>",
        ids={"image_token_id": "<image_placeholder>"},
        named={"image_token": "<image_placeholder>"},
    ),
)
