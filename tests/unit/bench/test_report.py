"""What a reader gets: tables with every method, and pictures that are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftlens.bench.contestants import Contestant, HfGenerate, Ours
from draftlens.bench.memory import RESIDENT, Peak
from draftlens.bench.plots import plot
from draftlens.bench.report import markdown, swept, tables
from draftlens.bench.store import Failure, Measurement, Record, Refusal, Store
from draftlens.bench.summary import summarize
from draftlens.config import PlainDecoding, SpecVLM

RUN = {
    "models": {"target": {"name": "t", "class": "T", "parameters": 5e6, "dtype": "float32", "device": "cpu"}},
    "options": {"repeats": 2, "max_new_tokens": 9},
    "memory": "resident",
    "environment": {"machine": "m", "threads": 1, "python": "3", "packages": {"torch": "2"}, "commit": None},
}


def chosen(sweep: bool) -> list[Contestant]:
    found = [Contestant("hf-generate", HfGenerate()), Contestant("plain", Ours(PlainDecoding()))]
    found.append(Contestant("specvlm", Ours(SpecVLM(prune_ratio=0.5))))
    if sweep:
        for ratio in (1, 0):
            way = Ours(SpecVLM(prune_ratio=ratio))
            found.append(Contestant(f"specvlm prune_ratio={ratio}", way, "specvlm", ("prune_ratio", ratio)))
    return found


def measured(sweep: bool = False, lengths: tuple[int, ...] = (100,), extra: tuple[Record, ...] = ()) -> dict[str, Any]:
    store = Store.__new__(Store)
    store.records = list(extra)
    for length in lengths:
        for number, one in enumerate(chosen(sweep)):
            drafts = {"draft_forwards": 8, "drafted": 20, "accepted": 6, "visual": 100, "kept": 50 - number}
            counters = {"emitted": 9, "first": 1, "passes": 8 - number, **(drafts if number > 1 else {})}
            phases = {"frames": 0.1, "vision": 0.1, "target_prefill": 0.2, "draft": 0.1 * length, "verify": 0.3}
            for repeat in range(2):
                tokens = [1, 2, 3 if one.name != "plain" or repeat else 4]
                figures = (tokens, 2.0 / (number + 1), 0.25 / (number + 1), phases, length, counters if number else {})
                store.records.append(
                    Measurement("a|b", f"{length} long", one.name, repeat, *figures, 2**20, 2**30, 2**29)
                )
    return {"run": RUN, **summarize(store, chosen(sweep), [f"{length} long" for length in lengths])}


def test_every_table_is_there_with_every_method() -> None:
    troubles = (Failure("c", "", 0, "cannot read c"), Refusal("hf-assisted", "ValueError: no"))
    summary = measured(sweep=True, extra=troubles)
    page = markdown(summary, ["speedup.png"])
    titles = [table.title for table in tables(summary)]
    assert titles == [
        "100 long",
        "100 long: drafts and memory",
        "100 long: where the time goes",
        "By prune_ratio",
        "Answers that differ from hf-generate's",
        "Does not run",
        "Clips that failed, left out of every figure",
    ]
    for table in tables(summary):
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(isinstance(cell, str) for row in table.rows for cell in row)
    assert "| plain | 1.000 | 2.00 (2.00 to 2.00) | 2.00 (2.00 to 2.00) | 1 of 2 |" in page
    assert "| specvlm | 0.667 | 3.00 (3.00 to 3.00) | 3.00 (3.00 to 3.00) | yes |" in page
    assert "| a\\|b | plain | 0 | 2 | 3 | 4 |" in page
    assert "| hf-assisted | ValueError: no |" in page
    assert "| c | reading | cannot read c |" in page
    assert "![speedup.png](speedup.png)" in page
    assert "1 clip, 100 prompt tokens" in page


def test_a_swept_method_stands_among_its_variants() -> None:
    points = swept(measured(sweep=True), "100 long", "prune_ratio")["specvlm"]
    assert [value for value, _ in points] == [0, 0.5, 1]
    assert [row["mean_acceptance_length"] for _, row in points] == [8 / 4, 8 / 6, 8 / 5]


@pytest.mark.parametrize(
    ("sweep", "lengths", "names"),
    [
        (False, (100,), {"speedup", "breakdown"}),
        (True, (100,), {"speedup", "breakdown", "acceptance_by_prune_ratio"}),
        (False, (100, 120), {"speedup", "breakdown"}),
        (True, (100, 800), {"speedup", "breakdown", "acceptance_by_prune_ratio", "draft_step_by_context"}),
        (False, (), set()),
    ],
)
def test_pictures_of_what_was_measured(tmp_path: Path, sweep: bool, lengths: Any, names: set[str]) -> None:
    files = plot(measured(sweep, lengths), tmp_path)
    assert {file.stem for file in files} == names
    assert all(file.stat().st_size > 5000 for file in files)


def test_without_a_reference_there_still_is_a_report(tmp_path: Path) -> None:
    summary = measured()
    for group in summary["groups"].values():
        del group["methods"]["hf-generate"]
        for row in group["methods"].values():
            row["speedup_e2e"] = row["speedup_decode"] = None
            row["compared"] = 0
    assert "| plain | 1.000 |  |  |  |" in markdown(summary)
    assert len(plot(summary, tmp_path)) == 2


def test_the_peak_begins_anew() -> None:
    """What was large before does not count, what is large within does, though it is gone at the end."""
    peak = Peak([])
    if peak.kind != RESIDENT:
        pytest.skip("this system cannot be told to forget the highest resident memory")
    size = 300 * 2**20
    before = bytearray(size)
    del before
    start = peak.start()
    assert peak.stop() - start < size / 4
    within = bytearray(size)
    del within
    assert peak.stop() - start > 0.9 * size
    peak.start()
    assert peak.stop() - start < size / 4
