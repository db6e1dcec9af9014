"""Our own claims, C1 to C6."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from .claim import Check, Claim, Paper, Report
from .figures import Figure, at, share, times

OUT = "--out benchmarks/results"
BATCHES = (
    "python benchmarks/batches.py --parts joining,one --rows 30 --clips 6 --repeats 3 "
    f"{OUT}/batches"
)
SIZES = f"python benchmarks/batches.py --parts sizes --repeats 24 --max-new-tokens 48 {OUT}/batches"
ENGINE = f"python benchmarks/engine.py {OUT}/engine"
SERVE = f"python benchmarks/serve.py --repeats 2 {OUT}/serve"
SMALL = (
    "python benchmarks/batches.py --rows 4 --clips 2 --repeats 2 --sizes 1 4 16 "
    "--max-new-tokens 40 "
)

DEFAULT = "tree (auto, the default)"
ASSISTED = "hf-assisted (γ = 5)"
DIFFER = 0.05
"""Bound on the share of answers that differ; it is on the interval, no differing one is allowed."""


def seconds_of(report: Report, way: str) -> list[float]:
    """End to end, over clips and repeats of `engine.py`."""
    runs: Mapping[str, Sequence[float]] = at(report, "runs", way, "e2e")
    return [value for clip in sorted(runs) for value in runs[clip]]


def engine_gain(other: str, report: Report) -> Figure:
    return times(seconds_of(report, other), seconds_of(report, DEFAULT))


def one_gain(other: str, report: Report) -> Figure:
    seconds = at(report, "one", "found", "seconds")
    return times(seconds[other], seconds["default"])


def checked_answers(report: Report) -> Figure:
    """A run in which one differs fails."""
    return share(0, at(report, "checked", "answers"))


def joined(report: Report) -> Figure:
    found = at(report, "joining", "found").values()
    return share(sum(each["differ"] for each in found), sum(each["rows"] for each in found))


def over_http(report: Report) -> Figure:
    """Answers of both servers that differ from stock's."""
    rows = [row for row in at(report, "rows") if row["who"] in ("plain", "speculative")]
    return share(sum(row["differ"] for row in rows), sum(row["answers"] for row in rows))


def batch_gain(size: int, report: Report) -> Figure:
    seconds = at(report, "sizes", "found", str(size))
    return times(seconds["plain"], seconds["speculative"])


def later_turns(report: Report) -> Figure:
    """How many times as early the first tokens of turns 2 to 5 come, over repeats."""
    seconds = at(report, "turns", "seconds")
    stock, chat = (
        [median(run[1:]) for run in seconds[way]["first"]]
        for way in ("stock generate", "chat, default")
    )
    return times(stock, chat)


def differing(label: str, file: str, read: Callable[[Report], Figure], part: str = "") -> Check:
    return Check(label, file, read, below=DIFFER, form=".1%", part=part)


def faster(label: str, read: Callable[[Report], Figure], **where: Any) -> Check:
    return Check(label, read=read, above=1.0, **where)


CLAIMS = (
    Claim(
        "C1",
        "[exactness](exactness.md)",
        "Greedy tokens are those of stock `generate`, whatever drafts.",
        "none differs",
        BATCHES,
        (
            differing("answers that differ, four methods", "batches", joined, "joining"),
            differing("views, embedded draft", "tabed_acceptance", checked_answers),
            differing("near-sighted draft", "tabed_acceptance_near_sighted", checked_answers),
        ),
        "eight families of models and all methods are in `pytest tests/exact`",
        quick=f"{SMALL}--out OUT/batches",
    ),
    Claim(
        "C2",
        "[folders](folders.md)",
        "The tokens of a row depend neither on its neighbours nor on the moment at which it joins.",
        "none differs",
        BATCHES,
        (differing("rows that differ, joining at random", "batches", joined, "joining"),),
        "four methods, 30 rows each; more in `pytest tests/exact/test_joining.py`",
    ),
    Claim(
        "C3",
        "[serve](serve.md)",
        "Answers over HTTP are those of `generate()`, with up to 16 clients.",
        "none differs",
        SERVE,
        (differing("answers that differ", "serve", over_http),),
        quick="python benchmarks/serve.py --repeats 1 --clients 1 4 --requests 4 "
        "--ways stock plain speculative --out OUT/serve",
        code="draftlens/serve",
    ),
    Claim(
        "C4a",
        "README",
        "At batch 1 the default is faster than stock `generate` and its assisted generation.",
        "",
        ENGINE,
        (
            faster("over stock", partial(engine_gain, "hf-generate"), file="engine"),
            faster("over assisted, γ = 5", partial(engine_gain, ASSISTED), file="engine"),
        ),
        "captions of the two bundled clips, nine repeats",
        quick="python benchmarks/engine.py --repeats 2 --max-new-tokens 60 --out OUT/engine",
        code="draftlens/methods/speculative.py",
    ),
    Claim(
        "C4b",
        "README",
        "At batch 1 the default is faster than stock prompt lookup.",
        "",
        BATCHES,
        (
            faster(
                "over stock prompt lookup",
                partial(one_gain, "stock prompt lookup"),
                file="batches",
                part="one",
            ),
            faster(
                "over assisted, γ = 5",
                partial(one_gain, "stock assisted, 5"),
                file="batches",
                part="one",
            ),
        ),
        "captions of six held-out clips, three repeats, other programs beside them",
        code="draftlens/methods/speculative.py",
    ),
    Claim(
        "C5",
        "[methods](methods.md)",
        "A draft pays in batches, too: the break-even batch size is above 16 rows.",
        "",
        SIZES,
        tuple(
            faster(
                f"gain of the draft, {size} rows",
                partial(batch_gain, size),
                file="batches",
                part="sizes",
            )
            for size in (1, 4, 16)
        ),
        "the processor's time; `benchmarks/results/batches.md` has all sizes and the break-even",
        code="draftlens/methods/speculative.py",
    ),
    Claim(
        "C6",
        "[chat](chat.md)",
        "A second turn does not read the prompt again: its first token comes at least twice as "
        "early as stock's.",
        "12 times (prediction)",
        f"python benchmarks/turns.py --parts turns {OUT}/turns",
        (Check("turns 2 to 5, first token, over stock", "turns", later_turns, above=2.0),),
        quick="python benchmarks/turns.py --parts turns --repeats 2 --out OUT/turns",
        code="draftlens/chat.py",
    ),
)

PAPER = Paper(
    "draftlens",
    "draftlens/decoding",
    "draftlens/embedded/target/model.safetensors",
    CLAIMS,
    "What this package says of itself, on the embedded pair.",
)
