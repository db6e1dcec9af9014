"""What counts of kernels, waits and bytes predict for a GPU: arithmetic, and no measurement.

    python -m benchmarks.device

Launches and waits are counted on simulated devices (`tests/device`), with pairs of two and four
layers. They are linear in the layers of both models, so that they are known for real depths. Times
follow from constants that the report states, and tokens a round from recorded answers of real
weights (`real_costs.json`), which are taken to hold for all pairs.

A pass takes the time of its launches or that of the bytes that it reads, whichever is longer. With
CUDA graphs, which draftlens does not make, a pass of the modules is one launch. In the parallel
schedule the passes of both models overlap, but share launches (one interpreter) and bandwidth.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean, median_low
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]

from families import FAMILIES, inputs  # noqa: E402 - the folders come first
from shared import Benchmark, Report, environment, table  # noqa: E402

from draftlens.decoding import step  # noqa: E402
from draftlens.request import Request, open_call  # noqa: E402
from tests.device import copied, moved, rounds_of, simulated  # noqa: E402

LAUNCH = 5e-6
WAIT = 15e-6
BANDWIDTH = 3.35e12
"""Seconds of a launch and of a wait of the host, and bytes a second (an H100)."""

CONTEXT = 2000
"""Tokens whose keys and values a pass reads."""

NEW = 26
FAMILY = next(family for family in FAMILIES if family.name == "qwen2_5_vl")
METHODS: Mapping[str, Any] = {
    "plain": "plain",
    "chain of 5": {"num_speculative_tokens": 5},
    "EAGLE's tree": {"tree": "eagle"},
}
RECORDED = {"plain": "plain", "chain of 5": "chain 5", "EAGLE's tree": "eagle"}
FORWARDS = {"plain": 0, "chain of 5": 5, "EAGLE's tree": 5}
"""Passes of the draft a round."""

STOCK = "stock generate"
PARALLEL = "parallel, chain of 5"


@dataclass(frozen=True)
class Size:
    """A language model in bfloat16.

    Args:
        weights: numbers that a pass reads: without input embeddings, unless they are the head.
        layers: their number.
        kv_width: keys of a token and layer.
    """

    weights: float
    layers: int
    kv_width: int

    @property
    def bytes_of_pass(self) -> float:
        return 2 * (self.weights + CONTEXT * 2 * self.layers * self.kv_width)


SIZES = {
    "0.5B": Size(0.494e9, 24, 128),
    "2B": Size(1.54e9, 28, 256),
    "3B": Size(3.09e9, 36, 256),
    "7B": Size(7.07e9, 28, 512),
    "8B": Size(7.57e9, 36, 1024),
    "32B": Size(31.98e9, 64, 1024),
}
"""Qwen2.5 (0.5B, 3B, 7B, 32B), Qwen2 inside Qwen2-VL (2B) and Qwen3 (8B)."""

PAIRS = (("7B", "0.5B"), ("8B", "2B"), ("32B", "3B"))


@dataclass(frozen=True)
class Work:
    """Launches and waits of a round as counted; those in modules are linear in the layers."""

    outside: int
    waits: int
    fixed: int
    of_target_layer: int
    of_draft_layer: int


@cache
def counted(method: str, target_layers: int, draft_layers: int) -> tuple[int, int, int]:
    """Launches in modules, outside of them, and waits of a round in the steady state."""
    options = {"max_new_tokens": NEW, "do_sample": False}
    request = Request(inputs(FAMILY, "image", (0,)), method=METHODS[method], options=options)
    with simulated() as simulation:
        small = copied(FAMILY.build(seed=7, num_hidden_layers=draft_layers))
        model = copied(FAMILY.build(num_hidden_layers=target_layers))
        session = open_call(model, small, request).session
        rounds = rounds_of(simulation.counts, _steps(session))[2:-7]
    return (
        median_low([each.launches - each.outside for each in rounds]),
        median_low([each.outside for each in rounds]),
        median_low([each.waits for each in rounds]),
    )


def _steps(session: Any) -> Any:
    while not session.done:
        yield step(session)


def stock_token(layers: int) -> tuple[int, int]:
    """Launches and waits of a further token of stock `generate`."""
    given = inputs(FAMILY, "image", (0,))
    with simulated() as simulation:
        model = copied(FAMILY.build(num_hidden_layers=layers))
        moments = [simulation.counts.copy()]
        for new in (4, 5):
            model.generate(**moved(given), max_new_tokens=new, do_sample=False)
            moments.append(simulation.counts.copy())
    four, five = (after.since(before) for before, after in pairwise(moments))
    return (
        five.launches.total() - four.launches.total(),
        five.waits.total() - four.waits.total(),
    )


def work_of(method: str) -> Work:
    """The counts of a method for any number of layers."""
    inside, outside, waits = counted(method, 2, 2)
    of_target = (counted(method, 4, 2)[0] - inside) // 2
    of_draft = (counted(method, 2, 4)[0] - inside) // 2
    return Work(outside, waits, inside - 2 * (of_target + of_draft), of_target, of_draft)


def stock_work() -> Work:
    """The counts of stock `generate`."""
    (two, waits), (four, _) = stock_token(2), stock_token(4)
    of_layer = (four - two) // 2
    return Work(0, waits, two - 2 * of_layer, of_layer, 0)


def tokens_of(method: str) -> float:
    """Tokens of a round: the mean of recorded prompts."""
    recorded = json.loads((ROOT / "benchmarks" / "real_costs.json").read_text())["runs"]
    return float(mean(run["tau"] for run in recorded if run["method"] == RECORDED[method]))


def predicted(
    work: Work, forwards: int, tokens: float, pair: tuple[str, str], graphs: bool, parallel: bool
) -> dict[str, Any]:
    """Milliseconds of a token, and the longer of the times of launches and of bytes."""
    target, draft = (SIZES[name] for name in pair)
    of_draft = forwards * draft.bytes_of_pass / BANDWIDTH
    of_target = target.bytes_of_pass / BANDWIDTH
    draft_launches = work.of_draft_layer * draft.layers
    target_launches = work.fixed + work.of_target_layer * target.layers
    if graphs:
        draft_launches, target_launches = forwards, 1
    launches = [LAUNCH * draft_launches, LAUNCH * (target_launches + work.outside)]
    moved_bytes = [of_draft, of_target]
    if parallel:
        passes = max(sum(launches), sum(moved_bytes))
    else:
        passes = sum(map(max, zip(launches, moved_bytes, strict=True)))
    return {
        "ms": 1000 * (passes + WAIT * work.waits) / tokens,
        "launches": draft_launches + target_launches + work.outside,
        "launch_ms": 1000 * sum(launches),
        "bytes_ms": 1000 * sum(moved_bytes),
        "bound": "launches" if sum(launches) > sum(moved_bytes) else "bytes",
    }


def measure(args: argparse.Namespace) -> Report:
    """Counts of a round and predictions of a token."""
    works = {STOCK: stock_work(), **{name: work_of(name) for name in METHODS}}
    works[PARALLEL] = works["chain of 5"]
    rows = []
    for pair in PAIRS:
        for graphs in (False, True):
            for way, work in works.items():
                name = "chain of 5" if way == PARALLEL else way
                tokens = 1.0 if way == STOCK else tokens_of(name)
                forwards = FORWARDS.get(name, 0)
                figures = predicted(work, forwards, tokens, pair, graphs, way == PARALLEL)
                rows.append({"pair": " and ".join(pair), "way": way, "graphs": graphs, **figures})
    return {
        "environment": environment(args),
        "constants": {"launch": LAUNCH, "wait": WAIT, "bandwidth": BANDWIDTH, "context": CONTEXT},
        "tokens": {name: tokens_of(name) for name in METHODS},
        "counts": {name: vars(work) for name, work in works.items() if name != PARALLEL},
        "rows": rows,
    }


def page(report: Report) -> list[str]:
    """Constants, counts and predictions."""
    constants = report["constants"]
    stock = {
        (row["pair"], row["graphs"]): row["ms"] for row in report["rows"] if row["way"] == STOCK
    }

    def speedup(row: Mapping[str, Any]) -> str:
        return f"{stock[row['pair'], row['graphs']] / row['ms']:.2f}"

    tokens = ", ".join(f"{name} {value:.2f}" for name, value in report["tokens"].items())
    counts = [{"way": name, **work} for name, work in report["counts"].items()]
    return [
        "Arithmetic, and no measurement: no line of this page ran on a GPU.",
        f"A launch takes {1e6 * constants['launch']:.0f} µs, a wait {1e6 * constants['wait']:.0f} "
        f"µs, and memory gives {constants['bandwidth'] / 1e12:.2f} TB/s; a pass reads keys and "
        f"values of {constants['context']} tokens. Tokens a round, recorded with real weights of "
        f"0.5B and 1.5B and taken to hold for all pairs: {tokens}.",
        "Counted, one row, greedy: launches of a round outside of modules, in them (fixed, and for "
        "each layer of the target and of the draft), and waits.",
        table(
            counts,
            {
                "way": "{way}",
                "outside": "{outside}",
                "fixed": "{fixed}",
                "target layer": "{of_target_layer}",
                "draft layer": "{of_draft_layer}",
                "waits": "{waits}",
            },
        ),
        "Predicted; the bound is the longer of the times that all launches and all bytes of a "
        "round take.",
        table(
            report["rows"],
            {
                "target and draft": "{pair}",
                "way": "{way}",
                "CUDA graphs": lambda row: "yes" if row["graphs"] else "no",
                "launches a round": "{launches}",
                "launches, ms": "{launch_ms:.2f}",
                "bytes, ms": "{bytes_ms:.2f}",
                "bound": "{bound}",
                "ms a token": "{ms:.2f}",
                "x stock": speedup,
            },
        ),
    ]


BENCHMARK = Benchmark("device", __doc__, "A GPU by count", measure, page)


if __name__ == "__main__":
    BENCHMARK.main()
