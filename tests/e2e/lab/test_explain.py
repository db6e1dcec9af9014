"""`draftlens explain` as a person uses it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from draftlens_lab.cli.explain_files import summary
from draftlens_lab.explain import chart_of, pruning_method, trace, trace_views
from PIL import Image

import draftlens
from draftlens.core.timeline import DISCARDED
from draftlens.drafting.adaptive.costs import ForwardCosts
from draftlens.media.conversation import ask, read
from draftlens.methods.base import METHODS, to_dict
from tests.e2e.conftest import CLIPS

CLIP = min(CLIPS.glob("*.mp4"))
PICTURE = min(CLIPS.glob("*.png"))
SHORT = ["--max-new-tokens", "6"]


@pytest.fixture
def run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Call `draftlens explain` with some arguments."""
    return lambda *words: command("explain", *words, "--device", "cpu")


def test_a_clip_becomes_a_sheet_a_page_and_a_summary(run, tmp_path: Path) -> None:
    status, out, _ = run(
        str(CLIP), "--frames", "6", "--max-new-tokens", "40", "--out", str(tmp_path / "new")
    )
    assert status == 0
    with Image.open(tmp_path / "new" / f"{CLIP.stem}.png") as drawn:
        assert drawn.format == "PNG"
        assert drawn.width == 1600
    with Image.open(tmp_path / "new" / f"{CLIP.stem}-timeline.png") as drawn:
        assert drawn.format == "PNG"
        assert drawn.width in (1999, 2000)
    assert f"{CLIP.stem}-timeline.png" in out
    text = (tmp_path / "new" / f"{CLIP.stem}.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:", text)
    data = json.loads(text.split('id="trace">')[1].split("</script>")[0])
    assert len(data["views"]) == 6
    assert (
        sum(sum(map(sum, view["kept"])) for view in data["views"])
        == data["kept"] - data["spare"][1]
    )
    assert data["plain"]["identical"]
    assert list(data["timelines"]) == ["plain", "serial"]
    assert text.count("data:image/png") == 2
    assert f"{CLIP.name}: {data['kept']} of {data['total']} visual tokens are kept" in out
    assert "speedup over plain decoding" in out
    assert f"{CLIP.stem}.html" in out


def test_images_options_and_json(run, tmp_path: Path) -> None:
    options = '{"prune_ratio": 0.5, "draft": "self", "pruner": "grid", "tree": null}'
    words = [
        "--images",
        str(PICTURE),
        str(PICTURE),
        "--no-compare",
        "--json",
        "--prompt",
        "What is the same?",
    ]
    status, out, _ = run(
        *words, "--max-new-tokens", "12", "--out", str(tmp_path), "--speculative-config", options
    )
    report = json.loads(out)
    assert status == 0
    assert report["sheet"] == str(tmp_path / f"{PICTURE.stem}-and-1-more.png")
    assert Path(report["page"]).exists()
    assert report["prompt"] == "What is the same?"
    assert report["plain"] is None
    assert report["settings"]["draft"] == "the target itself"
    assert report["kept"] == report["total"] // 2
    assert report["chart"] == str(tmp_path / f"{PICTURE.stem}-and-1-more-timeline.png")
    assert list(report["timelines"]) == ["serial"]
    assert any(view["scores"][0][0] is not None for view in report["views"])
    assert any("Pruner grid does not use attention" in note for note in report["notes"])


def test_the_heatmap_shows_what_the_pruner_ranks_by(run, tmp_path: Path) -> None:
    """The similarity of `uv`, and no note on attention, which is not read."""
    words = ["--no-compare", "--json", "--frames", "2", *SHORT, "--out", str(tmp_path)]
    shown = {}
    for pruner in ("uv", "attention"):
        config = json.dumps({"pruner": pruner, "prune_ratio": 0.8})
        status, out, err = run(str(CLIP), *words, "--speculative-config", config)
        assert status == 0, err
        shown[pruner] = json.loads(out)
    report = shown["uv"]
    assert report["score"] == "similarity to the text gained"
    assert shown["attention"]["score"] == "attention of the target"
    assert not any("attention" in note for note in report["notes"])
    ranked = [
        (score, kept)
        for view in report["views"]
        for scores, row in zip(view["scores"], view["kept"], strict=True)
        for score, kept in zip(scores, row, strict=True)
    ]
    lowest_kept = min(score for score, kept in ranked if kept)
    highest_pruned = max(score for score, kept in ranked if not kept)
    assert lowest_kept >= highest_pruned
    assert min(score for score, _ in ranked) >= 0
    page = (tmp_path / f"{CLIP.stem}.html").read_text(encoding="utf-8")
    assert "attention of the target" in page


@pytest.mark.parametrize(("size", "high"), [((1200, 6), 700), ((30, 6000), 3000)])
def test_pictures_like_a_line_have_a_sheet_of_ordinary_size(
    run, size: tuple[int, int], high: int, tmp_path: Path
) -> None:
    Image.open(PICTURE).resize(size).save(tmp_path / "line.png")
    out = tmp_path / "out"
    status, printed, err = run(
        "--images", str(tmp_path / "line.png"), "--no-compare", *SHORT, "--out", str(out)
    )
    assert status == 0, err
    assert "Pictures longer than 20 to 1 are drawn as 20 to 1." in printed
    with Image.open(out / "line.png") as drawn:
        assert drawn.width == 1600
        assert drawn.height < high


def test_without_a_draft_the_target_drafts_for_itself(run, tmp_path: Path) -> None:
    """Even though the name of the target is that of a pair."""
    words = ["--draft", "none", "--frames", "2", "--no-compare", "--json", "--out", str(tmp_path)]
    status, out, err = run(str(CLIP), *SHORT, *words)
    assert status == 0, err
    assert json.loads(out)["settings"]["draft"] == "the target itself"


def test_the_trace_is_that_of_the_answer(engine: draftlens.Engine) -> None:
    options = {"max_new_tokens": 60}
    method = {"method": "specvlm", "tree": "eagle"}  # an automatic tree follows measured times
    chat = read(ask("Describe the video.", video=CLIP), 4)
    answer = trace(engine, chat, "clip", method=method, compare=False, **options)
    plain = engine.generate(
        "Describe the video.",
        video=CLIP,
        num_frames=4,
        method=method,
        **options,
    )
    assert "".join(piece.text for piece in answer.pieces) == plain.text
    assert all(entry.emitted == entry.accepted + 1 for entry in answer.rounds[:-1])
    assert (
        sum(entry.accepted for entry in answer.rounds)
        == plain.stats.accepted
        == sum(map(sum, plain.from_draft))
    )
    assert sum(entry.drafted for entry in answer.rounds) == plain.stats.drafted
    assert sum(entry.emitted for entry in answer.rounds) == plain.stats.emitted - 1
    assert answer.visual.counts == (plain.stats.kept, plain.stats.visual)
    assert answer.pieces[0].round == 0
    assert not answer.pieces[0].drafted
    assert {piece.round for piece in answer.pieces} <= set(range(len(answer.rounds) + 1))


def test_the_trace_shows_where_drafting_stops(
    engine: draftlens.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The automatic tree is not replaced by another one: with a draft that costs as much as its
    target, no round has draft tokens."""
    monkeypatch.setattr(ForwardCosts, "cost", lambda self, width, rows=1, context=None: 10 + width)
    chat = read(ask("Describe the video.", video=CLIP), 2)
    answer = trace(engine, chat, "clip", compare=False, max_new_tokens=12)
    assert answer.method["tree"] == "auto"
    assert {entry.drafted for entry in answer.rounds} == {0}
    assert answer.stats.mean_acceptance_length == 1
    assert "11 rounds (11 without draft tokens), mean acceptance length 1.00" in summary(answer)


def test_the_timelines_are_those_of_the_answers(engine: draftlens.Engine) -> None:
    """Every second of a phase is in a span, every pass has its outcome, and no spans of a lane
    overlap."""
    chat = read(ask("Describe the video.", video=CLIP), 4)
    method = {"method": "specvlm", "tree": "eagle"}
    answer = trace(engine, chat, "clip", method=method, max_new_tokens=60)
    line = answer.timelines["serial"]
    phases = answer.stats.phases
    assert line.end == answer.stats.e2e
    assert line.first_token == answer.stats.ttft
    for lane, kind, phase in (
        ("target", "vision", "vision"),
        ("target", "prefill", "target_prefill"),
        ("target", "verify", "verify"),
        ("target", "rollback", "rollback"),
        ("draft", "prune", "prune"),
        ("draft", "prefill", "draft_prefill"),
        ("draft", "draft", "draft"),
    ):
        assert line.seconds[lane][kind] == pytest.approx(phases[phase], abs=1e-6)
    outcomes = [(span.tokens, span.accepted) for span in line.rounds]
    assert outcomes == [(entry.drafted, entry.accepted) for entry in answer.rounds]
    drafts = [span for span in line.of("draft") if span.kind == "draft"]
    assert [span.tokens for span in drafts] == [entry.drafted for entry in answer.rounds]
    are_lost = [e.drafted > 0 and e.accepted == 0 for e in answer.rounds]
    assert [bool(span.outcome) for span in drafts] == are_lost
    # One thread made all spans, so not even those of different lanes overlap.
    for before, after in itertools.pairwise(line.spans):
        assert before.end <= after.start
    plain = answer.timelines["plain"]
    assert plain.lanes == ("target",)
    assert len(plain.rounds) == 59


def test_the_tokens_of_a_method_without_pictures(run, tmp_path: Path) -> None:
    """Of the default: its method is named, and the page marks what the draft supplied."""
    words = ["--method", "auto", "--max-new-tokens", "24", "--frames", "4", "--out", str(tmp_path)]
    status, out, err = run(str(CLIP), *words)
    assert status == 0, err
    assert f"{CLIP.name}: method mixed, 24 tokens" in out
    assert "with the same answer" in out
    assert "Method auto answers by mixed with these models." in out
    text = (tmp_path / f"{CLIP.stem}.html").read_text(encoding="utf-8")
    data = json.loads(text.split('id="trace">')[1].split("</script>")[0])
    drafted = [piece["text"] for piece in data["pieces"] if piece["drafted"]]
    assert re.findall(r'<span class="drafted">(.*?)</span>', text) == drafted
    assert data["method"]["method"] == "mixed"
    assert 1 + sum(entry["emitted"] for entry in data["rounds"]) == 24
    assert len(drafted) == sum(entry["accepted"] for entry in data["rounds"]) > 0
    assert list(data["timelines"]) == ["plain", "serial"]
    assert not (tmp_path / f"{CLIP.stem}.png").exists()


def test_another_schedule_is_drawn_below_the_serial_one(
    engine: draftlens.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the clock's thread does in phases of the draft is then the target's time."""
    monkeypatch.setattr("draftlens.methods.parallelvlm.drafters.usable_cores", lambda: 2)
    chat = read(ask("Describe the video.", video=CLIP), 2)
    method = {"method": "specvlm", "schedule": "parallel", "num_speculative_tokens": 2}
    chosen = pruning_method({"method": "specvlm", "schedule": "parallel"})
    assert to_dict(chosen)["tree"] == "auto"
    assert to_dict(pruning_method("specvlm"))["tree"] == "auto"
    answer = trace(engine, chat, "clip", method=method, compare=False, max_new_tokens=24)
    assert list(answer.timelines) == ["serial", "parallel"]
    assert answer.method["schedule"] == "parallel"
    line = answer.timelines["parallel"]
    drafting = line.of("draft")
    assert {span.kind for span in drafting} >= {"vision", "prune", "prefill", "draft"}
    assert DISCARDED in {span.outcome for span in drafting}
    assert {"wait", "verify"} <= set(line.seconds["target"])
    assert {"prune", "prefill", "draft"} == set(answer.timelines["serial"].seconds["draft"])
    assert len(chart_of(answer).axes[0].get_yticks()) == 4


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_is_explained(
    run,
    name: str,
    engine: draftlens.Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without drafts the timeline is that of the target alone, and only this one is drawn here."""
    if name != "plain":
        for module in ("cli.explain_files", "explain.sections"):
            monkeypatch.setattr(f"draftlens_lab.{module}.has_matplotlib", lambda: False)
    monkeypatch.setattr("draftlens.methods.parallelvlm.drafters.usable_cores", lambda: 1)
    monkeypatch.setattr(
        "draftlens.cli.loading.engine_of",
        lambda options, *_: draftlens.Engine(engine.target, engine.draft, method=options["method"]),
    )
    words = ["--frames", "2", "--max-new-tokens", "12", "--no-compare", "--json"]
    status, out, err = run(str(CLIP), "--method", name, *words, "--out", str(tmp_path))
    assert status == 0, err
    report = json.loads(out)
    assert Path(report["page"]).exists()
    if name == "plain":
        assert Path(report["chart"]).exists()
        assert list(report["timelines"]) == ["plain"]
        spans = report["timelines"]["plain"]["spans"]
        assert {span["lane"] for span in spans} == {"target"}
        assert {"prefill", "verify"} <= {span["kind"] for span in spans}
        assert report["settings"]["draft"] == "none"
        assert not any(piece["drafted"] for piece in report["pieces"])
        assert "timeline is that of the target alone" in report["notes"][0]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere.mp4"], "there is no such file"),
        ([str(CLIP), str(CLIP)], "explain takes one clip, or several images with --images"),
        (["--images", str(CLIP)], "error: cannot read"),
        ([str(CLIP), "--speculative-config", '{"gamma": 4}'], "has no option 'gamma'"),
        (
            [str(CLIP), "--max-new-tokens", "1"],
            "the answer ended with its first token, so nothing was drafted",
        ),
        ([str(CLIP), "--target", "/no/such/model"], "there is no such folder"),
        (
            ["--images", str(CLIPS / ".." / CLIPS.name / PICTURE.name), "--out", str(CLIPS)],
            "would be written over",
        ),
        ([str(CLIP), "--out", str(CLIP)], f"cannot write to the folder {CLIP}"),
    ],
)
def test_errors_are_one_sentence_and_exit_status_2(
    run, words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*words)
    assert status == 2
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err
    assert out == ""


def test_ctrl_c_is_exit_status_130(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from draftlens.cli import loading

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "load", interrupt)
    status, _, err = run(str(CLIP), "--out", str(tmp_path))
    assert status == 130
    assert "Traceback" not in err


def test_views_become_a_chart_a_page_and_a_table(run, tmp_path: Path) -> None:
    words = ["--images", str(PICTURE), str(PICTURE), "--method", "tabed", "--out", str(tmp_path)]
    status, out, err = run(*words, "--max-new-tokens", "20", "--prompt", "Describe the last image.")
    assert status == 0, err
    stem = f"{PICTURE.stem}-and-1-more"
    with Image.open(tmp_path / f"{stem}-views.png") as drawn:
        assert drawn.width in (1999, 2000)
    text = (tmp_path / f"{stem}.html").read_text(encoding="utf-8")
    data = json.loads(text.split('id="trace">')[1].split("</script>")[0])
    assert [view["name"] for view in data["views"]] == ["multimodal", "text"]
    assert len(data["tokens"]) == 20
    assert data["plain"]["identical"]
    assert data["method"]["rest"] is False
    for row in ("multimodal", "text", "all, mixed"):
        assert row in out
    assert f"{stem}-views.png" in out


def test_views_and_their_options_as_json(run, tmp_path: Path) -> None:
    config = json.dumps(
        {
            "method": "tabed",
            "views": ["text", {"pruner": "uniform", "ratio": 0.5}],
            "weights": "grid",
        }
    )
    words = [str(CLIP), "--frames", "2", "--no-compare", "--json", "--out", str(tmp_path)]
    status, out, err = run(*words, *SHORT, "--speculative-config", config)
    assert status == 0, err
    report = json.loads(out)
    assert [view["name"] for view in report["views"]] == ["text", "uniform(0.5)"]
    assert Path(report["page"]).exists()


def test_each_view_alone_has_the_length_that_is_shown(engine: draftlens.Engine) -> None:
    """By a session of its own."""
    chat = read(ask("Describe the image.", images=[PICTURE]), 1)
    method = {"method": "tabed", "views": ["multimodal", "text", "pooled"]}
    answer = trace_views(engine, chat, "a picture", method=method, compare=False)
    assert all(token.weights for token in answer.tokens[:-1])
    for view in answer.figures:
        alone = engine.answer(
            engine.process([chat]),
            method={"method": "tabed", "views": [view.name]},
            max_new_tokens=len(answer.tokens),
        ).run()
        assert alone.stats.mean_acceptance_length == view.alone
        assert view.asked >= len(answer.tokens) - 1
