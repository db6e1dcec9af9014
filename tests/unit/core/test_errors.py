"""The exception tree is the one drawn in the docstring."""

from __future__ import annotations

import inspect
import re

import pytest

import draftlens
from draftlens.core import errors

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


def test_the_docstring_draws_the_tree() -> None:
    drawn = re.findall(r"[├└]── (\w+) +\S", errors.__doc__ or "")
    assert sorted(drawn) == sorted(
        kind.__name__ for kind in KINDS if kind is not errors.DraftlensError
    )
    assert all(
        kind.__bases__[0] is errors.DraftlensError
        for kind in KINDS
        if kind is not errors.DraftlensError
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_public_and_documented(kind: type[Exception]) -> None:
    assert getattr(draftlens, kind.__name__) is kind
    assert kind.__doc__


def test_wrong_values_are_value_errors_too() -> None:
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.TrainingDataError, ValueError)
