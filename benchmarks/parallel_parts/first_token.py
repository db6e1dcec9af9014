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

from shared import (
    PAIR,
    Benchmark,
    Report,
    backbones,
    caption_sample,
    pair_of,
    ratios,
    rotated,
    sample_inputs,
    table,
)

from draftlens.core.errors import ConfigError
from draftlens.core.stats import Clock, Stats
from draftlens.core.timeline import DRAFT, TARGET, Timeline
from draftlens.methods.parallelvlm.drafters import link_of
from draftlens.methods.parallelvlm.schedule import FIRST_WINDOW

from .own_time import timed_answer

PLAIN = "plain"
WAYS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"method": "plain"},
    "uv, parallel": {"method": "parallelvlm", "pruner": "uv"},
    "uv, lock-step": {
        "method": "parallelvlm",
        "pruner": "uv",
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


def _seen(timeline: Timeline) -> tuple[float, float | None, int]:
    """End of the target's prefill, end of the draft's, and draft tokens that were ready in time."""
    spans = timeline.spans
    prefill = [span.end for span in spans if (span.lane, span.kind) == (TARGET, "prefill")]
    read = [span.end for span in spans if (span.lane, span.kind) == (DRAFT, "prefill")]
    end = max(prefill)
    drafts = [span for span in spans if (span.lane, span.kind) == (DRAFT, "draft")]
    ready = sum(span.tokens for span in drafts if span.end <= end)
    return end, max(read, default=None), ready


def share_ready(firsts: Sequence[Mapping[str, Any]], count: int) -> float:
    """Share of clips in which this number of draft tokens was ready in time, in most repeats."""
    by_clip: dict[int, list[bool]] = {}
    for first in firsts:
        by_clip.setdefault(first["clip"], []).append(first["guesses"] >= count)
    ready = [sum(repeats) > len(repeats) / 2 for repeats in by_clip.values()]
    return sum(ready) / len(ready)


def measure(args: argparse.Namespace) -> Report:
    """Answer every clip in every way."""
    began_all = time.perf_counter()
    engine = pair_of(args, calibrate=False)
    link = link_of(backbones(engine)[1])
    if link is None:
        raise ConfigError("no process can draft here")
    link.wait_until_ready()
    firsts = []
    expected: dict[int, list[int]] = {}
    # Of a model that ends its answer at once nothing could be measured.
    options = {"max_new_tokens": args.max_new_tokens, "min_new_tokens": min(8, args.max_new_tokens)}
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
                    firsts.append(
                        First(way, clip, repeat, wall, first.own, *seen, first_window(way))
                    )
        print(f"clip {clip} done", flush=True)
    return {
        "frames": args.frames,
        "clips": args.clips,
        "firsts": [asdict(first) for first in firsts],
        "load": os.getloadavg(),
        "seconds": time.perf_counter() - began_all,
    }


def page(report: Report) -> list[str]:
    """First tokens and windows by way."""
    firsts = {way: [one for one in report["firsts"] if one["way"] == way] for way in WAYS}

    def row(way: str, mine: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "way": way,
            "wall": statistics.median(first["wall"] for first in mine),
        }
        if way != PLAIN:
            pairs = {(one["clip"], one["repeat"]): one for one in firsts[PLAIN]}
            plain = [pairs[first["clip"], first["repeat"]] for first in mine]
            read = [one for one in mine if one["prompt_read"] is not None]
            found |= {
                "of plain": _quotients(mine, plain, "wall"),
                "own": _quotients(mine, plain, "own"),
                "one": share_ready(mine, 1),
                "all": share_ready(mine, mine[0]["window"]),
                "guesses": statistics.median(first["guesses"] for first in mine),
                "spare": statistics.median(one["prefill"] - one["prompt_read"] for one in read)
                if read
                else None,
            }
        return found

    columns = {
        "way": "{way}",
        "first token ms": "{wall:.0ms}",
        "of plain": "{of plain}",
        "own time, of plain": "{own}",
        "a draft token is ready": "{one:.0%}",
        "a window is ready": "{all:.0%}",
        "draft tokens, median": "{guesses:.0f}",
        "spare ms": "{spare:.0ms}",
    }
    load = ", ".join(f"{value:.1f}" for value in report["load"])
    return [
        table([row(way, mine) for way, mine in firsts.items()], columns),
        f"{report['frames']} frames, {report['clips']} clips. Quotients: median and quartiles; own "
        "time is without waits for a core. Ready: share of clips in which, in most repeats, so "
        "many draft tokens were written when the target's prefill ended; the first window has "
        f"{first_window('uv, lock-step')} in lock-step, else {FIRST_WINDOW}. Spare: from the end "
        f"of the draft's prefill to that of the target's. Load of the machine: {load}.",
    ]


def _quotients(
    mine: Sequence[Mapping[str, Any]], plain: Sequence[Mapping[str, Any]], figure: str
) -> str:
    """Median and quartiles of quotients with plain decoding of the same clip and repeat."""
    values = ratios([one[figure] for one in mine], [one[figure] for one in plain])
    if len(values) < 2:
        return f"{values[0]:.3f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


BENCHMARK = Benchmark(
    "parallel_first_token",
    __doc__,
    "The first token",
    measure,
    page,
    {**PAIR, "--repeats": 3, "--frames": 64, "--clips": 20, "--max-new-tokens": 8},
)
