"""The embedded pair with the real process: parallel decoding beside serial chains and stock.

    python benchmarks/parallel.py pair [--frames 16 8 64] [--clips 3] [--repeats 3]

Answers are interleaved and compared token by token. Target and draft have one thread each. Every
part of a call counts end to end. Figures are medians over repeats of sums over clips, with the
smallest and largest; gains are ratios within one repeat. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftlens_lab.measure.tables import markdown_table
from shared import (
    argument_parser,
    assisted_answerer,
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

import draftlens
from draftlens.engine import Engine
from draftlens.methods.parallelvlm.drafters import link_of

PREDICTION = """Written before the first run of this script, after trials of the engine on a machine
three times as slow as the issue's (T_p 17 ms for one token and 20 ms for eight, T_q 2.2 ms in the
target's process and 2.6 ms in its own beside the target, c = 6.7). With the unpruned draft
(β = 0.87) a window is 6; lock-step of 7 emits R = 3.2 tokens a pass, so 165 passes of 20 ms against
109 rounds of 34 ms of a chain of 7: 1.12. The default pace is as fast as lock-step, and waiting
gains nothing. With UV-Prune the draft is right less often (0.84) and the gain over a serial chain
with the same pruner is 1.10. At 64 frames T_p grows more than T_q with the unpruned draft's cache,
and the gain is as large; with the pruned draft c is 10 and the gain 1.15. At 256 frames all chains
are within 10%. Self-speculation: no gain at 16 frames (c = 1), 1.05 at 64, 1.15 at 256. First token
at most 2% later."""

OUTCOME = """At 16 frames (three clips, three repeats) parallel decoding with the unpruned draft is
as fast as the best serial chain, 1.02 (0.94 to 1.06), which is one of 7; lock-step of 7 is as fast.
With UV-Prune it is 0.98 (0.84 to 1.07) of the best chain, one of 5. An earlier run of two clips had
1.09 and 0.94. The draft is right more often (β = 0.9) than the prediction assumed, so serial chains
are better, and beside the draft a pass takes 1.2 times as long as alone. At 64 frames (one clip,
two repeats) the gain is 1.17 unpruned and 1.09 with UV-Prune, about as predicted (an earlier run:
1.20, 1.12), and 1.04 for the target itself (1.16 before). The target itself at 16 frames is slower
than plain decoding. The machine's speed varied by a third between repeats. Each number of frames
was a run of its own; they are joined here."""

CHAINS = (3, 5, 7, 9)
GOALS = """Goals at 16 frames: default at least 1.25 times the best serial chain with the same
pruner, lock-step 1.2; at 8, 64 and 256 frames at least 0.98 of the better of serial and plain;
self-parallel 1.15 times the best serial self chain at 64 and 256 frames; first token at most 2%
later than plain's."""

FIGURES = ("e2e", "decode", "ttft", "passes", "emitted", "corrections", "draft_forwards")


def methods(frames: int) -> dict[str, dict[str, Any]]:
    """The methods to compare, by name."""
    pruned = {"method": "parallelvlm"}
    whole = {"method": "speculative"}
    own = {"method": "parallelvlm", "draft": "self"}
    chosen: dict[str, dict[str, Any]] = {"plain": {"method": "plain"}}
    for length in CHAINS:
        chain = {"schedule": "serial", "num_speculative_tokens": length}
        chosen[f"uv, serial chain of {length}"] = {**pruned, **chain}
        chosen[f"unpruned, serial chain of {length}"] = {**whole, **chain}
    chosen["uv, parallel"] = pruned
    chosen["unpruned, parallel"] = {**whole, "schedule": "parallel"}
    for length in (5, 7):
        lockstep = {"schedule": "parallel", "num_speculative_tokens": length}
        chosen[f"uv, lock-step of {length}"] = {**pruned, **lockstep}
        chosen[f"unpruned, lock-step of {length}"] = {**whole, **lockstep}
    if frames >= 16:
        for length in (1, 2, 4):
            chain = {"schedule": "serial", "num_speculative_tokens": length}
            chosen[f"self, serial chain of {length}"] = {**own, **chain}
        chosen["self, parallel"] = own
    return chosen


def measure(engine: Engine, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Sums over clips of every way of answering, repeat by repeat, by number of frames: once more
    after each number of frames."""
    target, draft = backbones(engine)
    for backbone in (target, draft):
        wait_for(backbone)
    runs: dict[str, Any] = {}
    for frames in args.frames:
        answerers: dict[str, Any] = {"stock generate": stock_answerer(target)}
        if frames <= 64:
            answerers["stock assisted"] = assisted_answerer(target, draft, {})
        for name, method in methods(frames).items():
            answerers[name] = engine_answerer(engine, method)
        prompts = [sample_inputs(engine, caption_sample(70 + c), frames) for c in range(args.clips)]
        runs[str(frames)] = _interleaved(answerers, prompts, args)
        print(f"{frames} frames done", flush=True)
        yield runs


def wait_for(backbone: Any) -> None:
    """Wait until a model's process is ready, which is not part of an answer."""
    link: Any = link_of(backbone)
    number = link.new_answer()
    while not link.is_ready:
        link.receive(number, 0.1)
    link.forget(number)


def _interleaved(
    answerers: Mapping[str, Any], prompts: Sequence[Any], args: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    sums: dict[str, list[dict[str, float]]] = {name: [] for name in answerers}
    expected: dict[int, Any] = {}
    for repeat in range(args.repeats + 1):
        for name, answer in rotated(list(answerers.items()), repeat):
            total: dict[str, float] = defaultdict(float)
            for number, inputs in enumerate(prompts):
                run = answer(inputs, {"max_new_tokens": args.max_new_tokens})
                tokens = expected.setdefault(number, run["tokens"])
                assert run["tokens"] == tokens, f"{name} changed the tokens"
                add_figures(total, run)
            if repeat:  # the first one fills caches
                sums[name].append(dict(total))
    return sums


def add_figures(total: dict[str, float], run: Mapping[str, Any]) -> None:
    """Add the figures of one answer to the sums."""
    for figure in FIGURES:
        total[figure] += run.get(figure, 0)
    for phase, seconds in run.get("phases", {}).items():
        total[f"target {phase}"] += seconds
    for kind, seconds in run.get("lanes", {}).get("draft", {}).items():
        total[f"lane {kind}"] += seconds


def gains(runs: Mapping[str, Sequence[Mapping[str, float]]], draft: str) -> dict[str, list[float]]:
    """Decoding seconds of the best serial chain of a draft over those of its other ways, by repeat.

    The best chain is the one with the smallest median, so that noise chooses none of it.
    """
    chains = [name for name in runs if name.startswith(f"{draft}, serial")]
    best = min(chains, key=lambda name: statistics.median(run["decode"] for run in runs[name]))
    others = [name for name in runs if name.startswith(f"{draft}, ") and name not in chains]
    return {
        f"{name} / {best.removeprefix(f'{draft}, ')}": [
            serial["decode"] / run["decode"]
            for serial, run in zip(runs[best], runs[name], strict=True)
        ]
        for name in others
    }


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    sections = [
        "# Draft and target at the same time on the embedded pair",
        report["prediction"],
        OUTCOME,
        GOALS,
        environment_line(report["environment"]),
    ]
    for frames, runs in report["runs"].items():
        sections += [f"## {frames} frames", _ways(runs), _gains(runs)]
    return "\n\n".join(sections) + "\n"


def _ways(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    plain = statistics.median(run["e2e"] for run in runs["plain"])
    rows = []
    for name, repeats in runs.items():
        passes = statistics.median(run["passes"] for run in repeats)
        verify = statistics.median(run.get("target verify", 0.0) for run in repeats)
        steps = statistics.median(run["draft_forwards"] for run in repeats)
        lane = statistics.median(run.get("lane draft", 0.0) for run in repeats)
        drafting = lane or statistics.median(run.get("target draft", 0.0) for run in repeats)
        rows.append(
            (
                name,
                _spread([run["decode"] for run in repeats]),
                _spread([run["e2e"] for run in repeats]),
                f"{plain / statistics.median(run['e2e'] for run in repeats):.2f}",
                f"{statistics.median(run['ttft'] for run in repeats) * 1e3:.0f}",
                f"{repeats[0]['emitted'] / passes:.2f}" if passes else "",
                f"{verify / passes * 1e3:.1f}" if passes else "",
                f"{drafting / steps * 1e3:.2f}" if steps else "",
                f"{repeats[0]['corrections']:.0f}",
            )
        )
    head = (
        "way",
        "decode s",
        "end to end s",
        "of plain",
        "first tokens ms",
        "tokens a pass",
        "ms a pass",
        "ms a draft step",
        "corrections",
    )
    return "\n".join(markdown_table(head, rows))


def _gains(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    rows = []
    for draft in ("uv", "unpruned", "self"):
        if any(name.startswith(f"{draft},") for name in runs):
            for name, ratios in gains(runs, draft).items():
                rows.append((name, _spread(ratios)))
    head = ("decode, gain over the best serial chain", "median (range)")
    return "\n".join(markdown_table(head, rows))


def _spread(values: Sequence[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/parallel_pair", repeats=3)
    parser.add_argument(
        "--frames",
        type=int,
        nargs="+",
        default=[16, 8, 64],
        help="256, too, take half an hour more",
    )
    parser.add_argument("--clips", type=int, default=3)
    args = parser.parse_args()
    configure(args.threads)
    began = time.perf_counter()
    engine = draftlens.load("embedded", device="cpu", calibrate=False)
    for runs in measure(engine, args):
        report = {
            "prediction": PREDICTION,
            "environment": environment(args),
            "runs": runs,
            "seconds": time.perf_counter() - began,
        }
        save(args.out, report, page(report))


if __name__ == "__main__":
    main()
