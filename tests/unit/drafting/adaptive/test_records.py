"""Records of pairs of models last as long as the models, and their hit rates longer."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from families import FAMILIES

from draftlens.core.tree import chain
from draftlens.drafting.adaptive import history as records
from draftlens.drafting.adaptive.acceptance_rates import HitRates
from draftlens.drafting.adaptive.controller import TreeTuner
from draftlens.drafting.adaptive.cost_curve import CostCurve
from draftlens.drafting.adaptive.history import record_of
from draftlens.models.adapter import Backbone

FAMILY = next(family for family in FAMILIES if family.name == "llava_onevision")
CURVE = CostCurve((1, 4), (1.0, 2.0), 256)


def backbone(name: str = "", **text: Any) -> Backbone:
    """A new model, named like the folder that it might have come from."""
    model = FAMILY.build(**text)
    model.name_or_path = name
    return Backbone.of(model)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for the files; no model has a measured curve."""
    monkeypatch.setattr(records, "folder", lambda: tmp_path)
    monkeypatch.setattr(records, "known_curve", lambda model: None)
    return tmp_path


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forgets what is in memory, as the end of a process does."""

    def forget() -> None:
        monkeypatch.setattr(records, "_RECORDS", weakref.WeakKeyDictionary())
        monkeypatch.setattr(records, "_COSTS", weakref.WeakKeyDictionary())

    forget()
    return forget


def answer(record: Any, *paths: tuple[int, ...]) -> None:
    """Count an answer whose chains of one token were verified with these results."""
    tuner = TreeTuner(record)
    for path in paths:
        tuner.rates.count(chain(1), path)
    tuner.ended()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def hit_rate(record: Any) -> float:
    chance: float = record.rates.rank_chance(0, 0)
    return chance


UNKNOWN = HitRates().rank_chance(0, 0)


def test_a_pair_keeps_its_record_and_other_pairs_have_their_own() -> None:
    """By target, draft, settings and kind of prompt."""
    target, second_target, draft, second_draft = (backbone() for _ in range(4))
    record = record_of(target, draft, (), "video")
    assert record_of(target, draft, (), "video") is record
    assert record_of(Backbone.of(target.model), Backbone(draft.model), (), "video") is record
    separate = [
        record,
        record_of(target, draft, (), "image"),
        record_of(target, draft, ("window", 0.5), "video"),
        record_of(target, draft, ("window", 0.25), "video"),
        record_of(target, second_draft, (), "video"),
        record_of(second_target, draft, (), "video"),
        record_of(target, target, (), "video"),
        record_of(draft, target, (), "video"),
    ]
    assert len({id(each) for each in separate}) == len(separate)
    assert len({id(each.rates) for each in separate}) == len(separate)
    answer(record, *[()] * 20)
    assert hit_rate(record) < 0.2
    assert [hit_rate(other) for other in separate[1:]] == [UNKNOWN] * 7


def test_records_of_one_model_share_what_its_forwards_cost() -> None:
    """Its forwards take as long whatever is drafted for it."""
    target, draft, second_draft = backbone(), backbone(), backbone()
    video, image = (record_of(target, draft, (), kind) for kind in ("video", "image"))
    other = record_of(target, second_draft, ("window", 0.5), "video")
    assert video.costs.target is image.costs.target is other.costs.target
    assert video.costs.draft is image.costs.draft
    assert video.costs.draft is not other.costs.draft
    assert video.costs.target is not video.costs.draft
    alone = record_of(target, target, (), "video")
    assert alone.costs.draft is alone.costs.target is video.costs.target


def test_a_measured_curve_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = backbone(), backbone()
    monkeypatch.setattr(
        records, "known_curve", lambda model: CURVE if model.model is target.model else None
    )
    costs = record_of(target, draft, (), "video").costs
    assert costs.target.curve == CURVE
    assert costs.target.largest == CURVE.largest
    assert costs.draft.largest < CURVE.largest  # nobody has measured it


def test_a_draft_without_a_curve_is_taken_to_cost_its_share_of_the_weights() -> None:
    """Of the language model and its head; what tells the sizes is in the configuration."""
    target, draft = backbone(num_hidden_layers=4), backbone(num_hidden_layers=1)
    costs = record_of(target, draft, (), "video").costs
    sizes = [
        sum(weight.numel() for weight in (*model.decoder.parameters(), *model.head.parameters()))
        for model in (target, draft)
    ]
    assert costs.draft.cost(1) / costs.target.cost(1) == pytest.approx(sizes[1] / sizes[0])
    # Seconds of the target set the scale of both.
    costs.target.record(1, costs.target.curve.cost(1), 0.5)
    assert costs.target.cost(1) == pytest.approx(0.5)
    assert costs.draft.cost(1) == pytest.approx(0.5 * sizes[1] / sizes[0])


@pytest.mark.parametrize("collected", ["target", "draft", "self"])
def test_a_record_ends_with_its_models(collected: str) -> None:
    """A model created later never inherits a record, not even at the same address."""
    models = {"target": backbone("big"), "draft": backbone("small")}
    if collected == "self":
        models = {"self": backbone("big")}
    target, draft = (models.get(role) or models["self"] for role in ("target", "draft"))
    record = record_of(target, draft, (), "video")
    answer(record, (0,), ())
    rates, costs = weakref.ref(record.rates), weakref.ref(record.costs.target)
    del target, draft, record
    gc.collect()
    assert rates() is not None
    del models[collected]
    gc.collect()
    assert rates() is None
    if collected != "draft":
        models.clear()
        gc.collect()
        assert costs() is None


def test_a_record_does_not_keep_its_models() -> None:
    target, draft = backbone("big"), backbone("small")
    alive = [weakref.ref(target.model), weakref.ref(draft.model)]
    record = record_of(target, draft, (), "video")
    TreeTuner(record)
    del target, draft
    gc.collect()
    assert [model() for model in alive] == [None, None]
    answer(record, (0,))  # an answer that ends later is no error


def test_hit_rates_survive_the_process(folder: Path, new_process: Callable[[], None]) -> None:
    target, draft = backbone("big"), backbone("small")
    record = record_of(target, draft, ("window", 0.5), "video")
    assert not files(folder)  # nothing was shown yet
    answer(record, *[()] * 20, (0,))
    (path,) = files(folder)
    assert path.parent == folder / "acceptance"
    new_process()
    restored = record_of(backbone("big"), backbone("small"), ("window", 0.5), "video")
    assert restored is not record
    assert restored.rates.to_dict() == record.rates.to_dict()
    answer(restored, *[(0,)] * 20)
    new_process()
    again = record_of(target, draft, ("window", 0.5), "video")
    assert again.rates.to_dict() == restored.rates.to_dict() != record.rates.to_dict()
    assert files(folder) == [path]


def test_every_answer_is_kept(folder: Path, new_process: Callable[[], None]) -> None:
    """Not only the last one before a process ends."""
    target, draft = backbone("big"), backbone("small")
    seen = []
    for _ in range(3):
        answer(record_of(target, draft, (), "video"), (0,), (0,))
        (path,) = files(folder)
        seen.append(path.read_text())
    assert len(set(seen)) == 3


def test_files_are_separate_by_names_settings_and_kind(
    folder: Path, new_process: Callable[[], None]
) -> None:
    target, draft = backbone("big"), backbone("small")
    answer(record_of(target, draft, (), "video"), *[()] * 20)
    new_process()
    others = [
        record_of(target, draft, (), "image"),
        record_of(target, draft, ("window", 0.5), "video"),
        record_of(target, target, (), "video"),
        record_of(draft, target, (), "video"),
        record_of(backbone("bigger"), draft, (), "video"),
        record_of(target, backbone("smaller"), (), "video"),
    ]
    assert [hit_rate(record) for record in others] == [UNKNOWN] * len(others)
    for record in others:
        answer(record, (0,))
    assert len(files(folder)) == 1 + len(others)
    assert hit_rate(record_of(target, draft, (), "video")) < 0.2


@pytest.mark.parametrize("names", [("", ""), ("big", ""), ("", "small")])
def test_models_without_a_name_are_not_written(
    names: tuple[str, str], folder: Path, new_process: Callable[[], None]
) -> None:
    """Nobody would know them again; in memory they have their record."""
    target, draft = map(backbone, names)
    answer(record_of(target, draft, (), "video"), *[()] * 20)
    assert not files(folder)
    assert hit_rate(record_of(target, draft, (), "video")) < 0.2
    new_process()
    assert hit_rate(record_of(target, draft, (), "video")) == UNKNOWN


CORRUPT = {
    "empty": b"",
    "nested": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "half": b'{"rates": {"levels": [[[0, 0',
    "no text": b"\xff\xfe\x00\x80",
    "a list": b"[]",
    "null": b'{"rates": null}',
    "no rates": b"{}",
    "a part": b'{"rates": {"levels": [], "ranks": []}}',
    "more hits than trials": b'{"rates": {"levels": [], "ranks": [[[0, 0], 1, 9]], '
    b'"confidence": []}}',
    "no bin": b'{"rates": {"levels": [], "ranks": [], "confidence": [[[], 1, 1]]}}',
}


@pytest.mark.parametrize("content", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_file_changes_nothing_and_is_replaced(
    content: bytes, folder: Path, new_process: Callable[[], None]
) -> None:
    target, draft = backbone("big"), backbone("small")
    answer(record_of(target, draft, (), "video"), *[()] * 20)
    (path,) = files(folder)
    path.write_bytes(content)
    new_process()
    record = record_of(target, draft, (), "video")
    assert record.rates.to_dict() == HitRates().to_dict()
    answer(record, (0,))
    kept = json.loads(path.read_text())["rates"]
    assert kept == json.loads(json.dumps(record.rates.to_dict()))


def test_a_file_that_cannot_be_read_or_replaced_changes_nothing(
    folder: Path, new_process: Callable[[], None]
) -> None:
    """A folder lies in its place, which stops root, too."""
    target, draft = backbone("big"), backbone("small")
    answer(record_of(target, draft, (), "video"), *[()] * 20)
    (path,) = files(folder)
    path.unlink()
    path.mkdir()
    new_process()
    record = record_of(target, draft, (), "video")
    assert hit_rate(record) == UNKNOWN
    answer(record, *[()] * 20)
    assert hit_rate(record_of(target, draft, (), "video")) < 0.2


def test_a_folder_that_cannot_be_written_is_no_error(folder: Path) -> None:
    (folder / "acceptance").write_text("in the way")
    record = record_of(backbone("big"), backbone("small"), (), "video")
    answer(record, *[()] * 20)
    assert hit_rate(record) < 0.2
    assert [path.name for path in files(folder)] == ["acceptance"]


def test_records_of_another_version_are_ignored(
    new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = backbone("big"), backbone("small")
    answer(record_of(target, draft, (), "video"), *[()] * 20)
    new_process()
    monkeypatch.setattr(records, "FORMAT", 99)
    assert hit_rate(record_of(target, draft, (), "video")) == UNKNOWN


def test_threads_get_the_same_record() -> None:
    target, draft = backbone(), backbone()
    found: list[Any] = []
    threads = [
        Thread(target=lambda: found.append(record_of(target, draft, (), "video"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert len({id(record) for record in found}) == 1
    assert found[0].lock is record_of(target, backbone(), (), "image").lock
