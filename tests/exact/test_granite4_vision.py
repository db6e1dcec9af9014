"""Granite 4 Vision, whose pictures reach its language model between the layers only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from conversations import answer
from families import CLIP, PINPOINTS, SIDE, SQUARE, Family, inputs, settings, tokenizer
from stock import LONG, noisy, stock

import draftlens
from draftlens.models.adapter import Backbone
from draftlens.models.prompt_cache import PromptCache
from draftlens.models.prompt_subset import gather


def _processor() -> Any:
    images = hf.LlavaNextImageProcessor(
        size={"shortest_edge": SIDE}, crop_size=SQUARE, image_grid_pinpoints=PINPOINTS
    )
    return hf.Granite4VisionProcessor(
        images, tokenizer(), 4, "default", num_additional_image_tokens=1, downsample_rate="2/4"
    )


class GraniteFamily(Family):
    """Its projectors have parameters that are empty until weights are loaded."""

    def build(self, seed: int = 0, **text: Any) -> Any:
        model = super().build(seed, **text)
        for name, parameter in model.named_parameters():
            if name.endswith(("query", "image_positions", "image_newline")):
                torch.nn.init.normal_(parameter, std=0.5)
        return model


FAMILY = GraniteFamily(
    "granite4_vision",
    hf.Granite4VisionForConditionalGeneration,
    text=settings(
        num_hidden_layers=3,
        attention_multiplier=0.2,
        embedding_multiplier=3.0,
        residual_multiplier=0.9,
        logits_scaling=2.0,
    ),
    vision={**CLIP, "hidden_size": 64},
    config=settings(
        image_token_index=tokenizer().convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=PINPOINTS,
        downsample_rate="2/4",
        deepstack_layer_map=[[-1, 0], [1, 1]],
        spatial_vision_layer=-1,
        spatial_target_layers=[2],
        projector_dropout=0.0,
        qformer_config=settings(
            model_type="blip_2_qformer",
            num_hidden_layers=1,
            intermediate_size=48,
            cross_attention_frequency=1,
            use_qformer_text_input=False,
            initializer_range=0.2,
        ),
    ),
    processor=_processor,
    image="<image>",
    kinds=("image", "images", "text"),
)

METHODS: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain"},
    "chain": {"method": "speculative", "num_speculative_tokens": 3},
    "eagle": {"method": "speculative", "tree": "eagle"},
    "specvlm": {"method": "specvlm", "prune_ratio": 0.5, "num_speculative_tokens": 4},
    "tabed": {"method": "tabed", "views": ("multimodal", "pooled"), "num_speculative_tokens": 3},
}


@pytest.fixture(scope="module")
def model() -> Any:
    return FAMILY.build()


@pytest.mark.parametrize("kind", FAMILY.kinds)
@pytest.mark.parametrize("name", METHODS)
def test_the_tokens_of_stock_generate(model: Any, name: str, kind: str) -> None:
    """Ragged batches, padded on either side."""
    given = inputs(FAMILY, kind)
    expected = stock(model, given, max_new_tokens=LONG)
    assert all(len(set(row)) > 5 for row in expected)
    if kind != "text":
        other = {**given, "pixel_values": given["pixel_values"].flip(-1) * 0.5}
        assert stock(model, other, max_new_tokens=LONG) != expected
    small = noisy(model, 0.05)
    for side in ("left", "right"):
        result = draftlens.generate(
            model,
            inputs(FAMILY, kind, side=side),
            draft=small,
            method=METHODS[name],
            max_new_tokens=LONG,
        )
        assert result.tokens == expected
        assert result.lossless
        assert name == "plain" or result.stats.accepted > 0


def test_pictures_are_told_apart_by_the_prompt_cache(model: Any) -> None:
    """Their embeddings are zeros; the features that layers add are what differs."""
    backbone = Backbone(model)
    backbone.prompt_cache = PromptCache(1 << 28)
    given = inputs(FAMILY, "image", rows=(0,))
    other = {**given, "pixel_values": given["pixel_values"].flip(-1) * 0.5}
    for inputs_of_call, cached in ((given, False), (other, False), (given, True), (other, True)):
        result = answer((backbone, None), inputs_of_call, "plain", max_new_tokens=LONG)
        assert result.tokens == stock(model, inputs_of_call, max_new_tokens=LONG)
        place = int((given["input_ids"] == FAMILY.config["image_token_index"]).int().argmax())
        assert (result.stats.cached_tokens > place + 1) is cached


def test_a_prompt_is_read_in_parts(model: Any) -> None:
    backbone = Backbone(model)
    prompt = backbone.encode(backbone.prepare(inputs(FAMILY, "images"), max_new_tokens=1))
    expected = backbone.prefill(prompt, backbone.new_cache(prompt, 1))
    cache = backbone.new_cache(prompt, 1)
    for start in range(0, max(prompt.lengths), 7):
        indices = [
            torch.arange(
                min(start, length - 1), max(min(start + 7, length), min(start, length - 1) + 1)
            )
            for length in prompt.lengths
        ]
        cache.truncate([min(start, length - 1) for length in prompt.lengths])
        logits = backbone.read_on(gather(prompt, indices), cache)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
