"""Forwards are measured where their cost changes, within a time, and the model stays as it was.

Times are scripted: no test looks at a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from torch import Tensor

from draftlens.drafting.adaptive import calibration
from draftlens.drafting.adaptive.calibration import (
    CONTEXT,
    LONG_CONTEXT,
    WIDTHS,
    measure_curve,
)
from draftlens.drafting.adaptive.costs import CostCurve
from draftlens.drafting.adaptive.round_plan import MAX_NODES
from draftlens.models.adapter import Backbone
from draftlens.models.support import cache_in

FULL = range(1, MAX_NODES + 2)
BY_NAME = {family.name: family for family in FAMILIES}
SEVERAL = [BY_NAME[name] for name in ("llava_onevision", "qwen2_5_vl", "qwen3_vl", "smolvlm")]
Cost = Callable[[int], float]


class Machine:
    """A model whose forwards take made-up times, and the clock that they move.

    Args:
        cost: seconds of a forward by its width, behind `CONTEXT` tokens.
        slopes: further seconds per cached token, and per pair of a new and a cached token.
        first: factor for the first forward of each kind.
        slow: number of the forward, from 0, that takes five times as long by accident.
    """

    def __init__(
        self,
        cost: Cost,
        slopes: tuple[float, float] = (0.0, 0.0),
        first: float = 1.0,
        slow: int = -1,
    ) -> None:
        self.cost = cost
        self.slopes = slopes
        self.first = first
        self.slow = slow
        self.forwards: list[tuple[int, int]] = []
        self.spent = 0.0

    def __call__(self, width: int, context: int) -> float:
        seconds = self.cost(width)
        seconds += (context - CONTEXT) * (self.slopes[0] + self.slopes[1] * width)
        if (width, context) not in self.forwards:
            seconds *= self.first
        if len(self.forwards) == self.slow:
            seconds *= 5
        self.forwards.append((width, context))
        self.spent += seconds
        return seconds


def measure(
    machine: Machine,
    patch: pytest.MonkeyPatch,
    seconds: float = inf,
) -> CostCurve:
    """`measure_curve` on a machine.

    Args:
        machine: takes the place of whole forwards.
        patch: puts it there.
        seconds: time for the measurement.
    """

    class Scratch:
        def __init__(self, backbone: Any) -> None:
            pass

        def forward_seconds(self, width: int, context: int) -> float:
            return machine(width, context)

    class Clock:
        def __init__(self, seconds: float) -> None:
            self.end = machine.spent + seconds

        @property
        def left(self) -> float:
            return self.end - machine.spent

    patch.setattr(calibration, "_Scratch", Scratch)
    patch.setattr(calibration, "Deadline", Clock)
    backbone: Any = None
    return measure_curve(backbone, seconds)


def staircase(*steps: int, factor: float = 1.5, base: float = 0.001) -> Cost:
    """The cost is multiplied by `factor` at each of these widths."""
    return lambda width: base * factor ** sum(width >= step for step in steps)


def flat(width: int) -> float:
    return 1.0


def assert_same_cost(curve: CostCurve, cost: Cost) -> None:
    for width in FULL:
        assert curve.cost(width) == pytest.approx(cost(width)), width


def test_a_staircase_is_found_to_the_next_measured_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of them the cost is taken to be that of the larger one."""
    machine = Machine(staircase(4, 9, 18))
    curve = measure(machine, monkeypatch)
    assert curve.steps() == [3, 8, 17]
    assert curve.context == CONTEXT
    for width in FULL:
        larger = min(measured for measured in WIDTHS if measured >= width)
        assert curve.cost(width) == pytest.approx(machine.cost(larger))


def test_a_flat_curve_takes_the_first_widths_only(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = measure(Machine(flat), monkeypatch)
    assert curve.widths == tuple(sorted(WIDTHS))
    assert curve.steps(1.0001) == []


def test_no_width_costs_more_than_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is slow for small widths is no reason to think them dearer: pad."""
    machine = Machine(lambda width: 3.0 if width in (4, 5) else 1.0 + (width > 20))
    curve = measure(machine, monkeypatch)
    assert curve.seconds == tuple(sorted(curve.seconds))
    assert curve.cost(4) == pytest.approx(curve.cost(6)) == 1.0


@pytest.mark.parametrize("cost", [flat, staircase(4, 9, 18)], ids=["flat", "staircase"])
def test_one_slow_forward_makes_no_step(cost: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is."""
    quiet = Machine(cost)
    expected = measure(quiet, monkeypatch)
    for slow in range(len(quiet.forwards)):
        curve = measure(Machine(cost, slow=slow), monkeypatch)
        assert curve.steps() == expected.steps(), slow
        assert_same_cost(curve, cost)
        assert curve.seconds_per_cached == pytest.approx(0, abs=1e-9)
        assert curve.seconds_per_pair == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("first", [0.01, 20.0])
def test_the_first_forward_of_each_width_does_not_count(
    first: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where it is slow nor, which never happens, where it is fast."""
    machine = Machine(staircase(4, 9, 18), slopes=(1e-6, 1e-7), first=first)
    curve = measure(machine, monkeypatch)
    assert_same_cost(curve, machine.cost)
    assert curve.seconds_per_cached == pytest.approx(1e-6)
    assert curve.seconds_per_pair == pytest.approx(1e-7)
    assert min(Counter(machine.forwards).values()) >= 2


@pytest.mark.parametrize("slopes", [(0.0, 0.0), (3e-4, 0.0), (0.0, 2e-5), (3e-4, 2e-5)])
def test_the_context_costs_by_token_and_by_pair(
    slopes: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(staircase(4, 9), slopes)
    curve = measure(machine, monkeypatch)
    assert curve.seconds_per_cached == pytest.approx(slopes[0], abs=1e-12)
    assert curve.seconds_per_pair == pytest.approx(slopes[1], abs=1e-12)
    for width in (1, 9, 30, 49):
        expected = machine(width, 1000)
        assert curve.cost(width, context=1000) == pytest.approx(expected)


def test_a_longer_context_that_seems_faster_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = measure(Machine(flat, slopes=(-1e-5, -1e-6)), monkeypatch)
    assert (curve.seconds_per_cached, curve.seconds_per_pair) == (0.0, 0.0)


def test_the_time_bounds_the_number_of_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one second each. A forward over one token is always measured, in a few of them."""
    reached: list[set[int]] = []
    for seconds in range(150):
        machine = Machine(flat)
        curve = measure(machine, monkeypatch, seconds)
        assert len(machine.forwards) <= max(4, seconds)
        reached.append(set(curve.widths))
    assert reached[0] == {1}
    assert reached[-1] == set(WIDTHS)
    in_turn = [set(WIDTHS[:number]) for number in range(1, len(WIDTHS) + 1)]
    assert all(widths in in_turn for widths in reached)
    assert all(less <= more for less, more in pairwise(reached))


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5])
def test_rising_costs_exceed_the_time_by_one_width_at_most(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not measured yet may take longer than what is."""
    machine = Machine(staircase(4, 9, 18))
    curve = measure(machine, monkeypatch, seconds)
    assert machine.spent <= seconds + 2 * machine.cost(max(curve.widths)) + machine.cost(1)
    assert curve.widths[0] == 1


def test_without_time_for_a_long_context_its_cost_is_taken_to_be_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(flat, slopes=(1e-3, 1e-4))
    curve = measure(machine, monkeypatch, 20.0)
    assert {context for _, context in machine.forwards} == {CONTEXT}
    assert (curve.seconds_per_cached, curve.seconds_per_pair) == (0.0, 0.0)


def state(model: Any) -> dict[str, Any]:
    """Everything about a model that a measurement could leave changed."""
    hooks = [
        (name, kind, value if isinstance(value, bool) else len(value))
        for name, module in model.named_modules()
        for kind, value in vars(module).items()
        if "hooks" in kind and "state_dict" not in kind
    ]
    tensors = {
        f"{name}.{key}": value
        for name, module in model.named_modules()
        for key, value in {**vars(module), **module._buffers, **module._parameters}.items()
        if isinstance(value, Tensor)
    }
    return {
        "hooks": hooks,
        "weights": {name: value.clone() for name, value in tensors.items()},
        "inference": [name for name, value in tensors.items() if value.is_inference()],
        "training": [module.training for module in model.modules()],
        "attention": model.get_decoder().config._attn_implementation,
        "config": model.config.to_dict(),
        "generation": model.generation_config.to_dict(),
    }


def answer(model: Any, family: Family) -> Tensor:
    given = inputs(family, family.richest)
    ids: Tensor = model.generate(**given, do_sample=False, max_new_tokens=8)
    return ids


def assert_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    for part in before.keys() - {"weights"}:
        assert before[part] == after[part], part
    assert before["weights"].keys() == after["weights"].keys()
    for name, value in before["weights"].items():
        assert torch.equal(value, after["weights"][name]), name


@pytest.mark.pairwise
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", SEVERAL, ids=str)
def test_a_measurement_leaves_the_model_as_it_was(family: Family, attention: str) -> None:
    model = family.build(num_hidden_layers=3)
    model.set_attn_implementation(attention)
    backbone = Backbone.of(model)
    expected = answer(model, family)
    before = state(model)
    curve = measure_curve(backbone, 1000.0)
    assert_unchanged(before, state(model))
    assert torch.equal(answer(model, family), expected)
    assert curve.widths == tuple(sorted(WIDTHS))
    assert min(curve.seconds) > 0
    assert curve.seconds == tuple(sorted(curve.seconds))
    assert min(curve.seconds_per_cached, curve.seconds_per_pair) >= 0
    assert CostCurve.from_dict(curve.to_dict()) == curve


def test_a_measurement_runs_what_it_measures() -> None:
    """Forwards of every width over that many cached tokens."""
    backbone = Backbone.of(BY_NAME["llava_onevision"].build(num_hidden_layers=7))
    calls: dict[int, list[tuple[int, int]]] = {layer: [] for layer in range(7)}

    def hook(layer: int) -> Any:
        def seen(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            calls[layer].append((hidden.shape[1], max(cache_in(kwargs).lengths)))

        return seen

    for layer, module in enumerate(backbone.decoder.layers):
        module.register_forward_hook(hook(layer), with_kwargs=True)
    measure_curve(backbone, 1000.0)
    measured = {(width, CONTEXT) for width in WIDTHS}
    longer = {(1, LONG_CONTEXT), (max(WIDTHS), LONG_CONTEXT)}
    for layer in range(7):
        assert measured | longer <= set(calls[layer])
