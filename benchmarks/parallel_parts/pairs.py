"""The part `pairs`: the paper's five pairs in virtual time, beside formulas and printed figures."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from shared import Benchmark, Report, table

from . import paper, theory
from .virtual import Costs, Figures, Text, drawn_text, figures, lockstep, serial

TEXTS = 16
RATIO = 0.9
"""Pruning ratio of the paper's main results."""


def measure(args: argparse.Namespace) -> Report:
    """All figures; they follow from the paper's printed values and from no option."""
    found = {
        "table 1": [_pair(name) for name in paper.PAIRS],
        "datasets": _datasets(),
        "serial rows": _serial_rows(),
        "ratios": _ratios(),
        "table 6": _table_6(),
        "table 7": _table_7(),
        "figure 6": [_figure_6(name) for name in paper.FIGURE_6],
        "theorems": _theorems(),
        "trees": _trees(),
        "rounding": [_rounding(name) for name in paper.PAIRS],
        "memory": _memory(),
    }
    return {"found": {"pairs": found}}


def _costs(pair: paper.Pair, ratio: float = RATIO) -> Costs:
    """The pair's times at a pruning ratio, the same at all widths, without slowdowns."""
    return Costs(pair.target, pair.draft[ratio])


def _texts(acceptance: float, count: int = TEXTS) -> list[Text]:
    return [drawn_text(paper.OUTPUT_TOKENS, acceptance, seed) for seed in range(count)]


def _serial(texts: Sequence[Text], costs: Costs, gamma: int) -> Figures:
    return figures(texts, costs, lambda text: serial(text, costs, gamma))


def _lockstep(texts: Sequence[Text], costs: Costs, window: int) -> Figures:
    return figures(texts, costs, lambda text: lockstep(text, costs, window))


def _fastest(found: Mapping[int, Figures]) -> tuple[int, Figures]:
    return max(found.items(), key=lambda item: item[1].speedup)


def _pair(name: str) -> dict[str, Any]:
    """Table 1's row of ParallelVLM beside lock-step, serial chains."""
    pair = paper.PAIRS[name]
    row = pair.rows["ParallelVLM"]
    costs = _costs(pair)
    acceptance = theory.acceptance_of_run(row.length)
    texts = _texts(acceptance)
    ratio = pair.target / pair.draft[RATIO]
    gamma, chain = _fastest({gamma: _serial(texts, costs, gamma) for gamma in range(1, 17)})
    return {
        "pair": name,
        "ratio": ratio,
        "length": row.length,
        "acceptance": acceptance,
        "window": pair.window,
        "paper": row.mean,
        "predicted": theory.lockstep_speedup(acceptance, pair.window, ratio),
        "lockstep": asdict(_lockstep(texts, costs, pair.window)),
        "guesses": gamma,
        "serial": asdict(chain),
    }


def _datasets() -> dict[str, float]:
    """R against every cell of Table 1 that ParallelVLM has, as shares of the printed speedup."""
    shares = []
    for pair in paper.PAIRS.values():
        row = pair.rows["ParallelVLM"]
        ratio = pair.target / pair.draft[RATIO]
        for length, speedup in zip(row.lengths, row.speedups, strict=True):
            acceptance = theory.acceptance_of_run(length)
            predicted = theory.lockstep_speedup(acceptance, pair.window, ratio)
            shares.append(predicted / speedup)
    return {"cells": len(shares), "least": min(shares), "most": max(shares)}


def _serial_rows() -> list[dict[str, Any]]:
    """Table 1's serial methods: M tokens a pass, simulated as chains of their γ.

    OnSD, SpecVLM and STD read few or no visual tokens: T_q at a ratio of 0.9. The paper states no
    times of their own.
    """
    found = []
    for name, pair in paper.PAIRS.items():
        for method, row in pair.rows.items():
            if method == "ParallelVLM":
                continue
            gamma = paper.BASELINE_WINDOWS[method]
            ratio = 0.0 if method in ("Vanilla SD", "SD-Tree") else RATIO
            costs = _costs(pair, ratio)
            seconds = gamma * pair.draft[ratio] + pair.target
            acceptance = theory.acceptance_of_chain(row.length, gamma)
            texts = _texts(acceptance, 4)
            figures = _serial(texts, costs, gamma)
            found.append(
                {
                    "pair": name,
                    "method": method,
                    "tokens": row.length,
                    "paper": row.mean,
                    "predicted": row.length * pair.target / seconds,
                    "simulated": figures.speedup,
                    "draft seconds for the printed speedup": _implied_draft(pair, row, gamma),
                }
            )
    return found


def _implied_draft(pair: paper.Pair, row: paper.Row, gamma: int) -> float:
    """T_q for which M tokens a pass give the printed speedup."""
    return pair.target * (row.length / row.mean - 1) / gamma


def _ratios() -> list[dict[str, Any]]:
    """How c grows with the pruning ratio (Tables 3 and 5)."""
    found = []
    for name, pair in paper.PAIRS.items():
        ratios = {str(ratio): pair.target / seconds for ratio, seconds in pair.draft.items()}
        found.append({"pair": name, **ratios, "growth": pair.draft[0.0] / pair.draft[RATIO]})
    return found


def _table_6() -> dict[str, float]:
    """Decoding and end to end, from the printed seconds and in virtual time."""
    columns = paper.TABLE_6
    plain = columns["plain"]
    ours = columns["ParallelVLM"]
    chain = columns["SD"]
    step = plain.target_decode / paper.OUTPUT_TOKENS
    passes = chain.target_decode / step
    pair = paper.PAIRS["OV 7B & 72B"]
    row = pair.rows["ParallelVLM"]
    texts = _texts(theory.acceptance_of_run(row.length))
    # The printed decode time of plain, and T_q in the same proportion.
    slower = step / pair.target
    costs = Costs(step, slower * pair.draft[RATIO])
    plays = [lockstep(text, costs, pair.window, starts_ready=True) for text in texts]
    simulated_decode = sum(play.seconds for play in plays) / len(plays)
    vanilla = pair.rows["Vanilla SD"]
    gamma = paper.BASELINE_WINDOWS["Vanilla SD"]
    chain_texts = _texts(theory.acceptance_of_chain(vanilla.length, gamma))
    chain_costs = Costs(step, slower * pair.draft[0.0])
    chains = [serial(text, chain_costs, gamma) for text in chain_texts]
    honest = plain.total - plain.draft_prefill
    return {
        "decode speedup": plain.decode / ours.decode,
        "end to end speedup": plain.total / ours.total,
        "without the draft's prefill": honest / ours.total,
        "SD decode speedup": plain.decode / chain.decode,
        "target step": step,
        "SD tokens a pass": paper.OUTPUT_TOKENS / passes,
        "SD draft steps a pass at T_q": chain.draft_decode / passes / pair.draft[0.0],
        "simulated ParallelVLM decode": simulated_decode,
        "printed ParallelVLM decode": ours.decode,
        "simulated SD decode": sum(play.seconds for play in chains) / len(chains),
        "printed SD decode": chain.decode,
        "simulated end to end speedup": honest / (ours.target_prefill + simulated_decode),
    }


def _table_7() -> list[dict[str, Any]]:
    pair = paper.PAIRS["OV 7B & 72B"]
    ratio = pair.target / pair.draft[RATIO]
    found = []
    for column in paper.TABLE_7:
        acceptance = theory.acceptance_of_run(column.length)
        figures = _lockstep(_texts(acceptance), _costs(pair), pair.window)
        found.append(
            {
                **asdict(column),
                "acceptance": acceptance,
                "predicted": theory.lockstep_speedup(acceptance, pair.window, ratio),
                "simulated": figures.speedup,
                "equation 7": theory.equation_7(column.rate, ratio),
                "emitted rate": theory.emitted_rate(acceptance, pair.window),
                "theorem 6 of the rate": theory.theorem_6(column.rate, ratio),
                "theorem 6 of the acceptance": theory.theorem_6(acceptance, ratio),
            }
        )
    return found


def _figure_6(name: str) -> dict[str, Any]:
    """Speedup by pruning ratio with the M of Table 1 at all ratios below 1.

    M at smaller ratios stands only in the figure ("a slight drop at high α"), so the M that would
    give the printed speedup at a ratio of 0 is reported too. At 1, M falls as in Table 7.
    """
    pair = paper.PAIRS[name]
    length = pair.rows["ParallelVLM"].length
    acceptance = theory.acceptance_of_run(length)
    points = []
    for ratio, window in paper.ROUNDED_WINDOWS[name].items():
        figures = _lockstep(_texts(acceptance), _costs(pair, ratio), window)
        points.append({"ratio": ratio, "window": window, "simulated": figures.speedup})
    fall = paper.TABLE_7[-1].length / paper.TABLE_7[0].length
    blind = theory.acceptance_of_run(length * fall)
    figures = _lockstep(_texts(blind), _costs(pair), pair.window)
    points.append({"ratio": 1.0, "window": pair.window, "simulated": figures.speedup})
    return {
        "pair": name,
        "length": length,
        "points": points,
        "paper": list(paper.FIGURE_6[name]),
        "length needed at 0": _length_for(
            paper.FIGURE_6[name][0], paper.ROUNDED_WINDOWS[name][0.0], pair
        ),
    }


def _length_for(speedup: float, window: int, pair: paper.Pair) -> float:
    """M for which lock-step without pruning has this speedup; infinite where nothing has."""
    ratio = pair.target / pair.draft[0.0]
    lengths = [step / 20 for step in range(1, 2000)]
    for length in lengths:
        acceptance = theory.acceptance_of_run(length)
        if theory.lockstep_speedup(acceptance, window, ratio) >= speedup:
            return length
    return float("inf")


def _theorems() -> list[dict[str, Any]]:
    """Every theorem's speedup beside a simulation in which its assumptions hold (c = γ = 9)."""
    ratio = 9
    costs = Costs(1.0, 1 / ratio, latency=0.0)
    right = _texts(1.0, 2)
    acceptance = 0.872
    texts = _texts(acceptance)
    chain = _serial(texts, costs, ratio)
    both = _lockstep(texts, costs, ratio)
    accepted = (chain.tokens_a_round - 1) / ratio
    emitted = both.tokens_a_round / ratio
    rows = [
        ("2: serial, all accepted", theory.theorem_2(ratio, ratio)),
        ("3: lock-step, all accepted", theory.theorem_3(ratio, ratio)),
        ("4: serial, τ = accepted / drafted", theory.theorem_4(accepted, ratio, ratio)),
        ("5: lock-step, τ = emitted / (γ · rounds)", theory.theorem_5(emitted, ratio, ratio)),
        ("5: lock-step, τ = chance of acceptance", theory.theorem_5(acceptance, ratio, ratio)),
        ("6: lock-step, τ = chance of acceptance", theory.theorem_6(acceptance, ratio)),
        ("6: lock-step, τ = emitted / (γ · rounds)", theory.theorem_6(emitted, ratio)),
    ]
    found = [
        _serial(right, costs, ratio).speedup,
        _lockstep(right, costs, ratio).speedup,
        chain.speedup,
        both.speedup,
        both.speedup,
        both.speedup,
        both.speedup,
    ]
    return [
        {"theorem": name, "says": value, "simulated": speedup}
        for (name, value), speedup in zip(rows, found, strict=True)
    ]


def _trees() -> dict[str, float]:
    """How many nodes a tree needs in lock-step, and how many a draft has the time for."""
    pair = paper.PAIRS["OV 7B & 72B"]
    return {
        "nodes of a binary tree of one window": theory.tree_nodes(2, pair.window),
        "nodes of one that also continues every leaf": theory.tree_nodes(2, 2 * pair.window),
        "EAGLE's 25 nodes, 5 deep, behind each of its 16 leaves": 25 * 16,
        "nodes that fit into T_p one by one": pair.target / pair.draft[RATIO],
    }


def _rounding(name: str) -> dict[str, Any]:
    """γ rounded down and up, and the best γ of all."""
    pair = paper.PAIRS[name]
    ratio = pair.target / pair.draft[RATIO]
    acceptance = theory.acceptance_of_run(pair.rows["ParallelVLM"].length)
    texts = _texts(acceptance)
    costs = _costs(pair)
    down = int(ratio)
    windows = range(1, down + 3)
    best, fastest = _fastest({window: _lockstep(texts, costs, window) for window in windows})
    return {
        "pair": name,
        "ratio": ratio,
        "down": down,
        "speedup down": _lockstep(texts, costs, down).speedup,
        "speedup up": _lockstep(texts, costs, down + 1).speedup,
        "best": best,
        "best speedup": fastest.speedup,
    }


LAYERS, HEADS, HEAD_SIZE, BYTES = 28, 4, 128, 2
"""Keys and values of Qwen2 7B, the language model of the draft, in bfloat16."""


def _memory() -> dict[str, float]:
    """Bytes that the method allocates beyond serial speculative decoding with the same draft."""
    token = 2 * LAYERS * HEADS * HEAD_SIZE * BYTES
    pair = paper.PAIRS["OV 7B & 72B"]
    ahead = (
        2 * pair.window - 1
    )  # a window that is being judged, the token after it, the next window
    return {
        "a token of the draft's cache": token,
        "the lead of the draft in its cache": ahead * token,
        "guesses in messages": ahead * 8,
        "scores of the visual tokens": paper.VISUAL_TOKENS * 4,
        "saved by pruning": round(RATIO * paper.VISUAL_TOKENS) * token,
        "printed gigabytes beyond SD": round(
            paper.TABLE_6["ParallelVLM"].memory - paper.TABLE_6["SD"].memory, 2
        ),
    }


def page(report: Report) -> list[str]:
    """Paragraphs and tables."""
    found = report["found"]["pairs"]
    shares = found["datasets"]
    return [
        "Verdicts on the paper's claims stand in docs/claims.md.",
        "## Table 1",
        table(
            found["table 1"],
            {
                "pair": "{pair}",
                "c": "{ratio:.2f}",
                "β": "{acceptance:.3f}",
                "γ": "{window}",
                "paper": "{paper:.2f}",
                "R": "{predicted:.2f}",
                "lock-step": "{lockstep[speedup]:.2f}",
                "best serial": "{serial[speedup]:.2f} (γ = {guesses})",
                "target idle": "{lockstep[target_idle]:.0%}",
                "draft idle": "{lockstep[draft_idle]:.0%}",
            },
        ),
        f"Decode only, {TEXTS} texts of {paper.OUTPUT_TOKENS} tokens, draft tokens right "
        "independently of each other with β = M / (M + 1), messages of 50 µs. Over the "
        f"{shares['cells']} cells of Table 1, R is {shares['least']:.2f} to {shares['most']:.2f} "
        "times the printed speedup.",
        "## Table 1, serial methods: M is tokens a pass",
        table(
            found["serial rows"],
            {
                "pair": "{pair}",
                "method": "{method}",
                "M": "{tokens:.2f}",
                "paper": "{paper:.2f}",
                "M·T_p / (γT_q + T_p)": "{predicted:.2f}",
                "simulated": "{simulated:.2f}",
                "implied T_q, ms": "{draft seconds for the printed speedup:.1ms}",
            },
        ),
        "## Table 6",
        table(
            found["table 6"].items(), {"figure": lambda r: r[0], "value": lambda r: f"{r[1]:.2f}"}
        ),
        "## Table 7",
        table(
            found["table 7"],
            {
                "α": "{ratio:.2f}",
                "M": "{length:.2f}",
                "τ": "{rate:.2f}",
                "paper": "{speedup:.2f}",
                "simulated": "{simulated:.2f}",
                "R": "{predicted:.2f}",
                "Eq. 7 of τ": "{equation 7:.2f}",
                "R / γ": "{emitted rate:.2f}",
                "Thm. 6 of τ": "{theorem 6 of the rate:.2f}",
                "Thm. 6 of β": "{theorem 6 of the acceptance:.2f}",
            },
        ),
        "## Fig. 6, M held constant below α = 1",
        table(
            found["figure 6"],
            {
                "pair": "{pair}",
                **{
                    f"α = {ratio}": f"{{points[{i}][simulated]:.2f}} (γ = {{points[{i}][window]}})"
                    for i, ratio in enumerate(("0", "0.5", "0.9", "1"))
                },
                "paper, α = 0 and 0.9": "{paper[0]:.2f}, {paper[1]:.2f}",
                "M for the paper's at 0": "{length needed at 0:.2f} (0.9: {length:.2f})",
            },
        ),
        "## Theorems at c = γ = 9, β = 0.872",
        table(
            found["theorems"],
            {"theorem": "{theorem}", "says": "{says:.2f}", "simulated": "{simulated:.2f}"},
        ),
        "## Trees, OV 7B & 72B",
        table(
            found["trees"].items(), {"nodes": lambda r: r[0], "number": lambda r: f"{r[1]:,.0f}"}
        ),
        "## Rounding of γ",
        table(
            found["rounding"],
            {
                "pair": "{pair}",
                "c": "{ratio:.2f}",
                "γ": "{down}",
                "γ down": "{speedup down:.2f}",
                "γ up": "{speedup up:.2f}",
                "best γ": "{best}: {best speedup:.2f}",
            },
        ),
        "## Memory, bytes",
        table(found["memory"].items(), {"": lambda r: r[0], "bytes": lambda r: f"{r[1]:,.6g}"}),
    ]


BENCHMARK = Benchmark(
    "parallel_pairs", __doc__, "The pairs of ParallelVLM in virtual time", measure, page
)
