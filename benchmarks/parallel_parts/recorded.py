"""Recorded cost curves and acceptance of real weights (`real_costs.json`) in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from auto_parts import cells
from draftlens_lab.measure.tables import markdown_table

from . import simulated, theory
from .virtual import Costs, Drawn, Eager, Text

SEEDS = 32
PROMPT_TOKENS = 150
"""Tokens of the prompts with which the costs were recorded."""

LAYER_SHARE = 0.7
"""Share of the target's prefill after which the draft may begin (the issue's bound on L)."""

PREDICTION = """Recorded cells. The ratio c is 2.8 and the float32 target has a step after three
tokens, so windows are short: lock-step 1.0 to 1.15 times the best serial chain in float32 and 1.15
to 1.3 in bfloat16; eager with the rule's window 1.05 to 1.2 and 1.2 to 1.35; hedges add nothing,
since the draft has no idle time at c = 2.8. End to end about the same, since prompts of 150 tokens
are short."""


def measure() -> list[dict[str, Any]]:
    """The figures of every recorded cell."""
    return [_measure_cell(cell) for cell in cells.recorded_cells()]


def _measure_cell(cell: cells.Cell) -> dict[str, Any]:
    machine = cells.machine_of(cell)
    costs = Costs(machine.target, machine.draft)
    texts = _texts(cell)
    acceptance = _acceptance(texts)
    length, serial = simulated.best_serial_figures(texts, costs)
    window, lockstep = simulated.best_lockstep_figures(texts, costs, range(1, 9))
    options = simulated.parallel_options(costs, acceptance)
    eager = simulated.eager_figures(texts, costs, options)
    hedged_options = simulated.parallel_options(costs, acceptance, simulated.HEDGE)
    hedged = simulated.eager_figures(texts, costs, hedged_options)
    found = {"serial": serial, "lockstep": lockstep, "eager": eager, "hedged": hedged}
    best_setting, best_eager = _best_eager(texts, costs)
    return {
        "curve": cell.curve,
        "prompt": cell.acceptance,
        "ratio": cell.ratio,
        "acceptance": acceptance,
        "guesses": length,
        "window": window,
        "options": asdict(options),
        "rule": asdict(simulated.pace_of(costs, acceptance)),
        "predicted": theory.lockstep_speedup(acceptance, window, cell.ratio),
        "best eager": {**asdict(best_eager), "setting": asdict(best_setting)},
        **{name: asdict(figures) for name, figures in found.items()},
        "end to end": {
            name: _end_to_end(costs, cell.length, figures.speedup, name)
            for name, figures in found.items()
        },
    }


def _texts(cell: cells.Cell) -> list[Text]:
    found: list[Text] = []
    for seed in range(SEEDS):
        (row,) = cells.texts_of(cell, seed)
        found.append([Drawn(token.rank, token.confidence) for token in row])
    return found


def _acceptance(texts: Sequence[Text]) -> float:
    right = sum(token.rank == 0 for text in texts for token in text)
    return right / sum(len(text) for text in texts)


def _best_eager(texts: Sequence[Text], costs: Costs) -> tuple[Eager, simulated.Figures]:
    """The fastest of all windows and waits, to which the rule's choice is compared."""
    best = None
    for cap in range(1, 6):
        for wait in range(min(cap, 3) + 1):
            for fill in (0, cap):
                options = Eager(cap, wait, theory.lead(cap), fill)
                figures = simulated.eager_figures(texts, costs, options)
                if best is None or figures.speedup > best[1].speedup:
                    best = (options, figures)
    assert best is not None
    return best


def _end_to_end(costs: Costs, length: int, speedup: float, name: str) -> float:
    """Speedup with the prefills of a prompt of `PROMPT_TOKENS`, which the curves extrapolate.

    A serial draft reads its prompt after the target, a parallel one beside it.
    """
    target = costs.target(PROMPT_TOKENS)
    draft = costs.draft(PROMPT_TOKENS)
    plain = target + (length - 1) * costs.target(1)
    decode = (length - 1) * costs.target(1) / speedup
    if name == "serial":
        return plain / (target + draft + decode)
    return plain / (max(target, LAYER_SHARE * target + draft) + decode)


def report(found: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of Markdown."""
    head = ["cell", "c", "β", "serial", "lock-step", "eager", "hedged", "best eager", "end to end"]
    rows = []
    for cell in found:
        base = cell["serial"]["speedup"]
        options = cell["options"]
        best = cell["best eager"]
        setting = best["setting"]
        ends = cell["end to end"]
        rows.append(
            [
                f"{cell['curve']}, {cell['prompt']}",
                f"{cell['ratio']:.2f}",
                f"{cell['acceptance']:.2f}",
                f"{base:.2f} (γ = {cell['guesses']})",
                f"{cell['lockstep']['speedup']:.2f} (γ = {cell['window']})",
                f"{cell['eager']['speedup']:.2f} (cap {options['cap']}, s = {options['wait']}, "
                f"fill {options['fill']})",
                f"{cell['hedged']['speedup']:.2f}",
                f"{best['speedup']:.2f} (cap {setting['cap']}, s = {setting['wait']}, "
                f"fill {setting['fill']})",
                f"{ends['serial']:.2f}, {ends['lockstep']:.2f}, {ends['eager']:.2f}",
            ]
        )
    note = (
        f"Speedups over plain decoding, {SEEDS} texts of 64 tokens. End to end: serial, lock-step "
        f"and eager, with prefills of {PROMPT_TOKENS} tokens from the same curves."
    )
    return [*markdown_table(head, rows), "", note]
