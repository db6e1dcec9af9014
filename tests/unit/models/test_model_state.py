"""Values of a model end with it, and threads share them."""

from __future__ import annotations

import gc
from weakref import ref

from torch import nn

from draftlens.models.model_state import Slot


def test_each_slot_of_each_model_has_a_value_of_its_own() -> None:
    first, second = nn.Identity(), nn.Identity()
    numbers, words = Slot[int]("numbers"), Slot[str]("words")
    numbers.set(first, 1)
    numbers.set(second, 2)
    words.set(first, "one")
    assert (numbers.get(first), words.get(first)) == (1, "one")
    assert (numbers.get(second), words.get(second)) == (2, None)
    assert sorted(numbers.values()) == [1, 2]
    numbers.drop(first)
    numbers.drop(first)
    assert (numbers.get(first), words.get(first), numbers.values()) == (None, "one", [2])
    numbers.clear()
    assert numbers.values() == []


def test_a_value_is_made_once() -> None:
    model = nn.Identity()
    made = Slot[list[int]]("made")
    assert made.get_or_make(model, list) is made.get_or_make(model, list)


def test_a_value_ends_with_its_model() -> None:
    model = nn.Identity()
    slot = Slot[nn.Module]("modules")
    value = nn.Identity()
    slot.set(model, value)
    watched = ref(value)
    del value
    assert watched() is not None
    del model
    gc.collect()
    assert watched() is None
    assert slot.values() == []
