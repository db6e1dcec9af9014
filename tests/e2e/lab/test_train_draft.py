"""`draftlens train-draft` and the commands of its pages, on the embedded pair."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from draftlens_lab.train.parts import find_parts
from transformers import AutoModelForImageTextToText

import draftlens
from tests.e2e.conftest import CLIPS

DOCS = Path(__file__).resolve().parents[3] / "docs"
DOCUMENT = (DOCS / "training.md").read_text()


@pytest.fixture
def run(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Any]:
    """Runs `draftlens` in a temporary folder; returns its status and outputs as single lines."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        status, out, err = command(*words)
        return status, " ".join(out.split()), " ".join(err.split())

    return call


def block(language: str, index: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)[index]


@pytest.fixture
def clips_data(run: Any) -> None:
    """The data that the document makes."""
    exec(block("python"), {})


def changed(before: Path, after: Path) -> set[str]:
    """The parts of the model with changed weights."""
    one, other = (
        AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
        for folder in (before, after)
    )
    parts, states = find_parts(one), (dict(one.named_parameters()), dict(other.named_parameters()))
    return {
        part
        for part in ("vision", "projector", "language")
        if any(not torch.equal(states[0][name], states[1][name]) for name in getattr(parts, part))
    }


SHORT = ["--max-steps", "1", "--frames", "2", "--cpu", "--precision", "float32"]


def test_the_documents_commands(run: Any, clips_data: None) -> None:
    train, demo = (shlex.split(line)[1:] for line in block("bash").strip().splitlines())
    status, out, err = run(*train, *SHORT)
    assert status == 0
    for words in (
        "to be trained",
        "projector",
        "instruct",
        "2 media files",
        "float32 on cpu",
        "my-draft holds the draft",
    ):
        assert words in out
    assert "step 1 of 1: loss" in err
    first = Path("my-draft") / "checkpoints" / "projector" / "checkpoint-1"
    assert changed(CLIPS.parent / "draft", first) == {"projector"}
    assert changed(first, Path("my-draft")) == {"projector", "language"}
    status, _, err = run(*demo, "--max-new-tokens", "5", "--frames", "2", "--device", "cpu")
    assert status == 0, err
    plain, fast = (
        draftlens.load(draft=draft, method=method, device="cpu").generate(
            "What?", images=CLIPS / "shapes.png", max_new_tokens=9
        )
        for draft, method in ((None, "plain"), ("my-draft", None))
    )
    assert plain.tokens == fast.tokens
    namespace: dict[str, Any] = {}
    status, out, _ = run(*train, *SHORT, "--json")
    report = json.loads(out)
    assert status == 0
    assert report["resumed"] == report["steps"] == {"projector": 1, "instruct": 1}
    short = "max_steps=1, frames=2, cpu=True, precision='float32', batch=2,"
    code = block("python", 1).replace("batch=2,", short, 1)
    exec(code, namespace)
    assert namespace["trained"].losses == report["losses"]


def test_a_draft_is_trained_with_pruned_prompts(run: Any, clips_data: None) -> None:
    """The command of the section on pruned prompts; the result drafts for its target."""
    (line,) = re.findall(r"draftlens train-draft data\.json .*--prune-ratio.*", DOCUMENT)
    names = {"data.json": "clips.jsonl", "NAME": "embedded", "TARGET": "embedded"}
    words = [names.get(word, word) for word in shlex.split(line)[1:]]
    more = ["--media-root", "clips", "--stages", "instruct", "--batch", "2", *SHORT]
    status, out, err = run(*words, *more)
    assert status == 0, err
    assert "OUT holds the draft" in out
    assert changed(CLIPS.parent / "draft", Path("OUT")) == {"projector", "language"}
    method = {"method": "specvlm", "prune_ratio": 0.97}
    plain, fast = (
        draftlens.load(draft=draft, method=method, device="cpu").generate(
            "What?", images=CLIPS / "shapes.png", max_new_tokens=9
        )
        for draft, method in ((None, "plain"), ("OUT", method))
    )
    assert plain.tokens == fast.tokens
    status, _, err = run(*words, *more, "--pruner", "grid", "--target", "embedded")
    assert status == 2
    assert "OUT contains another run" in err


def test_ctrl_c_says_from_where_it_goes_on(
    run: Any, clips_data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftlens_lab.train.trainer import DraftTrainer

    words = [
        *shlex.split(
            "train-draft clips.jsonl --media-root clips --draft embedded --out out --stages "
            "instruct"
        ),
        *SHORT,
    ]
    words += ["--max-steps", "3", "--batch", "1", "--save-steps", "1", "--log-steps", "1"]
    right, left = DraftTrainer.training_step, [None, None]

    def interrupted(*given: Any, **named: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return right(*given, **named)

    for more, command in (
        ([], "the same command"),
        (["--restart"], "the same command without --restart"),
    ):
        left[:] = [None, None]
        with monkeypatch.context() as patch:
            patch.setattr(DraftTrainer, "training_step", interrupted)
            status, _, err = run(*words, *more)
        assert status == 130
        assert f"{command} resumes from step 2 of the instruct stage" in err
        assert "Traceback" not in err
    status, out, err = run(*words)
    assert status == 0
    assert "step 3 of 3" in err
    assert "step 2 of 3" not in err
    assert re.search(r"instruct │ +3 │ +2 │", out) or re.search(r"instruct │ 3 │ 2 │", out)


GOOD = '{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}'


@pytest.mark.parametrize(
    ("data", "words", "sentence"),
    [
        ("{", ["--draft", "embedded"], "is not valid JSON at line 1, column 2"),
        ("[]", ["--draft", "embedded"], "data.json contains no entries"),
        (
            f"{GOOD}\n[]",
            ["--draft", "embedded"],
            "data.json, entry 2 (line 2): an entry must be an object, not an empty",
        ),
        (GOOD, [], "name either a draft to train on or a draft_config"),
        (GOOD, ["--draft", "embedded", "--lr", "0"], "lr must be a number above 0"),
        (
            GOOD,
            ["--draft", "embedded"],
            "contains no images or videos, so the projector cannot learn",
        ),
        (
            GOOD,
            ["--draft", "/no/such/model"],
            "cannot load the draft '/no/such/model': there is no such folder",
        ),
        (
            GOOD.replace('"hi"', '"<image>"').replace("{", '{"image": "gone.png", ', 1),
            ["--draft", "embedded"],
            "data.json, entry 1 (line 1): cannot read gone.png: there is no such file",
        ),
        (
            GOOD,
            ["--draft", "embedded", "--stages", "instruct", "--out", "/proc/nowhere"],
            "error: cannot use /proc/nowhere: No such file or directory",
        ),
    ],
)
def test_errors_are_one_sentence_and_exit_status_2(
    run: Any, data: str, words: list[str], sentence: str
) -> None:
    Path("data.json").write_text(data)
    status, out, err = run("train-draft", "data.json", "--out", "out", "--cpu", *words)
    assert status == 2
    assert sentence in err
    assert "Traceback" not in err + out
    assert not Path("out").exists()


def test_every_option_is_a_field_with_a_default_that_is_shown(run: Any) -> None:
    from dataclasses import MISSING, fields

    from draftlens_lab.train import DraftTraining

    _, out, _ = run("train-draft", "--help")
    for item in fields(DraftTraining):
        if item.name != "data":
            assert f"--{item.name.replace('_', '-')} " in out
        if (
            isinstance(item.default, int | float)
            and not isinstance(item.default, bool)
            and item.default is not MISSING
        ):
            assert f"[default: {item.default}]" in out
    assert "--no-" not in out
