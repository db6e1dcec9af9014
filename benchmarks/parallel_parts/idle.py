"""The part `idle`: what the serial order costs, and what the second lane takes.

    python benchmarks/parallel.py idle [--frames 8 16 64 256] [--clips 2] [--repeats 3]

Captions of held-out clips on the embedded pair, by a serial chain and at the same time, compared
token by token. From the spans of both lanes: how passes and prefills grow with the visual tokens
(the paper's Figure 3), the share of the time in which the target has nothing to do (Section 3.1),
and how much of the draft's prefill the target's prefill hides (Appendix D). From the system: the
memory of all processes with shared pages counted once (Table 6). Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil
from shared import (
    PAIR,
    Benchmark,
    Report,
    backbones,
    caption_sample,
    encoded_prompt,
    medians,
    pair_of,
    rotated,
    sample_inputs,
    table,
)

from draftlens.core.errors import ConfigError
from draftlens.core.stats import Clock, Stats
from draftlens.core.timeline import DRAFT, TARGET, Timeline
from draftlens.engine import Engine
from draftlens.inputs import Inputs

from .pair import wait_for

CHAIN = {"schedule": "serial", "num_speculative_tokens": 5}
SERIAL = "unpruned, serial"
WAYS: Mapping[str, Mapping[str, Any]] = {
    SERIAL: {"method": "speculative", **CHAIN},
    "uv, serial": {"method": "parallelvlm", "pruner": "uv", **CHAIN},
    "unpruned, parallel": {"method": "speculative", "schedule": "parallel"},
    "uv, parallel": {"method": "parallelvlm", "pruner": "uv"},
}

LEAST = 8
"""Tokens of an answer: of a model that ends at once nothing could be measured."""


@dataclass(frozen=True)
class Times:
    """One answer. Seconds, shares from 0 to 1, and bytes.

    Args:
        way: one of `WAYS`.
        target_prefill, draft_prefill: seconds of the language models' prefills.
        target_pass, draft_step: median seconds of a verification and of a draft step.
        idle_prefill: share of the time to the first round in which the target has nothing to do.
        idle_decode: the same of the time from there on.
        hidden: share of the draft's prefill that lies within the target's.
        memory: of all processes, each shared page once for all of them.
        own: bytes of the other processes that they share with none.
        frames: of the clip.
        visual: visual tokens of the prompt.
    """

    way: str
    target_prefill: float
    draft_prefill: float
    target_pass: float
    draft_step: float
    idle_prefill: float
    idle_decode: float
    hidden: float
    memory: int
    own: int
    frames: int = 0
    visual: int = 0


def memory_without_lane(engine: Engine, args: argparse.Namespace) -> dict[int, int]:
    """Bytes of this process after serial answers, by number of frames, while there is no other."""
    found = {}
    for frames in args.frames:
        inputs = sample_inputs(engine, caption_sample(70), frames)
        _answer(engine, inputs, SERIAL, args.max_new_tokens)
        found[frames], _ = _memory()
    return found


def _answer(
    engine: Engine, inputs: Inputs, way: str, max_new_tokens: int
) -> tuple[list[list[int]], Times]:
    clock = Clock(Stats(), record=True)
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min(LEAST, max_new_tokens),
    }
    stream = engine.answer(inputs, method=WAYS[way], clock=clock, **options)
    result = stream.run()
    timeline = clock.timeline()
    if "prefill" not in timeline.seconds.get(DRAFT, {}):
        raise ConfigError(f"{way}: the answer was over before the draft had read the prompt")
    memory, own = _memory()
    first_round = timeline.rounds[0].start
    return result.tokens, Times(
        way=way,
        target_prefill=timeline.seconds[TARGET]["prefill"],
        draft_prefill=timeline.seconds[DRAFT]["prefill"],
        target_pass=_median(timeline, TARGET, "verify"),
        draft_step=_draft_step(timeline),
        idle_prefill=timeline.idle_share(TARGET, 0.0, first_round),
        idle_decode=timeline.idle_share(TARGET, first_round),
        hidden=_hidden(timeline),
        memory=memory,
        own=own,
    )


def _median(timeline: Timeline, lane: str, kind: str) -> float:
    lengths = [span.seconds for span in timeline.of(lane) if span.kind == kind]
    return statistics.median(lengths)


def _draft_step(timeline: Timeline) -> float:
    """Seconds of drafting for each draft token."""
    spans = [span for span in timeline.of(DRAFT) if span.kind == "draft" and span.tokens]
    return sum(span.seconds for span in spans) / sum(span.tokens for span in spans)


def _hidden(timeline: Timeline) -> float:
    """Share of the draft's prefill within the target's."""
    reading = [span for span in timeline.of(TARGET) if span.kind == "prefill"]
    start = min(span.start for span in reading)
    end = max(span.end for span in reading)
    spans = [span for span in timeline.of(DRAFT) if span.kind == "prefill"]
    inside = sum(max(0.0, min(span.end, end) - max(span.start, start)) for span in spans)
    return inside / sum(span.seconds for span in spans)


def _memory() -> tuple[int, int]:
    """Proportional memory of this process and its children, and what the children share with no
    other process."""
    here = psutil.Process()
    workers = [child.memory_full_info() for child in here.children(recursive=True)]
    total = here.memory_full_info().pss + sum(worker.pss for worker in workers)
    return total, sum(worker.uss for worker in workers)


def measure(args: argparse.Namespace) -> Report:
    """Answer every clip in every way."""
    before = os.getloadavg()[0]
    engine = pair_of(args, calibrate=False)
    alone = memory_without_lane(engine, args)
    wait_for(backbones(engine)[1])
    times = []
    for frames in args.frames:
        for clip in range(args.clips):
            inputs = sample_inputs(engine, caption_sample(70 + clip), frames)
            visual = int(encoded_prompt(engine.target.backbone, inputs.target).visual.sum())
            expected: list[list[int]] | None = None
            for repeat in range(args.repeats + 1):
                for way in rotated(list(WAYS), clip + repeat):
                    tokens, found = _answer(engine, inputs, way, args.max_new_tokens)
                    expected = expected or tokens
                    assert tokens == expected, f"{way} changed the tokens"
                    if repeat:  # the first one fills caches
                        times.append(replace(found, frames=frames, visual=visual))
        print(f"{frames} frames done", flush=True)
    return {
        "load": [before, os.getloadavg()[0]],
        "clips": args.clips,
        "alone": alone,
        "times": [asdict(one) for one in times],
    }


def page(report: Report) -> list[str]:
    """Medians by number of frames and way."""
    columns = {
        "frames": "{frames}",
        "visual tokens": "{visual:.0f}",
        "way": "{way}",
        "target prefill ms": "{target_prefill:.0ms}",
        "draft prefill ms": "{draft_prefill:.0ms}",
        "target pass ms": "{target_pass:.1ms}",
        "draft step ms": "{draft_step:.2ms}",
        "idle to first round": "{idle_prefill:.0%}",
        "idle in decoding": "{idle_decode:.0%}",
        "hidden prefill": "{hidden:.0%}",
        "memory MB": "{memory:.0MiB}",
        "draft process's own MB": "{own:.0MiB}",
    }
    order = list(WAYS)
    rows = sorted(
        medians(report["times"], "frames", "way"),
        key=lambda row: (row["frames"], order.index(row["way"])),
    )
    alone = ", ".join(
        f"{used / 2**20:.0f} MB at {frames} frames" for frames, used in report["alone"].items()
    )
    load = ", ".join(f"{value:.1f}" for value in report["load"])
    return [
        table(rows, columns),
        f"{report['clips']} clips. Medians over clips and repeats. Idle: share of the time in "
        "which the target has nothing to do, to the first round and from there on. Hidden: share "
        "of the draft's prefill within the target's. Memory: of all processes, each shared page "
        "once for all of them; the draft's process is there in every way, and its own part is "
        f"what it shares with no other. Before it was started, after serial answers: {alone}. "
        f"Load of the machine: {load}.",
    ]


BENCHMARK = Benchmark(
    "parallel_idle",
    __doc__,
    "What the serial order costs, and what the second lane takes",
    measure,
    page,
    {**PAIR, "--repeats": 3, "--frames": [8, 16, 64], "--clips": 2, "--max-new-tokens": 160},
)
