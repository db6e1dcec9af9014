"""The harness of the benchmarks: options, tables, reports and pages."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.shared import Benchmark, Report, grid, medians, table


def measure(args: argparse.Namespace) -> Iterator[Report]:
    for count in range(args.repeats):
        yield {"seconds": [0.1 * (number + 1) for number in range(count + 1)]}


def page(report: Report) -> list[str]:
    return [f"{len(report['seconds'])} runs.", ""]


BENCHMARK = Benchmark(
    "some",
    "About.",
    "Some runs",
    measure,
    page,
    {"--repeats": 2, "--frames": [8, 64], "--fast": False, "--kind": {"choices": ("a", "b")}},
)


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> Report:
    monkeypatch.setattr("sys.argv", ["some.py", "--out", str(out), *words])
    BENCHMARK.main()
    report: Report = json.loads(out.with_suffix(".json").read_text())
    return report


def test_options_have_the_types_of_their_defaults() -> None:
    args = BENCHMARK.parser().parse_args(["--frames", "16", "--fast", "--kind", "b"])
    assert (args.frames, args.fast, args.kind) == ([16], True, "b")
    assert (args.repeats, args.threads, args.max_new_tokens) == (2, 1, 320)
    assert args.out == Path("benchmarks/results/some")


def test_a_report_and_its_page_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "folder" / "some"
    report = run(monkeypatch, out, "--prediction", "Two runs.")
    assert report["seconds"] == [0.1, 0.2]
    assert report["prediction"] == "Two runs."
    assert report["environment"]["repeats"] == 2
    lines = out.with_suffix(".md").read_text().split("\n\n")
    assert lines[:2] == ["# Some runs", "2 runs."]
    assert lines[2].startswith("<sub>processor ")
    assert run(monkeypatch, out)["prediction"] == "Two runs.", "a further run keeps it"


def test_a_page_is_made_from_a_report_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "some"
    out.with_suffix(".json").write_text(json.dumps({"seconds": [1.0], "outcome": "As predicted."}))
    run(monkeypatch, out, "--page")
    assert out.with_suffix(".md").read_text() == (
        "# Some runs\n\n1 runs.\n\nOutcome. As predicted.\n"
    )


def test_cells_are_formats_or_functions() -> None:
    rows = [
        {"way": "plain", "run": {"seconds": 0.0123}, "bytes": 3 << 20, "same": True},
        {"way": "tree", "run": {"seconds": 0.5}, "bytes": None, "same": False, "gain": 0.25},
    ]
    columns = {
        "way": "{way}",
        "ms": "{run[seconds]:.1ms}",
        "MiB": "{bytes:.0MiB}",
        "gain": "{gain:.0%}",
        "same": "{same}",
        "length": lambda row: len(row["way"]),
    }
    assert table(rows, columns).split("\n") == [
        "| way | ms | MiB | gain | same | length |",
        "|---|---:|---:|---:|---|---:|",
        "| plain | 12.3 | 3 |  | yes | 5 |",
        "| tree | 500.0 |  | 25% | NO | 4 |",
    ]


def test_a_grid_has_a_cell_for_each_row_and_column() -> None:
    found = grid("n", ["a", "b"], [1, 2], lambda row, column: row * column)
    assert found.split("\n")[2:] == ["| a | a | aa |", "| b | b | bb |"]


def test_medians_of_rows_with_the_same_keys() -> None:
    seconds = (("a", 1.0), ("b", 5.0), ("a", 2.0))
    rows = [{"way": way, "clip": 1, "e2e": e2e} for way, e2e in seconds]
    assert medians(rows, "way") == [
        {"way": "a", "clip": 1, "e2e": 1.5},
        {"way": "b", "clip": 1, "e2e": 5.0},
    ]
