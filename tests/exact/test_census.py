"""The census: every multimodal type of transformers answers as `tests/census.json` says."""

from __future__ import annotations

import warnings

import pytest
from census import COMMAND, written
from census import tried as verdict_of
from multimodal_types import types

KNOWN = written()


@pytest.mark.slow
@pytest.mark.parametrize("name", types())
def test_the_verdict_is_that_of_the_file(name: str) -> None:
    """Every answer is that of stock `generate`, and no exception is foreign."""
    if name not in KNOWN:
        pytest.skip(f"{name} is untested: {COMMAND} {name}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of models of transformers
        verdict = verdict_of(name)
    assert verdict == KNOWN[name], f"if this is right: {COMMAND} {name}"
