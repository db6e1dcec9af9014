"""Shares, quartiles and the bootstrap, against figures from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from draftlens_lab.measure.statistics import (
    Share,
    central_interval,
    format_quartiles,
    quartiles,
    resampled_ratios,
    resamples,
)


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 1, 0.2065, 1.0),
        (95, 100, 0.8882, 0.9785),
    ],
)
def test_wilsons_interval(right: int, total: int, low: float, high: float) -> None:
    """Figures of Newcombe (1998) and of R's binom package."""
    assert Share(right, total).interval == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize("total", [1, 2, 3, 4, 7, 10, 49, 100])
def test_a_share_lies_in_its_interval(total: int) -> None:
    for right in range(total + 1):
        low, high = Share(right, total).interval or (2, 2)
        assert 0 <= low <= right / total <= high <= 1


def test_nothing_asked_is_no_share() -> None:
    assert Share.of([]).to_json() == {
        "right": 0,
        "total": 0,
        "share": None,
        "low": None,
        "high": None,
    }
    assert Share.of([True, False]).to_json()["share"] == 0.5


def test_the_bootstrap_resamples_clips_and_is_the_same_every_time() -> None:
    drawn = resamples(40, seed=1)
    assert np.array_equal(drawn, resamples(40, seed=1))
    assert not np.array_equal(drawn, resamples(40, seed=2))
    over, under = list(range(40, 80)), [10] * 40
    values = resampled_ratios(over, under, drawn)
    assert values[7] == pytest.approx(sum(over[i] for i in drawn[7]) / 400)
    low, high = central_interval(values)
    spread = 2 * 1.96 * np.std(over) / 10 / np.sqrt(40)
    assert high - low == pytest.approx(spread, rel=0.1)
    assert central_interval(resampled_ratios([3] * 5, [1] * 5, resamples(5, 0))) == (3, 3)


def test_one_measurement_is_its_own_median() -> None:
    assert quartiles([3.0]) == {"median": 3.0, "q1": 3.0, "q3": 3.0}
    assert quartiles([]) is None


def test_quartiles_stay_within_the_values() -> None:
    assert quartiles([1.0, 2.0]) == {"median": 1.5, "q1": 1.25, "q3": 1.75}


def test_quartiles_as_text() -> None:
    assert format_quartiles(quartiles([1.0, 2.0])) == "1.50 (1.25 to 1.75)"
    assert format_quartiles(None) == ""
