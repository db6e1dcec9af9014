"""What the rules of `multimodal_types` do not make of a type, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

WIDTH, HEAD_DIM, WINDOW, SIDE = 64, 16, 16, 16

NOISE = 0.03
"""Of the weights of a draft."""

MROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [4, 2, 2],
    "partial_rotary_factor": 1.0,
}


@dataclass(frozen=True)
class Exempt:
    """What the rules do not make of a type.

    Args:
        reason: of it all.
        given: arguments of the configuration class, before it is made small.
        changes: fields of the small configuration; those of its parts as a mapping.
        language: the class of the language model that stands for the whole one.
        seed: of the weights.
        noise: of the weights of its draft.
        pictures: tensors of a picture that none of `SHAPES` is.
        tokens: how many stand for this picture.
    """

    reason: str
    given: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    language: str = ""
    seed: int = 0
    noise: float = NOISE
    pictures: Mapping[str, Tensor] = field(default_factory=dict)
    tokens: int = 0


TIMM = "its vision tower needs timm, which is not installed: its language model stands for it"
TILES = torch.rand(1, 2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(5))
SECTIONS = "its positions have three axes, which share the dimensions of a head"
CODEC = "its codec of sound is large whatever its width"
SMALL_CODEC = {"channel_multiplier": [1, 1], "num_res_blocks": 1}
AXES = Exempt(SECTIONS, changes={"text_config": {"rope_parameters": MROPE}})

EXEMPT: Mapping[str, Exempt] = {
    **dict.fromkeys(
        (
            *("cosmos3_edge", "cosmos3_omni", "glm46v", "glm4v", "glm4v_moe"),
            *("glm_ocr", "glmga", "paddleocr_vl"),
            *("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe"),
            *("qwen3_vl", "qwen3_vl_moe"),
        ),
        AXES,
    ),
    "apertus1p5": Exempt(
        "its ranges of ids of media must fit the vocabulary",
        changes={
            "text_config": {"vocab_size": 768},
            "vision_config": {
                "codebook_size": 256,
                "channel_multiplier": [1, 1],
                "num_res_blocks": 1,
            },
            "audio_config": {"codebook_size": 256, "num_filters": 4},
            "image_token_offset": 256,
            "audio_token_offset": 512,
        },
    ),
    "aria": Exempt(
        "its projector has a number of queries for each number of patches",
        changes={
            "projector_patch_to_query_dict": {16: 4},
            "max_value_projector_patch_to_query_dict": 4,
        },
    ),
    "chameleon": Exempt(
        "its vocabulary names the tokens of pictures",
        changes={
            "vocabulary_map": {
                "<image>": 201,
                **{f"IMGIMG{letter}Z": 180 + number for number, letter in enumerate("ABCDEFGH")},
            },
            "image_token_id": 201,
            "vq_config": {"num_embeddings": 8, **SMALL_CODEC},
        },
    ),
    "emu3": Exempt(
        "its vocabulary names the tokens of pictures",
        changes={
            "vocabulary_map": {
                "<image>": 201,
                "<|extra_200|>": 179,
                **{f"<|visual token {number:06d}|>": 180 + number for number in range(16)},
            },
            "image_token_id": 201,
            "vq_config": {"codebook_size": 16, **SMALL_CODEC},
        },
    ),
    "cohere_compass": Exempt(
        "released models have layers with windows; " + SECTIONS,
        changes={
            "text_config": {
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "rope_parameters": {"full_attention": MROPE, "sliding_attention": MROPE},
            }
        },
    ),
    "deepseek_ocr2": Exempt(
        "the default names no layers of experts",
        changes={
            "text_config": {
                "mlp_layer_types": ["dense", "sparse"],
                "num_experts_per_tok": 2,
                "n_group": 1,
                "topk_group": 1,
            }
        },
    ),
    "diffusion_gemma": Exempt(
        "the default has no number of experts",
        changes={
            "text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": WIDTH}
        },
    ),
    "dots3_note": Exempt(
        "layers with windows have heads as wide as both parts of them",
        changes={
            "text_config": {"head_dim": 2 * HEAD_DIM},
            "audio_config": {"adapter_input_size": WIDTH},
        },
    ),
    "ernie4_5_vl_moe": Exempt(
        SECTIONS,
        changes={"text_config": {"rope_parameters": {**MROPE, "mrope_section": [3, 3, 2]}}},
    ),
    **dict.fromkeys(
        ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"),
        Exempt(
            SECTIONS + "; the default names no marks around media",
            changes={
                "text_config": {"rope_parameters": MROPE},
                "vision_start_token_id": 210,
                "vision_end_token_id": 211,
                "audio_start_token_id": 212,
                "audio_end_token_id": 213,
            },
        ),
    ),
    "step3p7": Exempt(
        "released models have layers with windows",
        changes={
            "text_config": {
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
                "sliding_window": WINDOW,
            }
        },
    ),
    "fast_vlm": Exempt(TIMM, language="Qwen2ForCausalLM"),
    "gemma3n": Exempt(TIMM, language="Gemma3nForCausalLM"),
    "perception_lm": Exempt(TIMM, language="LlamaForCausalLM"),
    "fun_asr_nano": Exempt(
        "the width of its adaptor follows that of its text",
        changes={"adaptor_config": {"intermediate_size": 16}},
    ),
    "gemma4": Exempt(
        "the default has no vision tower",
        given={"vision_config": {}},
        changes={"vision_config": {"pooling_kernel_size": 2}},
    ),
    "granite4_vision": Exempt(
        "the default has no features between layers",
        changes={
            "downsample_rate": "1/2",
            "deepstack_layer_map": [[-1, 0]],
            "spatial_target_layers": [1],
        },
        pictures={
            "pixel_values": TILES,
            "image_sizes": torch.tensor([[SIDE, SIDE]]),
        },
        tokens=10,
    ),
    "hunyuan_vl": Exempt(
        "the default has no width of heads",
        changes={
            "text_config": {
                "head_dim": HEAD_DIM,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_section": [2, 2, 2, 2],
                },
            }
        },
    ),
    "hy_v4_vl": Exempt(SECTIONS, changes={"text_config": {"rope_parameters": MROPE}}),
    "idefics": Exempt(
        "the default closes the gates of its layers for pictures",
        changes={"alpha_initializer": "ones"},
    ),
    "janus": Exempt(
        "its tokenizer of pictures is large whatever its width",
        changes={"vq_config": {**SMALL_CODEC}},
    ),
    "kyutai_speech_to_text": Exempt(CODEC, changes={"codec_config": {"upsample_groups": 64}}),
    "lfm2_vl": Exempt(
        "released models have layers of convolution",
        changes={
            "text_config": {
                "num_hidden_layers": 4,
                "layer_types": ["conv", "conv", "full_attention", "conv"],
            }
        },
    ),
    "minimax_m3_vl": Exempt(
        "released models have sparse layers",
        changes={
            "text_config": {
                "num_hidden_layers": 2,
                "layer_types": ["full_attention", "minimax_m3_sparse"],
                "mlp_layer_types": ["dense", "sparse"],
            }
        },
    ),
    "molmo2": Exempt(
        "its layers of features are numbered",
        changes={
            "adapter_config": {"vision_feature_layer": [1, 0]},
            "vision_config": {"num_position_embeddings": 16},
        },
    ),
    **dict.fromkeys(
        ("blip-2", "instructblip"),
        Exempt("the default has no token for pictures", changes={"image_token_index": 201}),
    ),
    "instructblipvideo": Exempt(
        "the default has no token for clips, which its pictures are",
        changes={"video_token_index": 201},
        pictures={
            "pixel_values": TILES[:, :1],
            "qformer_input_ids": torch.tensor([[5, 6, 7]]),
            "qformer_attention_mask": torch.ones(1, 3, dtype=torch.long),
        },
        tokens=32,
    ),
    "gemma4_unified": Exempt(
        "the default has no vision tower",
        given={"vision_config": {}},
        changes={"vision_config": {"pooling_kernel_size": 1, "output_proj_dims": WIDTH}},
    ),
    "granite_docling": Exempt(
        "its mask is one of tiles; its factors tame weights this small",
        changes={
            "text_config": {
                "embedding_multiplier": 1.0,
                "attention_multiplier": 0.25,
                "residual_multiplier": 1.0,
            }
        },
        pictures={
            "pixel_values": TILES,
            "pixel_attention_mask": torch.ones(1, 2, dtype=torch.bool),
        },
    ),
    **dict.fromkeys(
        ("minicpm_ocr", "minicpmv4_6", "minicpmv4_7"),
        Exempt(
            SECTIONS + "; the default has no token for pictures",
            changes={"text_config": {"rope_parameters": MROPE}, "image_token_id": 201},
        ),
    ),
    "muse_glimmer": Exempt(
        "a token of its pictures is four patches", changes={"out_hidden_size": 4 * WIDTH}
    ),
    "nemotron_h_omni": Exempt(
        "the default has no token for pictures", changes={"image_token_id": 201}
    ),
    "vipllava": Exempt(
        "its layers of features are numbered",
        changes={"vision_feature_layers": [-1, -2, -1, -2, -1]},
    ),
    "muse_spark": Exempt(
        CODEC + "; a token of its pictures is four patches",
        changes={
            "out_hidden_size": 4 * WIDTH,
            "audio_config": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
        },
    ),
    "qwen2_5_omni": Exempt(
        CODEC,
        changes={"token2wav_config": {"bigvgan_config": {"upsample_initial_channel": WIDTH}}},
    ),
    "qwen3_omni_moe": Exempt(
        "the default of its talker lacks two sizes",
        changes={
            "talker_config": {
                "spatial_merge_size": 2,
                "text_config": {"shared_expert_intermediate_size": WIDTH},
            }
        },
    ),
    "qwen4_exp": Exempt(
        "the default has no size of its indexer",
        changes={
            "text_config": {
                "rope_parameters": MROPE,
                "indexer_n_heads": 2,
                "indexer_kv_heads": 1,
                "indexer_head_dim": HEAD_DIM,
                "indexer_budget": 8,
                "indexer_compress_ratio": 2,
            }
        },
    ),
    "vibevoice_asr": Exempt(
        CODEC,
        changes={
            part: {"num_filters": 2, "hidden_size": 16, "depths": [1] * 7}
            for part in ("acoustic_tokenizer_encoder_config", "semantic_tokenizer_encoder_config")
        },
    ),
}
