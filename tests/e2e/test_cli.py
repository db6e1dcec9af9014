"""The command line as a person uses it: exit statuses, sentences, JSON."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import draftlens
from draftlens.cli import main
from draftlens.cli.doctor import _methods
from draftlens.methods.base import METHODS, Models
from tests.e2e.conftest import CLIPS

CLIP = str(CLIPS / "shapes.mp4")
PICTURE = str(CLIPS / "shapes.png")
VIEWS = {"method": "tabed", "views": ["text", "multimodal"], "weights": "grid", "rest": False}


@pytest.fixture
def run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Call `draftlens` with some arguments."""
    return command


def test_the_demo_streams_both_and_ends_with_a_table(run) -> None:
    status, out, _ = run("demo", "--device", "cpu")
    assert status == 0
    caption = json.loads(Path(CLIP + ".json").read_text())["caption"]
    assert " ".join(out.split()).count(" ".join(caption.split())) == 2
    for row in (
        "tokens/s",
        "speedup, end to end",
        "mean acceptance length",
        "supplied by the draft",
    ):
        assert row in out
    assert "yes" in next(line for line in out.splitlines() if "identical" in line)


def test_the_legend_of_colours_is_shown_where_there_are_colours(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["demo", "--device", "cpu", "--frames", "1", "--max-new-tokens", "2"]
    _, out, _ = run(*words)
    assert "draftlens:" in out
    assert "green" not in out
    for module in ("demo", "show"):
        terminal = Console(force_terminal=True, color_system="standard", width=200)
        monkeypatch.setattr(f"draftlens.cli.{module}.console", terminal)
    _, out, _ = run(*words)
    assert "green\x1b[0m: supplied by the draft" in out


def test_demo_json_holds_the_figures(run) -> None:
    status, out, _ = run("demo", "--json", "--device", "cpu")
    report = json.loads(out)
    assert status == 0
    assert report["identical"]
    assert report["result"]["stats"]["emitted"] == len(report["result"]["tokens"][0])


def test_a_name_with_brackets_is_shown_as_it_is(run, tmp_path: Path) -> None:
    """Video downloaders write such names; rich would read them as a style and an emoji."""
    clip = tmp_path / "Trip :x: [dqw4w9WgXcQ].mp4"
    shutil.copy(CLIP, clip)
    status, out, err = run(
        "demo", str(clip), "--frames", "2", "--max-new-tokens", "6", "--device", "cpu"
    )
    assert status == 0, err
    assert f"{clip.name}, stock generate of embedded:" in out
    assert f"{clip.name}, draftlens:" in out


def test_without_a_draft_no_model_drafts(run) -> None:
    """Even though the name of the target is that of a pair."""
    words = ["--draft", "none", "--frames", "2", "--max-new-tokens", "6", "--device", "cpu"]
    status, out, err = run("caption", CLIP, *words, "--json")
    assert status == 0, err
    assert json.loads(out)["stats"]["draft_forwards"] == 0
    status, out, err = run("caption", CLIP, *words, "--method", "plain", "--json")
    assert status == 0, err
    assert json.loads(out)["stats"]["drafted"] == 0
    status, _, err = run(
        "caption", CLIP, *words, "--method", "telepathy", "--target", "/no/such/model"
    )
    assert status == 2
    assert "unknown method 'telepathy'" in err


def test_caption_and_ask(run) -> None:
    status, out, err = run("caption", CLIP, "--device", "cpu")
    caption = json.loads(Path(CLIP + ".json").read_text())["caption"]
    assert status == 0
    assert " ".join(out.split()) == " ".join(caption.split())
    assert "mean acceptance length" in err
    assert "lossless" in err
    status, out, _ = run(
        "ask", PICTURE, "--prompt", "Describe the image.", "--json", "--device", "cpu"
    )
    assert status == 0
    assert json.loads(out)["text"]


VIEW_OPTIONS = '{"views": ["text", {"pruner": "uniform", "ratio": 0.5}], "weights": "grid"}'


def test_the_methods_options_come_from_json_yaml_and_flags(run, tmp_path: Path) -> None:
    config = tmp_path / "method.yaml"
    config.write_text("method: speculative\ntree: eagle\n")
    answers = []
    for words in (
        ["--speculative-config", str(config)],
        ["--speculative-config", '{"num_speculative_tokens": 3}'],
        ["--method", "plain"],
        ["--method", "tabed", "--speculative-config", VIEW_OPTIONS],
    ):
        status, out, _ = run("caption", CLIP, "--json", "--device", "cpu", *words)
        assert status == 0
        answers.append(json.loads(out))
    assert all(answer["tokens"] == answers[0]["tokens"] for answer in answers)
    assert answers[3]["stats"]["views"].keys() == {"text", "uniform(0.5)"}
    assert answers[3]["stats"]["drafted"] > 0
    answers.pop()
    drafted = [answer["stats"]["drafted"] / max(1, answer["stats"]["passes"]) for answer in answers]
    assert drafted[0] > drafted[1] > drafted[2] == 0


@pytest.mark.parametrize(
    "words",
    [["--method", "tabed"], ["--speculative-config", json.dumps(VIEWS)]],
    ids=["name", "options"],
)
def test_views_of_the_prompt_say_the_same(run, words: list[str]) -> None:
    """Asked about two pictures, and captioning a clip; the line of figures names a view."""
    asked = ["--prompt", "Describe the last image.", "--max-new-tokens", "24", "--device", "cpu"]
    texts = []
    for chosen in (["--method", "plain"], words):
        status, out, err = run("ask", PICTURE, PICTURE, *asked, *chosen)
        assert status == 0, err
        texts.append(out)
    assert texts[0] == texts[1]
    assert "tokens/s" in err
    assert re.search(r"best view (text|multimodal) \(\d+% accepted\)", err)
    status, out, err = run("caption", CLIP, *asked[2:], "--json", *words)
    assert status == 0, err
    views = json.loads(out)["stats"]["views"]
    assert set(views) == {"multimodal", "text"}
    assert views["multimodal"]["asked"] > 0
    assert views["text"]["asked"] > 0


def test_parallel_decoding_says_the_same(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftlens.methods.parallelvlm.drafters.usable_cores", lambda: 2)
    answers = []
    for name in ("plain", "parallelvlm"):
        words = ["--method", name, "--max-new-tokens", "24", "--device", "cpu", "--json"]
        status, out, err = run("caption", CLIP, *words)
        assert status == 0, err
        answers.append(json.loads(out))
    assert answers[0]["text"] == answers[1]["text"]
    assert answers[0]["tokens"] == answers[1]["tokens"]


@pytest.mark.parametrize(
    "words",
    [[], ["--temperature", "1.2"], ["--images"], ["--speculative-config", '{"tree": "eagle"}']],
)
def test_verify_finds_no_difference(run, words: list[str]) -> None:
    media = [PICTURE] if "--images" in words else [CLIP]
    status, out, _ = run(
        "verify", *media, "--max-new-tokens", "40", "--device", "cpu", "--json", *words
    )
    report = json.loads(out)
    assert status == 0
    assert report["identical"]
    assert report["lossless"]
    assert report["tokens"] > 0


def test_verify_prints_several_clips_as_one_json(run) -> None:
    words = ["--max-new-tokens", "4", "--device", "cpu", "--json"]
    status, out, _ = run("verify", CLIP, CLIP, *words)
    assert status == 0
    assert [report["input"] for report in json.loads(out)] == [CLIP, CLIP]


def test_verify_asks_about_an_image_what_ask_does(run, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftlens.cli import loading

    prompts = []
    read = loading.read_media
    monkeypatch.setattr(
        loading,
        "read_media",
        lambda *args, **media: prompts.append(args[2]) or read(*args, **media),
    )
    for words in ([PICTURE, "--images"], [CLIP], [CLIP, "--prompt", "What?"]):
        run("verify", *words, "--max-new-tokens", "2", "--device", "cpu")
    assert prompts == ["Describe the image.", "Describe the video.", "What?"]


def test_verify_exits_with_1_on_a_difference_and_shows_where(run, wrong_choices: None) -> None:
    status, out, _ = run("verify", CLIP, "--device", "cpu")
    assert status == 1
    assert "identical: no; first difference at token" in " ".join(out.split())
    assert "logit margin" in " ".join(out.split())


def test_verify_refuses_what_cannot_be_compared(run) -> None:
    words = ["--sample", "--speculative-config", '{"sampling_rule": "rejection"}']
    status, _, err = run("verify", CLIP, "--device", "cpu", *words)
    assert status == 2
    assert "rejection sampling draws other tokens by design" in " ".join(err.split())


@pytest.mark.parametrize("name", list(METHODS))
def test_verify_takes_every_method(
    run, name: str, engine: draftlens.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftlens.methods.parallelvlm.drafters.usable_cores", lambda: 1)
    monkeypatch.setattr(
        "draftlens.cli.loading.engine_in_full",
        lambda options, *_: draftlens.Engine(engine.target, engine.draft, method=options["method"]),
    )
    words = ["--frames", "2", "--max-new-tokens", "12", "--json"]
    status, out, err = run("verify", CLIP, "--method", name, *words)
    assert status == 0, err
    assert json.loads(out)["identical"]


def test_doctor_judges_every_method(engine: draftlens.Engine) -> None:
    """Each is the default, a further one, or refused with a cause."""
    assert engine.draft is not None
    for draft in (None, engine.draft.backbone):
        facts = _methods(Models(engine.target.backbone, draft))
        refused = re.sub(r" \([^()]*(\([^()]*\)[^()]*)*\)", "", facts.get("methods refused", ""))
        judged = [
            facts["method by default"],
            *facts["further methods"].split(", "),
            *filter(None, re.split("[,;] ", refused)),
        ]
        assert sorted(judged) == sorted({*METHODS} - {"auto"})


def test_doctor_shows_the_machine_and_a_pair(run) -> None:
    status, out, _ = run("doctor", "--json", "--target", "embedded", "--device", "cpu")
    facts = json.loads(out)
    assert status == 0
    assert {
        "torch",
        "transformers",
        "devices",
        "memory",
        "attention backends",
        "target",
        "draft",
        "draft that runs ahead",
    } <= set(facts)
    assert facts["pair"].startswith("fits")
    assert facts["method by default"] == "mixed"
    assert {"lookup", "parallelvlm", "plain", "tabed"} <= {*facts["further methods"].split(", ")}
    assert "methods refused" not in facts
    _, out, _ = run("doctor", "--json", "--target", "embedded", "--draft", "none")
    facts = json.loads(out)
    assert facts["method by default"] == "lookup"
    assert "needs a draft model" in facts["methods refused"]
    assert facts["methods refused"].startswith("mixed, speculative (")
    assert run("doctor")[0] == 0
    status, _, err = run("doctor", "--draft", "/no/such/model")
    assert status == 2
    assert "name it with --target" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["caption", "nowhere.mp4"], "there is no such file"),
        (["caption", "."], "a folder needs a file for its answers"),
        (["ask", CLIP, "--prompt", "Hello?"], "error: cannot read"),
        (["caption", CLIP, "--target", "/no/such/model"], "there is no such folder"),
        (
            ["caption", CLIP, "--method", "telepathy"],
            "unknown method 'telepathy'; known: auto, hsd, lookup, mixed, parallelvlm, ",
        ),
        (
            ["caption", CLIP, "--speculative-config", '{"gamma": 4}'],
            "has no option 'gamma'; known: num_speculative",
        ),
        (["caption", CLIP, "--speculative-config", "{"], "--speculative-config is not valid"),
        (
            ["caption", CLIP, "--speculative-config", "no.json"],
            "cannot read the configuration no.json",
        ),
        (
            [
                "caption",
                CLIP,
                "--method",
                "plain",
                "--speculative-config",
                '{"method": "speculative"}',
            ],
            "contradict",
        ),
        (
            ["caption", CLIP, "--limits", '{"max_bytes": 100}'],
            "over the limit of 100 bytes; pass --limits '{\"max_bytes\": ...}'",
        ),
        (
            ["caption", CLIP, "--limits", '{"max_byte": 100}'],
            "--limits does not know 'max_byte'; known: max_bytes",
        ),
        (
            ["caption", CLIP, "--limits", "100"],
            "--limits is not valid: it must be an object of numbers",
        ),
        (["caption", CLIP, "--dtype", "int3"], "unknown dtype 'int3'"),
        (
            ["caption", "http://127.0.0.1:9/a.mp4"],
            "read http://127.0.0.1:9/a.mp4: it cannot",
        ),
        (["world", "/proc/nowhere"], "cannot use /proc/"),
        (
            ["caption", CLIP, "--out", "/dev/full", "--max-new-tokens", "2", "--frames", "1"],
            "error: cannot use /dev/full: No space left on device",
        ),
        (
            ["caption", CLIP, "--draft", "none", "--method", "speculative", "-t", "/no/such/model"],
            "the method needs a draft model: name one",
        ),
        (["caption", CLIP, CLIP], "several clips need a file for their answers"),
        (["caption", CLIP, "--device", "nowhere"], "device 'nowhere' cannot be used"),
        (["caption", CLIP, "-t", "owner/Some-VL-7B-GGUF"], "it is in GGUF, the form of llama.cpp"),
        (
            ["caption", CLIP, "--compile", "openvino", "--no-compile"],
            "--compile=openvino and --compile=modules contradict each other: give one of them",
        ),
    ],
)
def test_errors_are_one_sentence_and_exit_status_2(run, words: list[str], sentence: str) -> None:
    status, out, err = run(*words)
    assert status == 2
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err + out
    assert out == ""


def test_a_folder_of_gguf_files_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "model-Q4_K_M.gguf").touch()
    for name in (tmp_path, tmp_path / "model-Q4_K_M.gguf"):
        with pytest.raises(draftlens.ConfigError, match="it is in GGUF"):
            draftlens.load(str(name))


def test_one_answer_as_json_is_short_and_its_first_token_waits_for_the_frames(run) -> None:
    """And nothing else is printed: no bars of transformers without a terminal."""
    status, out, err = run("caption", CLIP, "--json", "--device", "cpu", "--max-new-tokens", "60")
    assert status == 0
    assert len(out.splitlines()) < 60
    assert err == ""
    stats = json.loads(out)["stats"]
    assert stats["phases"]["frames"] > 0
    assert stats["ttft"] > stats["phases"]["frames"]


def test_loading_prints_no_bars_without_a_terminal(run, tmp_path: Path) -> None:
    copy = shutil.copytree(CLIPS.parent / "target", tmp_path / "copy")
    words = ["--target", str(copy), "--draft", "none", "--max-new-tokens", "2", "--device", "cpu"]
    status, _, err = run("caption", CLIP, *words)
    assert status == 0
    assert "Loading weights" not in err


def test_a_missing_draft_is_said_in_a_line(run, tmp_path: Path) -> None:
    words = ["--max-new-tokens", "2", "--device", "cpu", "--frames", "1"]
    stranger = shutil.copytree(CLIPS.parent / "draft", tmp_path / "stranger")
    status, _, err = run("caption", CLIP, *words, "--target", str(stranger))
    assert status == 0
    notice, figures = err.splitlines()
    assert "method 'lookup' drafts from the text instead" in notice
    assert figures.endswith(f"no draft is known for '{stranger}'")
    status, _, err = run("-q", "caption", CLIP, *words, "--target", str(stranger))
    assert (status, err) == (0, "")
    words += ["--target", str(stranger), "--method", "specvlm"]
    status, _, err = run("caption", CLIP, *words)
    assert status == 0
    assert "; the target drafts for itself" in err.splitlines()[0]


def test_pairs_are_listed(run) -> None:
    status, out, _ = run("pairs", "--json")
    assert status == 0
    listed = {pair["target"]: pair for pair in json.loads(out)}
    assert listed["embedded"]["checked"] == "loaded and run"
    assert listed["Qwen/Qwen2.5-VL-7B-Instruct"]["draft"] == "Qwen/Qwen2.5-VL-3B-Instruct"
    status, out, _ = run("pairs")
    assert "llava-hf/llava-onevision-qwen2-0.5b-ov-hf" in out


def test_doctor_counts_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not free pages: what the system keeps as a cache can be had, too."""
    from draftlens.cli import doctor

    memory = SimpleNamespace(available=3 * 2**30, total=4 * 2**30, free=2**20)
    monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: memory)
    assert doctor.collect_facts(None, "auto")["memory"] == "3.0 of 4.0 GiB free"


def test_doctor_plans_memory_without_weights(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of configurations alone; `--draft none` leaves the draft out."""
    for role in ("target", "draft"):
        (tmp_path / role).mkdir()
        shutil.copy(CLIPS.parent / role / "config.json", tmp_path / role)
    monkeypatch.chdir(tmp_path)
    words = ["doctor", "--plan", "./target", "--memory", "2GB"]
    status, out, err = run(*words, "--draft", "./draft", "--json")
    assert status == 0, err
    facts = json.loads(out)
    assert facts["parameters"] == {"target": 5_031_808, "draft": 435_392}
    rows = facts["precisions"]
    assert rows["float32"]["target"] == 4 * 5_031_808 == 2 * rows["bfloat16"]["target"]
    assert rows["bfloat16"]["most_tokens"] > rows["float32"]["most_tokens"] > 10_000
    assert facts["methods"]["default"] == "mixed"
    status, out, _ = run(*words, "--draft", "none")
    assert status == 0
    assert "most tokens in" in out
    assert "lookup" in out
    for wrong, sentence in (
        (["--plan", "./target", "--memory", "much"], "--memory is a size such as 24GB"),
        (["--memory", "2GB"], "--memory needs a model: name one with --plan"),
        (["--plan", "/no/such/model"], "there is no such folder"),
    ):
        status, _, err = run("doctor", *wrong)
        assert status == 2
        assert sentence in err


def test_a_torchvision_of_another_build_is_named(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What transformers raises where the operators of torchvision are missing."""
    from draftlens.cli import doctor

    def fail(*_: object) -> None:
        try:
            raise RuntimeError("operator torchvision::nms does not exist")
        except RuntimeError as error:
            raise ModuleNotFoundError("Could not import module 'AttentionInterface'") from error

    monkeypatch.setattr(doctor, "collect_facts", fail)
    status, _, err = run("doctor")
    assert status == 2
    assert err.startswith("error: torchvision does not fit torch")


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["draftlens", "caption", "nowhere.mp4", "--debug"])
    with pytest.raises(Exception, match="there is no such file"):
        main()


def test_ctrl_c_is_exit_status_130(run, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftlens.cli import loading

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "load", interrupt)
    status, _, err = run("caption", CLIP)
    assert status == 130
    assert "Traceback" not in err


def test_sigterm_leaves_the_terminal_as_it_was(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar or a spinner hides the cursor."""
    from draftlens.cli import loading, progress, show

    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, width=80)
    monkeypatch.setattr(show, "error_console", terminal)
    monkeypatch.setattr(progress, "error_console", terminal)
    monkeypatch.setattr(loading, "load", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    status, _, err = run("caption", CLIP)
    assert status == 143
    assert "Traceback" not in err
    assert "\x1b[?25l" in drawn.getvalue()
    assert drawn.getvalue().rpartition("\x1b[?25")[2].startswith("h")
