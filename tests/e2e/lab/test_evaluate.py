"""`draftlens evaluate` on the pair in the package: the whole way, on very few clips. Its figures
mean nothing here."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from draftlens_lab.evaluate import (
    Evaluation,
    EvaluationOptions,
    evaluation_page,
    evaluation_tables,
    run,
)
from draftlens_lab.evaluate.parts import SHOWN
from draftlens_lab.evaluate.plots import evaluation_plots
from draftlens_lab.evaluate.run import SilentEvaluation
from draftlens_lab.evaluate.samples import FAMILIES
from PIL import Image

import draftlens

FEW = EvaluationOptions(clips=2, frames=(4, 8), guesses=5)
PLOTS = {
    "accuracy.png",
    "acceptance_by_depth.png",
    "acceptance_by_gamma.png",
    "visual_dependence.png",
}
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(command: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """`draftlens evaluate` with these words and few scenes to guess from."""
    monkeypatch.setattr(run, "Guesses", lambda scenes: _few_guesses())
    return partial(command, "evaluate")


def _few_guesses() -> Any:
    from draftlens_lab.evaluate.chance import Guesses

    return Guesses(5)


class Counting(SilentEvaluation):
    """Adds up the work."""

    def __init__(self) -> None:
        self.total = self.so_far = 0.0

    def plan(self, work: float) -> None:
        self.total = work

    def done(self, work: float) -> None:
        self.so_far += work


@pytest.fixture(scope="module")
def listener() -> Counting:
    """Follows the progress while the report was made."""
    return Counting()


@pytest.fixture(scope="module")
def report(engine: draftlens.Engine, listener: Counting) -> dict[str, Any]:
    """Of the embedded pair."""
    return Evaluation(engine.target, engine.draft, FEW).run(listener)


def test_the_report_holds_every_section(report: dict[str, Any]) -> None:
    assert report["finished"]
    for who in ("target", "draft"):
        accuracy = report["accuracy"][who]
        assert list(accuracy["captions"]) == ["4", "8"]
        assert [of["asked"] for of in accuracy["captions"].values()] == [2, 1]
        assert [of["visual_tokens"] for of in accuracy["captions"].values()] == [65, 129]
        assert list(accuracy["questions"]) == list(FAMILIES)
        assert all(of["right"]["total"] == 2 for of in accuracy["questions"].values())
        assert accuracy["pictures"]["asked"] == 2
        parts = accuracy["parts"]
        assert {family: list(of) for family, of in parts.items()} == {
            "focus": ["16"],
            "needle": ["16"],
            "chat": ["16"],
            "pairs": ["2"],
        }
        assert all(of["asked"] == 2 for lengths in parts.values() for of in lengths.values())
    assert list(report["evidence"]["focus"]["shown"]) == list(SHOWN)
    assert report["evidence"]["focus"]["shown"]["all"]["fall"] == 0
    assert report["agreement"]["clips"] == report["visual"]["clips"] == 2
    assert "goals" not in report
    assert report["environment"]["packages"]["torch"]
    assert report["models"]["draft"]["parameters"] < report["models"]["target"]["parameters"]


def test_all_visual_tokens_give_what_agreement_gives(report: dict[str, Any]) -> None:
    everything = report["visual"]["kept"][0]
    assert everything["agreed"] == report["agreement"]["agreed"]
    assert everything["acceptance_length"] == report["agreement"]["acceptance_length"]["5"]


def test_tables_say_what_the_report_holds(report: dict[str, Any]) -> None:
    found = {table.title: table for table in evaluation_tables(report)}
    assert all(len(row) == len(table.columns) for table in found.values() for row in table.rows)
    pages = evaluation_page(json.loads(json.dumps(report)))
    for title in found:
        assert f"## {title}\n" in pages
    for who in ("target", "draft"):
        assert {
            f"Captions of the {who}",
            f"Facts by kind, {who}",
            f"Questions to the {who}",
            f"Questions about a part to the {who}",
        } <= found.keys()
    lengths = dict(found["Mean acceptance length"].rows)
    assert lengths["5"] == f"{report['agreement']['acceptance_length']['5']:.2f}"
    assert found["Visual dependence of the draft"].rows[0][0] == "100%"
    assert found["Visual dependence of the draft"].rows[-1][0] == "0%"


def test_plots_are_drawn(report: dict[str, Any], tmp_path: Path) -> None:
    files = evaluation_plots(report, tmp_path)
    assert {file.name for file in files} == PLOTS
    for file in files:
        with Image.open(file) as picture:
            assert min(picture.size) > 300
            assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 20


def test_an_interrupt_leaves_what_was_finished(engine: draftlens.Engine, tmp_path: Path) -> None:
    class Impatient(SilentEvaluation):
        reports: list[str] = []  # noqa: RUF012 - one test long

        def saved(self, report: Mapping[str, Any]) -> None:
            self.reports.append(json.dumps(report))
            if len(self.reports) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Evaluation(engine.target, engine.draft, FEW).run(Impatient())
    left = json.loads(Impatient.reports[-1])
    assert not left["finished"]
    assert list(left["accuracy"]["target"]) == ["captions", "pictures"]
    assert list(left["seconds"]) == ["accuracy target captions 4", "accuracy target pictures"]
    assert "Not finished" in evaluation_page(left)
    assert evaluation_plots(left, tmp_path) == []


def test_work_done_is_all_the_work_planned(report: dict[str, Any], listener: Counting) -> None:
    assert report["finished"]
    assert listener.so_far == pytest.approx(listener.total)


def test_the_command_prints_saves_and_plots(
    call: Call, tmp_path: Path, engine: draftlens.Engine
) -> None:
    """Its report is that of Python, every time, but for seconds."""
    out = tmp_path / "deep" / "folder"
    status, printed, _ = call("--clips", "1", "--frames", "4", "--out", str(out), "--device", "cpu")
    assert status == 0
    assert {file.name for file in out.iterdir()} == PLOTS | {"evaluate.json", "evaluate.md"}
    report = json.loads((out / "evaluate.json").read_text())
    assert report["finished"]
    assert report["arguments"]["frames"] == [4]
    for words in (
        "Captions of the target",
        "Visual dependence of the draft",
        "chance",
    ):
        assert words in printed
    assert (out / "evaluate.md").read_text() == evaluation_page(report)
    options = EvaluationOptions(clips=1, frames=(4,), guesses=5)
    again = Evaluation(engine.target, engine.draft, options).run()
    told = {"seconds": None, "arguments": None}
    assert {**report, **told} == json.loads(json.dumps({**again, **told}))


def test_without_a_draft_there_is_no_pair(call: Call, tmp_path: Path) -> None:
    words = [
        "--clips",
        "1",
        "--frames",
        "4",
        "--draft",
        "none",
        "--no-plots",
        "--json",
        "--seed",
        "3",
    ]
    status, printed, _ = call(*words, "--out", str(tmp_path), "--device", "cpu")
    assert status == 0
    report = json.loads(printed)
    assert report == json.loads((tmp_path / "evaluate.json").read_text())
    assert list(report["models"]) == ["target"]
    assert report["arguments"]["seed"] == 3
    assert not list(tmp_path.glob("*.png"))
    assert list(report["accuracy"]) == ["target"]
    assert not {"agreement", "visual", "evidence"} & report.keys()
    assert "goal" not in evaluation_page(report)
    assert [file.name for file in evaluation_plots(report, tmp_path)] == ["accuracy.png"]


def test_ctrl_c_says_where_the_finished_part_is(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "questions_right", interrupt)
    (tmp_path / "evaluate.json").write_text("an earlier one")
    status, _, err = call(
        "--clips", "1", "--frames", "4", "--out", str(tmp_path), "--device", "cpu"
    )
    assert status == 130
    assert f"what was finished is in {tmp_path / 'evaluate.json'}" in err
    assert "Traceback" not in err
    assert list(json.loads((tmp_path / "evaluate.json").read_text())["accuracy"]["target"]) == [
        "captions",
        "pictures",
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--frames", "8,x"], "--frames needs different numbers such as 8,64,256, not '8,x'"),
        (["--frames", "8,8"], "--frames needs different numbers"),
        (["--frames", "0"], "--frames needs different numbers"),
        (["--frames", ""], "--frames needs different numbers"),
        (["--target", "/no/such/model"], "there is no such folder"),
        (["--draft", "/no/such/model"], "there is no such folder"),
        (["--out", "/dev/null/folder"], "cannot write to the folder /dev/null/folder"),
    ],
)
def test_errors_are_one_sentence(
    call: Call, tmp_path: Path, words: list[str], sentence: str
) -> None:
    status, printed, err = call("--out", str(tmp_path), "--device", "cpu", *words)
    assert status == 2
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err + printed


def test_without_matplotlib_a_sentence_says_how_to_get_it(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "draftlens_lab.cli.evaluate.find_spec",
        lambda name: None if name == "matplotlib" else find(name),
        raising=True,
    )
    status, _, err = call("--out", str(tmp_path), "--no-plots")
    assert status == 2
    assert "pip install matplotlib" in " ".join(err.split())
