"""The paper's five pairs in virtual time: simulated, predicted and printed speedups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from draftlens_lab.measure.tables import markdown_table

from . import paper, simulated, theory
from .virtual import Costs, Seconds, Text, lockstep, serial

TEXTS = 16
RATIO = 0.9
"""Pruning ratio of the paper's main results."""

PREDICTION = """Pairs. Lock-step within 3% of R and within 10% of Table 1 in all five pairs. The
rule's pace 3 to 6% faster than lock-step at c = 9 and 5, and as fast elsewhere; hedges 2 to 4% more
at c = 9, nothing at c below 3. Serial rows of Table 1 within 10% of M·T_p / (γT_q + T_p), OnSD too
if its draft's step takes what the one pruned by 90% takes. Table 7 within 12%, worst at a ratio of
1. With the same M at all ratios, speedups of Fig. 6 rise from 0 to 0.9. Rounding γ up pays in the
self pairs only. Whole trees need more nodes than a draft writes in a T_p; branches of second
choices gain a few percent."""


def measure() -> dict[str, Any]:
    """All figures as JSON values."""
    return {
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


def _costs(pair: paper.Pair, ratio: float = RATIO) -> Costs:
    """The pair's times at a pruning ratio, the same at all widths, without slowdowns."""
    seconds = pair.draft[ratio]
    return Costs(lambda _: pair.target, lambda _: seconds)


def _texts(acceptance: float, count: int = TEXTS) -> list[Text]:
    return simulated.independent_texts(count, paper.OUTPUT_TOKENS, acceptance)


def _pair(name: str) -> dict[str, Any]:
    """Table 1's row of ParallelVLM beside lock-step, the rule's pace and serial chains."""
    pair = paper.PAIRS[name]
    row = pair.rows["ParallelVLM"]
    costs = _costs(pair)
    acceptance = theory.acceptance_of_run(row.length)
    texts = _texts(acceptance)
    ratio = pair.target / pair.draft[RATIO]
    options = simulated.parallel_options(costs, acceptance)
    gamma, chain = simulated.best_serial_figures(texts, costs)
    hedged = replace(options, fill=0, hedge=simulated.HEDGE)
    return {
        "pair": name,
        "ratio": ratio,
        "length": row.length,
        "acceptance": acceptance,
        "window": pair.window,
        "paper": row.mean,
        "predicted": theory.lockstep_speedup(acceptance, pair.window, ratio),
        "lockstep": asdict(simulated.lockstep_figures(texts, costs, pair.window)),
        "options": asdict(options),
        "eager": asdict(simulated.eager_figures(texts, costs, options)),
        "hedged": asdict(simulated.eager_figures(texts, costs, hedged)),
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
            figures = simulated.serial_figures(texts, costs, gamma)
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
    costs = Costs(lambda _: step, lambda _: slower * pair.draft[RATIO])
    plays = [lockstep(text, costs, pair.window, starts_ready=True) for text in texts]
    simulated_decode = sum(play.seconds for play in plays) / len(plays)
    vanilla = pair.rows["Vanilla SD"]
    gamma = paper.BASELINE_WINDOWS["Vanilla SD"]
    chain_texts = _texts(theory.acceptance_of_chain(vanilla.length, gamma))
    chain_costs = Costs(lambda _: step, lambda _: slower * pair.draft[0.0])
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
        figures = simulated.lockstep_figures(_texts(acceptance), _costs(pair), pair.window)
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
        figures = simulated.lockstep_figures(_texts(acceptance), _costs(pair, ratio), window)
        points.append({"ratio": ratio, "window": window, "simulated": figures.speedup})
    fall = paper.TABLE_7[-1].length / paper.TABLE_7[0].length
    blind = theory.acceptance_of_run(length * fall)
    figures = simulated.lockstep_figures(_texts(blind), _costs(pair), pair.window)
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
    costs = Costs(lambda _: 1.0, lambda _: 1 / ratio, latency=0.0)
    right = _texts(1.0, 2)
    acceptance = 0.872
    texts = _texts(acceptance)
    chain = simulated.serial_figures(texts, costs, ratio)
    both = simulated.lockstep_figures(texts, costs, ratio)
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
        simulated.serial_figures(right, costs, ratio).speedup,
        simulated.lockstep_figures(right, costs, ratio).speedup,
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


def _trees() -> dict[str, Any]:
    """What a tree costs in lock-step, and what sparse branches gain."""
    pair = paper.PAIRS["OV 7B & 72B"]
    acceptance = theory.acceptance_of_run(pair.rows["ParallelVLM"].length)
    texts = _texts(acceptance)
    costs = _costs(pair)
    options = simulated.parallel_options(costs, acceptance)
    chain = simulated.eager_figures(texts, costs, options).speedup
    gains = {}
    growths = {"the width is free": 0.0, "8% more for 8 tokens": 0.08 / 7, "proportional": 1.0}
    for label, growth in growths.items():
        seconds = pair.draft[RATIO]
        widening = Costs(costs.target, _widening(seconds, growth))
        for width in (2, 4):
            wide = replace(options, hedge=simulated.HEDGE, width=width)
            speedup = simulated.eager_figures(texts, widening, wide).speedup
            gains[f"steps of {width}, {label}"] = speedup / chain
    hedged = replace(options, fill=0, hedge=simulated.HEDGE)
    gains["steps of 1, in the place of late guesses"] = (
        simulated.eager_figures(texts, costs, hedged).speedup / chain
    )
    return {
        "window": pair.window,
        "nodes of a binary tree of one window": theory.tree_nodes(2, pair.window),
        "nodes of one that also continues every leaf": theory.tree_nodes(2, 2 * pair.window),
        "EAGLE's 25 nodes, 5 deep, behind each of its 16 leaves": 25 * 16,
        "nodes that fit into T_p one by one": pair.target / pair.draft[RATIO],
        "chain": chain,
        "gains": gains,
    }


def _widening(seconds: float, growth: float) -> Seconds:
    """Costs that grow by a share of the first token's with every token more."""
    return lambda width: seconds * (1 + growth * (width - 1))


def _rounding(name: str) -> dict[str, Any]:
    """γ rounded down and up, and the best γ of all."""
    pair = paper.PAIRS[name]
    ratio = pair.target / pair.draft[RATIO]
    acceptance = theory.acceptance_of_run(pair.rows["ParallelVLM"].length)
    texts = _texts(acceptance)
    costs = _costs(pair)
    down = int(ratio)
    best, figures = simulated.best_lockstep_figures(texts, costs, range(1, down + 3))
    return {
        "pair": name,
        "ratio": ratio,
        "down": down,
        "speedup down": simulated.lockstep_figures(texts, costs, down).speedup,
        "speedup up": simulated.lockstep_figures(texts, costs, down + 1).speedup,
        "best": best,
        "best speedup": figures.speedup,
    }


LAYERS, HEADS, HEAD_SIZE, BYTES = 28, 4, 128, 2
"""Keys and values of Qwen2 7B, the language model of the draft, in bfloat16."""


def _memory() -> dict[str, float]:
    """Bytes that the method allocates beyond serial speculative decoding with the same draft."""
    token = 2 * LAYERS * HEADS * HEAD_SIZE * BYTES
    pair = paper.PAIRS["OV 7B & 72B"]
    ahead = theory.lead(pair.window - 1)
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


def report(found: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown."""
    return [
        *_pair_lines(found),
        "",
        *_serial_lines(found["serial rows"]),
        "",
        *_table_6_lines(found["table 6"]),
        "",
        *_table_7_lines(found["table 7"]),
        "",
        *_figure_6_lines(found["figure 6"]),
        "",
        *_theorem_lines(found["theorems"]),
        "",
        *_tree_lines(found["trees"]),
        "",
        *_rounding_lines(found["rounding"]),
        "",
        *_memory_lines(found["memory"]),
    ]


def _pair_lines(found: Mapping[str, Any]) -> list[str]:
    head = ["pair", "c", "β", "γ", "paper", "R", "lock-step", "eager", "hedged", "best serial"]
    head += ["target idle", "draft idle"]
    rows = []
    for pair in found["table 1"]:
        options = pair["options"]
        pace = f"cap {options['cap']}, s = {options['wait']}, fill {options['fill']}"
        idle = [f"{100 * pair['eager'][f'{lane}_idle']:.0f}%" for lane in ("target", "draft")]
        rows.append(
            [
                pair["pair"],
                f"{pair['ratio']:.2f}",
                f"{pair['acceptance']:.3f}",
                str(pair["window"]),
                f"{pair['paper']:.2f}",
                f"{pair['predicted']:.2f}",
                f"{pair['lockstep']['speedup']:.2f}",
                f"{pair['eager']['speedup']:.2f} ({pace})",
                f"{pair['hedged']['speedup']:.2f}",
                f"{pair['serial']['speedup']:.2f} (γ = {pair['guesses']})",
                *idle,
            ]
        )
    shares = found["datasets"]
    note = (
        f"Decode only, {TEXTS} texts of {paper.OUTPUT_TOKENS} tokens, draft tokens right "
        f"independently of each other with β = M / (M + 1), messages of 50 µs, no slowdown side by "
        f"side. Over the {shares['cells']} cells of Table 1, R is {shares['least']:.2f} to "
        f"{shares['most']:.2f} times the printed speedup. Idle shares are those of eager."
    )
    return ["### Table 1", "", *markdown_table(head, rows), "", note]


def _serial_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ["pair", "method", "M", "paper", "M·T_p / (γT_q + T_p)", "simulated", "implied T_q, ms"]
    cells = [
        [
            row["pair"],
            row["method"],
            f"{row['tokens']:.2f}",
            f"{row['paper']:.2f}",
            f"{row['predicted']:.2f}",
            f"{row['simulated']:.2f}",
            f"{1e3 * row['draft seconds for the printed speedup']:.1f}",
        ]
        for row in rows
    ]
    title = "### Table 1, serial methods: M is tokens a pass"
    return [title, "", *markdown_table(head, cells, (0, 1))]


def _table_6_lines(found: Mapping[str, float]) -> list[str]:
    rows = [[name, f"{value:.2f}"] for name, value in found.items()]
    return ["### Table 6", "", *markdown_table(["figure", "value"], rows)]


def _table_7_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ["α", "M", "τ", "paper", "simulated", "R", "Eq. 7 of τ", "R / γ", "Thm. 6 of τ"]
    head += ["Thm. 6 of β"]
    keys = ["speedup", "simulated", "predicted", "equation 7", "emitted rate"]
    keys += ["theorem 6 of the rate", "theorem 6 of the acceptance"]
    cells = []
    for row in rows:
        firsts = [f"{row[key]:.2f}" for key in ("ratio", "length", "rate")]
        cells.append([*firsts, *(f"{row[key]:.2f}" for key in keys)])
    return ["### Table 7", "", *markdown_table(head, cells)]


def _figure_6_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ["pair", "α = 0", "0.5", "0.9", "1", "paper, α = 0 and 0.9", "M for the paper's at 0"]
    cells = []
    for row in rows:
        points = [f"{point['simulated']:.2f} (γ = {point['window']})" for point in row["points"]]
        printed = ", ".join(f"{speedup:.2f}" for speedup in row["paper"])
        needed = f"{row['length needed at 0']:.2f}"
        cells.append([row["pair"], *points, printed, f"{needed} (0.9: {row['length']:.2f})"])
    return ["### Fig. 6, M held constant below α = 1", "", *markdown_table(head, cells)]


def _theorem_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ["theorem", "says", "simulated"]
    cells = [[row["theorem"], f"{row['says']:.2f}", f"{row['simulated']:.2f}"] for row in rows]
    return ["### Theorems at c = γ = 9, β = 0.872", "", *markdown_table(head, cells)]


def _tree_lines(found: Mapping[str, Any]) -> list[str]:
    names = [name for name in found if name not in ("gains", "chain", "window")]
    rows = [[name, f"{found[name]:,.0f}"] for name in names]
    gains = [[name, f"{gain:.3f}"] for name, gain in found["gains"].items()]
    return [
        f"### Trees, γ = {found['window']}",
        "",
        *markdown_table(["nodes", "number"], rows),
        "",
        *markdown_table(["branches of second choices, against the chain", "speed"], gains),
    ]


def _rounding_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ["pair", "c", "γ down", "γ up", "best γ"]
    cells = [
        [
            row["pair"],
            f"{row['ratio']:.2f}",
            f"{row['down']}: {row['speedup down']:.2f}",
            f"{row['down'] + 1}: {row['speedup up']:.2f}",
            f"{row['best']}: {row['best speedup']:.2f}",
        ]
        for row in rows
    ]
    return ["### Rounding of γ", "", *markdown_table(head, cells)]


def _memory_lines(found: Mapping[str, float]) -> list[str]:
    rows = [[name, f"{value:,.6g}"] for name, value in found.items()]
    return ["### Memory, bytes", "", *markdown_table(["what", "bytes"], rows)]
