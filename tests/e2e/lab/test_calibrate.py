"""`draftlens calibrate` on the embedded pair: few masses, short answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from draftlens_lab.bench import calibrate as bench_calibrate

import draftlens
from draftlens import SpecVLM
from tests.e2e.conftest import CLIPS

CLIP, PICTURE = str(CLIPS / "shapes.mp4"), str(CLIPS / "shapes.png")
SHORT = ["--frames", "2", "--max-new-tokens", "6", "--device", "cpu"]
LONGER = ["--frames", "2", "--max-new-tokens", "48", "--device", "cpu"]
MASSES = (0.0, 0.5, 1.0)
BY_MASS = ["--speculative-config", '{"pruner": "specvlm"}']


@pytest.fixture
def run(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`draftlens calibrate` with these words and three masses."""
    monkeypatch.setattr(bench_calibrate, "MASSES", MASSES)
    return partial(command, "calibrate")


def test_json_is_what_the_engine_says(run: Any, engine: draftlens.Engine) -> None:
    """The masses' mean acceptance lengths over both clips, measured again by hand."""
    config = '{"prune_ratio": 0.9, "pruner": "specvlm", "tree": null, "num_speculative_tokens": 2}'
    clips = [CLIPS / "shapes.mp4", CLIPS / "drift.mp4"]
    status, out, _ = run(*map(str, clips), *LONGER, "--speculative-config", config, "--json")
    assert status == 0
    report = json.loads(out)
    curve = []
    for mass in MASSES:
        pruner = {"name": "specvlm", "attention_mass": mass}
        method = SpecVLM(prune_ratio=0.9, tree=None, num_speculative_tokens=2, pruner=pruner)
        answers = [
            engine.generate(
                "Describe the video.", video=clip, num_frames=2, max_new_tokens=48, method=method
            )
            for clip in clips
        ]
        curve.append(sum(answer.stats.mean_acceptance_length for answer in answers) / len(answers))
    assert report["mean_acceptance_length"] == pytest.approx(curve)
    assert report["masses"] == list(MASSES)
    assert curve.count(max(curve)) == 1
    assert report["attention_mass"] == MASSES[curve.index(max(curve))]


def test_the_table_shows_the_curve_and_marks_the_best(run: Any) -> None:
    config = '{"pruner": "specvlm", "tree": null, "num_speculative_tokens": 2}'
    clip, *frames = str(CLIPS / "drift.mp4"), "--frames", "4"  # one where the masses differ
    status, out, _ = run(clip, *LONGER, *frames, "--speculative-config", config)
    assert status == 0
    rows = re.findall(r"│ (\d\.\d) +│ +(\d\.\d\d) │ +(#*)( <)? │", out)
    assert [float(mass) for mass, *_ in rows] == list(MASSES)
    longest = max(float(length) for _, length, *_ in rows)
    best = [mass for mass, _, _, mark in rows if mark]
    assert len(best) == 1
    last = out.rstrip().splitlines()[-1]
    assert last.startswith(f"attention_mass {best[0]}: --speculative-config '")
    assert last.endswith("; the clips do not show that it is better than the others")
    used = json.loads(re.findall(r"'(.*)'", last)[0])
    assert used["pruner"]["attention_mass"] == float(best[0])
    for mass, length, bar, _ in rows:
        assert (mass not in best) or float(length) == longest
        assert len(bar) == pytest.approx(20 * float(length) / longest, abs=0.6)


def test_the_share_of_the_default_pruner_is_calibrated(run: Any) -> None:
    status, out, err = run(CLIP, *SHORT, "--json")
    assert status == 0, err
    report = json.loads(out)
    assert report["shares"] == [0, 0.25, 0.5, 0.75, 1]
    assert len(report["mean_acceptance_length"]) == 5


def test_the_layer_of_uv_is_calibrated_and_layers_that_are_the_same_are_tried_once(
    run: Any,
) -> None:
    """The embedded target has 20 layers, of which 14 may be read."""
    config = '{"pruner": "uv", "tree": null, "num_speculative_tokens": 2}'
    status, out, err = run(CLIP, *SHORT, "--speculative-config", config, "--json")
    assert status == 0, err
    report = json.loads(out)
    assert report["layers"] == [5, 10, 14]
    assert len(report["mean_acceptance_length"]) == 3
    assert report["layer"] in (5, 10, 14, None)


def test_pruners_are_compared(run: Any, engine: draftlens.Engine) -> None:
    """Each as method `specvlm` with this pruner would do."""
    config = '{"prune_ratio": 0.9, "tree": null, "num_speculative_tokens": 3}'
    words = ["--frames", "4", "--max-new-tokens", "20", "--device", "cpu"]
    status, out, err = run(
        CLIP, *words, "--speculative-config", config, "--pruners", "uv, all,uniform", "--json"
    )
    assert status == 0, err
    report = json.loads(out)
    assert report["pruners"] == ["uv", "all", "uniform"]
    curve = []
    for pruner in report["pruners"]:
        method = SpecVLM(prune_ratio=0.9, tree=None, num_speculative_tokens=3, pruner=pruner)
        answer = engine.generate(
            "Describe the video.", video=CLIP, num_frames=4, max_new_tokens=20, method=method
        )
        curve.append(answer.stats.mean_acceptance_length)
    assert report["mean_acceptance_length"] == pytest.approx(curve)
    best = report["pruners"][curve.index(max(curve))]
    assert report["pruner"] == (best if min(curve) < max(curve) else None)


def test_images_are_prompts_of_their_own(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    read, answer = draftlens.Engine.process, draftlens.Engine.answer

    def listen(self: Any, chats: Any) -> Any:
        asked.extend(chats)
        return read(self, chats)

    counted: list[float] = []

    def count(self: Any, inputs: Any, **options: Any) -> Any:
        counted.append(options["method"].pruner.attention_mass)
        return answer(self, inputs, **options)

    monkeypatch.setattr(draftlens.Engine, "process", listen)
    monkeypatch.setattr(draftlens.Engine, "answer", count)
    words = ["--max-new-tokens", "12", "--json"]
    status, out, _ = run("--images", PICTURE, PICTURE, *BY_MASS, *SHORT, *words)
    assert status == 0
    assert json.loads(out)["attention_mass"] in MASSES
    assert counted == [mass for mass in MASSES for _ in range(2)]
    assert len(asked) == 2
    assert all("Describe the image." in str(chat.messages) for chat in asked)


def test_answers_of_one_token_accept_nothing_and_are_no_error(run: Any) -> None:
    """Nothing is drafted: all masses are equally good, so none is the best."""
    status, out, err = run(
        CLIP, *BY_MASS, "--frames", "2", "--max-new-tokens", "1", "--device", "cpu"
    )
    assert status == 0, err
    assert "<" not in out
    assert out.splitlines()[-1] == (
        "no attention_mass is best: the answers ended with their first token, so nothing was "
        "drafted"
    )


def test_masses_that_do_equally_well_have_no_best(run: Any) -> None:
    """On this clip EAGLE's tree has six draft tokens with any mass."""
    clip = str(CLIPS / "drift.mp4")
    status, out, _ = run(clip, *BY_MASS, *SHORT)
    assert status == 0
    assert out.count("│ " + "#" * 20 + " │") == len(MASSES)
    assert out.splitlines()[-1] == "no attention_mass is best: all did equally well"
    report = json.loads(run(clip, *BY_MASS, *SHORT, "--json")[1])
    assert report["attention_mass"] is None
    assert len(set(report["mean_acceptance_length"])) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--speculative-config", '{"pruner": "uniform"}'],
            "calibrate chooses the share of pruner attention-sampled",
        ),
        (
            ["--speculative-config", '{"method": "speculative"}'],
            "method 'speculative' contradict each other",
        ),
        (
            ["--speculative-config", '{"prune_ratio": 2}'],
            "prune_ratio is a share between 0 and 1, not 2",
        ),
        (["--speculative-config", '{"prune_ratio": 0}'], "prune_ratio 0 leaves nothing to choose"),
        (
            ["--speculative-config", '{"prune_ratio": 1.0}'],
            "prune_ratio 1 leaves nothing to choose",
        ),
        (["--pruners", "uv,best"], "unknown pruner 'best'; known: all, attention"),
        (["nowhere.mp4"], "cannot read nowhere.mp4: there is no such file"),
        (["--target", "/no/such/model"], "there is no such folder"),
    ],
)
def test_errors_are_one_sentence_and_exit_status_2(
    run: Any, words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run(CLIP, *words, *SHORT)
    assert status == 2
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err + out
    assert out == ""
