"""`draftlens bench` on tiny random models, as a person uses it. Times are never looked at."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from draftlens_lab.bench import runner
from draftlens_lab.bench.clips import VideoFile
from draftlens_lab.bench.contestants import HfAssisted, HfGenerate, Ours
from families import FAMILIES
from PIL import Image

import draftlens
from draftlens.core.errors import ConfigError
from draftlens.drafting.adaptive.controller import TreeController
from draftlens.methods.base import PlainDecoding
from draftlens.methods.speculative import SpeculativeDecoding
from draftlens.methods.specvlm.config import SpecVLM
from draftlens.verify import run_stock
from tests.e2e.conftest import CLIPS
from tests.e2e.test_families import save_pair

ONEVISION = next(family for family in FAMILIES if family.name == "llava_onevision")
QWEN = next(family for family in FAMILIES if family.name == "qwen2_5_vl")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return save_pair(ONEVISION, tmp_path_factory.mktemp("pair"))


@pytest.fixture(autouse=True)
def _prompts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the draft, whatever forwards of this tiny pair cost at the moment: they are counted."""
    monkeypatch.setattr(TreeController, "may_read", lambda *given: True)


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """A video and an image."""
    folder = tmp_path / "films"
    folder.mkdir()
    for name in ("drift.mp4", "shapes.png"):
        (folder / name).write_bytes((CLIPS / name).read_bytes())
    return folder


@pytest.fixture
def bench(command: Run, pair: tuple[str, str], films: Path) -> Run:
    """`draftlens bench` on the pair and the films, with these words."""
    target, small = pair

    def call(*words: str, workload: Path | str = films, draft: str = small) -> tuple[int, str, str]:
        given = [
            "--workload",
            str(workload),
            "--target",
            target,
            "--draft",
            draft,
            "--device",
            "cpu",
        ]
        short = [
            "--frames",
            "2",
            "--max-new-tokens",
            "6",
            "--repeats",
            "2",
            "--out",
            str(films.parent / "out"),
        ]
        return command("bench", *given, *short, *words)

    return call


def lines_of(films: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (films.parent / "out" / "measurements.jsonl").read_text().splitlines()
    ]


def test_a_whole_run_and_its_resumption(bench: Run, films: Path) -> None:
    words = [
        "--sweep",
        "prune_ratio=0,0.9,1",
        "--method-json",
        '{"self": {"method": "specvlm", "draft": "self"}}',
    ]
    status, out, _ = bench(*words, "--json")
    summary = json.loads(out)
    assert status == 0
    assert summary["divergences"] == summary["failed"] == []
    names = ["hf-generate", "hf-assisted", "plain", "speculative", "specvlm", "self"]
    names += [f"{base} prune_ratio={value}" for base in ("specvlm", "self") for value in (0, 1)]
    for group in ("videos", "images"):
        rows = summary["groups"][group]["methods"]
        assert list(rows) == names
        assert all(row["identical"] == row["compared"] == 2 for row in rows.values())
        assert rows["specvlm prune_ratio=1"]["visual_kept"] == 0
        assert rows["specvlm prune_ratio=0"]["visual_kept"] == 1
        assert rows["plain"]["mean_acceptance_length"] == 1
    assert summary["run"]["options"]["max_new_tokens"] == 6
    assert {"commit", "packages", "machine", "threads"} <= set(summary["run"]["environment"])
    folder = films.parent / "out"
    assert json.loads((folder / "summary.json").read_text()) == summary
    page = (folder / "report.md").read_text()
    for picture in ("speedup", "breakdown", "acceptance_by_prune_ratio"):
        assert (folder / f"{picture}.png").stat().st_size > 5000
        assert f"({picture}.png)" in page
    before = lines_of(films)
    assert len(before) == 40

    status, _, err = bench(*words)
    assert status == 2
    assert "--resume goes on with it, --restart throws it away" in " ".join(err.split())
    status, _, err = bench(*words, "--resume", "--max-new-tokens", "7")
    assert status == 2
    assert "options.max_new_tokens was 6 and is 7" in " ".join(err.split())

    text = (folder / "measurements.jsonl").read_text().splitlines(keepends=True)
    (folder / "measurements.jsonl").write_text("".join(text[:33]) + text[33][:50])
    status, out, err = bench(*words, "--resume")
    assert status == 0, err
    assert "where the time goes" in out
    after = lines_of(films)
    assert after[:33] == before[:33]
    assert [without_times(line) for line in after] == [without_times(line) for line in before]


def test_batches_and_answers_for_spec_bench(bench: Run, films: Path) -> None:
    """The clip fills the batches; all answers are those of stock generate to the same batch, and
    passes and tokens of a line agree."""
    words = ("--methods", "plain,speculative", "--no-plots", "--batch-sizes", "1,3", "--json")
    status, out, _ = bench(*words, workload=films / "shapes.png")
    summary = json.loads(out)
    assert status == 0
    assert summary["failed"] == summary["divergences"] == []
    batches = summary["batches"]
    assert (batches["base"], set(batches["break_even"])) == ("plain", {"speculative"})
    for size, methods in batches["sizes"].items():
        assert set(methods) == {"hf-generate", "plain", "speculative"}
        for row in methods.values():
            assert row["identical"] == row["compared"] == 2 * int(size)
    assert "By batch size" in (films.parent / "out" / "report.md").read_text()
    names = ("hf-generate", "hf-assisted", "plain", "speculative")
    for name in names:
        (line,) = (films.parent / "out" / "spec_bench" / f"{name}.jsonl").read_text().splitlines()
        choice = json.loads(line)["choices"][0]
        assert choice["new_tokens"] == [6]
        if name in ("plain", "speculative"):
            assert sum(choice["accept_lengths"]) == 6 - 1
            assert [len(choice["accept_lengths"])] == choice["decoding_steps"]


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("e2e", "ttft", "phases")} | {
        "peak_bytes": 0,
        "start_bytes": 0,
    }


def test_a_broken_clip_is_told_and_left_out(bench: Run, films: Path) -> None:
    (films / "a.mp4").write_bytes(b"no film at all")
    status, out, _ = bench("--methods", "plain", "--peers", "", "--no-plots")
    assert status == 0
    assert "Clips that failed" in out
    kinds = [(line["kind"], line["clip"]) for line in lines_of(films)]
    assert kinds.count(("failed", "a.mp4")) == 1
    assert len(kinds) == 9
    assert not list((films.parent / "out").glob("*.png"))


def test_a_first_clip_that_the_processor_refuses_refuses_no_method(
    command: Run, tmp_path: Path
) -> None:
    """Qwen2.5-VL's takes no picture that is 200 times as wide as high."""
    target, small = save_pair(QWEN, tmp_path)
    (tmp_path / "films").mkdir()
    Image.new("RGB", (2000, 3)).save(tmp_path / "films" / "a_strip.png")
    (tmp_path / "films" / "b.mp4").write_bytes((CLIPS / "drift.mp4").read_bytes())
    (tmp_path / "films" / "c.png").write_bytes((CLIPS / "shapes.png").read_bytes())
    words = [
        "--workload",
        str(tmp_path / "films"),
        "--target",
        target,
        "--draft",
        small,
        "--device",
        "cpu",
    ]
    words += [
        "--frames",
        "2",
        "--max-new-tokens",
        "4",
        "--repeats",
        "1",
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    status, out, _ = command("bench", *words, "--no-plots")
    summary = json.loads(out)
    assert status == 0
    assert summary["refused"] == {}
    (failed,) = summary["failed"]
    assert (failed["clip"], failed["method"]) == ("a_strip.png", "")
    assert "aspect ratio must be smaller than 200" in failed["error"]
    names = ["hf-generate", "hf-assisted", "plain", "speculative", "specvlm"]
    assert {group: list(of["methods"]) for group, of in summary["groups"].items()} == {
        "images": names,
        "videos": names,
    }


@pytest.mark.parametrize("what", ["clip", "draft"])
def test_other_files_under_the_same_names_are_not_mixed_in(
    bench: Run, films: Path, pair: tuple[str, str], what: str
) -> None:
    words = ["--methods", "plain", "--peers", "", "--repeats", "1", "--no-plots"]
    assert bench(*words)[0] == bench(*words, "--resume")[0] == 0
    if what == "clip":
        (films / "shapes.png").write_bytes((CLIPS / "shapes.png").read_bytes())
    else:
        weights = Path(pair[1]) / "model.safetensors"
        weights.write_bytes(weights.read_bytes())
    before = lines_of(films)
    status, _, err = bench(*words, "--resume")
    assert status == 2
    name = {"clip": "files.shapes.png was", "draft": "models.draft.files.model.safetensors was"}[
        what
    ]
    assert f"holds another run: {name}" in " ".join(err.split())
    assert lines_of(films) == before
    run = json.loads((films.parent / "out" / "run.json").read_text())
    told = json.dumps([run["files"], *(model["files"] for model in run["models"].values())])
    assert str(films.parent) not in told
    assert pair[1] not in told
    assert bench(*words, "--restart")[0] == 0


def test_sweeps_of_one_field_add_up_and_a_run_begun_again_leaves_no_old_report(
    bench: Run, films: Path
) -> None:
    words = ["--methods", "specvlm", "--peers", "", "--repeats", "1", "--clips", "1", "--json"]
    half = ["--method-json", '{"half": {"method": "specvlm", "prune_ratio": 0.5}}']
    status, out, _ = bench(
        *words, *half, "--sweep", "prune_ratio=0.5", "--sweep", "prune_ratio=0.9,0.8"
    )
    assert status == 0
    assert list(json.loads(out)["variants"]) == ["specvlm prune_ratio=0.8"]
    folder = films.parent / "out"
    curve = (folder / "report.md").read_text().split("## By prune_ratio")[1].split("##")[0]
    assert [line.split(" | ")[1:3] for line in curve.splitlines() if " | 0." in line] == [
        ["specvlm", value] for value in ("0.5", "0.8", "0.9")
    ]
    assert (folder / "acceptance_by_prune_ratio.png").exists()
    assert bench(*words, "--restart", "--no-plots")[0] == 0
    assert {file.name for file in folder.iterdir()} == {
        "measurements.jsonl",
        "report.md",
        "run.json",
        "spec_bench",
        "summary.json",
    }


def test_its_own_pictures_are_no_clips(bench: Run, films: Path) -> None:
    words = [
        "--methods",
        "plain",
        "--peers",
        "",
        "--repeats",
        "1",
        "--json",
        "--out",
        str(films / "runs" / "bench"),
    ]
    assert bench(*words)[0] == 0
    assert (films / "runs" / "bench" / "speedup.png").exists()
    status, out, _ = bench(*words, "--resume")
    assert status == 0
    assert list(json.loads(out)["run"]["clips"]) == ["drift.mp4", "shapes.png"]


def test_if_nothing_could_be_measured_the_exit_status_is_1(bench: Run, films: Path) -> None:
    (films / "a.mp4").write_bytes(b"no film at all")
    status, out, err = bench("--methods", "plain", "--peers", "", workload=films / "a.mp4")
    assert status == 1
    assert "a.mp4" in out
    assert "Traceback" not in out + err


def test_methods_that_need_a_draft_do_not_run_without_one(bench: Run) -> None:
    status, out, _ = bench("--json", "--no-plots", draft="none")
    summary = json.loads(out)
    assert status == 0
    assert summary["refused"] == {
        "hf-assisted": "hf-assisted needs a draft model",
        "speculative": "method 'speculative' needs a draft model",
    }
    assert list(summary["groups"]["videos"]["methods"]) == ["hf-generate", "plain", "specvlm"]


def test_lossy_peers_run_beside_the_others(bench: Run, films: Path) -> None:
    """With nothing dropped the answers are stock's; a model of two layers has no layer after
    FastV's second."""
    extra = {
        "whole": {"peer": "fastv", "layer": 1, "prune_ratio": 0},
        "half": {"peer": "fastv", "layer": 1},
        "merged": {"peer": "dycoke-target", "layer": 1},
    }
    words = ["--methods", "plain", "--peers", "fastv,pdrop,sparsevlm,dycoke-target"]
    status, out, _ = bench(*words, "--method-json", json.dumps(extra), "--json", "--no-plots")
    summary = json.loads(out)
    assert status == 0
    assert summary["divergences"] == summary["failed"] == []
    refusal = "LlavaOnevisionForConditionalGeneration has 2 layers, so tokens can be dropped after"
    assert summary["refused"]["fastv"].startswith(refusal)
    assert summary["refused"]["dycoke-target"] == (
        "no layer follows layer 3 of 2: choose an earlier layer"
    )
    for group in ("videos", "images"):
        rows = summary["groups"][group]["methods"]
        assert list(rows) == [
            *("hf-generate", "pdrop", "sparsevlm", "plain", "whole", "half", "merged")
        ]
        assert rows["whole"]["identical"] == 2
        assert rows["whole"]["visual_kept"] == 1
        assert rows["half"]["visual_kept"] == pytest.approx(0.75, abs=0.05)
        assert not rows["plain"]["lossy"]
        for name in ("hf-generate", "plain", "whole"):
            assert rows[name]["target_acceptance"] == 1
        for name in ("pdrop", "sparsevlm", "whole", "half", "merged"):
            assert rows[name]["lossy"]
            assert 0 <= rows[name]["target_acceptance"] <= 1
    assert all(
        (line["accepted"] is None) == (line["method"] in ("hf-generate", "plain"))
        for line in lines_of(films)
        if line["kind"] == "measured"
    )
    page = (films.parent / "out" / "report.md").read_text()
    assert "## videos: lossy methods" in page
    assert "| half (lossy) |" in page


def test_a_wrong_answer_is_found(bench: Run, wrong_choices: None) -> None:
    words = ["--methods", "plain", "--method-json", '{"chain": {"num_speculative_tokens": 5}}']
    status, out, _ = bench(*words, "--peers", "", "--json", "--no-plots")
    summary = json.loads(out)
    assert status == 0
    assert {d["method"] for d in summary["divergences"]} == {"chain"}
    first = summary["divergences"][0]
    assert 0 < first["index"] < 6
    assert first["reference"] != first["method_says"]
    assert summary["groups"]["videos"]["methods"]["plain"]["identical"] == 2


def test_ctrl_c_keeps_what_is_measured(
    bench: Run, films: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, count = runner._measure, 0

    def interrupted(*words: Any) -> Any:
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        return measure(*words)

    monkeypatch.setattr(runner, "_measure", interrupted)
    status, _, err = bench("--methods", "plain", "--peers", "", "--no-plots")
    assert status == 130
    assert "keeps what is measured, and --resume goes on" in " ".join(err.split())
    assert len(lines_of(films)) == 4
    assert bench("--methods", "plain", "--peers", "", "--no-plots", "--resume")[0] == 0
    assert len(lines_of(films)) == 8


def test_the_worlds_clips_in_two_lengths(bench: Run, films: Path) -> None:
    words = [
        "--clips",
        "1",
        "--context",
        "24",
        "--methods",
        "",
        "--method-json",
        '{"specvlm": {"method": "specvlm", "tree": "eagle"}}',
        "--peers",
        "",
        "--repeats",
        "1",
        "--json",
    ]
    status, out, _ = bench(*words, workload="world:2")
    summary = json.loads(out)
    assert status == 0
    assert list(summary["groups"]) == ["world, 2 frames", "world, 24 frames"]
    for group in summary["groups"].values():
        assert list(group["methods"]) == ["hf-generate", "specvlm", "specvlm prune_ratio=0.0"]
        assert group["methods"]["specvlm"]["draft_step"]["median"] > 0
    assert (films.parent / "out" / "draft_step_by_context.png").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sweep", "prune_ratio"], "--sweep needs a field and its values"),
        (["--sweep", "tree=[[0],[2]]"], "the tree's path [2] needs [1], which is missing"),
        (["--workload", "world:8", "--frames", "32"], "world:32"),
        (["--media", "nope"], "is no dataset"),
        (["--sweep", "prune_ratio=2"], "prune_ratio is a share between 0 and 1"),
        (["--methods", "telepathy"], "unknown method 'telepathy'"),
        (["--method-json", "{"], "--method-json is not valid"),
        (["--method-json", '{"x": 1}'], "--method-json must hold an object such as"),
        (["--methods-file", "none.yaml"], "cannot read the methods none.yaml"),
        (["--context", "8,x"], "numbers of frames are different whole numbers"),
        (["--resume"], "there is no run in"),
        (["--workload", "nowhere"], "there is no workload and no file 'nowhere'"),
    ],
)
def test_errors_are_one_sentence_and_exit_status_2(
    bench: Run, words: list[str], sentence: str
) -> None:
    status, out, err = bench(*words)
    assert status == 2
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err + out


def test_methods_from_a_file(bench: Run, tmp_path: Path) -> None:
    file = tmp_path / "methods.yaml"
    file.write_text(
        "long: {num_speculative_tokens: 7}\nfive: {peer: hf-assisted, num_assistant_tokens: 5}\n"
    )
    status, out, _ = bench(
        "--methods-file", str(file), "--methods", "", "--peers", "", "--json", "--no-plots"
    )
    assert status == 0
    assert list(json.loads(out)["groups"]["videos"]["methods"]) == ["hf-generate", "long", "five"]


def test_an_answer_is_the_engines_and_counts_the_same(pair: tuple[str, str]) -> None:
    engine = draftlens.load(*pair, device="cpu")
    shown = VideoFile(CLIPS / "drift.mp4").prepare("what is it", 3)
    inputs = engine.read("what is it", video=CLIPS / "drift.mp4", num_frames=3)
    method = SpecVLM(num_speculative_tokens=3)  # an automatic tree would depend on times
    expected = engine.answer(inputs, method=method, max_new_tokens=9).run()
    answer = Ours(method).answer(engine, shown, 9)
    assert answer.tokens == expected.tokens[0]
    assert answer.counters["passes"] == expected.stats.passes
    assert answer.counters["kept"] == expected.stats.kept > 0
    assert answer.prompt_tokens == inputs.target["input_ids"].shape[1]
    assert answer.phases["frames"] > 0
    stock = HfGenerate().answer(engine, shown, 9)
    assert [stock.tokens] == run_stock(
        engine.target.backbone, inputs.target, max_new_tokens=9
    ).tokens
    assert 0 < stock.phases["frames"] < stock.ttft < stock.e2e
    assert sum(stock.phases.values()) == pytest.approx(stock.e2e)


@pytest.mark.parametrize(
    "way", [Ours(PlainDecoding()), Ours(SpecVLM()), HfGenerate(), HfAssisted()]
)
def test_reading_the_clip_counts(pair: tuple[str, str], way: Any) -> None:
    """For every way alike, in the whole call, in the time to the first token and in its phase."""
    engine = draftlens.load(*pair, device="cpu")
    read = VideoFile(CLIPS / "drift.mp4").prepare("what is it", 2)

    def slowly() -> Any:
        time.sleep(0.3)
        return read()

    answer = way.answer(engine, slowly, 4)
    assert answer.e2e > answer.ttft > answer.phases["frames"] > 0.3


def test_the_caches_are_counted_to_the_byte(pair: tuple[str, str]) -> None:
    engine = draftlens.load(*pair, device="cpu")
    shown = VideoFile(CLIPS / "drift.mp4").prepare("what is it", 3)
    text = engine.target.backbone.model.config.text_config
    per_token = 2 * 4 * text.num_hidden_layers * text.num_key_value_heads * (text.hidden_size // 4)
    plain = Ours(PlainDecoding()).answer(engine, shown, 9)
    assert plain.cache_bytes == per_token * (plain.prompt_tokens + 9)
    sizes = [
        Ours(SpecVLM(prune_ratio=ratio)).answer(engine, shown, 9).cache_bytes or 0
        for ratio in (0, 1)
    ]
    visual = Ours(SpecVLM(prune_ratio=0)).answer(engine, shown, 9).counters["visual"]
    assert sizes[0] - sizes[1] == per_token * visual  # the draft is as large as the target here
    chain = Ours(SpeculativeDecoding()).answer(engine, shown, 9)
    assert chain.cache_bytes is not None
    assert chain.cache_bytes > plain.cache_bytes


def test_assisted_generation_leaves_the_drafts_settings_as_they_were(pair: tuple[str, str]) -> None:
    engine = draftlens.load(*pair, device="cpu")
    assert engine.draft is not None
    shown = VideoFile(CLIPS / "drift.mp4").prepare("what is it", 2)
    config = engine.draft.backbone.model.generation_config
    before = config.num_assistant_tokens
    found = HfAssisted(num_assistant_tokens=3, assistant_confidence_threshold=0.0).answer(
        engine, shown, 9
    )
    assert found.tokens == HfGenerate().answer(engine, shown, 9).tokens
    assert config.num_assistant_tokens == before
    alone = draftlens.Engine(engine.target, None)
    with pytest.raises(ConfigError, match="hf-assisted needs a draft model"):
        HfAssisted().answer(alone, shown, 9)
