"""What to run where a CUDA device is at hand: exactness first, then speed, in a bounded time.

    python -m benchmarks.gpu --minutes 8
    python -m benchmarks.gpu --device cpu --tiny  # the same paths, small, without a GPU

1. Every method on the embedded pair in float32, with TF32 off, against stock `generate`: tokens.
2. The same ways with inductor's code (without CUDA graphs, which draftlens does not make).
3. Speed with random weights of real shapes, drafted by a smaller model and by the target itself,
   all of whose draft tokens are accepted: what passes cost, not what a trained draft gains.

What does not fit into the time is skipped and named. Writes OUT.json and OUT.md, one table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # the scripts import one another by their names

import torch
from draftlens_lab.measure.tables import markdown_table
from random_models import random_model
from shared import (
    assisted_answerer,
    backbones,
    caption_sample,
    configure,
    engine_answerer,
    sample_inputs,
    save,
    stock_answerer,
)

import draftlens
from draftlens.models.adapter import Backbone
from draftlens.verify import run_stock

METHODS: Mapping[str, Any] = {
    "plain": "plain",
    "chain of 5": {"num_speculative_tokens": 5},
    "EAGLE's tree": {"tree": "eagle"},
    "auto": {"tree": "auto"},
    "specvlm": {"method": "specvlm"},
    "lookup": {"method": "lookup"},
    "hsd": {"method": "hsd"},
    "parallel": {"method": "parallelvlm"},
}
"""Ways of answering by name."""

STOCK = "stock generate"
SPEED_METHODS = ("plain", "chain of 5", "EAGLE's tree", "auto")


@dataclass
class Report:
    """Rows of the table, and what was left out.

    Args:
        end: when nothing further is begun, by `time.monotonic`.
    """

    end: float
    rows: list[dict[str, Any]] = field(default_factory=list)

    def run(self, part: str, way: str, answer: Callable[[], Mapping[str, Any]]) -> None:
        """Add a row: figures of an answer, or why there are none."""
        if time.monotonic() > self.end:
            row: dict[str, Any] = {"note": "no time left"}
        else:
            try:
                row = dict(answer())
            except Exception as error:  # the other ways are to be checked all the same
                row = {"note": f"{type(error).__name__}: {str(error)[:120]}"}
        self.rows.append({"part": part, "way": way, **row})
        print(self.rows[-1], flush=True)

    @property
    def has_failed(self) -> bool:
        """Whether a way gave other tokens than stock `generate`."""
        return any(row.get("equal") is False for row in self.rows)


def main() -> None:
    args = _parse()
    configure(args.threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    report = Report(time.monotonic() + 60 * args.minutes)
    check_exactness(report, args, compile=False)
    if not args.tiny:
        check_exactness(report, args, compile="inductor")
    for target, draft in (("tiny", "tiny"),) if args.tiny else (("3B", "0.5B"), ("7B", "0.5B")):
        measure_speed(report, args, target, draft)
    facts = {"device": device_name(args.device), "torch": torch.__version__, **vars(args)}
    facts["out"] = str(args.out)
    page = markdown(report, facts)
    save(args.out, {"environment": facts, "rows": report.rows}, page)
    print(page)
    if report.has_failed:
        raise SystemExit("some tokens differ from those of stock generate")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="one short answer of each way")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu"))
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device: use --device cpu --tiny")
    return args


def check_exactness(report: Report, args: argparse.Namespace, compile: Any) -> None:
    """Tokens of the embedded pair by every method, and the seconds they took."""
    part = f"embedded pair, {compile or 'modules'}"
    engine = draftlens.load("embedded", device=args.device, dtype="float32", compile=compile)
    target, draft = backbones(engine)
    inputs = sample_inputs(engine, caption_sample(0), 2 if args.tiny else 16)
    options: dict[str, Any] = {"max_new_tokens": 6 if args.tiny else 64, "do_sample": False}
    expected = run_stock(target, inputs.target, **options).tokens

    ways = {
        STOCK: stock_answerer(target),
        "stock assisted": assisted_answerer(target, draft, {}),
        **{name: engine_answerer(engine, method) for name, method in METHODS.items()},
    }
    for way, answer in ways.items():

        def timed(answer: Any = answer) -> dict[str, Any]:
            if not args.tiny:
                answer(inputs, dict(options))
            run = answer(inputs, dict(options))
            return {"equal": run["tokens"] == expected, **figures(run)}

        report.run(part, way, timed)


def measure_speed(report: Report, args: argparse.Namespace, target: str, draft: str) -> None:
    """Seconds of decoding with random weights of real shapes."""
    part = f"random weights, {target} and {draft}"
    models: dict[str, Backbone] = {}
    layers = 2 if args.tiny else 24

    def load() -> dict[str, Any]:
        for role, size in (("target", target), ("draft", draft)):
            model = random_model(size, layers).to(args.device)
            model.generation_config.eos_token_id = None
            models[role] = Backbone(model)
        return {"note": f"{layers} layers each"}

    report.run(part, "loading", load)
    if len(models) < 2:
        return
    ids = torch.arange(8 if args.tiny else 500, device=args.device)[None] + 5
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    options: dict[str, Any] = {"max_new_tokens": 6 if args.tiny else 64, "do_sample": False}
    expected: list[list[int]] = []

    def stock() -> dict[str, Any]:
        run = run_stock(models["target"], inputs, **options)
        expected[:] = run.tokens
        return {"equal": True, "e2e": run.e2e, "decode": run.decode}

    report.run(part, STOCK, stock)
    for name in SPEED_METHODS:
        for who, drafter in (("draft", models["draft"]), ("itself", models["target"])):
            if name == "plain" and who == "itself":
                continue

            def answer(name: str = name, drafter: Backbone = drafter) -> dict[str, Any]:
                result = draftlens.generate(
                    models["target"],
                    inputs,
                    draft=None if name == "plain" else drafter,
                    method=METHODS[name],
                    **options,
                )
                return {
                    "equal": result.tokens == expected,
                    **figures(result.stats.to_dict()),
                }

            way = name if name == "plain" else f"{name}, drafted by {who}"
            report.run(part, way, answer)
    models.clear()
    with suppress(AttributeError, RuntimeError):
        torch.cuda.empty_cache()


def figures(run: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds and tokens per pass of an answer."""
    found = {key: run[key] for key in ("e2e", "decode") if key in run}
    if "mean_acceptance_length" in run:
        found["tau"] = run["mean_acceptance_length"]
    return found


def device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def markdown(report: Report, facts: Mapping[str, Any]) -> str:
    """The report as a page with one table."""
    stock = {row["part"]: row.get("decode") for row in report.rows if row["way"] == STOCK}
    rows = []
    for row in report.rows:
        base, decode = stock.get(row["part"]), row.get("decode")
        rows.append(
            [
                row["part"],
                row["way"],
                {True: "yes", False: "NO", None: ""}[row.get("equal")],
                *(f"{row[key]:.3f}" if key in row else "" for key in ("e2e", "decode")),
                f"{base / decode:.2f}" if base and decode else "",
                f"{row['tau']:.2f}" if "tau" in row else "",
                row.get("note", ""),
            ]
        )
    head = ("models", "way", "tokens of stock", "s", "decode, s", "x stock, decode", "τ", "")
    line = ", ".join(f"{name} {value}" for name, value in facts.items())
    return "\n\n".join(
        ["# On one device", "\n".join(markdown_table(head, rows)), f"Environment: {line}.\n"]
    )


if __name__ == "__main__":
    main()
