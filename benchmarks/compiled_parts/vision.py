"""What the vision tower costs with 8-bit weights and activations: towers of real shapes with random
weights, and a whole answer about a picture.

Of each tower `--layers` layers are measured; the last of those of Qwen2.5-VL attends to the whole
picture, as every eighth of them does, the others in windows. The answer is one of LLaVA-OneVision's
architecture with half of the layers of SigLIP and Qwen2.5 0.5B, about a picture of 384 x 384.

Prediction, before the first run: products take 80 to 90% of a tower's time and become 3 times as
fast, attention stays as it is. So towers become 2.2 to 2.8 times as fast, and with full attention
over thousands of patches (GLM-OCR) 1.7 times. The first token about a picture comes after 0.6 of
the time that `quantization="int8"` takes with a float32 tower.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
import transformers as hf
from random_models import SIZES
from shared import (
    Benchmark,
    Report,
    caption_sample,
    environment,
    interleaved_seconds,
    sample_inputs,
    table,
)
from torch import Tensor

import draftlens
from compiled_parts.quantized import DISTANCE, answer_logits, distance
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER
from draftlens.models.media_features import encode
from draftlens.passes import attach
from draftlens.passes.openvino import integer_product
from draftlens.passes.pixel_products import PixelProducts
from draftlens.verify import run_stock

TEXT = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
    "vision_use_head": False,
}
STOCK, FLOAT, ROUNDED = "torch", "float32", "8 bits"
CAPTIONS = 8
QUESTION = 40
"""Tokens of the question about the picture."""


@dataclass(frozen=True)
class Tower:
    """A vision tower of real shape.

    Args:
        of: a model with so many of its layers, and the arguments of its encoder.
        patches: that the tower reads at once.
    """

    of: Callable[[int], tuple[Any, dict[str, Any]]]
    patches: int


def _built(config: Any, name: str) -> Any:
    torch.manual_seed(0)
    return getattr(hf, name)(config).eval()


def _tiles(layers: int, text: Mapping[str, Any] = TEXT, tiles: int = 1) -> Any:
    """LLaVA-OneVision, and a picture of one tile beside the whole."""
    config = hf.LlavaOnevisionConfig(
        text_config=dict(text),
        vision_config={**SIGLIP, "num_hidden_layers": layers},
        image_token_index=text["vocab_size"] - 1,
        image_grid_pinpoints=[[384, 384], [768, 768]],
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    model = _built(config, "LlavaOnevisionForConditionalGeneration")
    side = 384 * tiles
    pixels = torch.randn(1, tiles**2 + 1, 3, 384, 384)
    return model, {"pixel_values": pixels, "image_sizes": torch.tensor([[side, side]])}


def _patches(grid: tuple[int, int], width: int) -> dict[str, Any]:
    rows = grid[0] * grid[1]
    return {
        "pixel_values": torch.randn(rows, width),
        "image_grid_thw": torch.tensor([[1, *grid]]),
    }


def _windows(layers: int) -> Any:
    config = hf.Qwen2_5_VLConfig(
        text_config={**TEXT, "model_type": "qwen2_5_vl_text"},
        vision_config={
            "depth": layers,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [layers - 1],
        },
    )
    model = _built(config, "Qwen2_5_VLForConditionalGeneration")
    return model, _patches((54, 74), 3 * 2 * 14 * 14)


def _page(layers: int) -> Any:
    config = hf.GlmOcrConfig(
        text_config={**TEXT, "model_type": "glm_ocr_text"},
        vision_config={"depth": layers, "out_hidden_size": 64},
    )
    return _built(config, "GlmOcrForConditionalGeneration"), _patches((84, 60), 3 * 2 * 14 * 14)


def _squares(layers: int) -> Any:
    vision = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": layers,
        "num_attention_heads": 12,
        "image_size": 512,
        "patch_size": 16,
    }
    config = hf.Idefics3Config(
        text_config={**TEXT, "model_type": "llama"}, vision_config=vision, scale_factor=4
    )
    model = _built(config, "Idefics3ForConditionalGeneration")
    return model, {"pixel_values": torch.randn(1, 3, 3, 512, 512)}


TOWERS: Mapping[str, Tower] = {
    "LLaVA-OneVision (SigLIP so400m), 2 squares of 384": Tower(_tiles, 729),
    "Qwen2.5-VL 3B, 1036 x 756": Tower(_windows, 54 * 74),
    "SmolVLM2, Granite-Docling (SigLIP base), 3 squares of 512": Tower(_squares, 1024),
    "GLM-OCR, 840 x 1176": Tower(_page, 84 * 60),
}


@torch.inference_mode()
def tower_row(name: str, tower: Tower, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of an encoding by torch, by the faster library, and with 8 bits; and how far the
    features move."""
    model, arguments = tower.of(args.layers)
    backbone = Backbone(model)
    products = PixelProducts(model, integer_product)
    contexts: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        STOCK: nullcontext,
        FLOAT: partial(backbone.products.of_pixels, arguments),
        ROUNDED: products.computing,
    }

    def encoded(way: str) -> Tensor:
        with contexts[way]():
            features = encode(model, "image", arguments).pooler_output
        return torch.cat(list(features)) if isinstance(features, (list, tuple)) else features

    began = time.perf_counter()
    rounded = encoded(ROUNDED)
    first = time.perf_counter() - began
    unrounded = encoded(STOCK)
    seconds = interleaved_seconds({way: partial(encoded, way) for way in contexts}, args.repeats)
    return {
        "tower": name,
        "patches": tower.patches,
        "first": first,
        "distance": float(torch.dist(rounded, unrounded) / unrounded.norm()),
        **{way: statistics.median(values) for way, values in seconds.items()},
    }


def seconds_of_answer(
    backbone: Backbone, inputs: Mapping[str, Any], way: str, tokens: int
) -> float:
    """Seconds of an answer by stock `generate`, or by rounded passes with one of two towers."""
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": tokens}
    whole = patch.object(backbone.passes, "of_pixels", _modules) if way == FLOAT else nullcontext()
    began = time.perf_counter()
    if way == STOCK:
        run_stock(backbone, inputs, **options)
    else:
        with whole:
            draftlens.generate(backbone, inputs, method="plain", compile="auto", **options)
    return time.perf_counter() - began


def answer_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds to the first and the last token of an answer about a picture."""
    text: dict[str, Any] = {**TEXT, **SIZES["0.5B"], "num_hidden_layers": 12, "vocab_size": 75968}
    text |= {"tie_word_embeddings": True, "max_position_embeddings": 32768}
    model, arguments = _tiles(13, text)
    model.generation_config.eos_token_id = None
    backbone = Backbone(model)
    with torch.inference_mode():
        features = len(encode(model, "image", arguments).pooler_output[0])
    ids = torch.full((1, features + QUESTION), text["vocab_size"] - 1)
    ids[:, features:] = torch.arange(QUESTION) + 5
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **arguments}
    attach([backbone], "openvino", quantization="int8")
    answered = partial(seconds_of_answer, backbone, inputs)
    found: dict[str, dict[int, list[float]]] = {}
    for repeat, way, tokens in product(
        range(args.repeats + 1), (STOCK, FLOAT, ROUNDED), (1, args.max_new_tokens)
    ):
        seconds = answered(way, tokens)
        if repeat:  # the first one prepares passes
            found.setdefault(way, {}).setdefault(tokens, []).append(seconds)
    return [
        {
            "way": way,
            "prompt": len(ids[0]),
            "first": statistics.median(of_tokens[1]),
            "last": statistics.median(of_tokens[args.max_new_tokens]),
        }
        for way, of_tokens in found.items()
    ]


@torch.inference_mode()
def distance_rows() -> list[dict[str, Any]]:
    """How far logits of the embedded target are from its own in float32, at every token of its
    captions, by what has 8 bits."""
    engine = draftlens.load(draft=None, device="cpu", calibrate=False, compile=False)
    backbone = engine.target.backbone
    cases = []
    for seed in range(CAPTIONS):
        given = sample_inputs(engine, caption_sample(seed), frames=16)
        answer = engine.answer(given, method="plain", max_new_tokens=160).run()
        cases.append((given.target, torch.tensor(answer.tokens)))
    engine.compile("openvino", quantization="int8")
    ways = {
        STOCK: (EAGER, EAGER),
        "vision tower": (backbone.passes, EAGER),
        "language model": (EAGER, backbone.passes),
        "both": (backbone.passes, backbone.passes),
    }
    logits = {}
    for name, (of_pixels, of_text) in ways.items():
        parts = []
        for inputs, tokens in cases:
            backbone.passes = of_pixels
            prompt = backbone.encode(backbone.prepare(inputs, max_new_tokens=1))
            backbone.passes = of_text
            parts.append(answer_logits(backbone, prompt, tokens))
        logits[name] = torch.cat(parts)
    return [distance(name, logits[STOCK], logits[name]) for name in list(ways)[1:]]


def _modules(model: Any) -> None:
    """As `Passes.of_pixels` of passes that leave the vision tower to its modules."""


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """Every tower, then the answer and the distances."""
    facts = {**environment(args), "layers": args.layers}
    report: Report = {"environment": facts, "towers": [], "answer": []}
    for name, tower in TOWERS.items():
        report["towers"].append(tower_row(name, tower, args))
        yield report
    report["answer"] = answer_rows(args)
    report["distances"] = distance_rows()
    yield report


def page(report: Report) -> list[str]:
    """Seconds by tower and way, and those of the answer."""
    towers: dict[str, Any] = {
        "tower": "{tower}",
        "patches that attend to each other": "{patches}",
        "torch, s": "{torch:.2f}",
        "float32 here, s": "{float32:.2f}",
        "8 bits, s": lambda row: f"{row[ROUNDED]:.2f}",
        "times as fast as float32 here": lambda row: f"{row[FLOAT] / row[ROUNDED]:.2f}",
        "as torch": lambda row: f"{row[STOCK] / row[ROUNDED]:.2f}",
        "first time, s": "{first:.2f}",
        "distance of features": "{distance:.3f}",
    }
    blocks = [table(report["towers"], towers), f"{report['environment']['layers']} layers of each."]
    if "distances" in report:
        names = {STOCK: "stock `generate`", FLOAT: "`int8`, float32 tower", ROUNDED: "`int8`"}
        stock = report["answer"][0]
        columns: dict[str, Any] = {
            "": lambda row: names[row["way"]],
            "first token, s": "{first:.2f}",
            "of stock": lambda row: f"{stock['first'] / row['first']:.2f}",
            "last token, s": "{last:.2f}",
            "of stock ": lambda row: f"{stock['last'] / row['last']:.2f}",
        }
        blocks += [
            "## An answer about a picture",
            table(report["answer"], columns),
            f"A prompt of {stock['prompt']:,} tokens, method `plain`.",
            f"The embedded target at every token of its captions of {CAPTIONS} clips, by what has "
            "8 bits, beside float32:",
            table(report["distances"], DISTANCE),
        ]
    return blocks


BENCHMARK = Benchmark(
    "compiled_vision",
    __doc__,
    "Vision towers with 8 bits",
    measure,
    page,
    {"--repeats": 3, "--layers": 4, "--max-new-tokens": 64},
)
