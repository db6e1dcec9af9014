"""What the command line says about itself: help in groups, completed values, quick answers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from draftlens.cli import catalogue
from draftlens.cli.app import app
from draftlens.decoding.plan import SCHEDULES
from draftlens.methods.base import METHODS
from draftlens.prefill.base import PREFILLS
from tests.e2e.conftest import CLIPS
from tests.e2e.test_start import COUNTING, run

GROUP: Any = typer.main.get_command(app)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["pairs"], 0),
        (["methods"], 0),
        (["methods", "--json"], 0),
        (["caption", "nowhere.mp4"], 2),
        (["ask", "nowhere.png", "--prompt", "What is it?"], 2),
        (["demo", "nowhere.mp4"], 2),
        (["verify", "nowhere.mp4"], 2),
        (["explain", "nowhere.mp4"], 2),
        (["calibrate", "nowhere.mp4", "elsewhere.mp4"], 2),
    ],
)
def test_what_needs_no_model_is_answered_without_torch(words: list[str], status: int) -> None:
    process = run(COUNTING.format(words=words))
    _, code, *modules = process.stdout.splitlines()[-1].split()
    assert int(code) == status, process.stderr
    assert {"torch", "transformers"}.isdisjoint(modules)
    if status:
        assert process.stderr.splitlines() == [
            "error: cannot read nowhere." + words[1].partition(".")[2] + ": there is no such file"
        ]


def test_the_stored_catalogue_is_that_of_the_classes() -> None:
    """`python -m draftlens.cli.catalogue` writes it again."""
    assert catalogue._stored() == catalogue.rows_of(
        catalogue.from_classes(), "draftlens", catalogue.LAB
    )
    assert catalogue.names("methods") == list(METHODS)
    assert catalogue.names("prefills") == list(PREFILLS)
    assert catalogue.names("schedules") == list(SCHEDULES)


def test_methods_lists_the_defaults(command: Callable[..., Any]) -> None:
    status, out, _ = command("methods", "--json")
    assert status == 0
    specvlm = next(row for row in json.loads(out)["methods"] if row["name"] == "specvlm")
    assert specvlm["options"]["prune_ratio"] == 0.9
    assert specvlm["options"]["pruner"] == "attention-sampled"
    assert "prune_ratio=0.9" in command("methods")[1]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("caption a.mp4 --method ", list(METHODS)),
        ("caption a.mp4 --prefill s", ["spava", "spava-ablation", "star"]),
        ("caption a.mp4 --draft n", ["none"]),
        ("caption a.mp4 --target emb", ["embedded"]),
        ("caption a.mp4 --draft-dtype b", ["bfloat16"]),
        ("explain a.mp4 --method t", ["tabed"]),
        ("bench --methods plain,spec", ["plain,speculative", "plain,specvlm"]),
        ("calibrate a.mp4 b.mp4 --pruners un", ["uniform"]),
    ],
)
def test_a_shell_completes_values(
    line: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any]
) -> None:
    monkeypatch.setenv("_DRAFTLENS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"draftlens {line}")
    words = line.split(" ")
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert sorted(command()[1].split()) == sorted(offered)


@pytest.mark.parametrize("name", sorted(GROUP.commands))
def test_the_help_of_a_command_ends_with_an_example_that_is_understood(
    name: str, command: Callable[..., Any]
) -> None:
    status, out, _ = command(name, "--help")
    assert status == 0
    program, called, *words = shlex.split(out.strip().splitlines()[-1].removeprefix("  Example: "))
    assert (program, called) == ("draftlens", name)
    assert GROUP.commands[name].make_context(name, words)


def test_the_options_of_a_command_are_in_groups(command: Callable[..., Any]) -> None:
    _, out, _ = command("caption", "--help")
    headings = [line for line in out.splitlines() if line.endswith(":") and line[0] != " "]
    groups = ["Models and method", "Answer", "Many files", "How models are loaded"]
    assert headings == ["Arguments:", "Options:", *(f"{group}:" for group in groups)]
    answer = out.split("\nAnswer:")[1].split("\nMany files:")[0]
    assert "--temperature" in answer
    assert "--seed" in answer
    assert "--revision" not in answer
    assert "`hsd`" in out


def test_only_commands_with_a_draft_have_options_of_one(command: Callable[..., Any]) -> None:
    for name, has_draft in (("parse", False), ("caption", True), ("serve", True)):
        status, out, _ = command(name, "--help")
        assert status == 0
        assert ("--draft-dtype" in out) == has_draft
        assert "--dtype" in out


def test_quiet_prints_results_and_errors_only(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clip = str(CLIPS / "shapes.mp4")
    short = ["--max-new-tokens", "4", "--frames", "2", "--device", "cpu"]
    status, out, err = command("-q", "caption", clip, *short)
    assert (status, out.strip(), err) == (0, out.strip(), "")
    assert out.strip()
    status, out, err = command("-q", "caption", clip, "nowhere.mp4", *short, "-o", "out.jsonl")
    assert (out, err) == ("", "")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    assert command("-q", "caption", "nowhere.mp4")[2].startswith("error: ")


def test_summaries_of_commands_are_whole(command: Callable[..., Any]) -> None:
    """In the help of `draftlens`, and on the page that `make docs` writes."""
    out = " ".join(command("--help")[1].split())
    assert "..." not in out.partition("Commands:")[2]
    for called in GROUP.commands.values():
        summary = called.get_short_help_str()
        assert summary.endswith(".")
        assert summary in out
