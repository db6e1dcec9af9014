"""Whole answers with SpecVLM behind prompts that one process or two have read, end to end."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from typing import Any

from draftlens_lab.measure.statistics import format_quartiles, quartiles
from draftlens_lab.measure.tables import markdown_table
from shared import (
    Answerer,
    Run,
    argument_parser,
    backbones,
    caption_sample,
    configure,
    engine_answerer,
    environment,
    environment_line,
    rotated,
    sample_inputs,
    save,
    stock_answerer,
)

from draftlens import load
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.prefill.spava.hosts import ALONE, Hosts, set_hosts
from draftlens.prefill.spava.processes.launch import start
from spava_parts.asked import FRAMES

PREDICTION = """\
Written before the first run, with first tokens and single passes known. The prefill is most of an
answer of 64 tokens at 4,097 visual tokens and nearly all at 16,001, so the gains over stock are
those of first tokens, a little more by SpecVLM: 1.3 with a full prefill, 1.8 with 16 blocks in one
process and 2.6 with two processes at 4,097; 1.2, 2.2 and 3.7 at 16,001. Shards lose a tenth of
that at 4,097 and gain nothing at 16,001, where few passes are left."""

STOCK = "stock generate"
BLOCKS = {"name": "spava", "blocks": 16}


def main() -> None:
    """Time answers, interleaved, and write the report."""
    args = parse()
    configure(args.threads)
    engine = load(device="cpu", calibrate=False)
    target, _ = backbones(engine)
    hosts = start(target, 2, args.threads)
    set_hosts(target, ALONE)
    file = args.out.with_suffix(".json")
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    rows = [row for row in rows if row["length"] not in args.lengths]
    answerers = configurations(engine, hosts)
    # The same work at every length: beyond what it has learned, the target soon falls silent.
    new = args.max_new_tokens
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
    for length in args.lengths:
        inputs = sample_inputs(engine, caption_sample(0), FRAMES[length])
        rows += [{"length": length, **row} for row in measured(answerers, inputs, options, args)]
    rows.sort(key=lambda row: row["length"])
    report = {"environment": environment(args), "prediction": PREDICTION, "rows": rows}
    save(args.out, report, page(report))
    print(page(report))


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argument_parser(__doc__, "benchmarks/results/spava_answers", repeats=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4097], choices=[*FRAMES])
    parser.set_defaults(max_new_tokens=64)
    return parser.parse_args()


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


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# Answers behind long prompts", "", environment_line(report["environment"]), ""]
    lines += ["## Prediction", "", report["prediction"], "", "## Seconds, end to end", ""]
    rows = [
        [
            f"{row['length']:,}",
            row["way"],
            f"{statistics.median(row['seconds']):.2f}",
            format_quartiles(quartiles(row["over_stock"])),
            f"{statistics.median(row['decode']):.2f}",
            f"{row['per_pass']:.2f}",
            "yes" if row["as_stock"] else "no",
        ]
        for row in report["rows"]
    ]
    columns = (
        "visual tokens",
        "way",
        "seconds",
        "over stock",
        "of them decoding",
        "tokens a pass",
        "the tokens of stock",
    )
    return "\n".join([*lines, *markdown_table(columns, rows, text_columns=(1, 6)), ""])
