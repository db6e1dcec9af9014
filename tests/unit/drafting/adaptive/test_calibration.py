"""Forwards are measured where their cost changes, within a time, and the model stays as it was.

Times are scripted: no test looks at a clock.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import count, pairwise
from math import inf
from threading import Thread
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from torch import Tensor

from draftlens.drafting.adaptive import calibration
from draftlens.drafting.adaptive.calibration import (
    CONTEXT,
    LONG_CONTEXT,
    SAMPLED_LAYERS,
    SLOW_SECONDS,
    STEP,
    WIDEST_TREE,
    WIDTHS,
    measure_curve,
)
from draftlens.drafting.adaptive.costs import CostCurve
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import Passes
from draftlens.models.support import cache_in

FULL = range(1, WIDEST_TREE + 1)
BY_NAME = {family.name: family for family in FAMILIES}
SEVERAL = [BY_NAME[name] for name in ("llava_onevision", "qwen2_5_vl", "qwen3_vl", "smolvlm")]
SHORT = 0.3
"""Seconds in which a thread would run one forward of a tiny model if nothing held it up."""

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
    layers: Callable[[float], Machine] | None = None,
) -> CostCurve:
    """`measure_curve` on a machine.

    Args:
        machine: takes the place of whole forwards.
        patch: puts it there.
        seconds: time for the measurement.
        layers: makes what takes the place of forwards by some layers from the time of a whole
            forward; None for a model that does not list its layers.
    """

    class Scratch:
        def __init__(self, backbone: Any) -> None:
            self.has_layers = layers is not None

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
    if layers is not None:
        patch.setattr(calibration, "_LayerTimes", lambda scratch, whole: layers(whole))
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


def test_a_staircase_is_found_by_bisection(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(staircase(4, 9, 17))
    curve = measure(machine, monkeypatch)
    assert curve.steps(STEP) == [3, 8, 16]
    assert_same_cost(curve, machine.cost)
    assert len(curve.widths) < 20  # not all of the 49 widths
    assert curve.context == CONTEXT


@pytest.mark.parametrize("seed", range(20))
def test_no_staircase_hides_a_step(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    steps = rng.sample(FULL[1:], rng.randrange(1, 6))
    machine = Machine(staircase(*steps, factor=rng.uniform(STEP + 0.05, 3)))
    assert_same_cost(measure(machine, monkeypatch), machine.cost)


def test_a_cost_that_grows_evenly_is_known_to_the_size_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(lambda width: 1.0 + 0.2 * width)
    curve = measure(machine, monkeypatch)
    for width in FULL:
        assert machine.cost(width) <= curve.cost(width) <= STEP * machine.cost(width)


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


@pytest.mark.parametrize("cost", [flat, staircase(4, 9, 17)], ids=["flat", "staircase"])
def test_one_slow_forward_makes_no_step(cost: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is."""
    quiet = Machine(cost)
    expected = measure(quiet, monkeypatch)
    for slow in range(len(quiet.forwards)):
        curve = measure(Machine(cost, slow=slow), monkeypatch)
        assert curve.steps(STEP) == expected.steps(STEP), slow
        assert_same_cost(curve, cost)
        assert curve.seconds_per_cached == pytest.approx(0, abs=1e-9)
        assert curve.seconds_per_pair == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("first", [0.01, 20.0])
def test_the_first_forward_of_each_width_does_not_count(
    first: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where it is slow nor, which never happens, where it is fast."""
    machine = Machine(staircase(4, 9, 17), slopes=(1e-6, 1e-7), first=first)
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
    machine = Machine(staircase(4, 9, 17))
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


def test_a_slow_model_is_measured_by_some_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Machine(lambda width: 2 * SLOW_SECONDS)
    layers = Machine(staircase(4, 9, 17))
    curve = measure(whole, monkeypatch, layers=lambda seconds: layers)
    assert_same_cost(curve, layers.cost)
    assert len(whole.forwards) <= 2
    assert set(Counter(layers.forwards).values()) <= {2, 3, 4, 5}  # fewer forwards of each width


def test_one_slow_forward_makes_no_step_in_a_slow_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each width is counted only once at first."""
    quiet = Machine(flat)
    measure(Machine(flat), monkeypatch, layers=lambda seconds: quiet)
    for slow in range(len(quiet.forwards)):
        noisy = Machine(flat, slow=slow)
        curve = measure(Machine(flat), monkeypatch, layers=lambda seconds, noisy=noisy: noisy)  # type: ignore[misc]
        assert curve.steps(STEP) == [], slow


def test_a_slow_model_that_does_not_list_its_layers_is_measured_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(staircase(4, 9, base=2 * SLOW_SECONDS))
    assert_same_cost(measure(machine, monkeypatch), machine.cost)


def test_a_first_forward_that_chooses_kernels_makes_no_model_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first forward on a GPU takes long, whatever the model."""
    machine = Machine(staircase(4, 9, 17), first=1000.0)
    layers = Machine(flat)
    assert machine.first * machine.cost(1) > SLOW_SECONDS > 10 * machine.cost(1)
    curve = measure(machine, monkeypatch, layers=lambda seconds: layers)
    assert not layers.forwards
    assert_same_cost(curve, machine.cost)


def test_the_rest_of_a_slow_model_is_not_that_of_its_first_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a forward takes beyond the layers is added to every width: if it included the choice of
    kernels, all widths would seem to cost the same."""
    wholes = []

    def layers(whole: float) -> Machine:
        wholes.append(whole)
        return Machine(flat)

    measure(Machine(lambda width: 2 * SLOW_SECONDS, first=50.0), monkeypatch, layers=layers)
    assert wholes == [2 * SLOW_SECONDS]


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


def without_bisection(patch: pytest.MonkeyPatch) -> None:
    """Noise of the machine then changes neither the widths nor how long a test takes."""
    patch.setattr(calibration, "STEP", inf)


@pytest.mark.pairwise
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("by_layers", [False, True], ids=["whole", "layers"])
@pytest.mark.parametrize("family", SEVERAL, ids=str)
def test_a_measurement_leaves_the_model_as_it_was(
    family: Family, by_layers: bool, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_bisection(monkeypatch)
    monkeypatch.setattr(calibration, "SLOW_SECONDS", 0.0 if by_layers else inf)
    model = family.build(num_hidden_layers=3)
    model.set_attn_implementation(attention)
    backbone = Backbone.of(model)
    expected = answer(model, family)
    before = state(model)
    curve = measure_curve(backbone, 1000.0)
    assert_unchanged(before, state(model))
    assert torch.equal(answer(model, family), expected)
    most = WIDEST_TREE if by_layers else max(WIDTHS)
    assert curve.widths == tuple(sorted(width for width in WIDTHS if width <= most))
    assert min(curve.seconds) > 0
    assert curve.seconds == tuple(sorted(curve.seconds))
    assert min(curve.seconds_per_cached, curve.seconds_per_pair) >= 0
    assert CostCurve.from_dict(curve.to_dict()) == curve


@pytest.mark.parametrize("by_layers", [False, True], ids=["whole", "layers"])
def test_a_measurement_runs_what_it_measures(
    by_layers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forwards of every width over that many cached tokens; of a slow model, only some layers run
    for most of them."""
    without_bisection(monkeypatch)
    monkeypatch.setattr(calibration, "SLOW_SECONDS", 0.0 if by_layers else inf)
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
    widths = [width for width in WIDTHS if not by_layers or width <= WIDEST_TREE]
    measured = {(width, CONTEXT) for width in widths}
    longer = {(1, LONG_CONTEXT), (max(widths), LONG_CONTEXT)}
    for layer in range(7):
        if not by_layers or layer < SAMPLED_LAYERS:
            assert measured | longer <= set(calls[layer])
        else:
            wholes = [call for call in calls[layer] if call == (1, CONTEXT)]
            assert wholes == [call for call in calls[layer] if call[1] >= CONTEXT]
            assert len(wholes) <= 2


@pytest.mark.parametrize("context", [CONTEXT, LONG_CONTEXT])
@pytest.mark.parametrize("width", [1, 6, 49])
@pytest.mark.parametrize("family", SEVERAL, ids=str)
def test_a_layer_alone_computes_what_it_computes_in_a_whole_forward(
    family: Family, width: int, context: int
) -> None:
    """So it gets the same mask, positions and cache."""
    backbone = Backbone.of(family.build())
    scratch = calibration._Scratch(backbone)
    with torch.inference_mode():
        layers = calibration._LayerTimes(scratch, 1.0)
        outputs: list[Tensor] = []

        def keep(module: Any, args: Any, output: Any) -> None:
            outputs.append(output[0] if isinstance(output, tuple) else output)

        handle = backbone.decoder.layers[0].register_forward_hook(keep)
        scratch.forward(width, context)
        layers(width, context)
        handle.remove()
    whole, alone = outputs
    assert whole.shape[1] == width
    assert torch.equal(whole, alone)


def test_some_layers_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted: each layer takes 1 second and the head 3, so seven layers and the head take 10; a
    whole forward over one token takes 12, so that 2 are the rest of every width."""
    backbone = Backbone.of(BY_NAME["qwen2_5_vl"].build(num_hidden_layers=7))
    calls = Counter[str]()
    for layer, module in enumerate(backbone.decoder.layers):
        module.register_forward_hook(lambda *_, layer=layer: calls.update([f"layer {layer}"]))
    backbone.head.register_forward_hook(lambda *_: calls.update(["head"]))

    def seconds(self: Any, call: Callable[[], object]) -> float:
        before = calls.copy()
        call()
        new = calls - before
        return float(sum(3 if name == "head" else 1 for name in new.elements()))

    monkeypatch.setattr(calibration._Scratch, "_seconds", seconds)
    with torch.inference_mode():
        layers = calibration._LayerTimes(calibration._Scratch(backbone), 12.0)
        calls.clear()
        assert layers(5, CONTEXT) == pytest.approx(12.0)
    sampled = {f"layer {layer}": 1 for layer in range(SAMPLED_LAYERS)}
    assert calls == {**sampled, "head": 1}


class Compiled(Passes):
    label = "compiled"


def test_a_slow_model_whose_passes_are_compiled_is_measured_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiled passes call none of its layers."""
    without_bisection(monkeypatch)
    monkeypatch.setattr(calibration, "SLOW_SECONDS", 0.0)
    backbone = Backbone(BY_NAME["llava_onevision"].build())
    logits = torch.zeros(1, 1, backbone.vocab_size)
    compiled = Compiled()
    monkeypatch.setattr(compiled, "run", lambda *_: logits)
    backbone.passes = compiled
    assert measure_curve(backbone, 0.0).widths == (1,)


def test_an_answer_of_another_thread_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """While single layers are measured there is a hook on the model, so other passes must wait."""
    without_bisection(monkeypatch)
    monkeypatch.setattr(calibration, "SLOW_SECONDS", 0.0)
    backbone = Backbone.of(BY_NAME["llava_onevision"].build())
    prompt = backbone.text_prompt(torch.tensor([[1, 2, 3]]))
    outcomes: list[Any] = []
    threads: list[Thread] = []

    def pass_of_another_thread() -> None:
        try:
            outcomes.append(backbone.prefill(prompt, backbone.new_cache(prompt, 1)))
        except Exception as error:
            outcomes.append(error)

    forward = calibration._Scratch.forward
    numbers = count()

    def hooked_forward(self: Any, width: int, context: int) -> Tensor:
        if next(numbers) == 5:
            threads.append(Thread(target=pass_of_another_thread, daemon=True))
            threads[-1].start()
            threads[-1].join(SHORT)
        return forward(self, width, context)

    monkeypatch.setattr(calibration._Scratch, "forward", hooked_forward)
    expected = backbone.prefill(prompt, backbone.new_cache(prompt, 1))
    measure_curve(backbone, 1000.0)
    (thread,) = threads
    thread.join(30)
    (outcome,) = outcomes
    assert isinstance(outcome, Tensor), type(outcome)
    assert torch.equal(outcome, expected)
