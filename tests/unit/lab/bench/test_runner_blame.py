"""Is it the method or the clip: what goes wrong in one place costs as little as it can, and bears
the right name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from draftlens_lab.bench.clips import Clip
from draftlens_lab.bench.report import bench_tables
from draftlens_lab.bench.runner import error_message, run
from draftlens_lab.bench.store import Failure, Refusal
from draftlens_lab.bench.summary import summarize

from draftlens.core.errors import ConfigError, MediaError
from tests.unit.lab.bench.fakes import Fake, Pixels, Race, begun, keys


def failing(error: Exception, *prompts: str) -> Callable[[str], None]:
    """Raises the error when one of these is asked, or always if none is named."""

    def fail(prompt: str) -> None:
        if not prompts or prompt in prompts:
            raise error

    return fail


def test_a_first_clip_that_nobody_can_answer_refuses_nobody(race: Race, tmp_path: Path) -> None:
    """A processor that finds it too narrow, say: the reference fails as well, so it is the clip."""
    race.clips.insert(0, Clip("strip", "strip", Pixels(), 8, "films"))
    for name in race.ways:
        race.ways[name] = Fake(name, race.asked, before=failing(ValueError("too narrow"), "strip"))
    store, plan = begun(tmp_path), race.plan()
    run(plan, store)
    assert store.of(Refusal) == []
    assert store.of(Failure) == [Failure("strip", "hf-generate", 0, "ValueError: too narrow")]
    assert keys(store) == {(c, m, r): 1 for c in "ab" for m in race.ways for r in range(3)}
    assert sum(prompt == "strip" for _, prompt, _ in race.asked) == 1
    asked = len(race.asked)
    run(plan, begun(tmp_path, resume=True))
    assert len(race.asked) == asked
    assert begun(tmp_path, resume=True).records == store.records


def test_if_nobody_can_answer_anything_every_clip_is_told(race: Race, tmp_path: Path) -> None:
    """Also where a method would not run anyway: that is not why the clips failed."""
    for name in race.ways:
        race.ways[name] = Fake(name, race.asked, before=failing(ValueError("too narrow")))
    race.ways["ours"] = Fake(
        "ours", race.asked, before=failing(ConfigError("it needs a draft model"))
    )
    store = begun(tmp_path)
    run(race.plan(), store)
    assert store.records == [Failure(c, "hf-generate", 0, "ValueError: too narrow") for c in "ab"]


def test_a_method_that_fails_on_its_first_clip_is_tried_on_another(
    race: Race, tmp_path: Path
) -> None:
    race.ways["ours"] = Fake("ours", race.asked, before=failing(RuntimeError("odd"), "what is a"))
    store = begun(tmp_path)
    run(race.plan(), store)
    assert store.of(Refusal) == []
    assert store.of(Failure) == [Failure("a", "ours", 0, "RuntimeError: odd")]
    assert {key: n for key, n in keys(store).items() if key[0] == "b"} == {
        ("b", m, r): 1 for m in race.ways for r in range(3)
    }


@pytest.mark.parametrize("count", [1, 2, 3, 6])
@pytest.mark.parametrize("error", [RuntimeError("no"), MemoryError("no"), MediaError("no")])
def test_a_method_that_fails_where_the_reference_answers_is_refused(
    race: Race, tmp_path: Path, error: Exception, count: int
) -> None:
    """After three clips, or all where there are fewer; nobody else loses one."""
    race.clips[:] = [Clip(f"{n}", f"what is {n}", Pixels(), 8, "films") for n in range(count)]
    race.ways["ours"] = Fake("ours", race.asked, before=failing(error))
    store = begun(tmp_path)
    run(race.plan(repeats=2), store)
    assert store.of(Refusal) == [Refusal("ours", error_message(error))]
    assert store.of(Failure) == []
    others = [name for name in race.ways if name != "ours"]
    assert keys(store) == {
        (f"{c}", m, r): 1 for c in range(count) for m in others for r in range(2)
    }
    assert sum(name == "ours" for name, _, _ in race.asked) == min(count, 3)


def test_clips_that_nobody_can_answer_do_not_count_against_a_method(
    race: Race, tmp_path: Path
) -> None:
    """Nor where the reference has been measured already and meets them only to see who is to
    blame."""
    good, bad = (
        list(race.clips),
        [Clip(name, name, Pixels(), 8, "films") for name in ("w", "x", "y", "z")],
    )
    race.clips[:] = bad + good
    run(race.plan(repeats=1), begun(tmp_path))
    torn = failing(ValueError("torn"), *"wxyz")
    race.ways["hf-generate"] = Fake("hf-generate", race.asked, before=torn)
    race.ways["new"] = Fake("new", race.asked, before=torn)
    store = begun(tmp_path, resume=True)
    run(race.plan(repeats=1), store)
    assert store.of(Refusal) == []
    assert [(failure.clip, failure.method) for failure in store.of(Failure)] == [
        (c, "hf-generate") for c in "wxyz"
    ]
    assert keys(store)["a", "new", 0] == keys(store)["b", "new", 0] == 1


def test_a_refused_method_is_tried_again_but_told_once(race: Race, tmp_path: Path) -> None:
    race.ways["ours"] = Fake("ours", race.asked, before=failing(RuntimeError("busy")))
    run(race.plan(), begun(tmp_path))
    asked = len(race.asked)
    store = begun(tmp_path, resume=True)
    run(race.plan(), store)
    assert {name for name, _, _ in race.asked[asked:]} == {
        "ours",
        "hf-generate",
    }  # nobody else is missing anything
    assert store.of(Refusal) == [Refusal("ours", "RuntimeError: busy")]
    assert len(keys(store)) == 12
    race.ways["ours"] = Fake("ours", race.asked)
    again, plan = begun(tmp_path, resume=True), race.plan()
    run(plan, again)
    assert keys(again) == {(c, m, r): 1 for c in "ab" for m in race.ways for r in range(3)}
    assert summarize(again, plan.contestants, ["films"])["refused"] == {}


def test_a_method_that_was_measured_is_not_refused_when_it_fails_later(
    race: Race, tmp_path: Path
) -> None:
    """What it fails on is a clip: else its figures would be of other clips than the others'."""
    run(race.plan(repeats=1), begun(tmp_path))
    race.ways["ours"] = Fake("ours", race.asked, before=failing(ConfigError("no"), "what is b"))
    race.clips.reverse()
    store = begun(tmp_path, resume=True)
    run(race.plan(repeats=2), store)
    assert store.of(Refusal) == []
    assert [(f.clip, f.method) for f in store.of(Failure)] == [("b", "ours")]
    assert {key for key in keys(store) if key[0] == "a"} == {
        ("a", m, r) for m in race.ways for r in range(2)
    }


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_clip_that_cannot_be_read_is_blamed_on_no_method(
    race: Race, tmp_path: Path, place: int
) -> None:
    race.clips.insert(place, Clip("torn", "torn", Pixels(readable=False), 8, "films"))
    store, plan = begun(tmp_path), race.plan()
    run(plan, store)
    assert store.of(Failure) == [Failure("torn", "", 0, "cannot read torn: it is broken")]
    summary = {"run": {"options": {}}, **summarize(store, plan.contestants, ["films"])}
    assert list(bench_tables(summary))[-1].rows == [
        ("torn", "reading", "cannot read torn: it is broken")
    ]
