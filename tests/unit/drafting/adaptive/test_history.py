"""Records of pairs of models last as long as the models."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from families import FAMILIES

from draftlens.core.tree import chain
from draftlens.drafting.adaptive import history as records
from draftlens.drafting.adaptive.controller import TreeController
from draftlens.drafting.adaptive.costs import CostCurve
from draftlens.drafting.adaptive.history import record_of
from draftlens.drafting.adaptive.round_plan import AcceptanceRates
from draftlens.models.adapter import Backbone
from draftlens.models.model_state import Slot

FAMILY = next(family for family in FAMILIES if family.name == "llava_onevision")
CURVE = CostCurve((1, 4), (1.0, 2.0), 256)


def backbone(name: str = "", **text: Any) -> Backbone:
    """A new model, named like the folder that it might have come from."""
    model = FAMILY.build(**text)
    model.name_or_path = name
    return Backbone.of(model)


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process; no model has a measured curve."""
    monkeypatch.setattr(records, "known_curve", lambda model: None)
    monkeypatch.setattr(records, "_RECORDS", Slot("records"))
    monkeypatch.setattr(records, "_COSTS", Slot("costs"))


def answer(record: Any, *paths: tuple[int, ...]) -> None:
    """Count an answer whose chains of one token were verified with these results."""
    controller = TreeController(record)
    for path in paths:
        controller.rates.count(chain(1), path)
    controller.ended()


def first_rate(record: Any) -> float:
    rate: float = record.rates.ranks[0].mean
    return rate


UNKNOWN = AcceptanceRates().ranks[0].mean


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
    assert first_rate(record) < 0.2
    assert [first_rate(other) for other in separate[1:]] == [UNKNOWN] * 7


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


def test_another_engine_of_passes_has_costs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was learned of acceptance stays."""

    def curve(model: Backbone) -> CostCurve:
        return CURVE if model.passes.label else replace(CURVE, seconds=(10.0, 20.0))

    monkeypatch.setattr(records, "known_curve", curve)
    target, draft = backbone(), backbone()
    record = record_of(target, draft, (), "video")
    answer(record, (0,))
    rate = first_rate(record)
    of_target, of_draft = record.costs.target, record.costs.draft
    assert of_target.cost(1) == 10.0
    target.passes = SimpleNamespace(label="another")  # type: ignore[assignment]
    again = record_of(target, draft, (), "video")
    assert again.costs.target.cost(1) == 1.0
    assert again.costs.draft is of_draft
    assert first_rate(again) == rate != UNKNOWN


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
    TreeController(record)
    del target, draft
    gc.collect()
    assert [model() for model in alive] == [None, None]
    answer(record, (0,))  # an answer that ends later is no error


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for models with names: a record ends with the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    record = record_of(backbone("big"), backbone("small"), (), "video")
    answer(record, *[()] * 20)
    assert first_rate(record) < 0.2
    assert not list(tmp_path.rglob("*"))


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
