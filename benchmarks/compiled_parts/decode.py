"""Answers of the embedded pair, decode only: by the modules, by compiled code, by stock `generate`,
and by stock `generate` with a static cache that transformers compiles."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

from engine import timed_answerer
from shared import (
    Answerer,
    Benchmark,
    Report,
    Run,
    backbones,
    caption_sample,
    engine_answerer,
    ratio_line,
    rotated,
    sample_inputs,
    stock_answerer,
    table,
)
from transformers import CompileConfig

import draftlens
from compiled_parts import by_modules
from draftlens.engine import Engine
from draftlens.inputs import Inputs

CHAIN = {"num_speculative_tokens": 5}
EAGLE = {"tree": "eagle"}
AUTO = {"tree": "auto"}


def configurations(engine: Engine, skip_stock_compiled: bool) -> dict[str, Answerer]:
    """Name to a function that answers a prompt."""
    target, _ = backbones(engine)
    config = CompileConfig(fullgraph=False, mode="default")
    config._compile_all_devices = True  # transformers compiles on GPUs only unless it is told so
    answerers = {
        "stock": stock_answerer(target),
        "plain, modules": _by_modules(engine, engine_answerer(engine, "plain")),
        "plain, compiled": timed_answerer(engine, "plain"),
        "chain, modules": _by_modules(engine, engine_answerer(engine, CHAIN)),
        "chain, compiled": timed_answerer(engine, CHAIN),
        "eagle, modules": _by_modules(engine, engine_answerer(engine, EAGLE)),
        "eagle, compiled": timed_answerer(engine, EAGLE),
        "auto, modules": _by_modules(engine, engine_answerer(engine, AUTO)),
        "auto, compiled": timed_answerer(engine, AUTO),
    }
    if not skip_stock_compiled:
        static = {"cache_implementation": "static", "compile_config": config}
        answerers["stock, compiled static cache"] = stock_answerer(target, **static)
    return answerers


def _by_modules(engine: Engine, answer: Answerer) -> Answerer:
    def answer_by_modules(inputs: Inputs, options: dict[str, Any]) -> Run:
        with by_modules(backbones(engine)):
            return answer(inputs, options)

    return answer_by_modules


def measured(
    answerers: Mapping[str, Answerer], inputs: Inputs, options: dict[str, Any], repeats: int
) -> dict[str, Any]:
    """Seconds of decoding of each configuration, interleaved, and whether its tokens are those of
    stock `generate`."""
    reference = answerers["stock"](inputs, options)["tokens"]
    figures: dict[str, Any] = {
        name: {"decode": [], "outside": [], "identical": True} for name in answerers
    }
    for answer in answerers.values():
        answer(inputs, options)
    for repeat in range(repeats):
        for name in rotated(list(answerers), repeat):
            run = answerers[name](inputs, options)
            figures[name]["decode"].append(run["decode"])
            figures[name]["outside"].append(run.get("outside"))
            figures[name]["identical"] &= run["tokens"] == reference
    return figures


def measure(args: argparse.Namespace) -> Report:
    """Runs of every configuration by number of frames."""
    engine = draftlens.load("embedded", device="cpu", compile=True)
    answerers = configurations(engine, args.skip_stock_compiled)
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    runs = {}
    for frames in args.frames:
        inputs = sample_inputs(engine, caption_sample(0), frames)
        runs[str(frames)] = measured(answerers, inputs, options, args.repeats)
    return {"runs": runs}


def page(report: Report) -> list[str]:
    """A table for each number of frames."""
    blocks = []
    for frames, runs in report["runs"].items():
        rows = [
            {
                **run,
                "name": name,
                "median": statistics.median(run["decode"]),
                "over stock": ratio_line(runs["stock"]["decode"], run["decode"]),
                "over modules": over_modules(runs, name),
                "share": outside(run),
            }
            for name, run in runs.items()
        ]
        columns = {
            "": "{name}",
            "decode, ms": "{median:.1ms}",
            "over stock": "{over stock}",
            "over modules": "{over modules}",
            "outside": "{share:.1%}",
            "identical": "{identical}",
        }
        blocks += [f"{frames} frames:", table(rows, columns)]
    return [
        *blocks,
        "Ratios are paired by repeat: median (quartiles). Outside: share of decode time in neither "
        "model's forward, mean.",
    ]


def over_modules(runs: Mapping[str, Any], name: str) -> str:
    """How many times as fast a compiled configuration is as by its modules."""
    if not name.endswith(", compiled"):
        return ""
    return ratio_line(runs[name.replace("compiled", "modules")]["decode"], runs[name]["decode"])


def outside(run: Mapping[str, Any]) -> float | None:
    """Mean share of the time outside forwards, where it was measured."""
    shares = [share for share in run["outside"] if share is not None]
    return statistics.mean(shares) if shares else None


BENCHMARK = Benchmark(
    "compiled_decode",
    __doc__,
    "Answers, decode only",
    measure,
    page,
    {"--repeats": 5, "--frames": [8, 64], "--skip-stock-compiled": False},
)
