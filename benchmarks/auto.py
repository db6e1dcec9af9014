"""The automatic tree: never slower than plain decoding, and nearly as fast as the best fixed tree.

    python benchmarks/auto.py --out benchmarks/results/auto
    python benchmarks/auto.py --parts cells  # minutes, on any machine

Three parts: simulated cells (cost curves, acceptance, lengths, batches; no models), models of real
shapes with random weights whose acceptance is replayed (10 GB of memory, a quarter of an hour;
needs OpenVINO), and the embedded pair. Every answer is compared with the others, token by token.
Writes OUT.json and OUT.md; parts that are not run keep their figures in OUT.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from auto_parts import cells, pair, shapes
from draftlens_lab.measure.statistics import format_quartiles, quartiles
from draftlens_lab.measure.tables import markdown_table
from shared import argument_parser, configure, environment, environment_line, save

from draftlens.drafting.adaptive import history as known_costs

PREDICTION = """Written before the first run of this script, after the simulator had been used to
develop the controller. Simulated: cold at least 0.98 of plain in every cell's mean, single answers
down to 0.93; at 64 tokens at least 0.95 of the best fixed tree but where c = 20 and acceptance 0.95
(0.90), where the first round alone is a tenth of the answer; at 256 tokens 0.98; warm 0.98 but at
16 tokens with c = 2 (0.95). Recorded float32: chat 1.2, code 1.4, image 1.1; bfloat16 1.6.
Embedded pair: the first answer as fast as a chain of 5, later ones 5% faster. Real shapes, written
before they ran by OpenVINO (AMD, AVX-512): the automatic tree over plain decoding by the same
passes, first answers, is 1.0 to 1.3 with modules, 1.1 (chat), 1.5 (code) and 1.3 (image) by
OpenVINO, and 1.4, 1.9 and 1.5 with an 8-bit draft; answers of 14 tokens not below 0.97; plain
decoding by OpenVINO is 1.3 times as fast as stock `generate`."""

PARTS = ("cells", "shapes", "pair")

GOALS = """Goals: cold at least 0.98 of plain; cold at least 0.95 of the best fixed chain or tree at
64 tokens and 0.98 from 256 on; warm at least 0.98 of it."""


def main() -> None:
    args = _parse()
    configure(args.threads)
    # The benchmark neither uses nor changes what is known of this machine.
    folder = tempfile.TemporaryDirectory()
    known_costs.cache_folder = lambda: Path(folder.name)  # type: ignore[attr-defined]
    path = args.out.with_suffix(".json")
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    report["prediction"] = PREDICTION
    for part in args.parts:
        report[part] = {**_measure(part, args), "environment": environment(args)}
    save(args.out, report, _page(report))


def _parse() -> argparse.Namespace:
    parser = argument_parser(__doc__, "benchmarks/results/auto", repeats=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=8, help="texts of each simulated cell")
    return parser.parse_args()


def _measure(part: str, args: argparse.Namespace) -> dict[str, Any]:
    if part == "cells":
        return _measure_cells(args.seeds)
    if part == "shapes":
        return vars(shapes.measure_shapes(_log))
    return pair.measure_pair(args.repeats, args.max_new_tokens, _log)


def _measure_cells(seeds: int) -> dict[str, Any]:
    recorded = [
        cells.to_dict(cell, cells.measure(cell, 4 * seeds)) for cell in cells.recorded_cells()
    ]
    _log("recorded cells done")
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
    return {"recorded": recorded, "simulated": simulated, "stale": stale}


def _log(line: str) -> None:
    print(line, flush=True)


def _page(report: Mapping[str, Any]) -> str:
    lines = ["# The automatic tree", "", GOALS, ""]
    if "cells" in report:
        lines += _cell_lines(report["cells"])
    if "shapes" in report:
        lines += _shape_lines(report["shapes"])
    if "pair" in report:
        lines += _pair_lines(report["pair"])
    return "\n".join([*lines, "## Prediction", "", report["prediction"], ""])


def _cell_lines(part: Mapping[str, Any]) -> list[str]:
    rows = part["simulated"]
    lines = [
        "## Simulated cells",
        "",
        f"{len(rows)} cells; speeds are relative to plain decoding.",
        "",
    ]
    lines += [_verdicts(rows), ""]
    head = [
        "curve",
        "c",
        "acceptance",
        "tokens",
        "rows",
        "best fixed",
        "cold",
        "warm",
        "worst answer",
    ]
    lines += ["### Recorded acceptance and curves of real weights", ""]
    lines += [*markdown_table(head, [_cell_row(row) for row in part["recorded"]]), ""]
    lines += ["### Cells that miss a goal", ""]
    missed = [_cell_row(row) for row in rows if _misses(row)]
    lines += [*(markdown_table(head, missed) if missed else ["None."]), ""]
    lines += ["### All cells", "", *markdown_table(head, [_cell_row(row) for row in rows]), ""]
    lines += ["### A wrong file on disk", ""]
    lines += [
        "Speeds of first answers of 256 tokens, with the right curve and with a wrong one.",
        "",
    ]
    stale_head = ["curve", "file says", "acceptance", "right file", "wrong file"]
    lines += [*markdown_table(stale_head, [_stale_row(row) for row in part["stale"]]), ""]
    return lines


def _misses(row: Mapping[str, Any]) -> list[str]:
    """The goals that a cell misses."""
    missed = []
    if row["cold"] < 0.98:
        missed.append("plain")
    relative = row["cold"] / row["best"]
    if (row["length"] == 64 and relative < 0.95) or (row["length"] >= 256 and relative < 0.98):
        missed.append("cold")
    if row["warm"] < 0.98 * row["warm_best"]:
        missed.append("warm")
    return missed


def _verdicts(rows: Sequence[Mapping[str, Any]]) -> str:
    counts = {goal: sum(goal in _misses(row) for row in rows) for goal in ("plain", "cold", "warm")}
    worst = min(rows, key=lambda row: row["cold"])
    from_64 = [row for row in rows if row["length"] >= 64]
    cold = min(row["cold"] / row["best"] for row in from_64)
    warm = min(row["warm"] / row["warm_best"] for row in rows)
    return (
        f"Cold against plain: the worst cell has {worst['cold']:.3f}, {counts['plain']} miss 0.98. "
        f"Cold against the best fixed tree, from 64 tokens on: the worst has {cold:.3f}, "
        f"{counts['cold']} miss the goal. Warm against it: the worst has {warm:.3f}, "
        f"{counts['warm']} miss 0.98."
    )


def _shape_name(depth: int, nodes: int) -> str:
    if not nodes:
        return "plain"
    return f"chain {depth}" if depth == nodes else f"tree of {nodes}"


def _cell_row(row: Mapping[str, Any]) -> list[str]:
    shape = _shape_name(*row["best_shape"])
    flags = f" ({', '.join(_misses(row))})" if _misses(row) else ""
    return [
        row["curve"],
        f"{row['ratio']:.3g}",
        str(row["acceptance"]),
        str(row["length"]),
        str(row["rows"]),
        f"{row['best']:.2f} ({shape})",
        f"{row['cold']:.2f}{flags}",
        f"{row['warm']:.2f} of {row['warm_best']:.2f}",
        f"{row['worst']:.2f}",
    ]


def _stale_row(row: Mapping[str, Any]) -> list[str]:
    speeds = [f"{row['right']:.2f}", f"{row['stale']:.2f}"]
    return [row["curve"], row["file"], str(row["acceptance"]), *speeds]


def _shape_lines(part: Mapping[str, Any]) -> list[str]:
    lines = ["## Models of real shapes, acceptance replayed", ""]
    head = [
        "prompt",
        "passes",
        "method",
        "end to end, s",
        "of plain, decode",
        "of plain, end to end",
        "of stock, end to end",
        "τ",
    ]
    rows = []
    for prompt, by_engine in part["runs"].items():
        stock = by_engine[shapes.STOCK][shapes.STOCK]["e2e"]
        for engine, methods in by_engine.items():
            for name, run in methods.items():
                is_short = name.endswith(f"{shapes.SHORT} tokens")
                plain = methods.get(f"plain, {shapes.SHORT} tokens" if is_short else "plain", run)
                speeds = [f"{plain[key] / run[key]:.2f}" for key in ("decode", "e2e")]
                speeds += ["" if is_short else f"{stock / run['e2e']:.2f}"]
                rows.append(
                    [prompt, engine, name, f"{run['e2e']:.1f}", *speeds, f"{run['tau']:.2f}"]
                )
    lines += [*markdown_table(head, rows), ""]
    for engine, curves in part["curves"].items():
        for name, curve in zip(("target", "draft"), curves, strict=True):
            pairs = zip(curve["widths"], curve["seconds"], strict=True)
            times = ", ".join(f"{width}: {1e3 * seconds:.0f} ms" for width, seconds in pairs)
            lines += [f"Measured curve of the {name}, {engine}: {times}.", ""]
    lines += [f"The calibrations took {part['calibration_seconds']:.2f} s.", ""]
    return [*lines, f"Environment: {environment_line(part['environment'])}.", ""]


def _pair_lines(part: Mapping[str, Any]) -> list[str]:
    lines = ["## The embedded pair", ""]
    head = ["method", "frames", "end to end, s", "against plain", "against chain of 5", "τ"]
    rows = []
    for frames in sorted({run["frames"] for run in part["runs"]["plain"]}):
        by_name = {
            name: {(r["clip"], r["repeat"]): r for r in runs if r["frames"] == frames}
            for name, runs in part["runs"].items()
        }
        for name, runs in by_name.items():
            against = [
                format_quartiles(
                    quartiles([other[key]["e2e"] / run["e2e"] for key, run in runs.items()])
                )
                for other in (by_name["plain"], by_name["chain 5"])
            ]
            seconds = statistics.median(run["e2e"] for run in runs.values())
            tau = statistics.mean(run["tau"] for run in runs.values())
            rows.append([name, str(frames), f"{seconds:.3f}", *against, f"{tau:.2f}"])
    lines += [*markdown_table(head, rows), ""]
    lines += ["Medians (quartiles) of ratios between runs of the same clip in the same repeat.", ""]
    lines += [f"The calibration took {part['calibration_seconds']:.2f} s.", ""]
    return [*lines, f"Environment: {environment_line(part['environment'])}.", ""]


if __name__ == "__main__":
    main()
