"""SpecVLM on the embedded pair: acceptance by pruning, costs of the probe, and the resulting
speedups.

    python benchmarks/specvlm.py [--parts acceptance,focus,chat,robust,guidance,turns,probe,step,
    tree,long,steps,self]
    python benchmarks/specvlm.py --parts trained,trained-focus --draft FOLDER \
        --out benchmarks/results/specvlm_trained

Clips are held-out ones of the world. The parts focus and chat repeat acceptance with questions
about a part of what is seen; robust compares choices of tokens with a random one on all kinds of
requests. Every answer is compared with stock `generate`, or with plain
decoding, which the tests compare with it. Times are medians of interleaved repeats. Writes OUT.json
and OUT.md after every part, so an interrupted run keeps the finished parts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from draftlens_lab.measure.options import frame_counts
from shared import PAIR, Benchmark, Report, measured_parts, pair_of, parts_page
from specvlm_parts import acceptance, costs, guidance, long, robust, steps, trained

from draftlens.engine import Engine

Measure = Callable[[Engine, argparse.Namespace], Any]
Page = Callable[[Any], list[str]]


def by_kind(module: Any, kind: str) -> tuple[Measure, Page]:
    """A part for one of the kinds of requests."""
    return partial(module.measure, kind=kind), partial(module.report, kind=kind)


PARTS: dict[str, tuple[Measure, Page]] = {
    "acceptance": by_kind(acceptance, "caption"),
    "focus": by_kind(acceptance, "focus"),
    "chat": by_kind(acceptance, "chat"),
    "robust": (robust.measure, robust.report),
    "guidance": (guidance.measure, guidance.report),
    "turns": (guidance.measure_turns, guidance.report_turns),
    "probe": (costs.probe, costs.report_probe),
    "step": (costs.step, costs.report_step),
    "tree": (costs.tree, costs.report_tree),
    "long": (long.measure, long.report),
    "steps": (steps.measure, steps.report),
    "self": (steps.measure_self, steps.report_self),
    "trained": by_kind(trained, "caption"),
    "trained-focus": by_kind(trained, "focus"),
}
"""The figures of each part as JSON values, and its page. The last two compare the embedded draft
with another one, which `--draft` names."""


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """The report after each part."""
    return measured_parts({name: part[0] for name, part in PARTS.items()}, pair_of(args), args)


def page(report: Report) -> list[str]:
    """Every measured part with its environment."""
    return parts_page(report, {name: part[1] for name, part in PARTS.items()})


BENCHMARK = Benchmark(
    "specvlm",
    __doc__,
    "SpecVLM",
    measure,
    page,
    {
        "--repeats": 5,
        "--parts": ",".join(name for name in PARTS if not name.startswith("trained")),
        "--clips": 60,
        **PAIR,
        "--checked": {"type": int, "default": 8, "help": "clips that the engine decodes as well"},
        "--frames": {"type": frame_counts, "default": (16, 64)},
        "--long-frames": {
            "type": int,
            "help": "of long and probe [default: 1000 and 500], and the most of step and self",
        },
        "--minutes": {
            "type": float,
            "default": inf,
            "help": "of acceptance, focus and chat for each number of frames: clips begin until "
            "then",
        },
        "--keep": {
            "type": Path,
            "help": "folder that keeps each clip, or its answer by the target, for the next run",
        },
    },
)

if __name__ == "__main__":
    BENCHMARK.main()
