"""What a reader gets: tables with every method, and pictures that are drawn."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from draftlens_lab.bench.contestants import Contestant, HfGenerate, Lossy, Ours, line_up
from draftlens_lab.bench.lossy.fastv import FastV
from draftlens_lab.bench.memory import RESIDENT, Peak
from draftlens_lab.bench.options import BenchOptions
from draftlens_lab.bench.plots import bench_plots
from draftlens_lab.bench.report import bench_page, bench_tables, swept, value_text
from draftlens_lab.bench.store import Failure, Measurement, Record, Refusal, Store, products
from draftlens_lab.bench.summary import summarize
from draftlens_lab.cli.report_tables import show_tables
from rich.console import Console

from draftlens.cli import show
from draftlens.methods.base import PlainDecoding
from draftlens.methods.specvlm.config import SpecVLM

RUN: dict[str, Any] = {
    "models": {
        "target": {
            "name": "t",
            "class": "T",
            "parameters": 5e6,
            "dtype": "float32",
            "device": "cpu",
        }
    },
    "options": {"repeats": 2, "max_new_tokens": 9},
    "memory": "resident",
    "environment": {
        "machine": "m",
        "threads": 1,
        "python": "3",
        "packages": {"torch": "2"},
        "commit": None,
    },
}


def chosen(sweep: bool) -> list[Contestant]:
    found = [Contestant("hf-generate", HfGenerate()), Contestant("plain", Ours(PlainDecoding()))]
    found.append(Contestant("specvlm", Ours(SpecVLM(prune_ratio=0.5))))
    if sweep:
        for ratio in (1, 0):
            way = Ours(SpecVLM(prune_ratio=ratio))
            found.append(
                Contestant(f"specvlm prune_ratio={ratio}", way, "specvlm", ("prune_ratio", ratio))
            )
    return found


def measured(
    sweep: bool = False, lengths: tuple[int, ...] = (100,), extra: tuple[Record, ...] = ()
) -> dict[str, Any]:
    store = Store.__new__(Store)
    store.records = list(extra)
    for length in lengths:
        for number, one in enumerate(chosen(sweep)):
            drafts = {
                "draft_forwards": 8,
                "drafted": 20,
                "accepted": 6,
                "visual": 100,
                "kept": 50 - number,
            }
            counters = {
                "emitted": 9,
                "first": 1,
                "passes": 8 - number,
                **(drafts if number > 1 else {}),
            }
            phases = {
                "frames": 0.1,
                "vision": 0.1,
                "target_prefill": 0.2,
                "draft": 0.1 * length,
                "verify": 0.3,
            }
            for repeat in range(2):
                tokens = [1, 2, 3 if one.name != "plain" or repeat else 4]
                figures = (
                    tokens,
                    2.0 / (number + 1),
                    0.25 / (number + 1),
                    phases,
                    length,
                    counters if number else {},
                )
                store.records.append(
                    Measurement(
                        "a|b", f"{length} long", one.name, repeat, *figures, 2**20, 2**30, 2**29
                    )
                )
    return {"run": RUN, **summarize(store, chosen(sweep), [f"{length} long" for length in lengths])}


def test_every_table_is_there_with_every_method() -> None:
    troubles = (Failure("c", "", 0, "cannot read c"), Refusal("hf-assisted", "ValueError: no"))
    summary = measured(sweep=True, extra=troubles)
    page = bench_page(summary, ["speedup.png"])
    titles = [table.title for table in bench_tables(summary)]
    assert titles == [
        "100 long",
        "100 long: drafts and memory",
        "100 long: where the time goes",
        "By prune_ratio",
        "Answers that differ from hf-generate's",
        "Does not run",
        "Clips that failed, left out of every figure",
    ]
    for table in bench_tables(summary):
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(isinstance(cell, str) for row in table.rows for cell in row)
    assert "| plain | 1.000 | 2.00 (2.00 to 2.00) | 2.00 (2.00 to 2.00) |  | 1 of 2 |" in page
    speedups = "3.00 (3.00 to 3.00) | 3.00 (3.00 to 3.00) | 0.46 (0.46 to 0.46)"
    assert f"| specvlm | 0.667 | {speedups} | yes |" in page
    assert "| a\\|b | plain | 0 | 2 | 3 | 4 |" in page
    assert "| hf-assisted | ValueError: no |" in page
    assert "| c | reading | cannot read c |" in page
    assert "![speedup.png](speedup.png)" in page
    assert "1 clip, 100 prompt tokens" in page


def test_drafts_that_run_ahead_have_a_table() -> None:
    summary = measured()
    titles = [table.title for table in bench_tables(summary)]
    assert "100 long: drafts that run ahead" not in titles
    row = summary["groups"]["100 long"]["methods"]["specvlm"]
    row.update(corrections=4, mean_run_length=3.5)
    [table] = [table for table in bench_tables(summary) if table.title.endswith("run ahead")]
    assert table.columns == ("method", "M", "corrections")
    assert table.rows == [("specvlm", "3.50", "4")]


def test_a_swept_method_stands_among_its_variants() -> None:
    points = swept(measured(sweep=True), "100 long", "prune_ratio")["specvlm"]
    assert [value for value, _ in points] == [0, 0.5, 1]
    assert [row["mean_acceptance_length"] for _, row in points] == [8 / 4, 8 / 6, 8 / 5]


def of_methods(methods: dict[str, Any], sweep: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The summary of a run of these methods and a sweep, told apart by how many passes they
    took."""
    options = BenchOptions(methods=(), peers=(), extra=methods, sweep=sweep)
    store, chosen = Store.__new__(Store), line_up(options)
    store.records = [
        Measurement(
            "a",
            "g",
            one.name,
            0,
            [1, 2],
            2.0,
            1.0,
            {},
            9,
            {"emitted": 9, "passes": number + 1},
            None,
            2,
            1,
        )
        for number, one in enumerate(chosen)
    ]
    run = {**RUN, "options": {**RUN["options"], "sweep": sweep}}
    return {"run": run, **summarize(store, chosen, ["g"])}


CHAIN_OR_EAGLE = {"method": "specvlm", "tree": "eagle", "num_speculative_tokens": 5}
HALF, MOST = {**CHAIN_OR_EAGLE, "prune_ratio": 0.5}, {**CHAIN_OR_EAGLE, "prune_ratio": 0.9}


@pytest.mark.parametrize("methods", [{"most": MOST, "half": HALF}, {"half": HALF, "most": MOST}])
def test_a_line_has_all_its_points_by_whatever_name_they_were_measured(
    tmp_path: Path, methods: Any
) -> None:
    other = {"other": {"method": "specvlm", "prune_ratio": 0.7, "pruner": "random"}}
    summary = of_methods({**methods, **other}, {"prune_ratio": (0, 0.5, 0.9)})
    lines = swept(summary, "g", "prune_ratio")
    first = next(iter(methods))
    assert {name: [value for value, _ in points] for name, points in lines.items()} == {
        first: [0, 0.5, 0.9],
        "other": [0, 0.5, 0.7, 0.9],
    }
    rows = summary["groups"]["g"]["methods"]
    assert [row for _, row in lines[first]] == [
        rows[f"{first} prune_ratio=0"],
        rows["half"],
        rows["most"],
    ]
    assert tmp_path / "acceptance_by_prune_ratio.png" in bench_plots(summary, tmp_path)


def test_a_sweep_over_methods_that_are_all_named_is_shown_too(tmp_path: Path) -> None:
    summary = of_methods({"most": MOST, "half": HALF}, {"prune_ratio": (0.5, 0.9)})
    assert summary["variants"] == {}
    (table,) = (table for table in bench_tables(summary) if table.title == "By prune_ratio")
    assert [row[:3] for row in table.rows] == [("g", "most", "0.5"), ("g", "most", "0.9")]
    assert tmp_path / "acceptance_by_prune_ratio.png" in bench_plots(summary, tmp_path)


def test_a_sweep_does_not_draw_the_methods_of_another() -> None:
    """Both methods with two tokens differ in nothing but the ratio, too, but that is no line that
    was asked for."""
    sweep = {"prune_ratio": (0,), "num_speculative_tokens": (2, 3)}
    summary = of_methods({"most": MOST, "half": HALF}, sweep)
    lines = {field: swept(summary, "g", field) for field in sweep}
    assert {
        field: {name: [v for v, _ in points] for name, points in of.items()}
        for field, of in lines.items()
    } == {
        "prune_ratio": {"most": [0, 0.5, 0.9]},
        "num_speculative_tokens": {"most": [2, 3, 5], "half": [2, 3, 5]},
    }


def test_a_variant_of_one_field_may_be_a_point_of_anothers_line() -> None:
    """It is what a sweep of the other method's ratio would have measured, and therefore did not."""
    two = {**HALF, "num_speculative_tokens": 2}
    summary = of_methods(
        {"most": MOST, "two": two}, {"num_speculative_tokens": (2,), "prune_ratio": (0.9, 1)}
    )
    lines = swept(summary, "g", "prune_ratio")
    assert {name: [value for value, _ in points] for name, points in lines.items()} == {
        "most": [0.9, 1],
        "two": [0.5, 0.9, 1],
    }
    assert lines["two"][1][1] == summary["groups"]["g"]["methods"]["most num_speculative_tokens=2"]


def test_one_point_is_no_line(tmp_path: Path) -> None:
    summary = of_methods({"most": MOST}, {"prune_ratio": (0.9,)})
    assert swept(summary, "g", "prune_ratio") == {}
    assert "By prune_ratio" not in [table.title for table in bench_tables(summary)]
    assert tmp_path / "acceptance_by_prune_ratio.png" not in bench_plots(summary, tmp_path)


def test_values_that_are_no_numbers_are_told_as_they_are_given() -> None:
    summary = of_methods({"most": MOST}, {"tree": ([[0], [1]], None)})
    (table,) = (table for table in bench_tables(summary) if table.title == "By tree")
    assert [row[2] for row in table.rows] == ["eagle", "[[0], [1]]", "null"]


def test_values_with_options_are_told_by_name() -> None:
    assert value_text({"name": "uniform"}) == "uniform"
    assert value_text({"name": "grid", "window": None}) == "grid(window=null)"
    assert value_text([{"name": "text"}, {"name": "pooled", "size": 2}]) == "text + pooled(size=2)"


def test_views_are_summed_over_all_answers(tmp_path: Path) -> None:
    """And a method without views has none."""
    store = Store(tmp_path)
    for repeat, right in enumerate((3, 1)):
        counted = {"asked": 4, "right": right, "weight": 2.5, "tokens": 5}
        for name, views in (("plain", {}), ("specvlm", {"text": counted})):
            common = {"cache_bytes": None, "peak_bytes": 1, "start_bytes": 0, "views": views}
            store.records.append(
                Measurement("c", "g", name, repeat, [1], 2.0, 1.0, {}, 9, {}, **common)
            )
    summary = {"run": RUN, **summarize(store, chosen(False), ["g"])}
    methods = summary["groups"]["g"]["methods"]
    assert methods["plain"]["views"] == {}
    assert methods["specvlm"]["views"]["text"]["right_share"] == 0.5
    (table,) = (table for table in bench_tables(summary) if table.title == "g: views of the prompt")
    assert table.rows == [("specvlm", "text", "0.50", "80%", "50%")]


def test_every_picture_is_known_to_be_ours(tmp_path: Path) -> None:
    """So that it goes when the run is begun again."""
    drawn = bench_plots(measured(sweep=True, lengths=(100, 800)), tmp_path)
    assert len(drawn) == 4
    assert {file.name for file in drawn} < set(products())


def test_names_can_be_read_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of variants begin alike: what tells them apart must not be cut off."""
    file = io.StringIO()
    terminal = Console(file=file, width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(show, "console", terminal)
    summary = measured(sweep=True)
    show_tables(bench_tables(summary), "")
    memory = file.getvalue().split("drafts and memory")[1].split("where the time goes")[0]
    lines = [line for line in memory.splitlines() if line.startswith("│")]
    names = "".join(line.split("│")[1].strip() for line in lines)
    assert "specvlmprune_ratio=1specvlmprune_ratio=0" in names
    assert "…" not in memory


@pytest.mark.parametrize(
    ("sweep", "lengths", "names"),
    [
        (False, (100,), {"speedup", "breakdown"}),
        (True, (100,), {"speedup", "breakdown", "acceptance_by_prune_ratio"}),
        (False, (100, 120), {"speedup", "breakdown"}),
        (
            True,
            (100, 800),
            {"speedup", "breakdown", "acceptance_by_prune_ratio", "draft_step_by_context"},
        ),
        (False, (), set()),
    ],
)
def test_pictures_of_what_was_measured(
    tmp_path: Path, sweep: bool, lengths: Any, names: set[str]
) -> None:
    files = bench_plots(measured(sweep, lengths), tmp_path)
    assert {file.stem for file in files} == names
    assert all(file.stat().st_size > 5000 for file in files)


def test_without_a_reference_there_still_is_a_report(tmp_path: Path) -> None:
    summary = measured()
    for group in summary["groups"].values():
        del group["methods"]["hf-generate"]
        for row in group["methods"].values():
            row["speedup_e2e"] = row["speedup_decode"] = row["speedup_expected"] = None
            row["compared"] = 0
    assert "| plain | 1.000 |  |  |  |  |" in bench_page(summary)
    assert len(bench_plots(summary, tmp_path)) == 2


def test_the_peak_begins_anew() -> None:
    """What was large before does not count, what is large within does, though it is gone at the
    end."""
    peak = Peak([])
    if peak.kind != RESIDENT:
        pytest.skip("this system cannot be told to forget the highest resident memory")
    size = 300 * 2**20
    before = bytearray(size)
    del before
    peak.start()
    start = peak.stop().start
    assert peak.stop().peak - start < size / 4
    within = bytearray(size)
    del within
    assert peak.stop().peak - start > 0.9 * size
    peak.start()
    assert peak.stop().peak - start < size / 4


CHILD = """
import sys
sys.stdin.readline()
block = bytearray(100 * 2**20)
del block
print("done", flush=True)
sys.stdin.readline()
"""


def test_the_memory_of_workers_counts_if_they_took_part() -> None:
    """A worker allocates 100 MiB and frees them; another process of ours is idle."""
    peak = Peak([])
    if peak.kind != RESIDENT:
        pytest.skip("this system cannot be told to forget the highest resident memory")
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([sys.executable, "-c", CHILD], **options) as worker,
        subprocess.Popen([sys.executable, "-c", CHILD], **options) as idle,
    ):
        assert worker.stdin is not None
        assert worker.stdout is not None
        peak.start()
        worker.stdin.write("go\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "done\n"
        alone, together = peak.stop(), peak.stop([worker.pid])
        both = peak.stop([worker.pid, idle.pid])
        worker.stdin.close()
        idle.communicate()
    size = 100 * 2**20
    grown = together.peak - together.start - (alone.peak - alone.start)
    assert 0.9 * size < grown < 2 * size
    assert together.start > alone.start
    assert both.start > together.start
    peak.start()
    assert peak.stop([worker.pid]).peak <= peak.stop().peak + size / 4  # the worker has ended


def test_lossy_methods_are_marked_and_stand_beside_the_others() -> None:
    assert "100 long: lossy methods" not in [table.title for table in bench_tables(measured())]
    way = Lossy(FastV(prune_ratio=0.75))
    answer = ([1, 2, 9], 0.5, 0.25, {"frames": 0.1}, 100, {"visual": 40, "kept": 10})
    record = Measurement("a|b", "100 long", "fastv", 0, *answer, 5, 2**30, 2**29, accepted=2)
    store = Store.__new__(Store)
    store.records = [
        Measurement("a|b", "100 long", "hf-generate", 0, [1, 2, 3], 2, 1, {}, 100, {}, None, 5, 1),
        record,
    ]
    contestants = [Contestant("hf-generate", HfGenerate()), Contestant("fastv", way)]
    summary = {"run": RUN, **summarize(store, contestants, ["100 long"])}
    speed, lossy, *_ = bench_tables(summary)
    assert [row[0] for row in speed.rows] == ["hf-generate", "fastv (lossy)"]
    assert [row[:4] for row in lossy.rows] == [
        ("hf-generate", "100.0%", "yes", "100%"),
        ("fastv (lossy)", "66.7%", "0 of 1", "25%"),
    ]
    assert summary["settings"]["fastv"] == {"peer": "fastv", "layer": 2, "prune_ratio": 0.75}
    assert "Answers that differ" not in bench_page(summary)
