"""The part `rule`: rules for the pace on cells and seeds on which none of them was fitted.

`rule` chose the constants of `theory.best_window` on its own cells. Here other ratios, other
curves, other clusters and other seeds judge it, the engine's present rule and single changes of
both. A setting is searched on some texts and judged, as every rule is, on others; the fastest of it
and of all rules on those is called the best.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from draftlens_lab.measure.tables import markdown_table
from shared import argument_parser, configure, environment, environment_line, save

from draftlens.methods.parallelvlm.schedule import Round, Schedule

from . import simulated, theory
from .virtual import (
    TARGET,
    Costs,
    Eager,
    Seconds,
    Text,
    clustered_text,
    drawn_text,
    eager,
    lockstep,
)

RATIOS = (1.0, 2.0, 4.0, 6.5, 9.0, 20.0)
ACCEPTANCES = (0.5, 0.7, 0.85, 0.95)
TARGET_SECONDS = 0.02
LENGTH = 224
SEARCHED = 2
JUDGED = 4
FIRST_SEED = 70_000
STAY = 0.9
"""Chance that an easy or hard stretch goes on; the fit had 0.85."""

FORMER_WINDOW = 8
"""Most draft tokens in one check by the rule that this part judges."""

FORMER_WAIT = 8
"""Most draft tokens that the target waited for after a correction."""

LONGEST = 16
MARGIN = 0.03
"""The predicted gain below which plain decoding is preferred."""


def stairs(width: int) -> float:
    """A step after two tokens, and proportional costs after eight."""
    if width <= 2:
        return 1.0
    return 1.3 + 0.15 * max(0, width - 8)


CURVES: Mapping[str, Seconds] = {
    "flat": lambda width: 1.0,
    "linear": lambda width: 1 + 0.12 * (width - 1),
    "stairs": stairs,
}
"""Relative costs by width; none of them is one of `rule.CURVES` but the flat one."""

MISSES = ("independent", "clustered")

PREDICTION = """Written before the first run. The rule keeps 97% of the best in eight of ten cells;
fill = cap is right up to c of 4 and loses a few percent at c = 20; LIKELY could as well be 0.5 to
0.75. The engine's present rule is 10% below the best at c = 2 and 4, where windows of one or two
guesses waste passes, within 3% at c = 6.5 and 9, and loses 5% at c = 20 by its cap. Filling gains
most at small c, s = 0 loses at large c, the cap by c alone gains little, and plain matters only at
c = 1 and at an acceptance of 0.5 on the linear curve."""

OUTCOME = """Shares of the best, geometric means. Where `best_pace` says parallel (86 of 144
cells) its window has 0.991 of the best, at least 0.97 of it in 76 cells, worst 0.911; where it
does not say plain (120 cells) 0.977, 88 cells, worst 0.80 (c = 20, β = 0.5, independent, where it
says serial). Filling is supported from c = 2 on: without it 8% are lost at c = 2, 0.5% at 4 and
6.5, nothing at 9 and 20. At c = 1 it costs 21%; `best_pace` says plain there, but an engine
without plain must not fill. To let the prediction choose between fill = cap and 0 is as good
elsewhere and cures that: 0.980 over all cells. LIKELY = 0.62 is a compromise: clustered misses
prefer it to none (c of 2 and more: flat 0.992 against 0.967), independent ones prefer none (0.963
against 0.990); 0.4 to 0.75 differ by 1% over all and 0.75 loses 5% at c = 20. A wait from the
acceptance after corrections alone is no better (0.974). The engine's rule has 0.939: 9% below
the best at c = 2 (partial windows), 9% at c = 9 and 20 (its wait is far too long where passes
widen or misses cluster, its cap of 8 too small at β = 0.95 and c = 20); at c = 6.5 it loses 6%,
not 3%. No single change gains much over all cells: s = 0 -0.2% (+4% at c = 9, -7% at c = 20), cap
by c -1%, fill of c - 1 at small c +2% at c = 2 and -21% at c = 1, fill of c / 2 +0.7%; plain
matters nowhere in virtual time without slowdowns, since a target that does not wait is never
slower than plain decoding. All of them together gain: `simple_window`, from c and β alone, has
0.965, `best_window` with the curve and the choice of the fill 0.980. The rows "fill by
prediction", "simple" and "learned wait" were added after the first run and are played on the same
texts."""


@dataclass(frozen=True)
class Cell:
    """A place to judge at.

    Args:
        curve: name of the target's curve.
        ratio: c, for a forward of one token.
        acceptance: β.
        misses: "independent" or "clustered".
    """

    curve: str
    ratio: float
    acceptance: float
    misses: str

    @property
    def costs(self) -> Costs:
        """Of forwards."""
        relative = CURVES[self.curve]
        step = TARGET_SECONDS / self.ratio
        return Costs(lambda width: TARGET_SECONDS * relative(width), lambda _: step)

    def texts(self, first: int, count: int) -> list[Text]:
        """Some texts with these misses."""
        seeds = range(FIRST_SEED + first, FIRST_SEED + first + count)
        if self.misses == "clustered":
            return [clustered_text(LENGTH, self.acceptance, STAY, seed) for seed in seeds]
        return [drawn_text(LENGTH, self.acceptance, seed) for seed in seeds]


Rule = Callable[[Cell], Eager]


def window_of(
    cell: Cell, likely: float = theory.LIKELY, fills: tuple[bool, ...] = (True,)
) -> Eager:
    """What `theory.best_window` chooses."""
    cap, wait, fill = theory.best_window(
        cell.costs.target, cell.costs.draft(1), cell.acceptance, likely=likely, fills=fills
    )
    return Eager(cap, wait, theory.lead(cap), fill)


def former_wait(rate: float, ratio: float, window: int) -> int:
    """How many draft tokens the former engine waited for after a correction.

    One token of the answer costs (1 - β)(1 + w(s) / c + β^(s + 1) / (1 - β^γ)) passes, where the
    terms are the pass that corrects, the wait w(s), and the passes until the next correction. The
    wait for s draft tokens takes s + 1/2 steps of the draft, which notices a correction at the end
    of a step; without tokens to wait for there is none.

    Args:
        rate: β, the probability that a draft token is right.
        ratio: c, seconds of a pass of the target over seconds of a step of the draft.
        window: γ, most draft tokens in one check.

    Returns:
        s, from 0 to `FORMER_WAIT` and at most `window`.
    """
    rate = min(rate, 0.999)

    def passes(wait: int) -> float:
        waited = wait + 0.5 if wait else 0.0
        later = rate ** (wait + 1) / (1 - rate ** max(window, 1))
        return waited / max(ratio, 1e-9) + later

    longest = min(FORMER_WAIT, window)
    waits = [wait for wait in range(longest + 1) if rate**wait >= theory.LIKELY]
    return min(waits, key=passes)


def engine_pace(cell: Cell) -> Eager:
    """The engine's rule when this was measured: a cap of 8, no fill, s from the median pass."""
    ratio = cell.ratio
    for _ in range(2):
        wait = former_wait(cell.acceptance, ratio, FORMER_WINDOW)
        options = Eager(FORMER_WINDOW, wait, theory.lead(FORMER_WINDOW))
        ratio = _median_pass(cell, options) / cell.costs.draft(1)
    return options


def _median_pass(cell: Cell, options: Eager) -> float:
    [text] = cell.texts(0, 1)
    events = eager(text, cell.costs, options).events
    return statistics.median(event.end - event.start for event in events if event.lane == TARGET)


def window_in_time(ratio: float, longest: int) -> int:
    """The window that a draft writes while the target checks one: c - 1 tokens and the one in
    place of the bonus token.

    Args:
        ratio: c.
        longest: the largest window that is allowed.

    Returns:
        round(c) - 1, at least 1 and at most `longest`.
    """
    return min(max(round(ratio) - 1, 1), longest)


def capped(cell: Cell) -> Eager:
    """The engine's rule with a cap by c."""
    cap = window_in_time(cell.ratio, LONGEST)
    options = engine_pace(cell)
    return Eager(cap, min(options.wait, cap), theory.lead(cap))


def never_waiting(cell: Cell) -> Eager:
    """The engine's rule with s = 0."""
    return replace(engine_pace(cell), wait=0)


def filling_at_small_ratios(cell: Cell) -> Eager:
    """The engine's rule that fills windows up to c - 1 where c is 4 or less."""
    options = engine_pace(cell)
    return replace(options, fill=_fill(cell, FORMER_WINDOW)) if cell.ratio <= 4 else options


def filling(cell: Cell) -> Eager:
    """The engine's rule that fills windows up to c - 1 everywhere."""
    return replace(engine_pace(cell), fill=_fill(cell, FORMER_WINDOW))


def filling_half(cell: Cell) -> Eager:
    """The engine's rule that fills windows up to half of c everywhere."""
    fill = min(int(cell.ratio / 2), FORMER_WINDOW)
    return replace(engine_pace(cell), fill=fill)


def _fill(cell: Cell, longest: int) -> int:
    return window_in_time(cell.ratio, longest)


def capped_and_filled(cell: Cell) -> Eager:
    """Cap and fill by c, the engine's wait."""
    options = capped(cell)
    return replace(options, fill=options.cap)


def capped_filled_and_likely(cell: Cell) -> Eager:
    """Cap and fill by c, and the engine's wait as long as all its tokens are likely."""
    options = capped_and_filled(cell)
    wait = options.wait
    while cell.acceptance**wait < theory.LIKELY:
        wait -= 1
    return replace(options, wait=wait)


def simple(cell: Cell) -> Eager:
    """`theory.simple_window` with the ratio that the engine measures."""
    ratio = cell.ratio
    for _ in range(3):
        cap, wait, fill = theory.simple_window(ratio, cell.acceptance)
        options = Eager(cap, wait, theory.lead(cap), fill)
        ratio = _median_pass(cell, options) / cell.costs.draft(1)
    return options


def learned(cell: Cell) -> Eager:
    """The rule's cap and fill, and a wait from the acceptance after corrections alone."""
    options = window_of(cell, fills=(False, True))
    ratio = cell.costs.target(options.cap + 1) / cell.costs.draft(1)
    behind = acceptance_behind_corrections(cell.texts(0, SEARCHED))
    return replace(options, wait=former_wait(behind, ratio, options.cap))


def acceptance_behind_corrections(texts: Sequence[Text]) -> float:
    """The share of right draft tokens among those just after a wrong one; 0.5 without any."""
    right = 1
    count = 2
    for text in texts:
        for before, token in pairwise(text):
            if before.rank:
                count += 1
                right += token.rank == 0
    return right / count


RULES: Mapping[str, Rule] = {
    "rule": window_of,
    "rule, fill 0": lambda cell: window_of(cell, fills=(False,)),
    "rule, fill by prediction": lambda cell: window_of(cell, fills=(False, True)),
    "simple": simple,
    "rule, learned wait": learned,
    "rule, LIKELY 0": lambda cell: window_of(cell, likely=0.0),
    "rule, LIKELY 0.4": lambda cell: window_of(cell, likely=0.4),
    "rule, LIKELY 0.5": lambda cell: window_of(cell, likely=0.5),
    "rule, LIKELY 0.75": lambda cell: window_of(cell, likely=0.75),
    "rule, s = 0": lambda cell: window_of(cell, likely=1.0),
    "engine": engine_pace,
    "engine, s = 0": never_waiting,
    "engine, cap by c": capped,
    "engine, fill c - 1 if c <= 4": filling_at_small_ratios,
    "engine, fill c - 1": filling,
    "engine, fill c / 2": filling_half,
    "engine, cap and fill by c": capped_and_filled,
    "engine, cap, fill, LIKELY": capped_filled_and_likely,
}


def engine_window(cell: Cell) -> int:
    """The γ of the engine's schedule after it has measured one answer several times."""
    schedule = Schedule()
    [text] = cell.texts(0, 1)
    for _ in range(4):
        play = lockstep(text, cell.costs, schedule.window)
        for run in play.runs:
            for accepted in (*[True] * run, False):
                schedule.judged(accepted)
        for event in play.events:
            seconds = event.end - event.start
            if event.lane == TARGET:
                schedule.finish(Round(seconds, seconds, event.tokens, event.emitted))
            else:
                schedule.drafted(seconds)
    return schedule.window


def measure() -> dict[str, Any]:
    """All rules in all cells."""
    found = []
    for curve in CURVES:
        for misses in MISSES:
            found += measure_cells(curve, misses)
            print(f"{curve}, {misses}", flush=True)
    return {"cells": found}


def measure_cells(curve: str, misses: str) -> list[dict[str, Any]]:
    """All rules in the cells of one curve and one kind of misses."""
    found = []
    for ratio in RATIOS:
        for acceptance in ACCEPTANCES:
            found.append(measure_cell(Cell(curve, ratio, acceptance, misses)))
    return found


def measure_cell(cell: Cell) -> dict[str, Any]:
    """The speedups of all rules, of a searched setting, and of the other schedules."""
    judged = cell.texts(SEARCHED, JUDGED)
    costs = cell.costs
    settings = {name: rule(cell) for name, rule in RULES.items()}
    played: dict[Eager, float] = {}
    for options in settings.values():
        if options not in played:
            played[options] = simulated.eager_figures(judged, costs, options).speedup
    searched = search(cell, list(played))
    if searched not in played:
        played[searched] = simulated.eager_figures(judged, costs, searched).speedup
    length = max(theory.best_serial(costs.target, costs.draft(1), cell.acceptance), 1)
    pace = simulated.pace_of(costs, cell.acceptance)
    return {
        **asdict(cell),
        "speeds": {name: played[options] for name, options in settings.items()},
        "settings": {name: asdict(options) for name, options in settings.items()},
        "searched": played[searched],
        "searched setting": asdict(searched),
        "best": max(played.values()),
        "lockstep": simulated.lockstep_figures(judged, costs, engine_window(cell)).speedup,
        "serial": simulated.serial_figures(judged, costs, length).speedup,
        "schedule": pace.schedule,
        "predicted": pace.plain_seconds / pace.parallel_seconds,
    }


def search(cell: Cell, chosen: Sequence[Eager]) -> Eager:
    """The fastest setting on texts of its own: those that the rules chose, and a grid."""
    texts = cell.texts(0, SEARCHED)
    natural = window_in_time(cell.ratio, LONGEST)
    settings = list(chosen)
    for cap in sorted({max(natural // 2, 1), natural, min(natural + 1, LONGEST)}):
        for wait in (0, 1, 3):
            for fill in (0, cap):
                if wait <= cap:
                    settings.append(Eager(cap, wait, theory.lead(cap), fill))
    speeds = {
        options: simulated.eager_figures(texts, cell.costs, options).speedup
        for options in dict.fromkeys(settings)
        if max(options.fill, options.wait) <= natural + 1
    }
    return max(speeds, key=speeds.__getitem__)


def report(found: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown."""
    cells = found["cells"]
    lines = ["### Share of the best parallel setting, geometric means", ""]
    lines += [*_rule_table(cells), ""]
    lines += ["### The same with clustered misses alone", ""]
    clustered = [cell for cell in cells if cell["misses"] == "clustered"]
    lines += [*_rule_table(clustered), ""]
    lines += ["### The same by acceptance", "", *_acceptance_table(cells), ""]
    lines += ["### Schedules", "", schedule_line(cells), ""]
    lines += ["### All cells", "", *_cell_table(cells)]
    return lines


def share(cell: Mapping[str, Any], name: str) -> float:
    """The speed of a rule by the best speed in its cell."""
    return float(cell["speeds"][name] / cell["best"])


def _mean(cells: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.geometric_mean([share(cell, name) for cell in cells])


def _rule_table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ["rule", *(f"c = {ratio:g}" for ratio in RATIOS), "all", "worst", "cells of 97%"]
    rows = []
    for name in RULES:
        row = [name]
        for ratio in RATIOS:
            row.append(f"{_mean([cell for cell in cells if cell['ratio'] == ratio], name):.3f}")
        shares = [share(cell, name) for cell in cells]
        close = sum(value >= 0.97 for value in shares)
        row += [f"{_mean(cells, name):.3f}", f"{min(shares):.2f}", f"{close} of {len(cells)}"]
        rows.append(row)
    return markdown_table(head, rows)


def _acceptance_table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ["rule", *(f"β = {acceptance:g}" for acceptance in ACCEPTANCES)]
    rows = []
    for name in RULES:
        row = [name]
        for acceptance in ACCEPTANCES:
            chosen = [cell for cell in cells if cell["acceptance"] == acceptance]
            row.append(f"{_mean(chosen, name):.3f}")
        rows.append(row)
    return markdown_table(head, rows)


def schedule_line(cells: Sequence[Mapping[str, Any]]) -> str:
    """How much the choice between plain, serial and parallel matters."""
    chosen = []
    never = []
    plain = []
    for cell in cells:
        speeds = {"plain": 1.0, "serial": cell["serial"], "parallel": cell["speeds"]["rule"]}
        best = max(speeds.values())
        chosen.append(speeds[cell["schedule"]] / best)
        never.append(cell["speeds"]["engine"] / best)
        is_plain = cell["predicted"] < 1 + MARGIN
        plain.append((1.0 if is_plain else cell["speeds"]["engine"]) / best)
    slower = sum(cell["speeds"]["engine"] < 0.98 for cell in cells)
    errors = sorted(cell["predicted"] / cell["speeds"]["rule"] for cell in cells)
    return (
        f"Against the fastest of plain, serial and the rule's window: the schedule that "
        f"`best_pace` chooses {statistics.geometric_mean(chosen):.3f} (worst {min(chosen):.2f}); "
        f"the engine's rule, always parallel, {statistics.geometric_mean(never):.3f} (worst "
        f"{min(never):.2f}); the same, plain where `best_pace` predicts no gain, "
        f"{statistics.geometric_mean(plain):.3f} (worst {min(plain):.2f}). The engine's rule is "
        f"slower than 0.98 times plain in {slower} of {len(cells)} cells. Predictions are "
        f"{errors[0]:.2f} to {errors[-1]:.2f} times the simulated speed of the rule's window, "
        f"median {statistics.median(errors):.2f}."
    )


def _cell_table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    head = [
        "curve",
        "misses",
        "c",
        "β",
        "best",
        "searched",
        "rule",
        "engine",
        "lock-step",
        "serial",
    ]
    head.append("chosen")
    rows = []
    for cell in cells:
        rows.append(
            [
                cell["curve"],
                cell["misses"],
                f"{cell['ratio']:g}",
                f"{cell['acceptance']:g}",
                f"{cell['best']:.2f}",
                f"{cell['searched']:.2f} ({_words(cell['searched setting'])})",
                f"{cell['speeds']['rule']:.2f} ({_words(cell['settings']['rule'])})",
                f"{cell['speeds']['engine']:.2f} ({_words(cell['settings']['engine'])})",
                f"{cell['lockstep']:.2f}",
                f"{cell['serial']:.2f}",
                cell["schedule"],
            ]
        )
    return markdown_table(head, rows, (0, 1, 10))


def _words(options: Mapping[str, int]) -> str:
    return f"{options['cap']}, s {options['wait']}, fill {options['fill']}"


def main() -> None:
    """Measure, and write the report."""
    parser = argument_parser(__doc__, "benchmarks/results/parallel_rule", repeats=1)
    args = parser.parse_args()
    configure(args.threads)
    write(measure(), args)


def write(found: Mapping[str, Any], args: argparse.Namespace) -> None:
    """Write the report."""
    facts = environment(args)
    prediction = " ".join(PREDICTION.split())
    outcome = " ".join(OUTCOME.split())
    written = {
        "prediction": prediction,
        "outcome": outcome,
        "found": found,
        "environment": facts,
    }
    lines = ["# Rules for the pace on fresh cells", ""]
    lines += [f"Prediction. {prediction}", "", *report(found), "", f"Outcome. {outcome}", ""]
    lines += [f"<sub>{environment_line(facts)}</sub>", ""]
    save(args.out, written, "\n".join(lines))


if __name__ == "__main__":
    main()
