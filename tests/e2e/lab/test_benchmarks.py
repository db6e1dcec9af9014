"""Parts of the benchmark scripts that measure the real process, with a few answers each."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging

import draftlens
from draftlens.methods.parallelvlm.loop import usable_cores

pytestmark = [
    pytest.mark.slow,
    pytest.mark.dist,
    pytest.mark.skipif(usable_cores() < 2, reason="on one core no process drafts"),
]

REPOSITORY = Path(__file__).parents[3]


def report_of(part: str, folder: Path, *words: str) -> tuple[dict[str, Any], str]:
    """The report of a part of `benchmarks/parallel.py`, and its page."""
    out = folder / part
    command = [sys.executable, "benchmarks/parallel.py", part, "--out", str(out), *words]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)
    report: dict[str, Any] = json.loads(out.with_suffix(".json").read_text())
    return report, out.with_suffix(".md").read_text()


def test_a_process_is_lost_at_any_moment_and_leaves_nothing(tmp_path: Path) -> None:
    words = ("--kills", "2", "--stops", "1", "--answers", "2", "--max-new-tokens", "12")
    report, page = report_of("robustness", tmp_path, *words)
    losses = report["losses"]
    assert len(losses) == 3
    assert len({loss["moment"] for loss in losses}) == 2
    assert all(loss["equal"] for loss in losses)
    # How a killed process ended is not known where its parent is slow to collect it.
    killed = [f"the drafting process {how}" for how in ("was ended by signal 9", "does not answer")]
    for loss in losses:
        # A short answer can end before it needs the process again, and then tells nothing.
        assert loss["lost"] is None or loss["lost"] == loss["ended"]
        assert loss["ended"] in killed or loss["how"] == "SIGSTOP"
    leaks = report["leaks"]
    assert leaks["one process"]
    assert not leaks["lost"]
    for name, count in leaks["before"].items():
        assert leaks["after"][name] <= count
    assert leaks["dropped"]["processes"] == leaks["begun"]["processes"] == 0
    assert leaks["dropped"]["memory_files"] == leaks["dropped"]["memory_descriptors"] == 0
    assert leaks["dropped"]["descriptors"] <= leaks["begun"]["descriptors"] + 2
    assert "| SIGSTOP | all | 1 | 1 |" in page


def test_windows_are_ready_when_the_prefill_ends(tmp_path: Path) -> None:
    words = ("--frames", "4", "--clips", "1", "--repeats", "1")
    report, page = report_of("first-token", tmp_path, *words)
    firsts = {first["way"]: first for first in report["firsts"]}
    assert len(firsts) == len(report["firsts"]) == 4
    assert firsts["plain"]["prompt_read"] is None
    assert not firsts["plain"]["guesses"]
    assert all(first["prefill"] <= first["wall"] for first in firsts.values())
    drafted = [first for way, first in firsts.items() if way != "plain"]
    assert all(first["prompt_read"] > 0 for first in drafted)
    assert {way: first["window"] for way, first in firsts.items() if way != "plain"} == {
        "uv, parallel": 4,
        "uv, lock-step": 5,
        "unpruned, parallel": 4,
    }
    assert "| a draft token is ready | a window is ready |" in page


def test_the_kit_for_a_gpu_runs_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import gpu

    out = tmp_path / "gpu"
    words = ["benchmarks/gpu.py", "--device", "cpu", "--tiny", "--repeats", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    verbosity = logging.get_verbosity()
    gpu.BENCHMARK.main()
    logging.set_verbosity(verbosity)
    rows = json.loads(out.with_suffix(".json").read_text())["rows"]
    answers = [row for row in rows if row["way"] != "loading"]
    assert len(answers) == 25
    assert all(row.get("equal") for row in answers), answers
    assert {row["peak_bytes"] for row in answers} == {None}  # torch counts no bytes of a CPU


def test_the_kit_for_a_gpu_compares_with_stock_only() -> None:
    """Where stock `generate` fails, no other way takes its place, and the run fails."""
    from benchmarks import gpu

    args = argparse.Namespace(device="cpu", tiny=True, repeats=1)
    answers = gpu.Answers(end=math.inf)
    reference = gpu.Reference()

    def failing(*_: Any) -> Any:
        raise RuntimeError("no memory")

    def answering(*_: Any) -> Any:
        return {"tokens": [[1]], "e2e": 1.0, "decode": 0.5}

    inputs = draftlens.Inputs({})
    for way, answer in ((gpu.STOCK, failing), ("plain", answering)):
        timed = gpu._timed(args, answer, inputs, reference, False, way == gpu.STOCK)
        answers.run("part", way, timed)
    notes = [row["note"] for row in answers.rows]
    assert notes == ["RuntimeError: no memory", "RuntimeError: " + gpu.NOTHING_TO_COMPARE]
    assert answers.has_failed
    assert not reference.tokens


def test_the_kit_for_a_gpu_ends_with_a_lost_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import gpu

    class LostError(Exception): ...

    def failing() -> Any:
        raise LostError("an illegal memory access was encountered")

    monkeypatch.setattr(gpu, "LOST", (LostError,))
    answers = gpu.Answers(end=math.inf)
    answers.run("part", "first", failing)
    answers.run("part", "second", dict)
    assert [row["note"] for row in answers.rows] == [
        "LostError: an illegal memory access was encountered",
        "the device is lost",
    ]
