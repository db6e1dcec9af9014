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
from typing import Any

import torch
from draftlens_lab.measure.tables import markdown_table
from random_models import by_mkl, random_model
from shared import (
    Case,
    PrefilledPrompt,
    argument_parser,
    configure,
    environment,
    environment_line,
    interleaved_seconds,
    median_seconds,
    save,
)
from torch import Tensor
from torch.nn.functional import linear

import draftlens
from draftlens.core.tree import attention_mask
from draftlens.models.adapter import Backbone
from draftlens.models.products import exchanged_product, product
from draftlens.verify import run_stock

PREDICTION = """Written after trying single products and three sizes by hand: 1.2 to 1.5 times as
fast at 4 and 6 rows, 1.5 to 2 at 9 and 12, 1.1 to 1.25 at 16 and 26, 1.05 to 1.15 at 64; as fast as
before at 1 and 3 rows, which do not use oneDNN. A batch of 12 rows without a draft takes 0.55 of
the time of stock `generate`, most of which is decoding."""

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


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/products", repeats=9)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--kernels", action="store_true")
    args = parser.parse_args()
    configure(args.threads)
    if args.kernels:
        measure_kernels(args)
        return
    report: dict[str, Any] = {
        "environment": {**environment(args), "layers": args.layers, "max_new_tokens": NEW},
        "prediction": PREDICTION,
        "sizes": {},
    }
    for name in ("0.5B", "1.5B", "3B"):
        backbone = Backbone(random_model(name, args.layers))
        report["sizes"][name] = {
            "passes": [passes(backbone, width, args.repeats) for width in WIDTHS],
            "moved": [moved(backbone, width) for width in (6, 26)],
            "batches": [answers(backbone, rows, args.repeats // 2) for rows in BATCHES],
        }
        print(name, report["sizes"][name], flush=True)
    page = markdown(report)
    save(args.out, report, page)
    print(page)


def measure_kernels(args: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    for (height, width), count in itertools.product(MATRICES, ROWS):
        seconds = kernel_seconds(height, width, count, args.repeats)
        rows.append({"matrix": f"{height} x {width}", "rows": count, **seconds})
    times = [
        [row["matrix"], name, *(f"{1e3 * each[name]:.2f}" for each in rows if same(each, row))]
        for row in rows[:: len(ROWS)]
        for name in KERNELS
    ]
    facts = environment(args)
    paragraphs = [
        "# Single products of a few rows",
        "Milliseconds of CPU time by number of rows, medians; every call has another matrix.",
        "\n".join(markdown_table(("matrix", "kernel", *map(str, ROWS)), times)),
        f"Environment: {environment_line(facts)}.",
    ]
    page = "\n\n".join(paragraphs) + "\n"
    out = args.out.with_name(f"{args.out.name}_kernels")
    save(out, {"environment": facts, "rows": rows}, page)
    print(page)


def same(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(row["matrix"] == other["matrix"])


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


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    sizes = report["sizes"]
    width = [str(row["width"]) for row in next(iter(sizes.values()))["passes"]]
    times = [
        [name, *(f"{row['mkl'] / row['onednn']:.2f}" for row in of["passes"])]
        for name, of in sizes.items()
    ]
    milliseconds = [
        [name, *(f"{1e3 * row['mkl']:.0f} / {1e3 * row['onednn']:.0f}" for row in of["passes"])]
        for name, of in sizes.items()
    ]
    distances = [
        [
            name,
            str(row["width"]),
            *(f"{row[key]:.1e}" for key in ("mkl", "onednn")),
            f"{row['largest']:.1f}",
        ]
        for name, of in sizes.items()
        for row in of["moved"]
    ]
    batches = [
        [name, str(row["rows"]), f"{row['stock'] / row['plain']:.2f}", str(row["identical"])]
        for name, of in sizes.items()
        for row in of["batches"]
    ]
    paragraphs = [
        "# Products of a few rows",
        f"How many times as fast passes are with oneDNN, by tokens, after {CONTEXT} cached ones.",
        "\n".join(markdown_table(("size", *width), times)),
        "The same in milliseconds, MKL and oneDNN.",
        "\n".join(markdown_table(("size", *width), milliseconds)),
        "Largest distance of logits from those of passes over one token each.",
        "\n".join(markdown_table(("size", "tokens", "MKL", "oneDNN", "largest logit"), distances)),
        f"A batch without a draft, {NEW} new tokens after {QUESTION}, end to end.",
        "\n".join(markdown_table(("size", "rows", "times as fast as stock", "identical"), batches)),
        f"Environment: {environment_line(report['environment'])}.",
        f"Prediction. {' '.join(report['prediction'].split())}",
    ]
    return "\n\n".join(paragraphs) + "\n"


if __name__ == "__main__":
    main()
