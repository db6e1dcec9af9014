"""The claims of TABED, with the numbers of the records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from draftlens_lab.measure.statistics import central_interval
from numpy.typing import NDArray

from .claim import Check, Claim, Paper, Report
from .figures import Figure, Rows, at, mean, ratio, share_of, shifted, times

OUT = "--out benchmarks/results"
DRAFTS = {
    "a": ("tabed_acceptance", "embedded draft", ""),
    "b": (
        "tabed_acceptance_near_sighted",
        "near-sighted draft",
        "--draft benchmarks/near_sighted ",
    ),
}
"""Result file, title and option of each draft, by the letter of a claim's row."""

ACCEPTANCE = (
    "python benchmarks/tabed.py acceptance --prompts 100 --checked 2 --temperatures 0 "
    "--keep runs/tabed"
)
SMALL = (
    "--prompts 3 --checked 1 --temperatures 0 --kinds picture 'five pictures' '64 frames' "
    "'second turn, aside' --max-new-tokens 64 --out OUT"
)

Counts = Mapping[str, Mapping[str, Rows]]
Reader = Callable[[Report], Figure]


def counts_of(report: Report) -> Counts:
    counts: Counts = at(report, "temperature 0")
    return counts


def mean_of_kinds(counts: Counts, name: str) -> tuple[float, NDArray[np.float64]]:
    """Tokens a forward in the mean of all kinds, and that of every resample of prompts."""
    found = [ratio(kind[name], 0, 1) for kind in counts.values()]
    values = np.mean([value for value, _ in found])
    return float(values), np.asarray(np.mean([drawn for _, drawn in found], axis=0))


def gain(name: str, other: str, report: Report) -> Figure:
    """How much better a way is than another one, in the mean of all kinds."""
    value, drawn = mean_of_kinds(counts_of(report), name)
    base, others = mean_of_kinds(counts_of(report), other)
    prompts = len(next(iter(counts_of(report).values()))[name])
    return Figure(value / base - 1, central_interval(drawn / others - 1), count=prompts)


def on_kind(kind: str, name: str, other: str, report: Report) -> Figure:
    """How much better a way is than another one on a kind of prompts."""
    counts = counts_of(report)[kind]
    return shifted(share_of(counts[name], counts[other], 0, 1), -1)


def third(report: Report) -> Figure:
    """On how many kinds MT* is behind two of M, T and MT."""
    total: float = 0.0
    drawn_total: Any = 0
    for kind in counts_of(report).values():
        own, own_drawn = ratio(kind["MT*"], 0, 1)
        others = [ratio(kind[name], 0, 1) for name in ("M", "T", "MT")]
        total += sum(value > own for value, _ in others) > 1
        drawn_total = drawn_total + (sum(drawn > own_drawn for _, drawn in others) > 1)
    return Figure(total, central_interval(np.asarray(drawn_total, dtype=np.float64)))


def spread_of_windows(report: Report) -> Figure:
    """How much worse the worst window is than the best one, in tokens a forward."""
    names = ("MT*, h = 1", "MT*, h = 4", "MT*, h = 16", "MT*")
    found = [mean_of_kinds(counts_of(report), name) for name in names]
    values = [value for value, _ in found]
    drawn = np.asarray([drawn for _, drawn in found])
    interval = central_interval(1 - drawn.min(0) / drawn.max(0))
    return Figure(float(1 - min(values) / max(values)), interval)


def trust(report: Report) -> Figure:
    """The weight of the view that is right, where one of M and T is."""
    rows = [row for kind in counts_of(report).values() for row in kind["MT*"]]
    value, drawn = ratio(rows, 5, 4)
    return Figure(value, central_interval(drawn))


def caption_wait(kind: str, report: Report) -> Figure:
    """Seconds for captions over those to the first token of the same answers."""
    runs = at(report, "kinds", kind, "captions")
    return times(runs["wait for captions"], runs["first token"])


def decoding(frames: str, report: Report) -> Figure:
    """Share of plain decoding in the time of an answer."""
    return mean([run["decode"] / run["e2e"] for run in at(report, "runs", frames, "plain")])


def longer(way: str, kind: str, report: Report) -> Figure:
    """Tokens a forward of a way over those of M, over prompts."""
    lengths = at(report, "kinds", kind, "lengths by prompt")
    return times(lengths[way], lengths["M"])


def predicted(way: str, kind: str, report: Report) -> Figure:
    """Seconds of M over those of another way, over prompts, for a comparison with eq. 1."""
    seconds: Mapping[str, Sequence[float]] = at(report, "kinds", kind, "seconds")
    lengths = at(report, "kinds", kind, "lengths")
    by_equation = lengths[way] / lengths["M"]
    return times(seconds["M"], [by_equation * value for value in seconds[way]])


def rows(
    number: str,
    place: str,
    says: str,
    paper: str,
    checks: Sequence[tuple[str, Reader, float | None, float | None, str]],
    letters: str = "ab",
    why: str = "",
) -> list[Claim]:
    """The same claim on both drafts."""
    found = []
    for letter in letters:
        file, title, option = DRAFTS[letter]
        small = f"python benchmarks/tabed.py acceptance {option}{SMALL}/{file}"
        found.append(
            Claim(
                number if number == "14" else f"{number}{letter}",
                place,
                f"{says} ({title}).",
                paper,
                f"{ACCEPTANCE} {option}{OUT}/{file}",
                tuple(
                    Check(label, file, read, above, below, form)
                    for label, read, above, below, form in checks
                ),
                why,
                quick=small if number in ("2", "5") else "",
            )
        )
    return found


def better(
    label: str, name: str, other: str, bound: float = 0.0
) -> tuple[str, Reader, float | None, float | None, str]:
    return (label, partial(gain, name, other), bound, None, "+.1%")


CLAIMS = (
    *(
        row
        for letter, kind, why in (
            ("a", "second turn, aside", "the kind with the largest gain of twelve"),
            ("b", "five pictures", ""),
        )
        for row in rows(
            "1",
            "Tables 1, 10 to 14",
            "No view is best on every kind of prompt",
            "M 2.24, T 2.23 on the first turn; 1.18, 2.05 on five pictures",
            [
                ("M - T, one picture", partial(on_kind, "picture", "M", "T"), 0.0, None, "+.1%"),
                (f"T - M, {kind}", partial(on_kind, kind, "T", "M"), 0.0, None, "+.1%"),
            ],
            letter,
            why,
        )
    ),
    *rows(
        "2",
        "Table 1",
        "Equal weights of M and T beat either",
        "2.31 beside 2.24 and 2.23",
        [better("MT - M", "MT", "M"), better("MT - T", "MT", "T")],
    ),
    *rows(
        "3",
        "Table 1",
        "Adapted weights are best or second on every kind",
        "best or second",
        [
            (
                "kinds of 12 on which MT* is behind two of M, T, MT",
                third,
                None,
                0.5,
                ".0f",
            ),
            better("MT* - MT", "MT*", "MT"),
        ],
    ),
    *rows(
        "4",
        "Table 2",
        "The views of pooled pictures and of captions see, so they beat T",
        "P 2.23 and C 2.29 beside 2.23; five pictures 2.08, 2.09 beside M's 1.18",
        [better("P - T", "P", "T"), better("C - T", "C", "T")],
    ),
    *rows(
        "5",
        "Table 2",
        "More views are better, and adapted weights best",
        "MTCP 2.32, MTCP* 2.32, five pictures 2.12 and 2.13",
        [better("MTCP - MT", "MTCP", "MT"), better("MTCP* - MTCP", "MTCP*", "MTCP")],
    ),
    *rows(
        "6",
        "Table 3",
        "No window of observed tokens wins",
        "within 0.06 of 2.42 tokens on each dataset: 2.5%",
        [("worst below best of h = 1, 4, 16, all", spread_of_windows, None, 0.025, ".1%")],
    ),
    *rows(
        "7",
        "Figs. 3, 4",
        "Weights lie with the view whose draft token is accepted",
        "towards the better view",
        [("weight of the view that is right", trust, 0.5, None, ".2f")],
    ),
    *rows(
        "8",
        "Section 5.1",
        "KL and TV as distance make hardly a difference",
        "no figures; within 1%",
        [("TV - KL", partial(gain, "MTCP*, TV", "MTCP*"), -0.01, 0.01, "+.1%")],
    ),
    Claim(
        "9",
        "Table 4",
        "Captions are ready before the prefill ends.",
        "0.105 s beside 0.112 s (Florence-2, one picture)",
        f"python benchmarks/tabed.py captions {OUT}/tabed_captions",
        tuple(
            Check(
                f"captions over the first token, {kind}",
                "tabed_captions",
                partial(caption_wait, kind),
                below=1.0,
            )
            for kind in ("picture", "five pictures")
        ),
        "captions of at most 32 tokens by the draft, which are made after the first token here",
        quick="python benchmarks/tabed.py captions --prompts 2 --repeats 1 "
        "--out OUT/tabed_captions",
    ),
    Claim(
        "10",
        "Figs. 5, 6",
        "A forward costs the same up to ten tokens, 3,000 tokens of context and four rows.",
        "within 5% (A100)",
        f"python benchmarks/tabed.py steps {OUT}/tabed_steps",
        why="a forward on a CPU costs more with every token; four views take 1.21 of one view's "
        "step at 1,000 tokens",
    ),
    Claim(
        "11",
        "Table 9, Fig. 7",
        "The draft sees: it is right more often with the picture than without.",
        "OCRBench 0.048 beside 0.014",
        f"{ACCEPTANCE} {OUT}/tabed_acceptance",
        (
            Check(
                "tokens a forward, M - T, one picture",
                "tabed_acceptance",
                partial(on_kind, "picture", "M", "T"),
                above=0.0,
                form="+.1%",
            ),
            Check(
                "the same, 64 frames",
                "tabed_acceptance",
                partial(on_kind, "64 frames", "M", "T"),
                above=0.0,
                form="+.1%",
            ),
        ),
    ),
    Claim(
        "12",
        "Fig. 9",
        "Decoding dominates the time of an answer.",
        "above half",
        f"python benchmarks/parallel.py pair {OUT}/parallel_pair",
        (
            Check(
                "share of plain decoding, captions of 16 frames",
                "parallel_pair",
                partial(decoding, "16"),
                above=0.5,
                form=".0%",
            ),
        ),
        quick="python benchmarks/parallel.py pair --frames 16 --clips 1 --repeats 2 "
        "--max-new-tokens 32 --out OUT/parallel_pair",
        code="draftlens/methods/base.py",
    ),
    *rows(
        "13",
        "Appendix I.2",
        "The three ways to write T make hardly a difference",
        "no figures; within 3%",
        [
            ("words - line break", partial(gain, "W", "T"), -0.03, 0.03, "+.1%"),
            ("nothing - line break", partial(gain, "N", "T"), -0.03, 0.03, "+.1%"),
        ],
    ),
    *rows(
        "14",
        "Tables 11 to 14",
        "Other drafts show the same: mixing beats M and T",
        "five pairs of models",
        [better("MT* - M", "MT*", "M"), better("MT* - T", "MT*", "T")],
        "b",
    ),
    Claim(
        "15",
        "Section 8",
        "Views go together with trees of draft tokens.",
        "announced, not measured",
        "python benchmarks/tabed.py endtoend --tree eagle --prompts 24 --repeats 1 --kinds "
        f"'five pictures' --draft benchmarks/near_sighted {OUT}/tabed_tree",
        (
            Check(
                "tokens a forward, MT over M, EAGLE's tree, five pictures",
                "tabed_tree",
                partial(longer, "MT", "five pictures"),
                above=1.0,
            ),
        ),
        "24 prompts, all with the tokens of stock `generate`",
        quick="python benchmarks/tabed.py endtoend --tree eagle --prompts 2 --repeats 1 --kinds "
        "'five pictures' --draft benchmarks/near_sighted --max-new-tokens 40 --out OUT/tabed_tree",
    ),
    Claim(
        "16",
        "Eq. 1",
        "The speedup is the one of eq. 1: the ratio of accepted lengths, with drafting at the same "
        "cost.",
        "1.74 by eq. 1, never timed; within 10%",
        "python benchmarks/tabed.py endtoend --prompts 48 --repeats 2 --kinds '64 frames' --draft "
        f"benchmarks/near_sighted {OUT}/tabed_endtoend_near_sighted",
        (
            Check(
                "measured over predicted gain of MT on M, 64 frames",
                "tabed_endtoend_near_sighted",
                partial(predicted, "MT", "64 frames"),
                0.9,
                1.1,
            ),
        ),
        "48 prompts, seconds of whole answers",
        quick="python benchmarks/tabed.py endtoend --prompts 2 --repeats 1 --kinds '64 frames' "
        "--draft benchmarks/near_sighted --max-new-tokens 60 --out OUT/tabed_endtoend_near_sighted",
    ),
)

PAPER = Paper(
    "TABED",
    "draftlens/methods/tabed",
    "draftlens/embedded/target/model.safetensors",
    CLAIMS,
    "M reads everything, T the words, P pooled pictures, C captions; MT and MTCP mix them with "
    "equal weights, an asterisk means adapted weights. Means of twelve kinds of prompts, chains of "
    "5, greedy.",
)
