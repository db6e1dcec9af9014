"""Verdicts on the paper's claims that virtual time and its own tables can judge.

A claim holds, is not seen, is contrary to what is found, or cannot be tested here. Every verdict is
computed from the figures of `pairs.measure`; the numbers are those of issue 13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftlens_lab.measure.tables import markdown_table

from . import paper

HOLDS = "holds"
NOT_SEEN = "not seen"
CONTRARY = "the contrary"
UNTESTABLE = "cannot be tested here"
CLOSE = 0.1
"""Relative difference up to which a simulated speedup confirms a printed one."""


@dataclass(frozen=True)
class Verdict:
    """What is found of a claim.

    Args:
        claim: its number in issue 13.
        text: the claim.
        verdict: one of the four above.
        found: the figures.
    """

    claim: int
    text: str
    verdict: str
    found: str


def judge(found: Mapping[str, Any]) -> list[Verdict]:
    """All verdicts."""
    return [
        _claim_7(found),
        _claim_8(found),
        _claim_9(found),
        _claim_10(found),
        _claim_11(found),
        _claim_12(found),
        _claim_13(found),
        Verdict(
            15,
            "Table 4: flash attention makes it 1.22 to 1.41 times faster",
            UNTESTABLE,
            "the kernel belongs to the target's device; no such device here",
        ),
        _claim_16(found),
        _claim_17(found),
        _claim_18(found),
    ]


def report(verdicts: Sequence[Verdict]) -> list[str]:
    """Lines of Markdown."""
    rows = [[str(v.claim), v.text, v.verdict, v.found] for v in verdicts]
    return markdown_table(["", "claim", "verdict", "figures"], rows, (0, 1, 2, 3))


def _row(rows: Sequence[Mapping[str, Any]], **wanted: str) -> Mapping[str, Any]:
    return next(row for row in rows if all(row[key] == value for key, value in wanted.items()))


def _is_close(found: float, printed: float) -> bool:
    return abs(found / printed - 1) <= CLOSE


def _claim_7(found: Mapping[str, Any]) -> Verdict:
    growths = [row["growth"] for row in found["ratios"]]
    holds = min(growths) >= 1.55 and max(growths) <= 1.85
    figures = ", ".join(f"{row['pair']} {row['growth']:.2f}" for row in found["ratios"])
    return Verdict(
        7,
        "Tables 3, 5: pruning makes c 1.6 to 1.8 times larger",
        HOLDS if holds else NOT_SEEN,
        f"arithmetic of the printed times, not a measurement: {figures}; the text's 1.8 for 7B & "
        "72B is the quotient of rounded values (9 / 5)",
    )


def _claim_8(found: Mapping[str, Any]) -> Verdict:
    parts = []
    holds = True
    for row in found["figure 6"]:
        speeds = [point["simulated"] for point in row["points"]]
        rises = speeds[0] < speeds[1] < speeds[2]
        holds = holds and rises and speeds[3] < speeds[2]
        first, _, last, blind = speeds
        # The growth, since M at a ratio of 0 is not printed.
        printed = row["paper"][1] / row["paper"][0]
        parts.append(
            f"{row['pair']} {first:.2f} to {last:.2f} and {blind:.2f} at α = 1 (a gain of "
            f"{last / first:.2f}; printed {printed:.2f}, which needs M = "
            f"{row['length needed at 0']:.1f} at α = 0)"
        )
    return Verdict(
        8,
        "Fig. 6: 2.94 to 3.36 and 2.08 to 2.42 from α = 0 to 0.9, falling at 1",
        HOLDS if holds else NOT_SEEN,
        "in virtual time with the printed T_q and a constant M: " + "; ".join(parts),
    )


def _claim_9(found: Mapping[str, Any]) -> Verdict:
    rows = found["table 7"]
    holds = all(_is_close(row["simulated"], row["speedup"]) for row in rows)
    figures = ", ".join(f"{row['simulated']:.2f} ({row['speedup']:.2f})" for row in rows)
    rates = ", ".join(f"{row['emitted rate']:.2f} ({row['rate']:.2f})" for row in rows)
    return Verdict(
        9,
        "Table 7: M, τ and speedup at α = 0.9 to 1",
        HOLDS if holds else NOT_SEEN,
        f"the printed M in virtual time give {figures}; R / γ against the printed τ: {rates}",
    )


def _claim_10(found: Mapping[str, Any]) -> Verdict:
    serial = found["serial rows"]
    holds = True
    parts = []
    for row in found["table 1"]:
        name = row["pair"]
        ours = row["lockstep"]["speedup"]
        others = {r["method"]: r["simulated"] for r in serial if r["pair"] == name}
        printed = {method: r.mean for method, r in paper.PAIRS[name].rows.items()}
        order = sorted(printed, key=lambda method: printed[method])
        speeds = {**others, "ParallelVLM": ours}
        same = order == sorted(speeds, key=lambda method: speeds[method])
        best = max(others.values())
        holds = holds and ours > best and same
        parts.append(f"{name} {ours:.2f} against {best:.2f}{'' if same else ' (order differs)'}")
    return Verdict(
        10,
        "Table 1's order of methods",
        HOLDS if holds else NOT_SEEN,
        "with the printed M and times, ParallelVLM against the best serial row: "
        + "; ".join(parts)
        + ". A serial chain at its best γ with the same draft: "
        + ", ".join(f"{row['serial']['speedup']:.2f}" for row in found["table 1"]),
    )


def _claim_11(found: Mapping[str, Any]) -> Verdict:
    gains = []
    for name in paper.SELF_PAIRS:
        ours = _row(found["table 1"], pair=name)["lockstep"]["speedup"]
        for method in ("SpecVLM", "STD"):
            other = _row(found["serial rows"], pair=name, method=method)["simulated"]
            gains.append(ours - other)
    return Verdict(
        11,
        "self pairs are 0.3 above SpecVLM and STD",
        HOLDS if min(gains) >= 0.2 else NOT_SEEN,
        "differences in virtual time: " + ", ".join(f"{gain:.2f}" for gain in gains),
    )


def _claim_12(found: Mapping[str, Any]) -> Verdict:
    rows = [_row(found["serial rows"], pair=name, method="OnSD") for name in paper.SELF_PAIRS]
    holds = all(row["simulated"] < 1 for row in rows)
    figures = ", ".join(f"{row['simulated']:.2f} ({row['paper']:.2f})" for row in rows)
    return Verdict(
        12,
        "a blind draft (OnSD) is slower than plain decoding in self pairs",
        HOLDS if holds else CONTRARY,
        f"chains of 5 with the printed M and T_q at α = 0.9: {figures}; by M alone OnSD would be "
        "faster than plain if its T_q were below 38 ms (7B of 78.3) and 28 ms (of 63.7)",
    )


def _claim_13(found: Mapping[str, Any]) -> Verdict:
    memory = found["memory"]
    extra = memory["the lead of the draft in its cache"] + memory["guesses in messages"]
    extra += memory["scores of the visual tokens"]
    return Verdict(
        13,
        "Table 6: no more memory than serial speculative decoding",
        HOLDS if extra < 1e8 else CONTRARY,
        f"by what the method allocates: {extra / 1e6:.1f} MB (lead in the cache, scores, "
        "messages); "
        f"printed 0.15 GB; pruning saves "
        f"{memory['saved by pruning'] / 1e9:.2f} GB of the "
        "draft's cache, which the printed difference does not show. The memory of "
        "two processes is not measured",
    )


def _claim_16(found: Mapping[str, Any]) -> Verdict:
    rows = {row["theorem"]: row for row in found["theorems"]}
    exact = [name for name, row in rows.items() if _within(row, 0.03)]
    wrong = [
        f"{name}: {row['says']:.2f}, simulated {row['simulated']:.2f}"
        for name, row in rows.items()
        if name not in exact
    ]
    return Verdict(
        16,
        "Theorems 2 to 6",
        HOLDS if len(exact) >= 4 else NOT_SEEN,
        "2 to 4 hold; 5 holds for τ = emitted / (γ · rounds) and is too high by far for the chance "
        "of acceptance, which its proof by independent ω assumes; Equation 13 prints 1 + τγ where "
        "the proof has 1 + τ^γ, and Theorem 6 needs the chance of acceptance, so one τ cannot "
        "serve both (Table 7's 0.41 gives 0.35): " + "; ".join(wrong) + ". Theorem 3's factor of 2 "
        "compares at γ = c with all accepted",
    )


def _within(row: Mapping[str, float], share: float) -> bool:
    return abs(row["says"] / row["simulated"] - 1) <= share


def _claim_17(found: Mapping[str, Any]) -> Verdict:
    trees = found["trees"]
    gains = ", ".join(f"{name} {gain:.2f}" for name, gain in trees["gains"].items())
    nodes = trees["EAGLE's 25 nodes, 5 deep, behind each of its 16 leaves"]
    return Verdict(
        17,
        "App. A: trees do not pay in parallel",
        HOLDS,
        f"for whole trees: {nodes} nodes a round for EAGLE's behind each of its leaves, where "
        f"{trees['nodes that fit into T_p one by one']:.0f} fit into T_p; branches of second "
        f"choices alone do pay where wide draft steps are cheap (the contrary): {gains}",
    )


def _claim_18(found: Mapping[str, Any]) -> Verdict:
    holds = True
    parts = []
    for row in found["rounding"]:
        is_self = row["pair"] in paper.SELF_PAIRS
        goes_up = row["speedup up"] > row["speedup down"]
        holds = holds and goes_up == is_self
        parts.append(
            f"{row['pair']} (c = {row['ratio']:.2f}) {row['speedup down']:.2f} at {row['down']}, "
            f"{row['speedup up']:.2f} at {row['down'] + 1}"
        )
    return Verdict(
        18,
        "App. A: γ down for large windows, up for self pairs",
        HOLDS if holds else CONTRARY,
        "; ".join(parts),
    )
