"""The claims of ParallelVLM, with the numbers of the records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

from .claim import Check, Claim, Paper, Report
from .figures import Figure, at, difference, grows, mean, share, shifted, times
from .virtual_time import (
    against_serial,
    allocated,
    blind,
    in_order,
    nodes_that_fit,
    rises,
    rounding,
    self_gains,
    theorems,
    virtual,
)

OUT = "--out benchmarks/results"
PAIRS = f"python benchmarks/parallel.py pairs {OUT}/parallel_pairs"
IDLE = f"python benchmarks/parallel.py idle {OUT}/parallel_idle"
SMALL_IDLE = (
    "python benchmarks/parallel.py idle --frames 8 64 --clips 1 --repeats 3 --max-new-tokens 24 "
    "--out OUT/parallel_idle"
)
PAIR = f"python benchmarks/parallel.py pair {OUT}/parallel_pair"
LOSSY_CLIPS = f"python benchmarks/parallel.py lossy --frames 16 --resume {OUT}/parallel_lossy"
GUIDANCE = f"python benchmarks/parallel.py guidance --clips 200 {OUT}/parallel_guidance"
VIRTUAL = " ".join(
    f"benchmarks/parallel_parts/{name}.py" for name in ("pairs", "paper", "theory", "virtual")
)
"""Virtual time uses no model; its code is the benchmark's."""

UV, ATTENDED = "uv, L = 20", "attention, all layers"
TOKENS, PASSES, KEPT, AT_ENDS = 0, 2, 3, 4
"""Columns of the counts of `guidance`."""

LOSSY = {"FastV": 0.846, "SparseVLM": 0.871, "PDrop": 0.878, "DyCoke": 0.909}
"""Table 2, 72B: share of the tokens that the full target accepts."""


def idle_times(value: str, way: str, frames: int, report: Report) -> list[float]:
    rows = at(report, "times")
    return [row[value] for row in rows if row["way"].endswith(way) and row["frames"] == frames]


def idle_growth(value: str, way: str, report: Report) -> Figure:
    """From 8 to 64 frames."""
    small, large = (idle_times(value, way, frames, report) for frames in (8, 64))
    return grows(small, large)


def idle_mean(value: str, way: str, frames: int, report: Report) -> Figure:
    return mean(idle_times(value, way, frames, report))


def bias(case: str, report: Report) -> Figure:
    """Share of the kept tokens at the ends, minus the share of all tokens that lie there."""
    part = at(report, "found", "captions of 16 frames")
    width = part["width_of_ends"][0]
    counts = part["counts"][f"{case} 0.9"]
    whole = [[row[AT_ENDS], row[KEPT]] for row in counts]
    nothing = [[0, 1] for _ in counts]
    return shifted(difference(whole, nothing, 0, 1), -width)


def uv_gain(case: str, baseline: str, report: Report) -> Figure:
    """Tokens a forward at r = 0.9, chains of 5, captions of 16 frames."""
    counts = at(report, "found", "captions of 16 frames", "counts")
    return difference(counts[f"{case} 0.9"], counts[f"{baseline} 0.9"], TOKENS, PASSES)


def accepted(way: str, report: Report) -> Figure:
    """Share of a lossy answer's tokens that the full target accepts, over clips."""
    value, low, high = at(report, "summaries", "16", way, "A")
    return Figure(value, (low, high), count=at(report, "summaries", "16", way, "clips"))


def same_tokens(report: Report) -> Figure:
    """Share of answers whose tokens are stock's although the draft's process was lost."""
    losses = at(report, "losses")
    return share(sum(loss["equal"] for loss in losses), len(losses))


def ready(report: Report) -> Figure:
    """Share of answers in which a window is there when the target's prefill ends."""
    rows = [row for row in at(report, "firsts") if row["way"] != "plain"]
    return share(sum(row["guesses"] >= row["window"] for row in rows), len(rows))


def over_serial(draft: str, frames: int, report: Report) -> Figure:
    """Decode seconds of a draft's best serial chain over those of its process, over repeats."""
    runs = at(report, "runs", str(frames))
    ways = (best_chain(draft, frames, report), f"{draft}, parallel")
    serial, parallel = ([run["decode"] for run in runs[way]] for way in ways)
    return times(serial, parallel)


def best_chain(draft: str, frames: int, report: Report) -> str:
    """The serial chain of a draft with the smallest median, as on the page of the pair."""
    runs: Mapping[str, Any] = at(report, "runs", str(frames))
    chains = [way for way in runs if way.startswith(f"{draft}, serial")]
    return min(chains, key=lambda way: median(run["decode"] for run in runs[way]))


def self_gain(frames: int, report: Report) -> Figure:
    """The speedup over plain decoding of a target that drafts for itself in a second process, minus
    that of its best serial chain, over repeats."""
    runs = at(report, "runs", str(frames))
    ways = ("plain", "self, parallel", best_chain("self", frames, report))
    rows = zip(*(runs[way] for way in ways), strict=True)
    seconds = [[run["decode"] for run in row] for row in rows]
    return mean([plain / parallel - plain / serial for plain, parallel, serial in seconds])


def own_memory(report: Report) -> Figure:
    """Gigabytes of the draft's process that are its own."""
    return mean([row["own"] / 1e9 for row in at(report, "times") if "parallel" in row["way"]])


def claim(number: str, place: str, says: str, paper: str, *checks: Check, why: str = "") -> Claim:
    """A claim that virtual time decides."""
    quick = PAIRS.replace("benchmarks/results", "OUT") if number == "10a" else ""
    return Claim(
        number, place, says, paper, PAIRS, checks, why, quick=quick, code=VIRTUAL, weights=""
    )


def idle(label: str, read: Callable[[Report], Figure], **bounds: Any) -> Check:
    return Check(label, "parallel_idle", read, **bounds)


def guided(label: str, read: Callable[[Report], Figure], form: str, **bounds: Any) -> Check:
    return Check(label, "parallel_guidance", read, form=form, **bounds)


CLAIMS = (
    Claim(
        "1",
        "Fig. 3",
        "Prefill and decoding of target and draft take longer with more visual tokens.",
        "growth in both",
        IDLE,
        tuple(
            idle(f"{label}, 64 over 8 frames", partial(idle_growth, value, way), above=1.0)
            for label, value, way in (
                ("target's prefill", "target_prefill", "serial"),
                ("draft's prefill", "draft_prefill", "unpruned, serial"),
                ("target's forward", "target_pass", "serial"),
                ("draft's step", "draft_step", "unpruned, serial"),
            )
        ),
        "at 256 frames, one run (from the record, 1e65825, 2026-11-22): a forward 30.1 ms, a draft "
        "step 2.7, beside 19.6 and 2.0 at 8",
        quick=SMALL_IDLE,
    ),
    Claim(
        "2",
        "Section 3",
        "In serial speculative decoding the target idles in prefill and decoding.",
        "20% and 50%; within half of that",
        IDLE,
        (
            idle(
                "share of prefill, 64 frames",
                partial(idle_mean, "idle_prefill", "unpruned, serial", 64),
                above=0.1,
                below=0.3,
                form=".0%",
            ),
            idle(
                "share of decoding, 64 frames",
                partial(idle_mean, "idle_decode", "unpruned, serial", 64),
                above=0.25,
                below=0.75,
                form=".0%",
            ),
        ),
    ),
    Claim(
        "3",
        "Fig. 4",
        "Pruning by attention keeps too many tokens at both ends of the video.",
        "20.9% of the kept tokens in 4% of the width: +17 points",
        GUIDANCE,
        (guided("kept at the ends - width", partial(bias, ATTENDED), "+.1%", above=0.0),),
    ),
    Claim(
        "4",
        "Fig. 7(a)",
        "UV-Prune has no such bias.",
        "no bias; below 2 points",
        GUIDANCE,
        (guided("kept at the ends - width", partial(bias, UV), "+.1%", below=0.02),),
    ),
    Claim(
        "5",
        "Fig. 7(b)",
        "UV-Prune accepts more than pruning by attention and than unguided pruning.",
        "+0.2, and +0.3 to +0.5 tokens; above 0",
        GUIDANCE,
        tuple(
            guided(f"UV - {label}", partial(uv_gain, UV, other), "+.2f", above=0.0)
            for label, other in (
                ("attention", ATTENDED),
                ("random", "random"),
                ("uniform", "uniform"),
            )
        ),
        quick="python benchmarks/parallel.py guidance --clips 3 --long-clips 1 --questions 1 "
        "--checked 1 --max-new-tokens 60 --out OUT/parallel_guidance",
    ),
    Claim(
        "6a",
        "Fig. 9",
        "Variation over layers helps both criteria.",
        "above 0",
        GUIDANCE,
        (
            guided(
                "similarity with - without",
                partial(uv_gain, UV, "similarity, L = 20"),
                "+.2f",
                above=0.0,
            ),
            guided(
                "attention with - without",
                partial(uv_gain, "attention, variation, L = 20", "attention, L = 20"),
                "+.2f",
                above=0.0,
            ),
        ),
    ),
    Claim(
        "6b",
        "Fig. 9",
        "The choice has converged at layer L = 20.",
        "flat from L = 20 of 28 on; within 0.2 tokens, the least gain in Fig. 7(b)",
        GUIDANCE,
        tuple(
            guided(
                f"L = {layer} - L = 14 of 20",
                partial(uv_gain, f"any depth, L = {layer}", UV),
                "+.2f",
                above=-0.2,
                below=0.2,
            )
            for layer in (15, 20)
        ),
        "14 of the embedded target's 20 layers are as deep as 20 of 28",
    ),
    claim(
        "7",
        "Tables 3, 5",
        "Pruning makes the speed ratio c 1.6 to 1.8 times as large.",
        "1.6 to 1.8",
        virtual(
            "least of five pairs", min, lambda f: [r["growth"] for r in f["ratios"]], 1.55, 1.85
        ),
        virtual("greatest", max, lambda f: [r["growth"] for r in f["ratios"]], 1.55, 1.85),
        why="arithmetic of the printed times, not a measurement",
    ),
    claim(
        "8",
        "Fig. 6",
        "The speedup rises from α = 0 to 0.9 and falls at 1.",
        "2.94 to 3.36 and 2.08 to 2.42",
        virtual("α = 0.5 over 0, least", min, partial(rises, first=0, second=1), 1.0),
        virtual("α = 0.9 over 0.5, least", min, partial(rises, first=1, second=2), 1.0),
        virtual("α = 1 over 0.9, greatest", max, partial(rises, first=2, second=3), None, 1.0),
    ),
    claim(
        "9",
        "Table 7",
        "The printed M give the printed speedups at α = 0.9 to 1.",
        "3.43, 3.28, 2.90, 2.53; within 10%",
        virtual(
            "simulated over printed, least",
            min,
            lambda f: [r["simulated"] / r["speedup"] for r in f["table 7"]],
            0.9,
            1.1,
        ),
        virtual(
            "greatest",
            max,
            lambda f: [r["simulated"] / r["speedup"] for r in f["table 7"]],
            0.9,
            1.1,
        ),
    ),
    claim(
        "10a",
        "Table 1",
        "ParallelVLM is faster than all serial methods, and the order of methods is the printed "
        "one.",
        "e.g. 3.36 against 2.74",
        virtual("over the best serial row, least of five pairs", min, against_serial, 1.0),
        virtual(
            "share of pairs in the printed order",
            lambda values: sum(values) / 5,
            in_order,
            0.99,
        ),
    ),
    Claim(
        "10b",
        "Table 1",
        "With real processes, too, ParallelVLM decodes faster than serial drafting.",
        "e.g. 3.36 against 2.74",
        PAIR,
        tuple(
            Check(
                f"over the best serial chain, {label}, {frames} frames",
                "parallel_pair",
                partial(over_serial, draft, frames),
                above=1.0,
            )
            for draft, label in (("uv", "pruned"), ("unpruned", "unpruned"))
            for frames in (8, 16, 64)
        ),
        "three repeats of three clips, one core a process; a draft step takes a tenth of a forward "
        "here",
    ),
    claim(
        "11a",
        "Table 1",
        "A model paired with itself gains 0.3 over SpecVLM and STD.",
        "0.3; at least 0.2",
        virtual("least difference", min, self_gains, 0.2),
    ),
    Claim(
        "11b",
        "Table 1",
        "With real processes, too, a model paired with itself gains 0.3 over serial drafting.",
        "0.3; at least 0.2",
        PAIR,
        tuple(
            Check(
                f"difference of the speedups, {frames} frames",
                "parallel_pair",
                partial(self_gain, frames),
                above=0.2,
                form="+.2f",
            )
            for frames in (16, 64)
        ),
        "three repeats of three clips, one core a process",
    ),
    claim(
        "12",
        "Table 1",
        "A draft that sees nothing is slower than plain decoding in self pairs.",
        "0.84 and 0.79",
        virtual("greatest speed over plain", max, blind, None, 1.0),
    ),
    Claim(
        "13a",
        "Table 6",
        "The method allocates no memory beyond serial speculative decoding.",
        "+0.15 GB",
        PAIRS,
        (Check("GB allocated beyond", "parallel_pairs", allocated, below=0.15, form=".4f"),),
        code=VIRTUAL,
        weights="",
    ),
    Claim(
        "13b",
        "Table 6",
        "On a CPU the draft's process takes no further memory of its own.",
        "+0.15 GB",
        IDLE,
        (idle("GB of its own", own_memory, below=0.15),),
    ),
    Claim(
        "14a",
        "Table 2",
        "Lossy peers at a tenth of the visual tokens accept 84.6 to 90.9% of the tokens.",
        "84.6, 87.1, 87.8, 90.9%; within 5 points",
        LOSSY_CLIPS,
        tuple(
            Check(
                way,
                "parallel_lossy",
                partial(accepted, f"{way}, 10%"),
                printed - 0.05,
                printed + 0.05,
                ".1%",
            )
            for way, printed in LOSSY.items()
        ),
        quick="python benchmarks/parallel.py lossy --frames 16 --clips 2 --step-repeats 1 "
        "--max-new-tokens 40 --out OUT/parallel_lossy",
    ),
    Claim(
        "14b",
        "Table 2",
        "ParallelVLM's tokens are all accepted.",
        "99.1%; 100% here",
        f"python benchmarks/parallel.py robustness {OUT}/parallel_robustness",
        (
            Check(
                "share of answers with stock's tokens, the draft killed or stopped",
                "parallel_robustness",
                same_tokens,
                above=0.95,
                form=".1%",
            ),
        ),
        quick="python benchmarks/parallel.py robustness --kills 4 --stops 1 --answers 4 "
        "--out OUT/parallel_robustness",
    ),
    Claim(
        "15",
        "Table 4",
        "Flash attention makes it 1.22 to 1.41 times as fast.",
        "1.22 to 1.41",
        why="the kernel needs a GPU, and no figures have been taken on one",
    ),
    claim(
        "16a",
        "Theorems 2 to 4",
        "The formulas of serial and of parallel decoding meet a simulation.",
        "equal; within 3%",
        virtual("says over simulated, least", min, partial(theorems, "2|3|4"), 0.97, 1.03),
        virtual("greatest", max, partial(theorems, "2|3|4"), 0.97, 1.03),
    ),
    claim(
        "16b",
        "Theorem 5",
        "The speedup meets a simulation with τ as the chance that a draft token is accepted.",
        "equal; within 3%",
        virtual("says over simulated", max, partial(theorems, "5: lock-step, τ = ch"), 0.97, 1.03),
        why="with τ = emitted / (γ · rounds) it is equal, but Theorem 6 needs the other τ",
    ),
    claim(
        "16c",
        "Theorem 6",
        "The speedup meets a simulation with τ as the chance of a draft token, too.",
        "equal; within 3%",
        virtual("says over simulated", max, partial(theorems, "6: lock-step, τ = ch"), 0.97, 1.03),
    ),
    claim(
        "17",
        "Appendix A",
        "Trees do not pay in parallel decoding.",
        "infeasible",
        virtual("nodes needed over nodes that fit into a forward", max, nodes_that_fit, 1.0),
        why="EAGLE's tree of 25 nodes behind each of its 16 leaves, all of which may be accepted; "
        "behind one leaf alone it has 2.8 times the nodes that fit",
    ),
    claim(
        "18",
        "Appendix A",
        "γ is best rounded down for large windows and up for self pairs.",
        "down, up",
        virtual("up over down, other pairs, greatest", max, partial(rounding, False), None, 1.0),
        virtual("up over down, self pairs, least", min, partial(rounding, True), 1.0),
    ),
    Claim(
        "19a",
        "Appendix D",
        "The draft's prefill is wholly hidden by the target's.",
        "wholly",
        IDLE,
        (
            idle(
                "share hidden, 64 frames, pruned",
                partial(idle_mean, "hidden", "uv, parallel", 64),
                above=0.95,
                form=".1%",
            ),
        ),
    ),
    Claim(
        "19b",
        "Appendix D",
        "A first window is there when the target's prefill ends.",
        "immediately",
        f"python benchmarks/parallel.py first-token --clips 6 --repeats 2 "
        f"{OUT}/parallel_first_token",
        (
            Check(
                "share of answers, 64 frames",
                "parallel_first_token",
                ready,
                above=0.9,
                form=".0%",
            ),
        ),
        quick="python benchmarks/parallel.py first-token --clips 2 --repeats 2 "
        "--out OUT/parallel_first_token",
    ),
)

PAPER = Paper(
    "ParallelVLM",
    "draftlens/methods/parallelvlm",
    "draftlens/embedded/target/model.safetensors",
    CLAIMS,
    "Rows marked as computed replay the paper's pairs in virtual time, with its printed times and "
    "accepted lengths; the others are of the embedded pair.",
)
