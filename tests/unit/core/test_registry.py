"""Names that are loaded when somebody asks for them."""

from __future__ import annotations

import math
import sys

import pytest

from draftlens.core.errors import ConfigError
from draftlens.core.registry import Registry


def test_names_are_imported_on_first_use() -> None:
    sys.modules.pop("this_module_is_nowhere", None)
    registry = Registry("number", {"pi": "math:pi", "broken": "this_module_is_nowhere:x"})
    assert registry["pi"] == math.pi
    assert "broken" in registry  # and asking whether it is there loads nothing
    with pytest.raises(ModuleNotFoundError):
        registry["broken"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"^unknown number 'tau'; known: e, pi$") as error:
        Registry("number", {"pi": "math:pi", "e": "math:e"})["tau"]
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


def test_names_can_be_added_and_replaced() -> None:
    entries = {"pi": "math:pi"}
    registry = Registry("number", entries)
    registry.register("e", "math:e")
    registry.register("pi", "math:tau")
    assert list(registry) == ["e", "pi"]
    assert registry["pi"] == math.tau
    assert "tau" not in registry
    assert entries == {"pi": "math:pi"}
