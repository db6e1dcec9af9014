"""Cost curves are measured once for each machine and kind of model."""

from __future__ import annotations

import gc
import json
import platform
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import FAMILIES

from draftlens.drafting.adaptive import history as known_costs
from draftlens.drafting.adaptive.calibration import CONTEXT
from draftlens.drafting.adaptive.costs import CostCurve
from draftlens.drafting.adaptive.history import (
    STALE,
    calibrate,
    calibrate_models,
    cost_file,
    known_curve,
)
from draftlens.models import facts
from draftlens.models.adapter import Backbone
from draftlens.models.facts import facts_of
from draftlens.models.model_state import Slot

FAMILY = next(family for family in FAMILIES if family.name == "llava_onevision")
OTHER_FAMILY = next(family for family in FAMILIES if family.name == "qwen2_5_vl")


class Measurements:
    """Takes the place of all measurements; they are scripted.

    Attributes:
        seconds: what a forward over one token takes now.
        calls: (model, seconds allowed) of each curve that was measured.
        checks: widths of the single forwards that were measured.
    """

    def __init__(self) -> None:
        self.seconds = 0.01
        self.calls: list[tuple[Any, float]] = []
        self.checks: list[int] = []

    def measure_curve(self, backbone: Backbone, seconds: float) -> CostCurve:
        self.calls.append((backbone, seconds))
        return CostCurve((1, 4), (self.seconds, 2 * self.seconds), CONTEXT, 1e-6, 1e-7)

    def forward_seconds(self, backbone: Backbone, width: int) -> float:
        self.checks.append(width)
        return self.seconds


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(known_costs, "cache_folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def measured(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Measurements:
    measurements = Measurements()
    monkeypatch.setattr(known_costs, "measure_curve", measurements.measure_curve)
    monkeypatch.setattr(known_costs, "forward_seconds", measurements.forward_seconds)
    return measurements


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forgets what is in memory, as the end of a process does."""

    def forget_memory() -> None:
        monkeypatch.setattr(known_costs, "_CURVES", Slot("curves"))

    return forget_memory


@pytest.fixture
def backbone() -> Backbone:
    return Backbone.of(FAMILY.build())


@pytest.mark.usefixtures("cache")
def test_the_second_calibration_of_a_real_model_measures_nothing(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only here the forwards are real: the first ones with hardly any time for them."""
    forwards = []
    backbone.decoder.register_forward_hook(lambda *_: forwards.append(1))
    curve = calibrate(backbone, 0.0)
    assert forwards
    assert curve.widths[0] == 1
    forwards.clear()
    assert calibrate(backbone, 100.0) is curve
    assert not forwards
    monkeypatch.setattr(known_costs, "_CURVES", Slot("curves"))
    monkeypatch.setattr(known_costs, "STALE", float("inf"))
    assert calibrate(backbone, 100.0) == curve
    assert 1 <= len(forwards) <= 2  # the comparison with now


def test_a_curve_is_kept_in_memory_and_on_disk(
    backbone: Backbone, measured: Measurements, new_process: Callable[[], None]
) -> None:
    assert known_curve(backbone) is None
    curve = calibrate(backbone, 2.0)
    assert measured.calls == [(backbone, 2.0)]
    assert calibrate(backbone, 2.0) is known_curve(backbone) is curve
    new_process()
    assert known_curve(backbone) == curve
    new_process()
    assert calibrate(backbone, 2.0) == curve
    assert len(measured.calls) == 1
    assert measured.checks == [1]  # in the new process only


def test_a_model_of_the_same_structure_has_the_same_curve(
    backbone: Backbone, measured: Measurements
) -> None:
    """Weights and the folder they come from do not matter, so the sibling is not measured."""
    sibling = Backbone.of(FAMILY.build(seed=3))
    sibling.model.name_or_path = sibling.model.config._name_or_path = "/somewhere/else"
    sibling.text_config._name_or_path = "/somewhere/else"
    assert facts_of(sibling) == facts_of(backbone)
    curve = calibrate(backbone, 1.0)
    assert calibrate(sibling, 1.0) == curve
    assert len(measured.calls) == 1


@pytest.mark.usefixtures("cache")
def test_what_changes_the_cost_changes_the_file(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [cost_file(backbone)]
    for other in (
        Backbone.of(FAMILY.build(num_hidden_layers=3)),
        Backbone.of(FAMILY.build(intermediate_size=128)),
        Backbone.of(FAMILY.build().to(torch.bfloat16)),
        Backbone.of(OTHER_FAMILY.build()),
    ):
        paths.append(cost_file(other))
    eager = FAMILY.build()
    eager.set_attn_implementation("eager")
    paths.append(cost_file(Backbone.of(eager)))
    threads = torch.get_num_threads()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads + 1)
        paths.append(cost_file(backbone))
    for module in (facts.torch, facts.transformers):
        with monkeypatch.context() as patch:
            patch.setattr(module, "__version__", "99")
            paths.append(cost_file(backbone))
    with monkeypatch.context() as patch:
        patch.setattr(platform, "processor", lambda: "a faster one")
        paths.append(cost_file(backbone))
    with monkeypatch.context() as patch:
        quantized = SimpleNamespace(load_in_4bit=True)
        patch.setattr(backbone.model.config, "quantization_config", quantized, raising=False)
        paths.append(cost_file(backbone))
    with monkeypatch.context() as patch:
        patch.setattr("draftlens.models.facts.FORMAT", 99)
        paths.append(cost_file(backbone))
    assert len(set(paths)) == len(paths) == 12
    assert cost_file(backbone) == paths[0]


def test_a_file_names_the_facts_that_its_curve_depends_on(
    backbone: Backbone, measured: Measurements
) -> None:
    curve = calibrate(backbone, 1.0)
    values = json.loads(cost_file(backbone).read_text())
    assert CostCurve.from_dict(values["curve"]) == curve
    assert values["facts"]["threads"] == torch.get_num_threads()
    assert values["facts"]["dtype"] == "torch.float32"
    assert values["facts"]["attention"] == backbone.attention


@pytest.mark.parametrize("factor", [STALE * 1.01, 1 / STALE / 1.01, 100.0])
def test_a_curve_that_is_no_longer_right_is_measured_anew(
    factor: float,
    backbone: Backbone,
    measured: Measurements,
    new_process: Callable[[], None],
) -> None:
    calibrate(backbone, 1.0)
    new_process()
    measured.seconds *= factor
    curve = calibrate(backbone, 1.0)
    assert curve.cost(1) == pytest.approx(measured.seconds)
    assert len(measured.calls) == 2
    new_process()
    assert calibrate(backbone, 1.0) == curve  # it was kept
    assert len(measured.calls) == 2


@pytest.mark.parametrize("factor", [STALE / 1.01, 1.01 / STALE])
def test_a_curve_that_is_nearly_right_is_kept(
    factor: float,
    backbone: Backbone,
    measured: Measurements,
    new_process: Callable[[], None],
) -> None:
    curve = calibrate(backbone, 1.0)
    new_process()
    measured.seconds *= factor
    assert calibrate(backbone, 1.0) == curve
    assert len(measured.calls) == 1


def test_a_curve_that_was_only_read_so_far_is_compared_by_a_calibration(
    backbone: Backbone, measured: Measurements, new_process: Callable[[], None]
) -> None:
    """An answer before the calibration reads the file and compares nothing."""
    calibrate(backbone, 1.0)
    new_process()
    measured.seconds *= 10
    assert known_curve(backbone) is not None
    assert calibrate(backbone, 1.0).cost(1) == pytest.approx(measured.seconds)


CORRUPT = {
    "empty": b"",
    "nested": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "half": b'{"curve": {"widths": [1, 3], "sec',
    "no text": b"\xff\xfe\x00\x80",
    "a list": b"[]",
    "a number": b"3",
    "no curve": b"{}",
    "null": b'{"curve": null}',
    "no times": b'{"curve": {"widths": [1, 3]}}',
    "falling": b'{"curve": {"widths": [3, 1], "seconds": [1, 1], "context": 0, '
    b'"seconds_per_cached": 0, "seconds_per_pair": 0}}',
    "not a number": b'{"curve": {"widths": [1], "seconds": [NaN], "context": 0, '
    b'"seconds_per_cached": 0, "seconds_per_pair": 0}}',
    "endless": b'{"curve": {"widths": [1, Infinity], "seconds": [1, 1], "context": 0, '
    b'"seconds_per_cached": 0, "seconds_per_pair": 0}}',
}


@pytest.mark.parametrize("content", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_file_is_replaced(
    content: bytes, backbone: Backbone, measured: Measurements, new_process: Callable[[], None]
) -> None:
    cost_file(backbone).parent.mkdir(parents=True)
    cost_file(backbone).write_bytes(content)
    assert known_curve(backbone) is None
    curve = calibrate(backbone, 1.0)
    assert len(measured.calls) == 1
    new_process()
    assert known_curve(backbone) == curve


def test_a_folder_that_cannot_be_written_is_no_error(
    backbone: Backbone, measured: Measurements, cache: Path, new_process: Callable[[], None]
) -> None:
    """A file lies where the folder should be, which stops root, too."""
    (cache / "costs").write_text("in the way")
    curve = calibrate(backbone, 1.0)
    assert known_curve(backbone) is calibrate(backbone, 1.0) is curve
    new_process()
    assert known_curve(backbone) is None
    assert len(measured.calls) == 1


def test_a_file_that_cannot_be_read_is_no_error(backbone: Backbone, measured: Measurements) -> None:
    cost_file(backbone).mkdir(parents=True)
    assert known_curve(backbone) is None
    calibrate(backbone, 1.0)
    assert len(measured.calls) == 1


def test_the_first_model_has_the_largest_share_of_the_time(
    backbone: Backbone, measured: Measurements, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the last one all that is left, which is more if those before it did not use theirs."""
    now = [0.0]
    monkeypatch.setattr(known_costs.time, "perf_counter", lambda: now[0])
    second = Backbone.of(OTHER_FAMILY.build())
    used = {id(backbone): 3.0, id(second): 1.0}
    script = measured.measure_curve

    def measure_curve(model: Backbone, seconds: float) -> CostCurve:
        now[0] += used[id(model)]
        return script(model, seconds)

    monkeypatch.setattr(known_costs, "measure_curve", measure_curve)
    curves = calibrate_models([backbone, second], 10.0)
    assert [model for model, _ in measured.calls] == [backbone, second]
    first_share, second_share = (seconds for _, seconds in measured.calls)
    assert 5.0 < first_share < 10.0
    assert second_share == pytest.approx(7.0)
    assert curves == [known_curve(backbone), known_curve(second)]


def test_a_model_that_drafts_for_itself_is_measured_once(
    backbone: Backbone, measured: Measurements
) -> None:
    first, second = calibrate_models([backbone, Backbone.of(backbone.model)], 10.0)
    assert first is second
    assert len(measured.calls) == 1


def test_a_curve_in_memory_ends_with_its_model(
    measured: Measurements, new_process: Callable[[], None]
) -> None:
    new_process()
    backbone = Backbone.of(FAMILY.build())
    calibrate(backbone, 1.0)
    assert len(known_costs._CURVES.values()) == 1
    measured.calls.clear()
    del backbone
    gc.collect()
    assert len(known_costs._CURVES.values()) == 0


def test_the_folder_is_in_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.system() != "Linux":
        pytest.skip("the variable is one of Linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert known_costs.cache_folder() == Path("/somewhere/draftlens")


def test_compiled_passes_have_a_curve_of_their_own(measured: Measurements) -> None:
    """Until it is measured, that of the modules stands in."""
    backbone = Backbone(FAMILY.build())
    by_modules = calibrate(backbone, 1.0)
    backbone.passes = SimpleNamespace(label="1x1", begin=lambda: None)  # type: ignore[assignment]
    assert known_curve(backbone) == by_modules
    measured.seconds = 0.002
    compiled = calibrate(backbone, 1.0)
    assert known_curve(backbone) == compiled != by_modules
    assert len(measured.calls) == 2
