"""A cost curve is a staircase over the width of forwards, which the context lifts. Timings of
answers correct a measured curve, or take its place."""

from __future__ import annotations

import json
import random
from math import inf, nan
from typing import Any

import pytest

from draftlens.drafting.adaptive.costs import (
    FIRST_LIMIT,
    RECENT,
    WINDOW,
    CostCurve,
    ForwardCosts,
)

CURVE = CostCurve((1, 3, 6, 9), (1.0, 1.05, 2.0, 2.1), 100, 0.001, 0.0001)


def slow_cost(curve: CostCurve, width: int) -> float:
    """The cost after the context of the measurement, by looking at every measured width."""
    for measured, seconds in zip(curve.widths, curve.seconds, strict=True):
        if measured >= width:
            return seconds
    return curve.seconds[-1] / curve.widths[-1] * width


def random_curve(seed: int) -> CostCurve:
    rng = random.Random(seed)
    widths = (1, *sorted(rng.sample(range(2, 60), rng.randrange(6))))
    seconds = tuple(sorted(rng.uniform(0.1, 3) for _ in widths))
    return CostCurve(widths, seconds, rng.randrange(500), rng.random() / 1e4, rng.random() / 1e5)


@pytest.mark.parametrize("seed", range(8))
def test_a_width_costs_what_the_next_measured_one_costs(seed: int) -> None:
    curve = random_curve(seed)
    for width in range(1, 200):
        expected = slow_cost(curve, width)
        assert curve.cost(width) == pytest.approx(expected)
        # After the context of the measurement, rows make no difference.
        assert curve.cost(width, 3, curve.context) == pytest.approx(expected)
    for width, seconds in zip(curve.widths, curve.seconds, strict=True):
        assert curve.cost(width) == seconds
    costs = [curve.cost(width) for width in range(1, 200)]
    assert costs == sorted(costs)


def test_beyond_the_largest_width_the_cost_grows_in_proportion() -> None:
    assert CURVE.largest == 9
    assert CURVE.cost(10) == pytest.approx(2.1 * 10 / 9)
    assert CURVE.cost(900) == pytest.approx(210)
    assert CostCurve((1,), (0.5,)).cost(4) == pytest.approx(2.0)


def test_each_cached_token_of_each_row_costs_and_each_pair_with_a_new_token() -> None:
    """Four rows with two new tokens each are as wide as one row with eight, but read more keys."""
    for rows, width in ((1, 8), (4, 8), (2, 2), (1, 1), (3, 90)):
        base = CURVE.cost(width)
        new_tokens_of_a_row = width / rows
        keys = 0.001 * rows * 50
        pairs = 0.0001 * rows * new_tokens_of_a_row * 50
        assert CURVE.cost(width, rows, 150) == pytest.approx(base + keys + pairs)
        assert CURVE.cost(width, rows, 50) == pytest.approx(base - keys - pairs)


def test_a_curve_without_slopes_is_the_same_in_every_context() -> None:
    curve = CostCurve((1, 4), (1.0, 2.0), 256)
    assert {curve.cost(2, rows, context) for rows in (1, 8) for context in (0, 9000)} == {2.0}


def test_a_short_context_never_makes_a_forward_free() -> None:
    steep = CostCurve((1, 4), (1.0, 2.0), 1000, 0.01, 0.01)
    for width in (1, 2, 4, 40):
        assert 0 < steep.cost(width, 1, 0) < steep.cost(width)


def test_steps_are_the_widths_behind_which_the_next_one_costs_much_more() -> None:
    assert CURVE.steps() == [3]
    assert CURVE.steps(1.04) == [1, 3, 6]
    assert CURVE.steps(2.0) == []
    assert CostCurve((1, 2, 3), (1.0, 2.0, 4.0)).steps(2.0) == [1, 2]  # exactly the factor
    assert CostCurve((1,), (1.0,)).steps() == []


@pytest.mark.parametrize("seed", range(8))
def test_a_curve_survives_a_file(seed: int) -> None:
    curve = random_curve(seed)
    text = json.dumps(curve.to_dict())
    assert CostCurve.from_dict(json.loads(text)) == curve


@pytest.mark.parametrize(
    ("widths", "seconds"),
    [
        ((), ()),
        ((2, 3), (1.0, 1.0)),
        ((0, 1), (1.0, 1.0)),
        ((1, 3, 3), (1.0, 1.0, 1.0)),
        ((1, 4, 3), (1.0, 1.0, 1.0)),
        ((1, 3), (1.0,)),
        ((1,), (1.0, 2.0)),
        ((1, 3), (1.0, 0.0)),
        ((1, 3), (-1.0, 2.0)),
    ],
)
def test_widths_that_do_not_rise_from_1_and_times_that_are_not_positive_are_refused(
    widths: tuple[int, ...], seconds: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError, match="must"):
        CostCurve(widths, seconds)


@pytest.mark.parametrize("slopes", [(-1e-9, 0.0), (0.0, -1e-9)])
def test_a_context_that_makes_forwards_faster_is_refused(slopes: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        CostCurve((1,), (1.0,), 0, *slopes)


@pytest.mark.parametrize("value", [nan, inf])
@pytest.mark.parametrize("place", ["first", "last", "slope"])
def test_times_that_are_no_numbers_are_refused(value: float, place: str) -> None:
    """Python's JSON reads NaN and Infinity; no tree compares well with them."""
    seconds = {"first": (value, 1.0), "last": (1.0, value), "slope": (1.0, 1.0)}[place]
    slope = value if place == "slope" else 0.0
    with pytest.raises(ValueError, match="must"):
        CostCurve((1, 2), seconds, 0, slope)


@pytest.mark.parametrize(
    "change",
    [
        {"widths": [3, 1]},
        {"widths": None},
        {"widths": ["a", "b", "c", "d"]},
        {"widths": [1, 3]},
        {"seconds": "fast"},
        {"seconds": [1, 2, 3, None]},
        {"context": None},
        {"seconds_per_cached": []},
        {"seconds_per_pair": -1},
    ],
    ids=str,
)
def test_values_that_are_no_curve_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        CostCurve.from_dict({**CURVE.to_dict(), **change})


@pytest.mark.parametrize("key", CURVE.to_dict())
def test_a_missing_value_is_refused(key: str) -> None:
    values = CURVE.to_dict()
    del values[key]
    with pytest.raises(KeyError):
        CostCurve.from_dict(values)


@pytest.mark.parametrize("values", [[], 3, None, "curve"])
def test_what_is_no_mapping_is_refused(values: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        CostCurve.from_dict(values)


MEASURED = CostCurve((1, 4, 9, 17), (1.0, 1.5, 2.0, 3.0), 256, 0.001, 0.0001)
WIDTHS = range(1, 30)


def timed(costs: ForwardCosts, width: int, *ratios: float) -> ForwardCosts:
    """Record forwards that took so many times as long as the curve says."""
    for ratio in ratios:
        predicted = costs.curve.cost(width)
        costs.record(width, predicted, ratio * predicted)
    return costs


def ratios(costs: ForwardCosts) -> list[float]:
    return [costs.ratio(width) for width in WIDTHS]


def test_before_any_timing_the_curve_holds() -> None:
    costs = ForwardCosts(MEASURED)
    assert costs.trusted
    for width in WIDTHS:
        assert not costs.has_timing(width)
        assert costs.cost(width) == MEASURED.cost(width)
        assert costs.cost(width, 4, 1000) == MEASURED.cost(width, 4, 1000)


@pytest.mark.parametrize("width", [1, 4, 6, 17, 25])
def test_one_slow_timing_changes_nothing_and_a_second_does(width: int) -> None:
    """No width: neither its own cost nor that of its neighbours."""
    costs = timed(ForwardCosts(MEASURED), width, 5.0)
    assert costs.has_timing(width)
    assert ratios(costs) == [1.0] * len(WIDTHS)
    timed(costs, width, 5.0)
    assert costs.ratio(width) == pytest.approx(5.0)
    assert costs.cost(width) == pytest.approx(5 * MEASURED.cost(width))


@pytest.mark.parametrize("width", [1, 6, 25])
@pytest.mark.parametrize("before", [2, 5, WINDOW, 3 * WINDOW])
def test_one_slow_timing_among_usual_ones_changes_nothing(width: int, before: int) -> None:
    costs = timed(ForwardCosts(MEASURED), width, *[1.2] * before)
    expected = ratios(costs)
    timed(costs, width, 9.0)
    assert ratios(costs) == expected
    timed(costs, width, *[1.2] * 3)
    assert costs.ratio(width) == pytest.approx(1.2)
    assert costs.trusted


def test_rare_slow_timings_never_change_anything() -> None:
    """Each has enough usual ones around it, of whatever widths."""
    costs = ForwardCosts(MEASURED)
    for number in range(200):
        timed(costs, (1, 4, 9)[number % 3], 7.0 if number % (RECENT + 1) == 0 else 1.0)
        assert costs.trusted
        assert ratios(costs) == [1.0] * len(WIDTHS)


@pytest.mark.parametrize("usual", range(RECENT + 2))
def test_two_surprises_close_together_contradict_the_curve(usual: int) -> None:
    """Of different widths, with some usual timings between them."""
    costs = timed(ForwardCosts(MEASURED), 4, 1.0)
    timed(costs, 1, 3.0)
    timed(costs, 9, *[1.0] * usual)
    assert costs.trusted
    timed(costs, 17, 3.0)
    assert costs.trusted is (usual > RECENT - 2)
    expected = 1.0 if costs.trusted else 3.0
    assert costs.ratio(1) == costs.ratio(17) == pytest.approx(expected)
    assert costs.ratio(4) == pytest.approx(1.0)  # its own timing


def test_a_slower_machine_is_noticed_after_two_timings() -> None:
    """They correct all widths, those of no timing as well."""
    costs = timed(timed(ForwardCosts(MEASURED), 1, 3.0), 9, 3.0)
    assert ratios(costs) == pytest.approx([3.0] * len(WIDTHS))
    assert not costs.trusted


def test_one_fast_timing_is_no_accident() -> None:
    costs = timed(ForwardCosts(MEASURED), 4, 0.3)
    assert ratios(costs) == pytest.approx([0.3] * len(WIDTHS))


def test_without_trust_a_single_timing_suffices() -> None:
    costs = timed(timed(ForwardCosts(MEASURED), 1, 3.0, 3.0), 9, 5.0)
    assert costs.ratio(9) == pytest.approx(5.0)
    timed(costs, 9, 3.0)
    assert costs.ratio(9) == pytest.approx(3.0)  # the slow one was an accident


def test_a_change_of_the_machine_is_believed_after_half_a_window() -> None:
    costs = timed(ForwardCosts(MEASURED), 4, *[1.0] * 50)
    timed(costs, 4, *[2.0] * (WINDOW // 2))
    assert costs.ratio(4) == 1.0
    timed(costs, 4, 2.0)
    assert costs.ratio(4) == pytest.approx(2.0)
    timed(costs, 4, *[0.5] * (WINDOW // 2 + 1))
    assert costs.ratio(4) == pytest.approx(0.5)


def test_widths_without_timings_follow_the_closest_one() -> None:
    """By the logarithm of the width: 4 is in the middle between 2 and 8."""
    costs = timed(timed(ForwardCosts(MEASURED), 2, *[1.0] * WINDOW), 8, *[3.0] * WINDOW)
    assert [costs.ratio(width) for width in (1, 2, 3)] == pytest.approx([1.0] * 3)
    assert [costs.ratio(width) for width in (5, 8, 20, 1000)] == pytest.approx([3.0] * 4)
    timed(costs, 4, *[7.0] * WINDOW)
    assert [costs.ratio(w) for w in (2, 3, 4, 5, 6, 8)] == pytest.approx([1, 7, 7, 7, 3, 3])


def test_what_neighbours_say_is_one_voice_among_the_timings() -> None:
    """They say 1.2: one timing of 1.4 is an accident, the second is believed."""
    costs = timed(ForwardCosts(MEASURED), 4, *[1.2] * WINDOW)
    assert costs.ratio(5) == pytest.approx(1.2)
    timed(costs, 5, 1.4)
    assert costs.ratio(5) == pytest.approx(1.2)
    timed(costs, 5, 1.4)
    assert costs.ratio(5) == pytest.approx(1.4)
    assert costs.trusted
    assert costs.ratio(4) == pytest.approx(1.2)


@pytest.mark.parametrize("seed", range(5))
def test_noisy_timings_come_near_the_truth(seed: int) -> None:
    """The machine is 1.4 times as slow as the curve; one forward in ten takes much longer."""
    rng = random.Random(seed)
    costs = ForwardCosts(MEASURED)
    for _ in range(400):
        accident = 6.0 if rng.random() < 0.1 else 1.0
        timed(costs, rng.choice([1, 4, 9]), 1.4 * rng.uniform(0.95, 1.05) * accident)
    for width in WIDTHS:
        assert costs.ratio(width) == pytest.approx(1.4, rel=0.06)


def test_a_timing_of_several_forwards_counts_for_the_widest() -> None:
    costs = ForwardCosts(MEASURED)
    predicted = MEASURED.cost(1) + MEASURED.cost(4)
    for _ in range(2):
        costs.record(4, predicted, 2 * predicted)
    assert costs.cost(4) == pytest.approx(2 * MEASURED.cost(4))
    assert not costs.has_timing(1)


def test_with_a_curve_all_measured_and_all_timed_widths_may_be_tried() -> None:
    costs = ForwardCosts(MEASURED)
    assert costs.largest == 17
    timed(costs, 4, 1.0)
    assert costs.largest == 17
    timed(costs, 40, 1.0)
    assert costs.largest == 40


def test_without_a_curve_the_largest_width_to_try_doubles() -> None:
    costs = ForwardCosts(None)
    assert costs.largest == FIRST_LIMIT
    timed(costs, 1, 1.0)
    assert costs.largest == FIRST_LIMIT
    for width in (3, 6, 12):
        timed(costs, width, 1.0)
        assert costs.largest == 2 * width
    timed(costs, 2, 1.0)
    assert costs.largest == 24


def test_without_a_curve_timings_are_the_curve() -> None:
    """A forward of up to twice the width is taken to cost as much."""
    costs = ForwardCosts(None, scale=0.25)
    assert costs.cost(1) == costs.cost(3, 2, 5000) == 0.25
    costs.record(1, costs.curve.cost(1), 0.02)
    assert costs.cost(1) == costs.cost(3) == pytest.approx(0.02)
    for _ in range(2):
        costs.record(3, costs.curve.cost(3), 0.06)
    assert costs.cost(1) == pytest.approx(0.02)
    assert costs.cost(3) == costs.cost(6) == pytest.approx(0.06)
    assert not costs.trusted


def test_without_a_curve_one_slow_timing_is_forgotten_with_the_next() -> None:
    costs = timed(ForwardCosts(None), 3, 9.0, 1.0)
    assert costs.ratio(3) == pytest.approx(1.0)
    timed(costs, 3, 1.0, 9.0, 1.0)
    assert costs.ratio(3) == pytest.approx(1.0)


def test_a_draft_without_a_curve_takes_the_ratio_of_the_other_model() -> None:
    """Until it has timings of its own."""
    target = ForwardCosts(None, scale=1.0)
    draft = ForwardCosts(None, scale=0.1, other=target)
    assert draft.cost(1) == pytest.approx(0.1)
    timed(target, 1, 0.05)
    assert draft.cost(1) == draft.cost(3) == pytest.approx(0.005)
    draft.record(1, draft.curve.cost(1), 0.02)
    assert draft.cost(1) == draft.cost(3) == pytest.approx(0.02)
    timed(target, 1, *[9.0] * WINDOW)
    assert draft.cost(1) == pytest.approx(0.02)


def test_a_measured_draft_takes_nothing_from_the_other_model() -> None:
    target = timed(ForwardCosts(MEASURED), 1, *[4.0] * WINDOW)
    assert ForwardCosts(MEASURED, other=target).ratio(1) == 1.0


def test_a_width_with_few_timings_costs_no_more_than_a_wider_one() -> None:
    """An accident may be its only timing."""
    costs = ForwardCosts(CostCurve((1, 64), (1.0, 1.0)))
    for width in (5, 9, 5, 9):
        costs.record(width, 1.0, 2.0)
    assert not costs.trusted
    costs.record(1, 1.0, 6.0)
    assert costs.cost(1) == 2.0
