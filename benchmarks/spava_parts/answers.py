"""Whole answers with SpecVLM behind prompts that one process or two have read, end to end."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

from draftlens_lab.measure.statistics import format_quartiles, quartiles
from shared import (
    Answerer,
    Benchmark,
    Report,
    Run,
    backbones,
    caption_sample,
    engine_answerer,
    report_of,
    rotated,
    sample_inputs,
    stock_answerer,
    table,
)

from draftlens import load
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.prefill.spava.hosts import ALONE, Hosts, set_hosts
from draftlens.prefill.spava.processes.launch import start
from spava_parts.asked import FRAMES

STOCK = "stock generate"
BLOCKS = {"name": "spava", "blocks": 16, "select": "query"}


def configurations(engine: Engine, hosts: Hosts) -> dict[str, Answerer]:
    """Name to a function that answers a prompt."""
    target, _ = backbones(engine)
    ways = {
        STOCK: stock_answerer(target),
        "plain": engine_answerer(engine, "plain"),
        "specvlm": engine_answerer(engine, "specvlm"),
        "plain, 16 blocks": engine_answerer(engine, {"method": "plain", "prefill": BLOCKS}),
        "specvlm, 16 blocks": engine_answerer(engine, {"method": "specvlm", "prefill": BLOCKS}),
    }
    for decode in ("gathered", "sharded", "auto"):
        prefill = {**BLOCKS, "decode": decode}
        answer = engine_answerer(engine, {"method": "specvlm", "prefill": prefill})
        name = f"specvlm, 16 blocks, 2 processes, {decode}"
        ways[name] = _with_hosts(engine, hosts, answer)
    return ways


def _with_hosts(engine: Engine, hosts: Hosts, answer: Answerer) -> Answerer:
    target, _ = backbones(engine)

    def answer_with_hosts(inputs: Inputs, options: dict[str, Any]) -> Run:
        set_hosts(target, hosts)
        try:
            return answer(inputs, options)
        finally:
            set_hosts(target, ALONE)

    return answer_with_hosts


def measured(
    answerers: Mapping[str, Answerer],
    inputs: Inputs,
    options: dict[str, Any],
    args: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Seconds of each way, interleaved.

    Raises:
        AssertionError: the tokens of a way are not those of plain decoding on the same prefill.
    """
    runs: dict[str, list[Run]] = {name: [] for name in answerers}
    for repeat in range(args.repeats):
        for name in rotated(list(answerers), repeat):
            runs[name].append(answerers[name](inputs, options))
    stock = runs[STOCK][0]["tokens"]
    in_blocks = runs["plain, 16 blocks"][0]["tokens"]
    for name, found in runs.items():
        expected = in_blocks if "16 blocks" in name else stock
        assert all(run["tokens"] == expected for run in found), name
    return [
        {
            "way": name,
            "seconds": [run["e2e"] for run in found],
            "over_stock": [
                theirs["e2e"] / run["e2e"] for theirs, run in zip(runs[STOCK], found, strict=True)
            ],
            "decode": [run["decode"] for run in found],
            "per_pass": found[0].get("mean_acceptance_length", 1.0),
            "as_stock": found[0]["tokens"] == stock,
        }
        for name, found in runs.items()
    ]


def measure(args: argparse.Namespace) -> Report:
    """Rows of the lengths that are asked for, beside others of an earlier run."""
    engine = load(device="cpu", calibrate=False)
    target, _ = backbones(engine)
    hosts = start(target, 2, args.threads)
    set_hosts(target, ALONE)
    rows = report_of(args).get("rows", [])
    rows = [row for row in rows if row["length"] not in args.lengths]
    answerers = configurations(engine, hosts)
    # The same work at every length: beyond what it has learned, the target soon falls silent.
    new = args.max_new_tokens
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
    for length in args.lengths:
        inputs = sample_inputs(engine, caption_sample(0), FRAMES[length])
        rows += [{"length": length, **row} for row in measured(answerers, inputs, options, args)]
    return {"rows": sorted(rows, key=lambda row: row["length"])}


def page(report: Report) -> list[str]:
    """Seconds by length and way."""
    columns: dict[str, Any] = {
        "visual tokens": "{length:,}",
        "way": "{way}",
        "seconds": lambda row: f"{statistics.median(row['seconds']):.2f}",
        "over stock": lambda row: format_quartiles(quartiles(row["over_stock"])),
        "of them decoding": lambda row: f"{statistics.median(row['decode']):.2f}",
        "tokens a pass": "{per_pass:.2f}",
        "the tokens of stock": lambda row: "yes" if row["as_stock"] else "no",
    }
    return ["End to end.", table(report["rows"], columns)]


BENCHMARK = Benchmark(
    "spava_answers",
    __doc__,
    "Answers after long prompts",
    measure,
    page,
    {
        "--repeats": 3,
        "--lengths": {"type": int, "nargs": "+", "default": [4097], "choices": [*FRAMES]},
        "--max-new-tokens": 64,
    },
)
