"""Logarithms of a few weights, as Python numbers: tensors of two or three are slower."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log


def log_sum(values: Sequence[float]) -> float:
    """The logarithm of the sum of exponentials; minus infinity of none."""
    largest = max(values, default=-inf)
    if largest == -inf:
        return -inf
    return largest + log(sum(exp(value - largest) for value in values))


def normalized(values: Sequence[float]) -> list[float]:
    """Log weights whose weights sum to 1; even ones if all are minus infinity."""
    total = log_sum(values)
    if total == -inf:
        return [-log(len(values))] * len(values)
    return [value - total for value in values]


def log_shares(weights: Sequence[float]) -> list[float]:
    """Logarithms of the shares of weights from 0 on, which are not all 0."""
    total = sum(weights)
    return [log(weight / total) if weight > 0 else -inf for weight in weights]
