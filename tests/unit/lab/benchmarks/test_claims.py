"""The page of claims follows from the result files, and its commands exist."""

from __future__ import annotations

import argparse
import json
import re
import runpy
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.claims_parts import commands, full, history, own_pair, quick
from benchmarks.claims_parts.claim import (
    FAILS,
    HOLDS,
    MISSING,
    OPEN,
    Check,
    Claim,
    Paper,
    judge,
    load,
)
from benchmarks.claims_parts.figures import Figure, computed, grows, mean, once, paired, times
from benchmarks.claims_parts.own_pair import OwnPair, claims_of
from benchmarks.claims_parts.page import PAPERS, page, row, without_marks

ROOT = Path(__file__).resolve().parents[4]
CLAIMS = [(paper, claim) for paper in PAPERS for claim in paper.claims]
PENDING: set[str] = set()
"""Result files of claims that are not measured yet."""

every_claim = pytest.mark.parametrize(
    "claim",
    [claim for _, claim in CLAIMS],
    ids=[f"{paper.title}-{claim.number}" for paper, claim in CLAIMS],
)


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_page_is_that_of_the_results() -> None:
    """What git says of a result's age is left out, since a clone may be shallow."""
    written = without_marks(Path("docs/claims.md").read_text())
    assert written == without_marks(page()), "run: python -m benchmarks.claims"


def sources_of(words: list[str]) -> tuple[str, list[str]]:
    """Text of the files whose options a command takes, and the words after the script."""
    assert words[0] == "python"
    script = Path(words[1])
    text = script.read_text()
    rest = words[2:]
    for part, module in re.findall(r'^    "([\w-]+)": "(\w+_parts\.\w+)",$', text, re.MULTILINE):
        if part == rest[0]:
            text = Path("benchmarks", *module.split(".")).with_suffix(".py").read_text()
            return text + Path("benchmarks/shared.py").read_text(), rest[1:]
    assert "run_part(" not in text, f"{script} has no part {rest[0]}"
    return text + Path("benchmarks/shared.py").read_text(), rest


OWN = OwnPair("a target", "draft", videos=Path("clips"))
COMMANDS = {claim.command for _, claim in CLAIMS if claim.command} | set(quick.commands())
COMMANDS |= set(own_pair.commands(OWN, Path("runs/own")))


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_exists(command: str) -> None:
    """Script, part and options; values of `--parts` are parts of the script."""
    text, rest = sources_of(shlex.split(command))
    for option in [word for word in rest if word.startswith("--")]:
        assert f'"{option}"' in text, option
    if "--parts" in rest:
        for part in rest[rest.index("--parts") + 1].split(","):
            assert f'"{part}": ' in text, part


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_is_parsed_by_its_script(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parse_once(parser: argparse.ArgumentParser, words: Sequence[str] | None = None) -> object:
        found = parse(parser, words)
        if words is None:
            raise SystemExit(0)  # a command line that is refused exits with 2
        return found

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_once)
    monkeypatch.setattr("sys.argv", shlex.split(command)[1:])
    monkeypatch.syspath_prepend("benchmarks")
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(shlex.split(command)[1], run_name="__main__")
    assert stop.value.code == 0


@every_claim
def test_every_result_file_exists(claim: Claim) -> None:
    for check in claim.checks:
        exists = load(Path("benchmarks/results"), check.file) is not None
        assert exists or check.file in PENDING, check.file


@every_claim
def test_a_verdict_follows_from_intervals_or_says_why(claim: Claim) -> None:
    judged = judge(claim)
    if judged.verdict != HOLDS:
        assert judged.reason or judged.verdict == FAILS
        return
    assert claim.checks
    for check, figure in zip(claim.checks, judged.seen, strict=True):
        assert figure is not None
        assert figure.interval is not None
        low, high = figure.interval
        assert low <= figure.value <= high
        assert check.above is not None or check.below is not None
        assert check.above is None or low > check.above
        assert check.below is None or high < check.below


def test_numbers_are_unique_and_complete() -> None:
    numbers = {paper.title: [claim.number for claim in paper.claims] for paper in PAPERS}
    for title, count in {"ParallelVLM": 19, "TABED": 16, "HSD": 15, "SPAVA": 9}.items():
        assert len(set(numbers[title])) == len(numbers[title])
        stems = {re.sub(r"[a-d]$", "", number) for number in numbers[title]}
        assert {str(number) for number in range(1, count + 1)} <= stems
    assert {"M1", "M2", "M3", "M4", "R"} <= set(numbers["SPAVA"])


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (Figure(1.5, (1.1, 1.9)), HOLDS),
        (Figure(1.5, (0.9, 1.9)), OPEN),
        (Figure(1.5, (1.1, 2.1)), OPEN),
        (Figure(0.5, (0.1, 0.9)), FAILS),
        (Figure(2.5, (2.1, 2.9)), FAILS),
        (computed(1.0), OPEN),
        (computed(1.2), HOLDS),
        (once(1.5), OPEN),
    ],
)
def test_verdicts(figure: Figure, verdict: str, tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("{}")
    check = Check("figure", "there", lambda report: figure, above=1.0, below=2.0)
    assert judge(Claim("1", "", "", checks=(check,)), tmp_path).verdict == verdict


def test_one_figure_that_fails_decides(tmp_path: Path) -> None:
    (tmp_path / "both.json").write_text("{}")
    checks = [
        Check("figure", "both", lambda report, value=value: computed(value), above=1.0)
        for value in (2.0, 0.5)
    ]
    assert judge(Claim("1", "", "", checks=tuple(checks)), tmp_path).verdict == FAILS
    missing = Check("figure", "missing", lambda report: computed(2.0), above=1.0)
    assert judge(Claim("1", "", "", checks=(*checks, missing)), tmp_path).verdict == MISSING


def test_intervals_hold_their_estimates_and_shrink() -> None:
    few, many = times([2.0, 2.2], [1.0, 1.0]), times([2.0, 2.2] * 20, [1.0] * 40)
    assert few.value == pytest.approx(many.value)
    assert few.interval is not None
    assert many.interval is not None
    assert few.interval[0] < many.interval[0] < many.value < many.interval[1] < few.interval[1]
    assert mean([3.0]).interval is None
    assert grows([1.0, 1.1], [2.0, 2.2]).value == pytest.approx(2.0)
    same = paired([1] * 50, [1] * 50)
    assert same.value == 0
    assert same.interval is not None
    assert same.interval[0] < -0.03, "no difference in 50 answers does not show that there is none"


def test_the_number_of_samples_that_would_decide(tmp_path: Path) -> None:
    """Half of the width shrinks with the root of the number."""
    figure = Figure(0.5, (-0.5, 1.5), count=10)
    assert figure.needed([0.0]) == 40
    assert figure.needed([0.0, 1.5]) == 40
    assert Figure(1.0, (0.5, 1.5), count=10).needed([0.0]) == 0
    assert figure.needed([0.5]) is None
    assert Figure(0.5, (-0.5, 1.5)).needed([0.0]) is None
    (tmp_path / "there.json").write_text("{}")
    check = Check("figure", "there", lambda report: figure, above=0.0)
    judged = judge(Claim("1", "", "", checks=(check,)), tmp_path)
    assert judged.reason.endswith("40 samples in place of 10 would decide")


def test_every_row_has_as_many_cells_as_columns() -> None:
    for paper, claim in CLAIMS:
        cells = row(paper, judge(claim))
        assert not any("|" in cell or "\n" in cell for cell in cells), claim.number


@pytest.mark.parametrize(("small", "status"), [(0.0, 0), (0.9, 1)])
def test_small_runs_resume_and_name_rows_that_disagree(
    small: float,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the page no answer over HTTP differs; a small run in which most differ disagrees."""
    code = (
        "import json, pathlib; out = pathlib.Path('OUT');"
        f"assert not (out / 'serve.json').exists(); report = {{'share': {small}}};"
        "(out / 'serve.json').write_text(json.dumps(report))"
    )

    def read(report: Mapping[str, Any]) -> Figure:
        return computed(report.get("share", 0.0))

    check = Check("answers that differ", "serve", read, below=0.05)
    claim = Claim("1", "", "", checks=(check,), quick=f'python -c "{code}"')
    monkeypatch.setattr(quick, "PAPERS", (Paper("one", "", "", (claim,)),))
    assert quick.run(tmp_path) == status
    assert ("DISAGREES" in capsys.readouterr().out) == bool(status)
    assert quick.run(tmp_path) == status, "the command fails if it runs twice"
    assert "exit status" not in capsys.readouterr().out


def test_commands_that_write_one_file_run_one_after_the_other() -> None:
    series = quick.series()
    assert sorted(command for each in series for command in each) == sorted(quick.commands())
    outs = [{command.rpartition("--out ")[2] for command in each} for each in series]
    assert all(len(each) == 1 for each in outs)
    assert len(set.union(*outs)) == len(outs) < len(quick.commands())


def test_rows_without_a_small_run_are_printed_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = (Claim("1", "", "", command="python some.py"), Claim("2", "", ""))
    monkeypatch.setattr(quick, "PAPERS", (Paper("one", "", "", claims),))
    assert quick.run(tmp_path) == 0
    assert "one 1: no small run" in capsys.readouterr().out


def test_a_full_run_takes_what_is_stale_or_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the hours first, writes into its folder, notes minutes, and does nothing twice."""
    results = "benchmarks/results"
    script = "import pathlib, sys; pathlib.Path(sys.argv[2] + '.json').write_text('{}')"
    claims = [
        Claim(
            name,
            "",
            "",
            command=f'python -c "{script}" --out {results}/{name}',
            checks=(Check("figure", name, lambda report: computed(2.0), above=1.0),),
        )
        for name in ("fresh", "stale", "missing")
    ]
    for name in ("fresh", "stale"):
        (tmp_path / f"{name}.json").write_text("{}")
    monkeypatch.setattr(full, "PAPERS", (Paper("one", "", "", tuple(claims)),))
    monkeypatch.setattr(full, "MINUTES", tmp_path / "minutes.json")
    monkeypatch.setattr(commands, "MINUTES", tmp_path / "minutes.json")
    stale = {"stale": ["other code"]}
    monkeypatch.setattr(history, "reasons", lambda claim, *_: stale.get(claim.number, []))
    (tmp_path / "minutes.json").write_text(json.dumps({claims[1].command: 90.0}))
    assert full.run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert "fresh" not in printed
    assert printed.index("In all at least 1.50 h") < printed.index("exit status 0")
    assert (tmp_path / "missing.json").exists()
    assert set(commands.recorded()) == {claims[1].command, claims[2].command}
    stale.clear()
    load.cache_clear()
    assert full.due(tmp_path) == {}


def test_commands_for_a_pair_of_ones_own_write_into_its_folder() -> None:
    folder = Path("runs/own")
    for pair in (OWN, replace(OWN, is_small=True)):
        for command in own_pair.commands(pair, folder):
            words = shlex.split(command)
            given = {word: words[place + 1] for place, word in enumerate(words) if word[:2] == "--"}
            assert given["--target"] == "a target"
            assert (given["--draft"], given["--videos"]) == ("draft", "clips")
            for option in ("--out", "--keep", "--rows"):
                assert Path(given.get(option, folder / "none")).is_relative_to(folder), command
            assert "OUT" not in command
    numbers = {paper.title: len(claims_of(paper)) for paper in PAPERS}
    assert numbers["HSD"] == numbers["draftlens"] == 0
    assert min(numbers[title] for title in ("SpecVLM", "ParallelVLM", "TABED", "SPAVA")) >= 10
    assert OWN.folder == Path("runs/claims/a-target-draft")


def test_a_pair_of_ones_own_has_a_page_of_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that was done is not run again, and a row whose command failed is not measured."""
    script = "import pathlib, sys; pathlib.Path(sys.argv[2] + '.json').write_text('{}')"
    monkeypatch.setattr(own_pair, "MEASURED", ("python -c",))
    claims = [
        Claim(
            name,
            "",
            f"The claim {name}.",
            command=f'python -c "{code}" --out benchmarks/results/{name}',
            checks=(Check("figure", name, lambda report: computed(2.0), above=1.0),),
        )
        for name, code in (("shown", script), ("failed", "raise SystemExit(1)"))
    ]
    claims.append(Claim("elsewhere", "", "Not of the pair.", command="python other.py"))
    monkeypatch.setattr(own_pair, "PAPERS", (Paper("one", "", "", tuple(claims)),))
    assert own_pair.run(OWN, tmp_path) == 1
    text = (tmp_path / "claims.md").read_text()
    assert re.search(r"The claim shown\..*2\.00 \(computed\).*holds", text)
    assert re.search(r"The claim failed\..*not measured", text)
    assert "Not of the pair" not in text
    assert "| one | 1 | 0 | 0 | 1 |" in text
    (tmp_path / "shown.json").unlink()
    load.cache_clear()
    assert own_pair.run(OWN, tmp_path) == 1
    assert not (tmp_path / "shown.json").exists()


def test_one_of_several_figures_refutes_a_claim_only_beyond_chance(tmp_path: Path) -> None:
    """All of them have to agree, so only what refutes is corrected for their number."""
    (tmp_path / "some.json").write_text("{}")

    def verdict(*figures: Figure) -> str:
        load.cache_clear()
        checks = tuple(
            Check(f"figure {place}", "some", lambda _, figure=figure: figure, above=1.0)  # type: ignore[misc]
            for place, figure in enumerate(figures)
        )
        return judge(Claim("1", "here", "says", checks=checks), tmp_path).verdict

    low, high = Figure(0.8, (0.62, 0.98)), Figure(1.3, (1.2, 1.4))
    assert verdict(low) == FAILS
    assert verdict(low, high) == OPEN
    assert verdict(replace(low, interval=(0.7, 0.9)), high) == FAILS
    assert verdict(high, high) == HOLDS
    wide = low.among(4).interval
    assert wide is not None
    assert wide[1] - 0.8 == pytest.approx(0.18 * 2.4977 / 1.96, rel=1e-3)
    assert low.among(1) is low
