"""Passes over several tokens of models with grouped queries, after many cached ones: with a copy
of the keys for every head of queries, as transformers' `sdpa` makes under a mask, and without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from draftlens_lab.measure.tables import markdown_table
from random_models import SIZES, random_model
from shared import (
    Case,
    argument_parser,
    configure,
    environment,
    environment_line,
    median_seconds,
    save,
)
from torch import Tensor

import draftlens
from draftlens.core.tree import attention_mask
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.verify import run_stock

PREDICTION = """Written after trying single attentions: with the layers of 7B after 4,500 tokens
the attention of one layer takes 69 ms with copies and 9 without, for six tokens in float32. The
products of such a layer take about 60 ms, so passes are twice as fast there, 1.2 times after 450
tokens and four times after 16,000; in bfloat16 and with 26 tokens less. Logits are the same bit by
bit. Written after a first run, for answers with the layers of 0.5B: chains of 5 that are right are
decoded 2 times as fast as stock with copies, and 3.5 times without."""

OUTCOME = """After 4,500 tokens passes over six tokens are 1.4 to 2.3 times as fast, after 16,000
1.9 to 3.7 times, and after 450 a twentieth: as predicted for the layers of 0.5B in float32, less
for larger ones, whose products cost more. Not a bit of the logits moved. Right chains of 5 are
decoded 2.5 times as fast as stock with copies, and 3.7 times without."""

WIDTHS = (2, 6, 26)
CONTEXTS = (450, 4500, 16000)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROMPT = 4000
NEW = 48


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/grouped", repeats=5)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=["0.5B", "1.5B", "3B"])
    args = parser.parse_args()
    configure(args.threads)
    report: dict[str, Any] = {
        "environment": {**environment(args), "layers": args.layers, "max_new_tokens": NEW},
        "prediction": PREDICTION,
        "passes": [],
        "answers": [],
    }
    for size in args.sizes:
        for dtype in DTYPES:
            backbone = Backbone(random_model(size, args.layers).to(DTYPES[dtype]))
            for context in CONTEXTS:
                row = {"size": size, "dtype": dtype, "context": context}
                report["passes"].append({**row, **passes(backbone, context, args.repeats)})
                print(report["passes"][-1], flush=True)
    report["answers"].append({"size": "0.5B", **answers(args.layers, args.repeats)})
    page = markdown(report)
    save(args.out, report, page)
    print(page)


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


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    columns = ("layers of", "dtype", "cached tokens", *(f"{width} tokens" for width in WIDTHS))
    passes = [
        [row["size"], row["dtype"], str(row["context"]), *(_faster(row[str(w)]) for w in WIDTHS)]
        for row in report["passes"]
    ]
    moved = max(row[str(width)]["moved"] for row in report["passes"] for width in WIDTHS)
    answers = [
        [
            row["size"],
            f"{row['whole']['stock'] / row['whole'][way]:.2f}",
            f"{row['decoding']['stock'] / row['decoding'][way]:.2f}",
            way,
            str(row["identical"]),
        ]
        for row in report["answers"]
        for way in ("copies", "groups")
    ]
    head = ("layers of", "end to end, over stock", "decoding, over stock", "way", "identical")
    paragraphs = [
        "# Grouped queries under a mask",
        "How many times as fast passes are without copies of the keys (milliseconds with and "
        f"without), {report['environment']['layers']} layers.",
        "\n".join(markdown_table(columns, passes, text_columns=(0, 1))),
        f"Largest distance between the logits: {moved:g}.",
        f"Answers of {NEW} tokens after {PROMPT}, by chains of 5 draft tokens that are all right.",
        "\n".join(markdown_table(head, answers, text_columns=(0, 3, 4))),
        f"Environment: {environment_line(report['environment'])}.",
        f"Prediction. {' '.join(report['prediction'].split())}",
        f"Outcome. {' '.join(OUTCOME.split())}",
    ]
    return "\n\n".join(paragraphs) + "\n"


def _faster(found: Mapping[str, float]) -> str:
    ratio = found["copies"] / found["groups"]
    return f"{ratio:.2f} ({1e3 * found['copies']:.0f}, {1e3 * found['groups']:.0f})"


if __name__ == "__main__":
    main()
