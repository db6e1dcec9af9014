"""Readings of hidden states are those of one pass, however many parts a prompt is read in and
whatever a prompt cache has of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from conversations import BY_NAME, Conversation, Turn, inputs_of, models_of
from families import FAMILIES, Family

from draftlens.core.prefill_readings import FeatureSpec, PrefillFeatures, Similarity
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_cache import PromptCache
from draftlens.prefill.base import FullPrefill, PrefillOutput, PrefillReading

PLENTY = 1 << 28
UV = FeatureSpec(similarities=(Similarity(0), Similarity(1)))
AFTER = FeatureSpec(similarities=(Similarity(1, "after"),))
ALL = UV | AFTER | FeatureSpec(attention=True, hidden_layers=(1, 2))
TALKS = [
    Conversation((Turn("i", 9), Turn("", 5), Turn("i", 6))),
    Conversation((Turn("i", 21), Turn("", 2), Turn("", 8)), seed=3),
]
REPLIES = [["yes", "two"], ["no", "a cat"]]


def prompt_of(
    family: Family, backbone: Backbone, count: int, namespace: str | None, rows: int = 1
) -> Prompt:
    """The prompts after `count` questions each."""
    given: Mapping[str, Any] = inputs_of(family, TALKS[:rows], REPLIES[:rows], count)
    prompt = backbone.encode(backbone.prepare_prompt(given))
    return replace(prompt, namespace=namespace)


def read(
    backbone: Backbone, prompt: Prompt, spec: FeatureSpec, part: int | None = None
) -> PrefillOutput:
    reading = PrefillReading(prompt, backbone.new_cache(prompt, 8), spec)
    outputs = list(FullPrefill().run_parts(backbone, reading, lambda: part))
    assert outputs[-1] is not None
    assert not any(outputs[:-1])
    return outputs[-1]


def assert_equal(found: PrefillFeatures, expected: PrefillFeatures, lengths: list[int]) -> None:
    assert found.similarities.keys() == expected.similarities.keys()
    for entry, scores in expected.similarities.items():
        torch.testing.assert_close(found.similarities[entry], scores, rtol=1e-4, atol=1e-4)
    assert found.hidden_states.keys() == expected.hidden_states.keys()
    for layer, states in expected.hidden_states.items():
        assert found.hidden_states[layer].shape == states.shape
        for row, length in enumerate(lengths):  # what is at padding has no meaning
            one, other = found.hidden_states[layer][row, :length], states[row, :length]
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("part", [5, 1000])
def test_a_prompt_that_is_read_in_parts(family: Family, part: int) -> None:
    """Two rows of different lengths, of which one is read first."""
    backbone = models_of(family, None, PromptCache(0))[0]
    prompt = prompt_of(family, backbone, 3, None, rows=2)
    expected = read(backbone, prompt, ALL).readings
    found = read(backbone, prompt, ALL, part).readings
    assert_equal(found, expected, prompt.lengths)
    torch.testing.assert_close(found.attention, expected.attention, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_later_turn(family: Family) -> None:
    """It reads what is new alone, and compares all visual tokens with all of the text."""
    backbone = models_of(family, None, PromptCache(PLENTY))[0]
    spec = UV | AFTER | FeatureSpec(hidden_layers=(1,))
    before: list[int] = [0, 0]
    for count in (1, 2, 3):
        prompt = prompt_of(family, backbone, count, "", rows=2)
        expected = read(backbone, replace(prompt, namespace=None), spec)
        found = read(backbone, prompt, spec)
        if count < 3:
            assert list(found.cached) == before
        else:  # some families cut a picture otherwise beside further ones
            assert any(found.cached)
        assert_equal(found.readings, expected.readings, prompt.lengths)
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
        before = prompt.lengths


def test_tokens_without_these_hidden_states_are_read_again() -> None:
    """Those of other requests, of other layers, and those that were dropped."""
    family = BY_NAME["llava_onevision"]
    cache = PromptCache(PLENTY)
    backbone = models_of(family, None, cache)[0]
    prompt = prompt_of(family, backbone, 1, "")
    [length] = prompt.lengths
    cached = []
    for spec in (FeatureSpec(), UV, UV, AFTER, AFTER, FeatureSpec()):
        cached += read(backbone, prompt, spec).cached
    assert cached == [0, 0, length - 1, 0, length - 1, length - 1]
    assert list(read(backbone, replace(prompt, namespace="other"), UV).cached) == [0]
    for (_, namespace), tree in cache._trees.items():
        if "states" in namespace:
            tree.remove(next(tree.leaves()))
    expected = read(backbone, replace(prompt, namespace=None), UV)
    found = read(backbone, prompt, UV)
    assert list(found.cached) == [0]
    assert_equal(found.readings, expected.readings, prompt.lengths)


def test_states_that_the_keys_do_not_reach_are_not_taken() -> None:
    """The cache has dropped keys and values of which it has the hidden states."""
    family = BY_NAME["llava_onevision"]
    cache = PromptCache(PLENTY)
    backbone = models_of(family, None, cache)[0]
    prompt = prompt_of(family, backbone, 2, "")
    expected = read(backbone, prompt, UV).readings
    for (_, namespace), tree in cache._trees.items():
        if not namespace:
            tree.remove(next(tree.leaves()))
    found = read(backbone, prompt, UV)
    assert list(found.cached) == [0]
    assert_equal(found.readings, expected, prompt.lengths)


def test_readings_arrive_early_in_a_later_turn() -> None:
    family = BY_NAME["llava_onevision"]
    backbone = models_of(family, None, PromptCache(PLENTY))[0]
    read(backbone, prompt_of(family, backbone, 1, ""), UV)
    prompt = prompt_of(family, backbone, 2, "")
    arrived: list[PrefillFeatures] = []
    reading = PrefillReading(prompt, backbone.new_cache(prompt, 8), UV, early=arrived.append)
    output = FullPrefill().run(backbone, reading)
    assert output.cached[0] > 0
    [early] = arrived
    assert_equal(early, output.readings, prompt.lengths)
