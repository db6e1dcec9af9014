"""Order, interruption, failure: nothing is lost and all are treated alike."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from draftlens_lab.bench.clips import Clip
from draftlens_lab.bench.runner import error_message, run, schedule
from draftlens_lab.bench.store import MEASUREMENTS, RUN, Failure, Measurement, Refusal, Store
from draftlens_lab.bench.summary import summarize

from draftlens.core.errors import ConfigError, UnsupportedModelError
from tests.unit.lab.bench.fakes import SAYS, Fake, Pixels, Race, begun, keys


def test_every_clip_method_and_repeat_is_measured_once_after_a_warm_up(
    race: Race, tmp_path: Path
) -> None:
    store = begun(tmp_path)
    run(race.plan(repeats=3), store)
    assert keys(store) == {(c, m, r): 1 for c in "ab" for m in race.ways for r in range(3)}
    warm, counted = race.asked[:3], race.asked[3:]
    assert [name for name, _, _ in warm] == list(race.ways)
    assert {room for _, _, room in warm} == {16}
    assert {room for _, _, room in counted} == {256}
    assert len(counted) == 18


def test_methods_are_interleaved_within_a_clip_and_repeat(race: Race, tmp_path: Path) -> None:
    """Before any method comes to a clip a second time, all have been there; and repeats follow each
    other whole."""
    run(race.plan(repeats=3), begun(tmp_path))
    counted = race.asked[3:]
    blocks = [counted[i : i + 3] for i in range(0, len(counted), 3)]
    for block in blocks:
        assert {name for name, _, _ in block} == set(race.ways)
        assert len({prompt for _, prompt, _ in block}) == 1
    assert [block[0][1] for block in blocks] == ["what is a", "what is b"] * 3


def test_the_order_is_drawn_anew_and_the_same_for_a_seed(race: Race) -> None:
    plan = race.plan()

    def orders(seed: int) -> list[list[str]]:
        return [
            [c.contestant.name for c in block.cells]
            for block in schedule(plan.clips, plan.contestants, 20, seed)
        ]

    assert orders(0) == orders(0) != orders(1)
    first = Counter(order[0] for order in orders(0))
    assert len(first) == 3  # nobody always comes first
    assert max(first.values()) < 30


@pytest.mark.parametrize("stop", range(1, 20, 3))
def test_a_resumed_run_measures_what_is_missing_and_nothing_twice(
    race: Race, tmp_path: Path, stop: int
) -> None:
    calls = 0

    def interrupt(prompt: str) -> None:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt

    race.ways["ours"] = Fake("ours", race.asked, before=interrupt)
    store = begun(tmp_path)
    try:
        run(race.plan(repeats=6), store)
    except KeyboardInterrupt:
        assert stop <= 13
    before = keys(store)
    with (tmp_path / MEASUREMENTS).open("a") as file:
        file.write('{"kind": "measured", "clip": "a", "met')  # the power went out
    calls = stop
    again = begun(tmp_path, resume=True)
    assert keys(again) == before
    run(race.plan(repeats=6), again)
    assert keys(again) == {(c, m, r): 1 for c in "ab" for m in race.ways for r in range(6)}
    kept = [json.loads(line) for line in (tmp_path / MEASUREMENTS).read_text().splitlines()]
    assert len(kept) == 36
    asked = len(race.asked)
    run(race.plan(repeats=6), begun(tmp_path, resume=True))
    assert len(race.asked) == asked  # nothing is missing, so nobody is even warmed up


def test_a_line_is_on_the_disk_as_soon_as_it_is_measured(race: Race, tmp_path: Path) -> None:
    file = tmp_path / MEASUREMENTS
    lines = []
    race.ways["plain"] = Fake(
        "plain", race.asked, before=lambda _: lines.append(file.read_text().count("\n"))
    )
    run(race.plan(repeats=2), begun(tmp_path))
    place = [i for i, (name, _, _) in enumerate(race.asked[3:]) if name == "plain"]
    assert lines[1:] == place


def test_a_clip_that_cannot_be_read_is_left_out_and_told(race: Race, tmp_path: Path) -> None:
    race.clips.insert(0, Clip("torn", "torn", Pixels(readable=False), 8, "films"))
    store, plan = begun(tmp_path), race.plan()
    run(plan, store)
    assert [(f.clip, f.error) for f in store.of(Failure)] == [
        ("torn", "cannot read torn: it is broken")
    ]
    assert keys(store) == {(c, m, r): 1 for c in "ab" for m in race.ways for r in range(3)}
    assert store.of(Refusal) == []  # the clip's fault, not the methods'
    summary = summarize(store, plan.contestants, ["films"])
    assert [f["clip"] for f in summary["failed"]] == ["torn"]
    assert summary["groups"]["films"]["clips"] == 2
    asked = len(race.asked)
    run(plan, begun(tmp_path, resume=True))
    again = begun(tmp_path, resume=True)
    assert len(race.asked) == asked
    assert len(again.of(Failure)) == 1


def test_a_clip_that_fails_midway_is_left_out_by_all(race: Race, tmp_path: Path) -> None:
    """Its earlier measurements stay on the disk, but no figure holds them."""
    seen = 0

    def fail_late(prompt: str) -> None:
        nonlocal seen
        seen += prompt == "what is b"
        if prompt == "what is b" and seen == 2:
            raise MemoryError

    race.ways["ours"] = Fake("ours", race.asked, before=fail_late)
    store, plan = begun(tmp_path), race.plan()
    run(plan, store)
    assert [(f.clip, f.method, f.repeat, f.error) for f in store.of(Failure)] == [
        ("b", "ours", 1, "MemoryError")
    ]
    assert {key for key in keys(store) if key[2] == 0} == {
        (c, m, 0) for c in "ab" for m in race.ways
    }
    assert ("b", "ours", 2) not in keys(store)
    assert ("b", "plain", 2) not in keys(store)
    summary = summarize(store, plan.contestants, ["films"])
    assert summary["measurements"] == 9
    assert all(row["measurements"] == 3 for row in summary["groups"]["films"]["methods"].values())
    asked = len(race.asked)
    run(plan, begun(tmp_path, resume=True))
    assert len(race.asked) == asked  # it stays failed


def test_a_method_that_does_not_run_is_told_and_the_others_go_on(
    race: Race, tmp_path: Path
) -> None:
    def refuse(prompt: str) -> None:
        raise UnsupportedModelError("it has no eyes")

    race.ways["blind"] = Fake("blind", race.asked, before=refuse)
    store, plan = begun(tmp_path), race.plan()
    run(plan, store)
    assert store.of(Refusal) == [Refusal("blind", "it has no eyes")]
    assert store.of(Failure) == []
    summary = summarize(store, plan.contestants, ["films"])
    assert summary["refused"] == {"blind": "it has no eyes"}
    assert list(summary["groups"]["films"]["methods"]) == ["hf-generate", "plain", "ours"]
    assert sum(name == "blind" for name, _, _ in race.asked) == 1


def test_a_method_that_lies_is_found_out(race: Race, tmp_path: Path) -> None:
    race.ways["liar"] = Fake("liar", race.asked, says=(5, 6, 9, 8))
    race.ways["short"] = Fake("short", race.asked, says=(5, 6))
    store, plan = begun(tmp_path), race.plan(repeats=2)
    run(plan, store)
    summary = summarize(store, plan.contestants, ["films"])
    found = {(d["clip"], d["method"], d["repeat"]): d for d in summary["divergences"]}
    assert set(found) == {(c, m, r) for c in "ab" for m in ("liar", "short") for r in range(2)}
    liar, short = found["a", "liar", 0], found["b", "short", 1]
    assert (liar["index"], liar["reference"], liar["method_says"]) == (2, SAYS[2], 9)
    assert (short["index"], short["reference"], short["method_says"]) == (2, SAYS[2], None)
    rows = summary["groups"]["films"]["methods"]
    assert {name: (row["identical"], row["compared"]) for name, row in rows.items()} == {
        "hf-generate": (4, 4),
        "plain": (4, 4),
        "ours": (4, 4),
        "liar": (0, 4),
        "short": (0, 4),
    }


def test_another_configuration_is_refused_by_name(tmp_path: Path) -> None:
    begun(tmp_path)
    other = {
        "models": {"target": "t", "draft": "d"},
        "options": {"repeats": 5, "max_new_tokens": 256},
    }
    with pytest.raises(ConfigError) as refused:
        Store(tmp_path).begin(other, True)
    assert "options.repeats was 3 and is 5" in str(refused.value)
    assert 'models.draft was not there and is "d"' in str(refused.value)
    assert "max_new_tokens" not in str(refused.value)
    assert "--restart begins again" in str(refused.value)


def test_a_folder_with_a_run_needs_a_word(race: Race, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run in"):
        begun(tmp_path, resume=True)
    store = begun(tmp_path)
    run(race.plan(), store)
    with pytest.raises(ConfigError, match="--resume goes on with it, --restart throws it away"):
        begun(tmp_path)
    assert len(begun(tmp_path, resume=True).records) == 18
    assert begun(tmp_path, resume=False).records == []
    assert (tmp_path / MEASUREMENTS).read_text() == ""


def test_to_begin_again_removes_what_was_made_of_the_old_run(race: Race, tmp_path: Path) -> None:
    """At once, so that no old report lies beside a new run; and nothing that somebody else put
    there."""
    run(race.plan(), begun(tmp_path))
    plots = [
        "speedup.png",
        "breakdown.png",
        "draft_step_by_context.png",
        "acceptance_by_prune_ratio.png",
    ]
    for name in ["summary.json", "report.md", *plots, "acceptance_by_tree.png"]:
        (tmp_path / name).write_text("old")
    mine = ["notes.md", "acceptance_by_me.png", "clip.png", "summary.json.bak"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    begun(tmp_path, resume=True)
    assert len(list(tmp_path.iterdir())) == 2 + 7 + len(mine)
    with pytest.raises(ConfigError):
        begun(tmp_path)
    assert (tmp_path / "report.md").read_text() == "old"
    begun(tmp_path, resume=False)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([RUN, MEASUREMENTS, *mine])


def test_a_first_run_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("of something else")
    begun(tmp_path)
    assert (tmp_path / "report.md").exists()


def test_a_damaged_file_is_refused(race: Race, tmp_path: Path) -> None:
    store = begun(tmp_path)
    run(race.plan(), store)
    lines = (tmp_path / MEASUREMENTS).read_text().splitlines()
    (tmp_path / MEASUREMENTS).write_text("\n".join([*lines[:4], "{broken", *lines[5:], ""]))
    with pytest.raises(ConfigError, match=r"line 5 of .* is damaged"):
        begun(tmp_path, resume=True)
    (tmp_path / RUN).write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        begun(tmp_path, resume=True)


def test_records_come_back_as_they_were(race: Race, tmp_path: Path) -> None:
    store = begun(tmp_path)
    run(race.plan(), store)
    store.append(Failure("c", "m", 1, "why\nnot"))
    store.append(Refusal("m", "no — never"))
    assert begun(tmp_path, resume=True).records == store.records


def test_errors_are_one_line_with_their_kind_unless_ours() -> None:
    assert error_message(ConfigError("a\n b")) == "a b"
    assert error_message(ValueError("a\n b")) == "ValueError: a b"
    assert error_message(MemoryError()) == "MemoryError"


def test_a_lossy_answer_is_judged_outside_of_its_measurement(race: Race, tmp_path: Path) -> None:
    """The verdict is stored with the answer and comes back when the run is resumed."""
    race.ways["leaky"] = Fake("leaky", race.asked, says=(5, 6, 9, 9), accepts=2)
    store, plan = begun(tmp_path), race.plan(repeats=2)
    run(plan, store)
    again = begun(tmp_path, resume=True)
    judged = {m.method: m.accepted for m in again.of(Measurement)}
    assert judged == {"hf-generate": None, "plain": None, "ours": None, "leaky": 2}
    assert again.records == store.records
    summary = summarize(again, plan.contestants, ["films"])
    assert summary["divergences"] == []
    row = summary["groups"]["films"]["methods"]["leaky"]
    assert (row["lossy"], row["target_acceptance"], row["identical"]) == (True, 0.5, 0)
