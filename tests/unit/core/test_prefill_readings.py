"""PrefillFeatures that several parts request are united."""

from __future__ import annotations

import pytest
import torch

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import (
    ATTENTION,
    KEYS,
    NO_FEATURES,
    FeatureSpec,
    PrefillFeatures,
    Score,
    Similarity,
)


def test_union() -> None:
    two = FeatureSpec(hidden_layers=(3, 0)) | FeatureSpec(hidden_layers=(1, 3))
    assert two == FeatureSpec(hidden_layers=(0, 1, 3))
    assert ATTENTION | two == two | ATTENTION == FeatureSpec(True, (0, 1, 3))
    assert (KEYS | two).keys
    assert (two | KEYS).keys
    assert not KEYS  # nothing is recorded
    assert NO_FEATURES | NO_FEATURES == NO_FEATURES
    assert NO_FEATURES | ATTENTION == ATTENTION


def test_truth() -> None:
    assert not NO_FEATURES
    assert ATTENTION
    assert FeatureSpec(hidden_layers=(0,))
    assert FeatureSpec(similarities=(Similarity(0),))


def test_union_of_similarities() -> None:
    """Each is taken once; the score is that of one pruner alone."""
    one, two, three = Similarity(0), Similarity(20), Similarity(20, "after")
    score = Score("length", lambda readings: None)
    both = FeatureSpec(similarities=(two, one), score=score) | FeatureSpec(
        similarities=(three, two)
    )
    assert both == FeatureSpec(similarities=(one, three, two))
    assert both.score is None
    assert (ATTENTION | both).attention


def test_scores_are_attention_unless_the_spec_names_others() -> None:
    attention = torch.ones(1, 2)
    readings = PrefillFeatures(attention=attention)
    assert NO_FEATURES.scores(readings) is attention
    assert NO_FEATURES.scores(PrefillFeatures()) is None
    doubled = FeatureSpec(True, score=Score("twice the attention", lambda found: found.attention))
    assert doubled.scores(readings) is attention
    assert doubled == ATTENTION
    assert doubled.score_name == "twice the attention"


@pytest.mark.parametrize("layer", [-1, 1.5, "3", True, None])
def test_layers_of_similarities_are_whole_numbers(layer: object) -> None:
    with pytest.raises(ConfigError, match="layer is a whole number from 0 on, not"):
        Similarity(layer)  # type: ignore[arg-type]


def test_texts_of_similarities() -> None:
    with pytest.raises(ConfigError, match="unknown text 'before'; known: all, after"):
        Similarity(1, "before")
