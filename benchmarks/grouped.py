"""Passes over several tokens of models with grouped queries, after many cached ones: with a copy
of the keys for every head of queries, as transformers' `sdpa` makes under a mask, and without."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from random_models import SIZES, random_model
from shared import Benchmark, Case, Report, environment, median_seconds, table
from torch import Tensor

import draftlens
from draftlens.core.tree import attention_mask
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.verify import run_stock

WIDTHS = (2, 6, 26)
CONTEXTS = (450, 4500, 16000)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROMPT = 4000
NEW = 48


@contextmanager
def with_copies(backbone: Backbone) -> Iterator[None]:
    """Let transformers' `sdpa` compute all attention, as the model's modules do."""
    backbone.has_groups = False
    try:
        yield
    finally:
        backbone.has_groups = True


def passes(backbone: Backbone, context: int, repeats: int) -> dict[str, Any]:
    """Median seconds of passes after random cached tokens, and how far logits move."""
    cache = filled_cache(backbone, context)
    found: dict[str, Any] = {}
    for width in WIDTHS:

        def without(width: int = width) -> Tensor:
            return logits_of(backbone, cache, context, width)

        def copied(width: int = width) -> Tensor:
            with with_copies(backbone):
                return without(width)

        cases: dict[str, Case] = {"copies": copied, "groups": without}
        moved = float((copied() - without()).abs().max())
        found[str(width)] = {**median_seconds(cases, repeats), "moved": moved}
    return found


def filled_cache(backbone: Backbone, context: int) -> KVCache:
    """A cache of random keys and values, so that no long prompt has to be read."""
    config = backbone.text_config
    heads = config.num_key_value_heads
    width = config.hidden_size // config.num_attention_heads
    generator = torch.Generator().manual_seed(0)
    cache = KVCache(config.num_hidden_layers, 1, context + max(WIDTHS))
    with torch.inference_mode():
        for layer in range(config.num_hidden_layers):
            size = (2, 1, heads, context, width)
            keys, values = torch.randn(size, generator=generator).to(backbone.dtype)
            cache.update(keys, values, layer)
    cache.advance(context)
    return cache


def logits_of(backbone: Backbone, cache: KVCache, context: int, width: int) -> Tensor:
    """Logits after some tokens, ``[1, T, V]``, which are forgotten again."""
    tokens = torch.arange(5, 5 + width)[None]
    positions = torch.arange(context, context + width)[None]
    mask = attention_mask(cache.lengths, torch.ones(width, width, dtype=torch.bool).tril())
    logits = backbone.forward(tokens, positions, cache, mask)
    cache.truncate([context])
    return logits


def answers(layers: int, repeats: int) -> dict[str, Any]:
    """Median seconds of an answer after a long prompt by chains of 5 draft tokens that are all
    right, and by stock `generate`; seconds of decoding beside them."""
    backbone = Backbone(random_model("0.5B", layers))
    ids = torch.randint(5, 8000, (1, PROMPT), generator=torch.Generator().manual_seed(1))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    method = draftlens.HSD(num_speculative_tokens=5, max_branches=1)
    tokens: dict[str, Any] = {"stock": run_stock(backbone, given, **options).tokens}
    references = tokens["stock"]
    decoding: dict[str, list[float]] = {"stock": [], "copies": [], "groups": []}

    def stock() -> None:
        run = run_stock(backbone, given, **options)
        tokens["stock"] = run.tokens
        decoding["stock"].append(run.decode)

    def groups(name: str = "groups") -> None:
        result = draftlens.generate(
            backbone, given, method=method, references=references, **options
        )
        tokens[name] = result.tokens
        decoding[name].append(result.stats.e2e - result.stats.ttft)

    def copies() -> None:
        with with_copies(backbone):
            groups("copies")

    whole = median_seconds({"stock": stock, "copies": copies, "groups": groups}, repeats)
    medians = {name: sorted(seconds)[len(seconds) // 2] for name, seconds in decoding.items()}
    identical = tokens["stock"] == tokens["copies"] == tokens["groups"]
    return {"whole": whole, "decoding": medians, "identical": identical}


def measure(args: argparse.Namespace) -> Report:
    """Passes of all sizes, and answers."""
    rows = []
    for size in args.sizes:
        for dtype in DTYPES:
            backbone = Backbone(random_model(size, args.layers).to(DTYPES[dtype]))
            for context in CONTEXTS:
                row = {"size": size, "dtype": dtype, "context": context}
                rows.append({**row, **passes(backbone, context, args.repeats)})
                print(rows[-1], flush=True)
    return {
        "environment": {**environment(args), "layers": args.layers, "max_new_tokens": NEW},
        "passes": rows,
        "answers": [{"size": "0.5B", **answers(args.layers, args.repeats)}],
    }


def page(report: Report) -> list[str]:
    """Passes by width, and answers."""
    columns: dict[str, Any] = {
        "layers of": "{size}",
        "dtype": "{dtype}",
        "cached tokens": "{context}",
        **{f"{width} tokens": partial(faster, str(width)) for width in WIDTHS},
    }
    rows = [
        {
            **row,
            "way": way,
            "whole": row["whole"]["stock"] / row["whole"][way],
            "decode": row["decoding"]["stock"] / row["decoding"][way],
        }
        for row in report["answers"]
        for way in ("copies", "groups")
    ]
    head = {
        "layers of": "{size}",
        "end to end, over stock": "{whole:.2f}",
        "decoding, over stock": "{decode:.2f}",
        "way": "{way}",
        "identical": "{identical}",
    }
    moved = max(row[str(width)]["moved"] for row in report["passes"] for width in WIDTHS)
    return [
        "How many times as fast passes are without copies of the keys (milliseconds with and "
        f"without), {report['environment']['layers']} layers.",
        table(report["passes"], columns),
        f"Largest distance between the logits: {moved:g}. Answers of {NEW} tokens after {PROMPT}, "
        "by chains of 5 draft tokens that are all right:",
        table(rows, head),
    ]


def faster(width: str, row: Mapping[str, Any]) -> str:
    """Quotient and milliseconds of a pass."""
    copies, groups = row[width]["copies"], row[width]["groups"]
    return f"{copies / groups:.2f} ({1e3 * copies:.0f}, {1e3 * groups:.0f})"


BENCHMARK = Benchmark(
    "grouped",
    __doc__,
    "Grouped queries under a mask",
    measure,
    page,
    {
        "--repeats": 5,
        "--layers": 4,
        "--sizes": {"nargs": "+", "choices": list(SIZES), "default": ["0.5B", "1.5B", "3B"]},
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
