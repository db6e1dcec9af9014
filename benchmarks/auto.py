"""The automatic tree: never slower than plain decoding, and nearly as fast as the best fixed tree.

    python benchmarks/auto.py --out benchmarks/results/auto
    python benchmarks/auto.py --parts cells  # minutes, on any machine
    python benchmarks/auto.py --parts shapes --engines "OpenVINO, 8-bit draft" \
        "OpenVINO, int8 target, 8-bit draft" "OpenVINO, int4 target, 8-bit draft" \
        --out benchmarks/results/auto_rounded

Three parts: simulated cells (cost curves, acceptance, lengths, batches; no models), models of real
shapes with random weights whose acceptance is replayed (10 GB of memory, a quarter of an hour;
needs OpenVINO), and the embedded pair. Every answer is compared with the others, token by token.
Writes OUT.json and OUT.md; parts that are not run keep their figures in OUT.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from auto_parts import cells, pair, shapes
from shared import Benchmark, Report, environment, environment_line, ratio_line, report_of, table

from draftlens.drafting.adaptive import history as cost_store

PARTS = ("cells", "shapes", "pair")


def _measure_cells(seeds: int) -> dict[str, Any]:
    recorded = [
        cells.to_dict(cell, cells.measure(cell, 4 * seeds)) for cell in cells.recorded_cells()
    ]
    prompts = [cells.to_dict(cell, cells.measure(cell, 4 * seeds)) for cell in cells.prompt_cells()]
    _log("recorded cells and those with a prompt done")
    simulated = []
    for cell in cells.simulated_cells():
        fewer = seeds if cell.length * cell.rows <= 256 else max(seeds // 3, 1)
        simulated.append(cells.to_dict(cell, cells.measure(cell, fewer)))
        if len(simulated) % 40 == 0:
            _log(f"{len(simulated)} simulated cells")
    stale = []
    for acceptance in (0.0, 0.5, 0.9):
        for curve, wrong in (
            ("float32", "bfloat16"),
            ("bfloat16", "float32"),
            ("linear", "bfloat16"),
        ):
            cell = cells.Cell(curve, 3, acceptance, 256)
            right, false = cells.stale_seconds(cell, wrong, seeds)
            plain = cells.plain(cell, seeds)
            stale.append(
                {**vars(cell), "file": wrong, "right": plain / right, "stale": plain / false}
            )
    return {"recorded": recorded, "prompts": prompts, "simulated": simulated, "stale": stale}


def _log(line: str) -> None:
    print(line, flush=True)


def measure(args: argparse.Namespace) -> Report:
    """The parts that are asked for, beside those of an earlier run."""
    report = report_of(args)
    # The benchmark neither uses nor changes what is known of this machine.
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(cost_store, "cache_folder", return_value=Path(folder)),
    ):
        for part in args.parts:
            report[part] = {**_measure(part, args), "environment": environment(args)}
    return report


def _measure(part: str, args: argparse.Namespace) -> dict[str, Any]:
    if part == "cells":
        return _measure_cells(args.seeds)
    if part == "shapes":
        return vars(shapes.measure_shapes(_log, args.engines))
    return pair.measure_pair(args.repeats, args.max_new_tokens, _log)


def page(report: Report) -> list[str]:
    """The parts, each with its environment."""
    blocks = []
    for name, of_part in (("cells", cells_page), ("shapes", shapes_page), ("pair", pair_page)):
        if name in report:
            facts = f"<sub>{name}: {environment_line(report[name]['environment'])}</sub>"
            blocks += [*of_part(report[name]), facts]
    return blocks


CELL: dict[str, Any] = {
    "curve": "{curve}",
    "c": "{ratio:.3g}",
    "acceptance": "{acceptance}",
    "tokens": "{length}",
    "rows": "{rows}",
    "best fixed": lambda row: f"{row['best']:.2f} ({_shape_name(*row['best_shape'])})",
    "cold": "{cold:.2f}",
    "warm": "{warm:.2f} of {warm_best:.2f}",
    "worst answer": "{worst:.2f}",
}


def cells_page(part: Mapping[str, Any]) -> list[str]:
    """Recorded cells, the simulated ones that miss a goal, and wrong files. All cells are in the
    report."""
    rows = part["simulated"]
    missed = [{**row, "missed": ", ".join(_missed(row))} for row in rows if _missed(row)]
    stale = {
        "curve": "{curve}",
        "file says": "{file}",
        "acceptance": "{acceptance}",
        "right file": "{right:.2f}",
        "wrong file": "{stale:.2f}",
    }
    from_64 = [row for row in rows if row["length"] >= 64]
    return [
        "## Simulated cells",
        f"{len(rows)} cells; speeds are relative to plain decoding. Goals: cold at least 0.98 of "
        "plain; cold at least 0.95 of the best fixed tree at 64 tokens and 0.98 from 256 on; warm "
        f"at least 0.98 of it. {len(missed)} cells miss a goal. The worst cell is cold at "
        f"{min(row['cold'] for row in rows):.3f} of plain and, from 64 tokens on, at "
        f"{min(row['cold'] / row['best'] for row in from_64):.3f} of the best fixed tree, and warm "
        f"at {min(row['warm'] / row['warm_best'] for row in rows):.3f} of it.",
        "### Recorded acceptance and curves of real weights",
        table(part["recorded"], CELL),
        "### A prompt that the draft reads first",
        "Reading it is part of all figures but those of plain decoding.",
        table(part["prompts"], {**CELL, "prompt": "{prompt}"}),
        "### Cells that miss a goal",
        table(missed, {**CELL, "misses": "{missed}"}) if missed else "None.",
        "### A wrong file on disk",
        "Speeds of first answers of 256 tokens, with the right curve and with a wrong one.",
        table(part["stale"], stale),
    ]


def _missed(row: Mapping[str, Any]) -> list[str]:
    """The goals that a cell misses."""
    relative = row["cold"] / row["best"]
    least = 0.95 if row["length"] == 64 else 0.98 if row["length"] >= 256 else 0.0
    goals = {
        "plain": row["cold"] < 0.98,
        "cold": relative < least,
        "warm": row["warm"] < 0.98 * row["warm_best"],
    }
    return [goal for goal, is_missed in goals.items() if is_missed]


def _shape_name(depth: int, nodes: int) -> str:
    if not nodes:
        return "plain"
    return f"chain {depth}" if depth == nodes else f"tree of {nodes}"


def shapes_page(part: Mapping[str, Any]) -> list[str]:
    """Runs by prompt, engine of passes and method, and the measured curves."""
    rows = []
    for prompt, by_engine in part["runs"].items():
        stock = by_engine[shapes.STOCK][shapes.STOCK]["e2e"]
        for engine, methods in by_engine.items():
            for name, run in methods.items():
                is_short = name.endswith(f"{shapes.SHORT} tokens")
                plain = methods.get(f"plain, {shapes.SHORT} tokens" if is_short else "plain", run)
                rows.append(
                    {
                        **run,
                        "prompt": prompt,
                        "engine": engine,
                        "name": name,
                        "of plain": plain["decode"] / run["decode"],
                        "whole": plain["e2e"] / run["e2e"],
                        "of stock": None if is_short else stock / run["e2e"],
                    }
                )
    columns = {
        "prompt": "{prompt}",
        "passes": "{engine}",
        "method": "{name}",
        "end to end, s": "{e2e:.1f}",
        "of plain, decode": "{of plain:.2f}",
        "of plain, end to end": "{whole:.2f}",
        "of stock, end to end": "{of stock:.2f}",
        "τ": "{tau:.2f}",
    }
    blocks = ["## Models of real shapes, acceptance replayed", table(rows, columns)]
    for engine, curves in part["curves"].items():
        for name, curve in zip(("target", "draft"), curves, strict=True):
            pairs = zip(curve["widths"], curve["seconds"], strict=True)
            times = ", ".join(f"{width}: {1e3 * seconds:.0f} ms" for width, seconds in pairs)
            blocks.append(f"Measured curve of the {name}, {engine}: {times}.")
    return [*blocks, f"The calibrations took {part['calibration_seconds']:.2f} s."]


def pair_page(part: Mapping[str, Any]) -> list[str]:
    """Runs by number of frames and method."""
    rows = []
    for frames in sorted({run["frames"] for run in part["runs"]["plain"]}):
        by_name = {
            name: {(r["clip"], r["repeat"]): r for r in runs if r["frames"] == frames}
            for name, runs in part["runs"].items()
        }
        for name, runs in by_name.items():
            seconds = [run["e2e"] for run in runs.values()]
            plain, chain = (
                ratio_line([by_name[other][key]["e2e"] for key in runs], seconds)
                for other in ("plain", "chain 5")
            )
            tau = statistics.mean(run["tau"] for run in runs.values())
            row = {"name": name, "frames": frames, "e2e": statistics.median(seconds), "tau": tau}
            rows.append({**row, "plain": plain, "chain": chain})
    columns = {
        "method": "{name}",
        "frames": "{frames}",
        "end to end, s": "{e2e:.3f}",
        "against plain": "{plain}",
        "against chain of 5": "{chain}",
        "τ": "{tau:.2f}",
    }
    return [
        "## The embedded pair",
        table(rows, columns),
        "Medians (quartiles) of ratios between runs of the same clip in the same repeat. The "
        f"calibration took {part['calibration_seconds']:.2f} s.",
    ]


BENCHMARK = Benchmark(
    "auto",
    __doc__,
    "The automatic tree",
    measure,
    page,
    {
        "--repeats": 5,
        "--parts": {"nargs": "+", "choices": PARTS, "default": list(PARTS)},
        "--engines": {
            "nargs": "+",
            "choices": list(shapes.ENGINES),
            "default": list(shapes.ENGINES),
            "help": "engines of passes of the models of real shapes",
        },
        "--seeds": {"type": int, "default": 8, "help": "texts of each simulated cell"},
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
