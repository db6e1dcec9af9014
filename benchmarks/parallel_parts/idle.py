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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil
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

import draftlens
from draftlens.core.stats import Clock, Stats
from draftlens.core.timeline import DRAFT, TARGET, Timeline
from draftlens.engine import Engine
from draftlens.inputs import Inputs

from .pair import wait_for

PREDICTION = """Written before the first run. The target's prefill grows by a factor of 40 from 8 to
256 frames and a pass by 1.5, the draft's likewise with less: here launches, not keys, are most of
a pass. In serial order the target idles 10% of the time to the first token with the unpruned draft,
and 40% of decoding with chains of 5. In parallel it idles below 5% of decoding. The draft's prefill
is wholly hidden from 16 frames on. The second process needs 350 MB of its own, which is the
interpreter and torch, and no copy of the weights."""

OUTCOME = """From 8 to 256 frames the target's prefill grows by a factor of 31 and the draft's by
14, a check by 1.5 and a draft step by 1.3 (from the quieter runs of 64 frames on). In serial order
the target idles for 26% of the time to the first round at 8 frames, falling to 9% at 256, more than
predicted, and for 30 to 36% of decoding, less; in parallel for 14 to 21% of decoding, more than
predicted: it waits for full windows. The draft's prefill is wholly hidden at all lengths. The
second process needs 454 MB, a hundred more than predicted."""

CHAIN = {"schedule": "serial", "num_speculative_tokens": 5}
SERIAL = "unpruned, serial"
WAYS: Mapping[str, Mapping[str, Any]] = {
    SERIAL: {"method": "speculative", **CHAIN},
    "uv, serial": {"method": "parallelvlm", **CHAIN},
    "unpruned, parallel": {"method": "speculative", "schedule": "parallel"},
    "uv, parallel": {"method": "parallelvlm"},
}


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


def measure(engine: Engine, args: argparse.Namespace) -> list[Times]:
    """Answer every clip in every way."""
    _, draft = backbones(engine)
    wait_for(draft)
    found = []
    for frames in args.frames:
        for clip in range(args.clips):
            inputs = sample_inputs(engine, caption_sample(70 + clip), frames)
            visual = int(encoded_prompt(engine.target.backbone, inputs.target).visual.sum())
            expected: list[list[int]] | None = None
            for repeat in range(args.repeats + 1):
                for way in rotated(list(WAYS), clip + repeat):
                    tokens, times = _answer(engine, inputs, way, args.max_new_tokens)
                    expected = expected or tokens
                    assert tokens == expected, f"{way} changed the tokens"
                    if repeat:  # the first one fills caches
                        found.append(replace(times, frames=frames, visual=visual))
        print(f"{frames} frames done", flush=True)
    return found


def _answer(
    engine: Engine, inputs: Inputs, way: str, max_new_tokens: int
) -> tuple[list[list[int]], Times]:
    clock = Clock(Stats(), record=True)
    stream = engine.answer(inputs, method=WAYS[way], clock=clock, max_new_tokens=max_new_tokens)
    result = stream.run()
    timeline = clock.timeline()
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


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    load = ", ".join(f"{value:.1f}" for value in report["load"])
    alone = ", ".join(
        f"{used / 2**20:.0f} MB at {frames} frames" for frames, used in report["alone"].items()
    )
    lines = ["# What the serial order costs, and what the second lane takes", ""]
    lines += [f"Prediction. {' '.join(report['prediction'].split())}", ""]
    lines += [f"Outcome. {' '.join(OUTCOME.split())}", ""]
    lines += [*_table(report["times"]), ""]
    lines += [
        f"{report['clips']} clips. Medians over clips and repeats. Idle: share of the time in "
        "which the target has nothing to do, to the first round and from there on. Hidden: share "
        "of the draft's prefill within the target's. Memory: of all processes, each shared page "
        "once for all of them; the draft's process is there in every way, and its own part is "
        f"what it shares with no other. Before it was started, after serial answers: {alone}. "
        f"Load of the machine: {load}.",
        "",
        f"<sub>{environment_line(report['environment'])}</sub>",
        "",
    ]
    return "\n".join(lines)


def _table(times: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for frames in sorted({one["frames"] for one in times}):
        for way in WAYS:
            mine = [one for one in times if one["way"] == way and one["frames"] == frames]
            rows.append(_cells(frames, way, mine))
    head = ["frames", "visual tokens", "way", "target prefill ms", "draft prefill ms"]
    head += ["target pass ms", "draft step ms", "idle to first round", "idle in decoding"]
    head += ["hidden prefill", "memory MB", "draft process's own MB"]
    return markdown_table(head, rows, (0, 1, 2))


def _cells(frames: int, way: str, times: Sequence[Mapping[str, Any]]) -> list[str]:
    middle = {
        figure: statistics.median(one[figure] for one in times)
        for figure in times[0]
        if figure != "way"
    }
    return [
        str(frames),
        f"{middle['visual']:.0f}",
        way,
        f"{1e3 * middle['target_prefill']:.0f}",
        f"{1e3 * middle['draft_prefill']:.0f}",
        f"{1e3 * middle['target_pass']:.1f}",
        f"{1e3 * middle['draft_step']:.2f}",
        f"{100 * middle['idle_prefill']:.0f}%",
        f"{100 * middle['idle_decode']:.0f}%",
        f"{100 * middle['hidden']:.0f}%",
        f"{middle['memory'] / 2**20:.0f}",
        f"{middle['own'] / 2**20:.0f}",
    ]


def main() -> None:
    """Measure, and write the report."""
    parser = argument_parser(__doc__, "benchmarks/results/parallel_idle", repeats=3)
    parser.add_argument("--frames", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--clips", type=int, default=2)
    parser.set_defaults(max_new_tokens=160)
    args = parser.parse_args()
    configure(args.threads)
    before = os.getloadavg()[0]
    engine = draftlens.load("embedded", device="cpu", calibrate=False)
    alone = memory_without_lane(engine, args)
    times = measure(engine, args)
    report = {
        "prediction": PREDICTION,
        "environment": environment(args),
        "load": [before, os.getloadavg()[0]],
        "clips": args.clips,
        "alone": alone,
        "times": [asdict(one) for one in times],
    }
    save(args.out, report, page(report))


if __name__ == "__main__":
    main()
