"""Families whose caches cannot be rolled back, or whose prompts need more than embeddings: tiny
random float32 models, and prompts with pictures as tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import pytest
import torch
import transformers as hf
from families import MROPE, QWEN_VISION, SIDE, SIGLIP, TEXT, VISION, settings

PICTURE = 201
"""The id of a picture's tokens."""

WINDOW = 8
"""Tokens of a sliding window: prompts and answers cross it."""

FOUR = settings(
    **{**TEXT, "num_hidden_layers": 4, "pad_token_id": 0, "bos_token_id": 1},
    head_dim=16,
    tie_word_embeddings=False,
)
SLIDING = settings(sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"] * 2)
LINEAR = settings(
    layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
)
MIXED_ROPE = {**MROPE, "mrope_interleaved": True, "partial_rotary_factor": 1.0}
EXPERTS = settings(
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
)


@dataclass(frozen=True, eq=False)
class StockFamily:
    """One architecture.

    Args:
        name: of its classes.
        config: beside the text configuration.
        text: what sets its text configuration apart.
        tokens: of a picture; 0 where none is tried.
        pixels: names and shapes of the tensors of a picture.
        steps: what each further picture adds to a fixed argument.
        types: the name of the argument that marks picture tokens by 1, if there is one.
        cause: of the refusal of draft tokens; empty where they can be verified.
    """

    name: str
    cause: str
    text: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "ForConditionalGeneration"
    tokens: int = 0
    pixels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    types: str | None = None

    def __str__(self) -> str:
        return self.name + ("Text" if self.kind == "ForCausalLM" else "")

    @property
    def model(self) -> Any:
        """Its class."""
        return getattr(hf, self.name + self.kind)

    def configuration(self, **changes: Any) -> Any:
        """That of a model; `changes` override the language model's."""
        text = {**FOUR, **self.text, **changes}
        if self.kind == "ForCausalLM":
            return self.model.config_class(**text)
        return self.model.config_class(
            text_config=text, **{"tie_word_embeddings": False, **self.config}
        )

    @cached_property
    def language(self) -> Any:
        """The configuration of the language model."""
        return self.configuration().get_text_config(decoder=True)

    def build(self, seed: int = 0, **changes: Any) -> Any:
        torch.manual_seed(seed)
        model = self.model(self.configuration(**changes)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("mm_input_projection_weight"):  # of Gemma 3, zeros until loaded
                    torch.nn.init.normal_(parameter, std=0.2)
            model.get_output_embeddings().weight[[0, PICTURE]] = 0  # no answer holds these
            for name, weight in model.named_parameters():
                if name.endswith("correct_output_scale"):  # 0 would hide the inputs of tokens
                    weight.fill_(0.5)
        model.generation_config.pad_token_id = 0
        model.generation_config.eos_token_id = None
        return model


RECURS = ""
PIXELS = settings(pixel_values=(1, 3, SIDE, SIDE))
PATCHES = settings(pixel_values=(16, 3 * 2 * 4 * 4))
GRID = settings(image_grid_thw=torch.tensor([[1, 4, 4]]))
GEMMA4 = settings(
    **SLIDING,
    global_head_dim=16,
    num_global_key_value_heads=2,
    vocab_size_per_layer_input=TEXT["vocab_size"],
    hidden_size_per_layer_input=8,
    num_kv_shared_layers=2,
    final_logit_softcapping=30.0,
)
QWEN_IDS = settings(
    image_token_id=PICTURE, video_token_id=202, vision_start_token_id=203, vision_end_token_id=204
)

MUSE = settings(
    image_token_id=PICTURE,
    video_token_id=202,
    out_hidden_size=128,
    projector_hidden_size=64,
    vision_config=settings(
        **VISION,
        num_hidden_layers=2,
        num_attention_heads=2,
        patch_size=4,
        pos_emb_height=8,
        pos_emb_width=8,
        max_position_embeddings=64,
    ),
)
FEW_EXPERTS = settings(num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)

STOCK_FAMILIES = (
    StockFamily(
        "Gemma3",
        "",
        text=SLIDING,
        config=settings(vision_config=SIGLIP, mm_tokens_per_image=4, image_token_index=PICTURE),
        tokens=4,
        pixels=PIXELS,
        types="token_type_ids",
    ),
    StockFamily("Gemma3", "", text=SLIDING, kind="ForCausalLM"),
    StockFamily(
        "Gemma3n",
        "",
        text={
            **SLIDING,
            "vocab_size_per_layer_input": TEXT["vocab_size"],
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 2,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.0] * 4,
            "intermediate_size": [96] * 4,
        },
        kind="ForCausalLM",
    ),
    StockFamily("Gemma4", "", text=GEMMA4, kind="ForCausalLM"),
    StockFamily(
        "Gemma4",
        "",
        text={**GEMMA4, "use_bidirectional_attention": "vision"},
        config=settings(
            vision_config=settings(
                **VISION,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=16,
                patch_size=4,
                pooling_kernel_size=2,
                position_embedding_size=16,
            ),
            image_token_id=PICTURE,
            audio_config=None,
            video_token_id=202,
            audio_token_id=203,
        ),
        tokens=4,
        pixels=settings(pixel_values=(1, 16, 48)),
        fixed=settings(
            image_position_ids=torch.cartesian_prod(torch.arange(4), torch.arange(4))[None]
        ),
        types="mm_token_type_ids",
    ),
    StockFamily(
        "Qwen3_5",
        RECURS,
        text={**LINEAR, "rope_parameters": MIXED_ROPE},
        config=settings(
            vision_config=settings(**QWEN_VISION, out_hidden_size=64, num_position_embeddings=64),
            **QWEN_IDS,
        ),
        tokens=4,
        pixels=PATCHES,
        fixed=GRID,
        types="mm_token_type_ids",
    ),
    StockFamily(
        "Qwen3_5Moe",
        RECURS,
        text={**LINEAR, **EXPERTS, "rope_parameters": MIXED_ROPE},
        config=settings(
            vision_config=settings(**QWEN_VISION, out_hidden_size=64, num_position_embeddings=64),
            **QWEN_IDS,
        ),
        tokens=4,
        pixels=PATCHES,
        fixed=GRID,
        types="mm_token_type_ids",
    ),
    StockFamily(
        "Lfm2Vl",
        RECURS,
        text=settings(
            model_type="lfm2",
            layer_types=["conv", "conv", "full_attention", "conv"],
            conv_L_cache=3,
        ),
        config=settings(
            vision_config=settings(
                **VISION,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_patches=16,
                patch_size=4,
                model_type="siglip2_vision_model",
            ),
            image_token_id=PICTURE,
            projector_hidden_size=32,
        ),
        tokens=4,
        pixels=settings(pixel_values=(1, 16, 48)),
        fixed=settings(
            spatial_shapes=torch.tensor([[4, 4]]), pixel_attention_mask=torch.ones(1, 16).long()
        ),
    ),
    StockFamily(
        "Lfm3Vl",
        RECURS,
        text=settings(
            model_type="lfm3",
            layer_types=["conv", "sliding_attention", "conv", "full_attention"],
            sliding_window=WINDOW,
            conv_L_cache=3,
        ),
        config=settings(
            vision_config=settings(
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                patch_size=4,
            ),
            projector_hidden_size=32,
            **QWEN_IDS,
        ),
        tokens=4,
        pixels=PATCHES,
        fixed=GRID,
    ),
    StockFamily(
        "Cohere2Vision",
        "",
        text={**SLIDING, "model_type": "cohere2"},
        config=settings(
            vision_config=SIGLIP,
            image_token_id=PICTURE,
            downsample_factor=2,
            alignment_intermediate_size=64,
        ),
        tokens=4,
        pixels=PIXELS,
    ),
    StockFamily(
        "Exaone4_5_",
        "",
        text={**SLIDING, "model_type": "exaone4"},
        config=settings(
            vision_config=settings(
                **QWEN_VISION,
                out_hidden_size=64,
                window_size=16,
                fullatt_block_indexes=[1],
                num_key_value_heads=2,
            ),
            **{k: v for k, v in QWEN_IDS.items() if not k.startswith("vision")},
        ),
        tokens=4,
        pixels=PATCHES,
        fixed=GRID,
    ),
    StockFamily(
        "MiniCPMV4_6",
        RECURS,
        text={**LINEAR, "model_type": "qwen3_5_text"},
        config=settings(
            vision_config=settings(
                **VISION,
                num_hidden_layers=2,
                num_attention_heads=2,
                image_size=SIDE,
                patch_size=4,
                insert_layer_id=1,
            ),
            image_token_id=PICTURE,
            insert_layer_id=1,
        ),
    ),
    StockFamily(
        "PaliGemma",
        "",
        text={"model_type": "gemma"},
        config=settings(vision_config=SIGLIP, image_token_index=PICTURE, projection_dim=64),
        tokens=16,
        pixels=PIXELS,
        types="token_type_ids",
    ),
    StockFamily(
        "Molmo2",
        "",
        text=settings(additional_vocab_size=0),
        config=settings(
            vision_config=settings(
                **VISION,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=16,
                image_size=[SIDE, SIDE],
                patch_size=4,
            ),
            adapter_config=settings(
                hidden_size=32,
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=16,
                intermediate_size=48,
                text_hidden_size=64,
                vision_feature_layer=[1, 0],
                initializer_range=0.2,
            ),
            image_patch_id=PICTURE,
        ),
        tokens=4,
        pixels=settings(pixel_values=(1, 16, 48)),
        fixed=settings(
            image_token_pooling=torch.arange(16).view(2, 2, 2, 2).transpose(1, 2).reshape(4, 4),
            image_grids=torch.tensor([[2, 2, 0, 0]]),
        ),
        steps=settings(image_token_pooling=16),
        types="mm_token_type_ids",
    ),
    StockFamily(
        "Mllama",
        "cross-attention",
        text=settings(cross_attention_layers=[1]),
        config=settings(
            vision_config=settings(
                hidden_size=16,
                num_hidden_layers=2,
                num_global_layers=1,
                attention_heads=2,
                image_size=8,
                patch_size=4,
                vision_output_dim=48,
            )
        ),
    ),
)

WINDOWED = (
    StockFamily("Cohere2", "", text=SLIDING, kind="ForCausalLM"),
    StockFamily("Ministral", "", text=SLIDING, kind="ForCausalLM"),
    StockFamily("Mistral", "", text={"sliding_window": WINDOW}, kind="ForCausalLM"),
    StockFamily("Qwen2", "", text={**SLIDING, "use_sliding_window": True}, kind="ForCausalLM"),
    StockFamily("Gemma2", "", text=SLIDING, kind="ForCausalLM"),  # eager, with soft caps
    StockFamily(
        "AyaVision",
        "",
        text={**SLIDING, "model_type": "cohere2"},
        config=settings(vision_config=SIGLIP, image_token_index=PICTURE, downsample_factor=2),
        tokens=4,
        pixels=PIXELS,
    ),
    StockFamily(
        "Mistral3",
        "",
        text={"model_type": "mistral", "sliding_window": WINDOW},
        config=settings(
            image_token_index=PICTURE,
            vision_config=settings(
                **VISION,
                model_type="pixtral",
                num_hidden_layers=2,
                num_attention_heads=2,
                head_dim=16,
                image_size=SIDE,
                patch_size=4,
            ),
        ),
        tokens=4,
        pixels=PIXELS,
        fixed=settings(image_sizes=torch.tensor([[SIDE, SIDE]])),
    ),
    StockFamily(
        "Idefics2",
        "",
        text={"model_type": "mistral", "sliding_window": WINDOW},
        config=settings(
            image_token_id=PICTURE,
            vision_config=settings(
                **VISION, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE, patch_size=4
            ),
            perceiver_config=settings(
                resampler_n_latents=4,
                resampler_depth=1,
                resampler_n_heads=2,
                resampler_head_dim=16,
                num_key_value_heads=2,
            ),
        ),
        tokens=4,
        pixels=settings(pixel_values=(1, 1, 3, SIDE, SIDE)),
    ),
    StockFamily("MuseGlimmer", "", text=SLIDING, config=MUSE),
    StockFamily(
        "MuseSpark",
        "",
        text={**SLIDING, **FEW_EXPERTS, "moe_hidden_size": 32, "output_multiplier": 0.7},
        config=settings(
            **MUSE,
            audio_token_id=203,
            audio_config=settings(
                hidden_sizes=[16] * 4, depths=[1] * 4, out_hidden_size=TEXT["hidden_size"]
            ),
        ),
    ),
    StockFamily(
        "Step3p7",
        "",
        text={
            **SLIDING,
            **FEW_EXPERTS,
            "n_routed_experts": 4,
            "share_expert_dim": 16,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
        config=settings(
            image_token_id=PICTURE,
            vision_config=settings(
                **VISION,
                num_hidden_layers=2,
                num_attention_heads=2,
                image_size=SIDE,
                patch_size=4,
                max_position_embeddings=16,
            ),
        ),
    ),
    StockFamily(
        "CohereCompass",
        "",
        text={
            **SLIDING,
            "logit_scale": 0.5,
            "rope_parameters": {"sliding_attention": MROPE, "full_attention": None},
        },
        config=settings(
            **QWEN_IDS,
            vision_config=settings(
                **QWEN_VISION,
                out_hidden_size=64,
                num_position_embeddings=64,
                deepstack_visual_indexes=[0],
            ),
        ),
        tokens=4,
        pixels=PATCHES,
        fixed=GRID,
        types="mm_token_type_ids",
    ),
    *(
        family
        for family in STOCK_FAMILIES
        if not family.cause and "sliding_window" in family.text and family.name != "Lfm3Vl"
    ),
)
"""Families some of whose layers have sliding windows, for which trees can be verified. LFM3 keeps
states, too (`tests/exact/test_recurrent.py`)."""

PLAIN = tuple(family for family in STOCK_FAMILIES if family.cause)


@cache
def model_of(family: StockFamily) -> Any:
    return family.build()


def prompts(
    family: StockFamily, lengths: tuple[int, ...], pictures: int = False, seed: int = 3
) -> dict[str, Any]:
    """Left-padded prompts of random words; with pictures after the second, fifth, ... token of each
    row."""
    made = torch.Generator().manual_seed(seed)
    rows, types = [], []
    for length in lengths:
        words = torch.randint(5, 150, (length,), generator=made)
        picture = torch.full((family.tokens,), PICTURE)
        ids = words[:2]
        for place in range(2, 2 + 3 * pictures, 3):
            ids = torch.cat([ids, picture, words[place : place + 3]])
        ids = torch.cat([ids, words[2 + 3 * pictures :]])
        pad = torch.zeros(max(lengths) - length, dtype=torch.long)
        rows.append(torch.cat([pad, ids]))
        types.append((rows[-1] == PICTURE).long())
    ids = torch.stack(rows)
    given = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    if family.types is not None:
        given[family.types] = torch.stack(types)
    if pictures:
        count = len(lengths) * pictures
        for name, shape in family.pixels.items():
            whole = (count * shape[0], *shape[1:])
            given[name] = torch.randn(whole, generator=made)
        for name, value in family.fixed.items():
            step = family.steps.get(name, 0)
            given[name] = torch.cat([value + number * step for number in range(count)])
    return given


def unlike(families: Sequence[StockFamily], kind: Callable[[Any], Hashable]) -> list[Any]:
    """Parameters of a test that looks at one family of each kind, which is computed from the
    configuration of the language model: the others are marked `alike`."""
    seen = set[Hashable]()
    parameters: list[Any] = []
    for family in families:
        found = kind(family.language)
        parameters.append(
            pytest.param(family, marks=pytest.mark.alike) if found in seen else family
        )
        seen.add(found)
    return parameters
