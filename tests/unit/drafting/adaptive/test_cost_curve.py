"""A cost curve is a staircase over the width of forwards, which the context lifts."""

from __future__ import annotations

import json
import random
from math import inf, nan
from typing import Any

import pytest

from draftlens.drafting.adaptive.costs import CostCurve

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
