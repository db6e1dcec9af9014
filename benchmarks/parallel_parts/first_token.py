"""The part `first-token`: how late the first token is, and whether a window is ready by then.

    python benchmarks/parallel.py first-token [--frames 64] [--clips 20] [--repeats 3]

Captions of held-out clips on the embedded pair with the real process lane, interleaved with plain
decoding and compared with its tokens. The quotient of first tokens is taken within one clip and
repeat. A window is ready if the draft has written its tokens by the time that the target's
prefill ends, by the spans of both lanes. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftlens_lab.measure.tables import markdown_table
from shared import (
    argument_parser,
    backbones,
    caption_sample,
    configure,
    environment,
    environment_line,
    rotated,
    sample_inputs,
    save,
)

import draftlens
from draftlens.core.errors import ConfigError
from draftlens.core.stats import Clock, Stats
from draftlens.core.timeline import DRAFT, TARGET, Timeline
from draftlens.engine import Engine
from draftlens.methods.parallelvlm.drafters import link_of
from draftlens.methods.parallelvlm.schedule import FIRST_WINDOW

from .own_time import timed_answer

PREDICTION = """Written before the first run. At 64 frames the draft with a tenth of the visual
tokens has read its prompt and written a window in all clips, since the target's last third of the
prefill takes 100 ms and more and the draft's prefill 20 ms. The unpruned draft, which waits for
nothing, is ready as well. First tokens are 1 to 3% later than plain decoding's: announcing the
prompt takes 2 ms, and both lanes share the memory's bandwidth."""

GOALS = "Goals: first token at most 2% later than plain's; from 64 frames on, a window is ready in "
GOALS += "95% of clips when the target's prefill ends."

PLAIN = "plain"
WAYS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"method": "plain"},
    "uv, parallel": {"method": "parallelvlm"},
    "uv, lock-step": {
        "method": "parallelvlm",
        "schedule": "parallel",
        "num_speculative_tokens": 5,
    },
    "unpruned, parallel": {"method": "speculative", "schedule": "parallel"},
}


def first_window(way: str) -> int:
    """Draft tokens of the first window, before costs are known."""
    return int(WAYS[way].get("num_speculative_tokens", FIRST_WINDOW))


@dataclass(frozen=True)
class First:
    """The beginning of one answer. Seconds are those since the request.

    Args:
        way: one of `WAYS`.
        clip, repeat: whose it is.
        wall: until the first token.
        own: the same without waits for a core, see `own_time.Moment`.
        prefill: until the end of the target's prefill.
        prompt_read: until the draft has read its prompt; None without a draft.
        guesses: how many draft tokens were written when the target's prefill ended.
        window: draft tokens of a first window.
    """

    way: str
    clip: int
    repeat: int
    wall: float
    own: float
    prefill: float
    prompt_read: float | None
    guesses: int
    window: int


def measure(engine: Engine, args: argparse.Namespace) -> list[First]:
    """Answer every clip in every way."""
    found = []
    expected: dict[int, list[int]] = {}
    options = {"max_new_tokens": args.max_new_tokens}
    for clip in range(args.clips):
        inputs = sample_inputs(engine, caption_sample(70 + clip), args.frames)
        for repeat in range(args.repeats + 1):
            for way, method in rotated(list(WAYS.items()), clip + repeat):
                began = time.perf_counter()  # the spans of the clock begin no earlier
                clock = Clock(Stats(), record=True)
                run = timed_answer(engine, inputs, method, options, clock)
                assert run.tokens == expected.setdefault(clip, run.tokens), f"{way} differs"
                assert run.lost is None, run.lost
                if repeat:  # the first one fills caches
                    first = run.moments[1]
                    wall = first.wall - began
                    seen = _seen(clock.timeline())
                    found.append(
                        First(way, clip, repeat, wall, first.own, *seen, first_window(way))
                    )
        print(f"clip {clip} done", flush=True)
    return found


def _seen(timeline: Timeline) -> tuple[float, float | None, int]:
    """End of the target's prefill, end of the draft's, and draft tokens that were ready in time."""
    spans = timeline.spans
    prefill = [span.end for span in spans if (span.lane, span.kind) == (TARGET, "prefill")]
    read = [span.end for span in spans if (span.lane, span.kind) == (DRAFT, "prefill")]
    end = max(prefill)
    drafts = [span for span in spans if (span.lane, span.kind) == (DRAFT, "draft")]
    ready = sum(span.tokens for span in drafts if span.end <= end)
    return end, max(read, default=None), ready


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    load = ", ".join(f"{value:.1f}" for value in report["load"])
    frames = report["frames"]
    note = (
        f"{frames} frames, {report['clips']} clips. Quotients: median and quartiles; own time is "
        "without waits for a core. Ready: share of clips in which, in most repeats, so many "
        "draft tokens were written when the target's prefill ended; the first window has "
        f"{first_window('uv, lock-step')} in lock-step, else {FIRST_WINDOW}. Spare: from the end "
        f"of the draft's prefill to that of the target's. Load of the machine: {load}."
    )
    lines = ["# The first token", "", f"Prediction. {' '.join(report['prediction'].split())}", ""]
    lines += [GOALS, "", *_table(report["firsts"]), "", note, ""]
    return "\n".join([*lines, f"<sub>{environment_line(report['environment'])}</sub>", ""])


def _table(firsts: Sequence[Mapping[str, Any]]) -> list[str]:
    plain = {(first["clip"], first["repeat"]): first for first in firsts if first["way"] == PLAIN}
    rows = []
    for way in WAYS:
        mine = [first for first in firsts if first["way"] == way]
        beside = [plain[first["clip"], first["repeat"]] for first in mine]
        pairs = list(zip(mine, beside, strict=True))
        is_plain = way == PLAIN
        rows.append(
            (
                way,
                f"{1e3 * statistics.median(first['wall'] for first in mine):.0f}",
                "" if is_plain else _spread([one["wall"] / other["wall"] for one, other in pairs]),
                "" if is_plain else _spread([one["own"] / other["own"] for one, other in pairs]),
                "" if is_plain else f"{100 * share_ready(mine, 1):.0f}%",
                "" if is_plain else f"{100 * share_ready(mine, mine[0]['window']):.0f}%",
                "" if is_plain else f"{statistics.median(first['guesses'] for first in mine):.0f}",
                "" if is_plain else _spare(mine),
            )
        )
    head = (
        "way",
        "first token ms",
        "of plain",
        "own time, of plain",
        "a draft token is ready",
        "a window is ready",
        "draft tokens, median",
        "spare ms",
    )
    return markdown_table(head, rows)


def share_ready(firsts: Sequence[Mapping[str, Any]], count: int) -> float:
    """Share of clips in which this number of draft tokens was ready in time, in most repeats."""
    by_clip: dict[int, list[bool]] = {}
    for first in firsts:
        by_clip.setdefault(first["clip"], []).append(first["guesses"] >= count)
    ready = [sum(repeats) > len(repeats) / 2 for repeats in by_clip.values()]
    return sum(ready) / len(ready)


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.3f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def _spare(firsts: Sequence[Mapping[str, Any]]) -> str:
    spare = [
        1e3 * (first["prefill"] - first["prompt_read"])
        for first in firsts
        if first["prompt_read"] is not None
    ]
    return f"{statistics.median(spare):.0f}" if spare else ""


def main() -> None:
    """Measure, and write the report."""
    parser = argument_parser(__doc__, "benchmarks/results/parallel_first_token", repeats=3)
    parser.add_argument("--frames", type=int, default=64)
    parser.add_argument("--clips", type=int, default=20)
    parser.set_defaults(max_new_tokens=8)
    args = parser.parse_args()
    configure(args.threads)
    began = time.perf_counter()
    engine = draftlens.load("embedded", device="cpu", calibrate=False)
    link = link_of(backbones(engine)[1])
    if link is None:
        raise ConfigError("no process can draft here")
    link.wait_until_ready()
    firsts = [asdict(first) for first in measure(engine, args)]
    report = {
        "prediction": PREDICTION,
        "frames": args.frames,
        "clips": args.clips,
        "firsts": firsts,
        "load": os.getloadavg(),
        "seconds": time.perf_counter() - began,
        "environment": environment(args),
    }
    save(args.out, report, page(report))


if __name__ == "__main__":
    main()
