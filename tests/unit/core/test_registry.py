"""Names that are loaded when somebody asks for them."""

from __future__ import annotations

import math
import sys
from collections import Counter
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from draftlens.core import options as registry_module
from draftlens.core.errors import ConfigError
from draftlens.core.options import Entry, Registry


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
    assert error.value.__context__ is None


def test_names_can_be_added_and_replaced() -> None:
    entries = {"pi": "math:pi"}
    registry = Registry("number", entries)
    registry.register("e", "math:e")
    registry.register("pi", "math:tau")
    assert list(registry) == ["e", "pi"]
    assert registry["pi"] == math.tau
    assert "tau" not in registry
    assert entries == {"pi": "math:pi"}


GROUP = "draftlens.numbers"


def point(name: str, location: str) -> Any:
    """An entry point of the package `circles`."""
    made = EntryPoint(name, location, GROUP)
    vars(made).update(dist=SimpleNamespace(name="circles"))
    return made


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Entry points of installed packages; a test may add some."""
    points: list[Any] = []

    def entry_points(group: str) -> list[Any]:
        return points if group == GROUP else []

    monkeypatch.setattr(registry_module, "entry_points", entry_points)
    return points


def numbers(group: str | None = GROUP) -> Registry:
    return Registry("number", {"pi": "math:pi"}, group)


def test_other_packages_add_names(installed: list[Any]) -> None:
    installed.append(point("tau", "math:tau"))
    registry = numbers()
    assert registry["tau"] == math.tau
    assert "tau" in registry
    assert list(registry) == ["pi", "tau"]
    assert registry.entries() == [
        Entry("pi", "math:pi", "draftlens"),
        Entry("tau", "math:tau", "circles"),
    ]
    with pytest.raises(ConfigError, match=r"^unknown number 'e'; known: pi, tau$"):
        registry["e"]


def test_a_registry_without_a_group_has_its_own_names_only(installed: list[Any]) -> None:
    installed.append(point("tau", "math:tau"))
    assert list(numbers(group=None)) == ["pi"]


def test_a_name_of_draftlens_wins(installed: list[Any]) -> None:
    installed.append(point("pi", "math:tau"))
    registry = numbers()
    assert registry["pi"] == math.pi
    assert registry.entries() == [Entry("pi", "math:pi", "draftlens")]


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("this_module_is_nowhere:x", "ModuleNotFoundError: No module named"),
        ("math:no_such_number", "AttributeError: module 'math' has no attribute"),
    ],
)
def test_a_broken_entry_point_is_skipped_with_a_warning(
    installed: list[Any], location: str, reason: str
) -> None:
    installed += [point("broken", location), point("tau", "math:tau")]
    registry = numbers()
    sentence = f"number 'broken' of package circles cannot be loaded: {reason}"
    with pytest.warns(UserWarning, match=f"^skipped: {sentence}"):
        assert list(registry) == ["pi", "tau"]
    assert registry["tau"] == math.tau
    with pytest.raises(ConfigError, match=sentence):
        registry["broken"]
    errors = {entry.name: entry.error for entry in registry.entries()}
    assert errors["pi"] is None
    assert errors["tau"] is None
    assert sentence in str(errors["broken"])


def test_packages_that_are_installed_later_are_found_by_a_refresh(installed: list[Any]) -> None:
    registry = numbers()
    assert "tau" not in registry
    installed.append(point("tau", "math:tau"))
    assert "tau" not in registry
    registry.refresh()
    assert registry["tau"] == math.tau


def test_names_of_implementations(installed: list[Any]) -> None:
    installed.append(point("root", "math:sqrt"))
    registry = Registry("function", {"count": "collections:Counter"}, GROUP)
    assert registry.name_of(Counter) == "count"
    assert registry.name_of(math.sqrt) == "root"
    assert registry.name_of(math.sin) == "sin"
