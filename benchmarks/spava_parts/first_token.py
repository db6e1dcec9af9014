"""Seconds to the first token by one process and by two, one thread each, and by one with two."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from draftlens_lab.measure.statistics import quartiles
from draftlens_lab.measure.tables import markdown_table
from shared import (
    argument_parser,
    backbones,
    caption_sample,
    configure,
    encoded_prompt,
    environment,
    environment_line,
    rotated,
    sample_inputs,
    save,
)

from draftlens import load
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from draftlens.prefill.spava.config import SpavaPrefill
from draftlens.prefill.spava.hosts import ALONE, set_hosts
from draftlens.prefill.spava.processes.launch import start
from spava_parts import promised
from spava_parts.asked import FRAMES
from spava_parts.baselines.slowfast import SlowFast
from spava_parts.timed import TimedHosts

PREDICTION = """\
Written before the first run. Language-model FLOPs at 16,001 visual tokens promise two processes 2.0
(ring) and 5.5 (spava, 4 blocks), 7.0 with 16 blocks, and one process with 16 blocks 3.5. Rank 0
encodes all frames itself, about a tenth of the whole, so two processes reach 1.8, 3.6 and 4.1, one
process with 16 blocks 2.7. At 1,025 tokens nothing is gained: vision and the linear layers are
nearly everything, and collecting keys and values costs a few milliseconds. Two threads of one
process reach 1.6, less than two processes with a ring, since small layers do not divide well."""

EXPLAINED = """\
Medians; in brackets quartiles of the ratio to the full prefill by one process, repeat by repeat.
`promised`: by FLOPs of the language model on the busiest rank; `reached`: the same of the measured
seconds of the prefill, in relation to the promise. Of the prefill, `wait` is what rank 0 waits for
others inside the layers, `collect` and `deal` what it takes to move tokens there and keys and
values back, and the rest is slower computing: calls with few tokens, merges, other programs on the
same cores. `processor`: seconds of the processor that rank 0 spends on the prefill, which other
programs and waiting do not lengthen, and the share of the promise that is reached by these."""

REACHED = 0.8
"""Share of the promise that the issue asks for."""

PHASES = ("first", "vision", "prefill", "wait", "collect", "deal", "processor")


@dataclass(frozen=True)
class Case:
    """A way to the first token.

    Args:
        answer: seconds by phase.
        flops: of the language model on the busiest rank.
        processes, threads: how many; threads of each process.
    """

    answer: Callable[[Engine, Inputs], dict[str, float]]
    flops: Callable[[Backbone, Prompt], float]
    processes: int = 1
    threads: int = 1


def by_engine(prefill: Any) -> Callable[[Engine, Inputs], dict[str, float]]:
    """The engine's own answer of one token."""

    def answer(engine: Engine, inputs: Inputs) -> dict[str, float]:
        stats = engine.answer(inputs, prefill=prefill, max_new_tokens=1).run().stats
        phases = stats.phases
        return {
            "first": stats.ttft,
            "vision": phases.get("vision", 0.0),
            "prefill": phases.get("target_prefill", 0.0),
        }

    return answer


def by_slowfast(engine: Engine, inputs: Inputs) -> dict[str, float]:
    """Features are pooled before the language model reads them."""
    backbone = engine.target.backbone
    began = time.perf_counter()
    prompt = encoded_prompt(backbone, inputs.target)
    encoded = time.perf_counter()
    pooled = SlowFast().pooled(prompt)
    backbone.prefill(pooled, backbone.new_cache(pooled, 1)).argmax()
    ended = time.perf_counter()
    return {"first": ended - began, "vision": encoded - began, "prefill": ended - encoded}


def spava(blocks: int, processes: int = 1, threads: int = 1) -> Case:
    """SPAVA in so many blocks."""
    prefill = SpavaPrefill(blocks=blocks)

    def flops(target: Backbone, prompt: Prompt) -> float:
        return promised.by_spava(target, prompt, prefill, processes)

    return Case(by_engine(prefill), flops, processes, threads)


CASES: Mapping[str, Case] = {
    "full": Case(by_engine("full"), promised.full),
    "full, 2 threads": Case(by_engine("full"), lambda t, p: promised.full(t, p) / 2, threads=2),
    "slowfast": Case(by_slowfast, lambda t, p: promised.full(t, SlowFast().pooled(p))),
    "spava, 4 blocks": spava(4),
    "spava, 16 blocks": spava(16),
    "ring, 2 processes": Case(by_engine("ring"), lambda t, p: promised.by_ring(t, p, 2), 2),
    "spava, 4 blocks, 2 processes": spava(4, 2),
    "spava, 16 blocks, 2 processes": spava(16, 2),
}
"""All by name; two threads of one process are the cores of two processes."""


def main() -> None:
    """Time first tokens, interleaved, and write the report."""
    args = parse()
    configure(args.threads)
    engine = load(device="cpu", method="plain", calibrate=False)
    target, _ = backbones(engine)
    hosts = TimedHosts(start(target, 2, 1))
    set_hosts(target, ALONE)
    rows = kept_rows(args.out, args.lengths, args.cases)
    report = {"environment": environment(args), "prediction": PREDICTION, "rows": rows}
    for length in args.lengths:
        rows += timed(engine, hosts, length, args)
        rows.sort(key=lambda row: (row["length"], [*CASES].index(row["case"])))
        save(args.out, report, page(report))
    print(page(report))


def timed(
    engine: Engine, hosts: TimedHosts, length: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each case at one length."""
    target = engine.target.backbone
    inputs = sample_inputs(engine, caption_sample(0), FRAMES[length])
    prompt = encoded_prompt(target, inputs.target)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in args.cases}
    for repeat in range(-args.warm_ups, args.repeats):
        vision = processor_seconds(lambda: encoded_prompt(target, inputs.target))
        for name in rotated(args.cases, repeat + args.warm_ups):
            phases = first_token(engine, inputs, CASES[name], hosts)
            phases["processor"] -= vision
            if repeat >= 0:
                runs[name].append(phases)
    whole = promised.full(target, prompt)
    rows = []
    for name in args.cases:
        factor = whole / CASES[name].flops(target, prompt)
        row = {"case": name, "length": length, "threads": CASES[name].threads, "promised": factor}
        rows.append(row | summary(runs[name], runs["full"], factor))
    return rows


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argument_parser(__doc__, "benchmarks/results/spava_first_token", repeats=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[*FRAMES], choices=[*FRAMES])
    parser.add_argument("--warm-ups", type=int, default=1)
    parser.add_argument(
        "--cases", nargs="+", default=[*CASES], choices=[*CASES], help="full must be among them"
    )
    return parser.parse_args()


def kept_rows(out: Path, lengths: Sequence[int], cases: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of an earlier report that are not timed now, so that each can be timed by itself."""
    file = out.with_suffix(".json")
    if not file.exists():
        return []
    rows = json.loads(file.read_text())["rows"]
    return [row for row in rows if row["length"] not in lengths or row["case"] not in cases]


def first_token(engine: Engine, inputs: Inputs, case: Case, hosts: TimedHosts) -> dict[str, float]:
    """Seconds to the first token, and of its phases."""
    target = engine.target.backbone
    set_hosts(target, hosts if case.processes > 1 else ALONE)
    torch.set_num_threads(case.threads)
    hosts.reset()
    began = time.process_time()
    try:
        phases = case.answer(engine, inputs)
        return {**phases, **hosts.seconds, "processor": time.process_time() - began}
    finally:
        torch.set_num_threads(1)
        set_hosts(target, ALONE)


def processor_seconds(call: Callable[[], Any]) -> float:
    """Seconds of the processor that a call takes."""
    began = time.process_time()
    call()
    return time.process_time() - began


def summary(
    runs: Sequence[Mapping[str, float]], fulls: Sequence[Mapping[str, float]], factor: float
) -> dict[str, Any]:
    """Medians of a case, and how much of a promised factor was reached."""
    medians = {phase: statistics.median(run[phase] for run in runs) for phase in PHASES}
    ratios = [full["first"] / run["first"] for run, full in zip(runs, fulls, strict=True)]
    prefills = [full["prefill"] / run["prefill"] for run, full in zip(runs, fulls, strict=True)]
    spent = [full["processor"] / run["processor"] for run, full in zip(runs, fulls, strict=True)]
    seconds = statistics.median(full["prefill"] for full in fulls) / factor
    explained = seconds + medians["wait"] + medians["collect"] + medians["deal"]
    return {
        **medians,
        "repeats": len(runs),
        "speedup": quartiles(ratios),
        "prefill speedup": quartiles(prefills),
        "reached": statistics.median(prefills) / factor,
        "reached by processor": statistics.median(spent) / factor,
        "promised seconds": seconds,
        "lost": medians["prefill"] - explained,
    }


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# The first token", "", environment_line(report["environment"]), ""]
    lines += ["## Prediction", "", report["prediction"], "", "## Seconds", "", EXPLAINED, ""]
    lines += [*markdown_table(COLUMNS, [words_of(row) for row in report["rows"]], (1,)), ""]
    below = [row for row in report["rows"] if row["reached"] < REACHED]
    lines += [f"Below {100 * REACHED:.0f}% of the promise:", ""]
    for row in below:
        lines.append(f"- {row['length']:,} tokens, {row['case']}: {missed(row)}.")
    return "\n".join([*lines, ""])


COLUMNS = (
    "visual tokens",
    "case",
    "repeats",
    "vision",
    "prefill",
    "wait",
    "collect and deal",
    "first token",
    "over full",
    "promised",
    "reached",
    "processor",
    "reached by it",
)


def words_of(row: Mapping[str, Any]) -> list[str]:
    """A row of the table."""
    over = row["speedup"]
    return [
        f"{row['length']:,}",
        row["case"],
        str(row["repeats"]),
        f"{row['vision']:.2f}",
        f"{row['prefill']:.2f}",
        f"{row['wait']:.2f}",
        f"{row['collect'] + row['deal']:.2f}",
        f"{row['first']:.2f}",
        f"{over['median']:.2f} ({over['q1']:.2f} to {over['q3']:.2f})",
        f"{row['promised']:.2f}",
        f"{100 * row['reached']:.0f}%",
        f"{row['processor']:.2f}",
        f"{100 * row['reached by processor']:.0f}%" if row["threads"] == 1 else "",
    ]


def missed(row: Mapping[str, Any]) -> str:
    """Where the rest of the seconds of a prefill went, in words."""
    parts = [f"{row['promised seconds']:.2f} s promised, {row['prefill']:.2f} s measured"]
    for name, what in (("wait", "waiting"), ("collect", "collecting"), ("deal", "dealing")):
        if row[name] > 0.005:
            parts.append(f"{what} {row[name]:.2f} s")
    parts.append(f"slower computing {row['lost']:.2f} s")
    return ", ".join(parts)
