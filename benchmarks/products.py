"""Passes of models of real sizes (random weights) with products by MKL and by oneDNN, how far their
logits move, and answers of a batch beside stock `generate`.

    python benchmarks/products.py --layers 4
    python benchmarks/products.py --kernels  # single products, also of prepacked matrices
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from random_models import by_mkl, random_model
from shared import (
    Benchmark,
    Case,
    PrefilledPrompt,
    Report,
    environment,
    grid,
    interleaved_seconds,
    median_seconds,
    table,
)
from torch import Tensor
from torch.nn.functional import linear

import draftlens
from draftlens.core.tree import attention_mask
from draftlens.models.adapter import Backbone
from draftlens.models.products import exchanged_product, product
from draftlens.verify import run_stock

WIDTHS = (1, 3, 4, 6, 9, 12, 16, 26, 64)
CONTEXT = 300
BATCHES = (4, 12)
KERNELS = ("MKL", "oneDNN", "oneDNN, prepacked", "oneDNN, exchanged")
MATRICES = ((4864, 896), (1536, 8960))
"""Outputs and inputs of large matrices of 0.5B and 1.5B."""
ROWS = (1, 2, 3, 4, 6, 9, 16, 26)
CACHE_ELEMENTS = 12_000_000
"""Elements of matrices that no cache holds."""
QUESTION = 64
NEW = 32


@torch.inference_mode()
def kernel_seconds(height: int, width: int, rows: int, repeats: int) -> dict[str, float]:
    """Median seconds of a product by kernel."""
    states = torch.randn(1, rows, width)
    count = max(2, CACHE_ELEMENTS // (height * width) + 1)
    plain = [torch.randn(height, width) for _ in range(count)]
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in plain]
    kernels: dict[str, tuple[Callable[..., Tensor], Sequence[Tensor]]] = {
        "MKL": (linear, plain),
        "oneDNN": (product, plain),
        "oneDNN, prepacked": (product, packed),
        "oneDNN, exchanged": (exchanged_product, plain),
    }

    def case(kernel: Callable[..., Tensor], weights: Sequence[Tensor]) -> Case:
        def run() -> None:
            for weight in weights:
                kernel(states, weight, None)

        return run

    cases = {name: case(*of) for name, of in kernels.items()}
    times = interleaved_seconds(cases, repeats, time.process_time)
    return {name: statistics.median(seconds) / count for name, seconds in times.items()}


def passes(backbone: Backbone, width: int, repeats: int) -> dict[str, float]:
    """Median seconds of passes over a number of tokens after a prompt."""
    prompt = backbone.text_prompt(torch.ones(1, CONTEXT, dtype=torch.long))
    by_onednn = PrefilledPrompt.of(backbone, prompt, room=WIDTHS[-1] + 1).chain_case(width)

    def modules() -> None:
        with by_mkl(backbone):
            by_onednn()

    cases: dict[str, Case] = {"mkl": modules, "onednn": by_onednn}
    return {"width": width, **median_seconds(cases, repeats)}


def moved(backbone: Backbone, width: int) -> dict[str, float]:
    """How far the logits of a pass lie from those of passes over one token each."""
    prompt = backbone.text_prompt(torch.ones(1, CONTEXT, dtype=torch.long))
    tokens = torch.randint(8192, (1, width), generator=torch.Generator().manual_seed(0))
    single = logits_of(backbone, prompt, tokens, 1)
    found = {"width": width, "largest": float(single.abs().max())}
    with by_mkl(backbone):
        found["mkl"] = float((logits_of(backbone, prompt, tokens, width) - single).abs().max())
    found["onednn"] = float((logits_of(backbone, prompt, tokens, width) - single).abs().max())
    return found


def logits_of(backbone: Backbone, prompt: Any, tokens: Tensor, width: int) -> Tensor:
    """Logits after tokens that follow a prompt, ``[1, T, V]``, by passes over some of them."""
    cache = backbone.new_cache(prompt, room=tokens.shape[1])
    backbone.prefill(prompt, cache)
    parts = []
    for part in torch.split(torch.arange(tokens.shape[1]), width):
        mask = attention_mask(cache.lengths, torch.ones(len(part), len(part)).bool().tril())
        parts.append(backbone.forward(tokens[:, part], prompt.positions(part[None]), cache, mask))
    return torch.cat(parts, 1)


def answers(backbone: Backbone, rows: int, repeats: int) -> dict[str, Any]:
    """Median seconds of answers to a batch without a draft, end to end, and of stock `generate`."""
    ids = torch.randint(5, 8000, (rows, QUESTION), generator=torch.Generator().manual_seed(1))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    tokens: dict[str, Any] = {}

    def stock() -> None:
        tokens["stock"] = run_stock(backbone, given, **options).tokens

    def plain() -> None:
        tokens["plain"] = draftlens.generate(backbone, given, **options).tokens

    seconds = median_seconds({"stock": stock, "plain": plain}, repeats)
    return {"rows": rows, **seconds, "identical": tokens["stock"] == tokens["plain"]}


def measure(args: argparse.Namespace) -> Report:
    """Passes, logits and batches by size, or single products in a report of their own."""
    if args.kernels:
        args.out = args.out.with_name(f"{args.out.name}_kernels")
        return {
            "rows": [
                {
                    "matrix": f"{height} x {width}",
                    "rows": count,
                    **kernel_seconds(height, width, count, args.repeats),
                }
                for (height, width), count in itertools.product(MATRICES, ROWS)
            ]
        }
    sizes = {}
    for name in ("0.5B", "1.5B", "3B"):
        backbone = Backbone(random_model(name, args.layers))
        sizes[name] = {
            "passes": [passes(backbone, width, args.repeats) for width in WIDTHS],
            "moved": [moved(backbone, width) for width in (6, 26)],
            "batches": [answers(backbone, rows, args.repeats // 2) for rows in BATCHES],
        }
        print(name, sizes[name], flush=True)
    facts = {**environment(args), "layers": args.layers, "max_new_tokens": NEW}
    return {"environment": facts, "sizes": sizes}


def page(report: Report) -> list[str]:
    """Tables by size, or single products."""
    if "rows" in report:
        return kernels_page(report["rows"])
    sizes = report["sizes"]

    def times(name: str, number: int) -> tuple[float, float]:
        row = next(row for row in sizes[name]["passes"] if row["width"] == number)
        return row["mkl"], row["onednn"]

    def speed(name: str, number: int) -> str:
        mkl, onednn = times(name, number)
        return f"{mkl / onednn:.2f}"

    def both(name: str, number: int) -> str:
        mkl, onednn = times(name, number)
        return f"{1e3 * mkl:.0f} / {1e3 * onednn:.0f}"

    widths = [row["width"] for row in next(iter(sizes.values()))["passes"]]
    distances = {
        "size": "{size}",
        "tokens": "{width}",
        "MKL": "{mkl:.1e}",
        "oneDNN": "{onednn:.1e}",
        "largest logit": "{largest:.1f}",
    }
    batches: dict[str, Any] = {
        "size": "{size}",
        "rows": "{rows}",
        "times as fast as stock": lambda row: f"{row['stock'] / row['plain']:.2f}",
        "identical": "{identical}",
    }

    def rows(part: str) -> list[dict[str, Any]]:
        return [{"size": name, **row} for name, of in sizes.items() for row in of[part]]

    return [
        f"How many times as fast passes are with oneDNN, by tokens, after {CONTEXT} cached ones.",
        grid("size", sizes, widths, speed),
        "The same in milliseconds, MKL and oneDNN.",
        grid("size", sizes, widths, both),
        "Largest distance of logits from those of passes over one token each.",
        table(rows("moved"), distances),
        f"A batch without a draft, {NEW} new tokens after {QUESTION}, end to end.",
        table(rows("batches"), batches),
    ]


def kernels_page(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Milliseconds of single products."""
    columns: dict[str, Any] = {"matrix": "{matrix}", "kernel": "{kernel}"}
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        for kernel in KERNELS:
            own = cells.setdefault(
                (row["matrix"], kernel), {"matrix": row["matrix"], "kernel": kernel}
            )
            own[str(row["rows"])] = row[kernel]
            columns[str(row["rows"])] = partial(milliseconds, str(row["rows"]))
    return [
        "Milliseconds of CPU time by number of rows, medians; every call has another matrix.",
        table(cells.values(), columns),
    ]


def milliseconds(column: str, row: Mapping[str, Any]) -> str:
    """A cell in milliseconds."""
    return f"{1e3 * row[column]:.2f}"


BENCHMARK = Benchmark(
    "products",
    __doc__,
    "Products of a few rows",
    measure,
    page,
    {"--repeats": 9, "--layers": 8, "--kernels": False},
)


if __name__ == "__main__":
    BENCHMARK.main()
