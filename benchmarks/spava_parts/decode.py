"""Milliseconds of a pass after a long prompt, for one token and for a tree of draft tokens."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

from draftlens_lab.measure.statistics import quartiles
from draftlens_lab.measure.tables import markdown_table
from shared import (
    PrefilledPrompt,
    argument_parser,
    backbones,
    caption_sample,
    configure,
    encoded_prompt,
    environment,
    environment_line,
    interleaved_seconds,
    sample_inputs,
    save,
)

from draftlens import load
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import PrefillReading, make_prefill
from draftlens.prefill.spava.hosts import ALONE, Hosts, set_hosts
from draftlens.prefill.spava.processes.launch import start
from spava_parts.asked import FRAMES

PREDICTION = """\
Written before the first run. Keys and values of the whole prompt are on rank 0 once it has been
read, so a pass behind a prompt that two processes have read takes as long as behind one that one
process has read. A pass of 26 nodes takes twice as long as one of a single token at 1,025 visual
tokens and three times at 16,001, where reading the keys is most of the work. Added before passes
over shards were measured: they cost 20 layers of two exchanges, 4 ms, and halve the time of
attention, so they lose at 1,025 and 4,097 tokens and gain a quarter at 16,001."""

NODES = (1, 26)
"""Tokens of a pass: plain decoding, and a chain as long as a tree of SpecVLM's size."""

Reader = Callable[[Backbone, Prompt, Hosts], PrefilledPrompt]
"""Reads a prompt, after which passes are timed."""


def single(backbone: Backbone, prompt: Prompt, hosts: Hosts) -> PrefilledPrompt:
    """One process reads and decodes."""
    return PrefilledPrompt.of(backbone, prompt)


def by_two(decode: str) -> Reader:
    """Two processes read; keys and values stay with them, or move to rank 0."""
    prefill = make_prefill({"name": "spava", "decode": decode})

    def read(backbone: Backbone, prompt: Prompt, hosts: Hosts) -> PrefilledPrompt:
        set_hosts(backbone, hosts)
        try:
            cache = prefill.new_cache(backbone, prompt, 60)
            prefill.run(backbone, PrefillReading(prompt, cache))
        finally:
            set_hosts(backbone, ALONE)
        return PrefilledPrompt(backbone, prompt, cache)

    return read


WAYS: Mapping[str, Reader] = {
    "single": single,
    "gathered": by_two("gathered"),
    "sharded": by_two("sharded"),
}
"""Where keys and values are."""


def main() -> None:
    """Time passes, interleaved, and write the report."""
    args = parse()
    configure(args.threads)
    engine = load(device="cpu", method="plain", calibrate=False)
    target, _ = backbones(engine)
    hosts = start(target, 2, args.threads)
    set_hosts(target, ALONE)
    file = args.out.with_suffix(".json")
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    rows = [row for row in rows if row["length"] not in args.lengths]
    for length in args.lengths:
        inputs = sample_inputs(engine, caption_sample(0), FRAMES[length])
        prompt = encoded_prompt(target, inputs.target)
        cases = {}
        for name, reader in WAYS.items():
            read = reader(target, prompt, hosts)
            for nodes in NODES:
                cases[f"{name}, {nodes}"] = read.chain_case(nodes)
        seconds = interleaved_seconds(cases, args.repeats)
        for name in WAYS:
            for nodes in NODES:
                times = [1e3 * one for one in seconds[f"{name}, {nodes}"]]
                row = {"length": length, "way": name, "nodes": nodes}
                rows.append(row | {"milliseconds": quartiles(times)})
    rows.sort(key=lambda row: row["length"])
    report = {"environment": environment(args), "prediction": PREDICTION, "rows": rows}
    save(args.out, report, page(report))
    print(page(report))


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argument_parser(__doc__, "benchmarks/results/spava_decode", repeats=15)
    parser.add_argument("--lengths", type=int, nargs="+", default=[*FRAMES], choices=[*FRAMES])
    return parser.parse_args()


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# Passes behind long prompts", "", environment_line(report["environment"]), ""]
    lines += ["## Prediction", "", report["prediction"], "", "## Milliseconds of a pass", ""]
    lines += ["Medians with quartiles.", ""]
    rows = []
    for row in report["rows"]:
        times = row["milliseconds"]
        spread = f"{times['median']:.1f} ({times['q1']:.1f} to {times['q3']:.1f})"
        rows.append([f"{row['length']:,}", row["way"], str(row["nodes"]), spread])
    columns = ["visual tokens", "keys and values", "tokens of the pass", "ms"]
    return "\n".join([*lines, *markdown_table(columns, rows, text_columns=(1,)), ""])
