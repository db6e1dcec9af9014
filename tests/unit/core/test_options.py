"""Objects from names and options, and back. Names that are loaded when somebody asks for them."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from draftlens.core import options as registry_module
from draftlens.core.errors import ConfigError
from draftlens.core.options import Entry, Registry, build, describe, make


@dataclass(frozen=True)
class Circle:
    """A shape with an option that may be wrong and a field that is no option."""

    radius: float = 1.0
    corners: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.radius <= 0:
            raise ConfigError("radius must be positive")

    def area(self) -> float:
        """Some method of shapes."""
        return 3 * self.radius**2


@dataclass(frozen=True)
class Point:
    """A shape without options."""

    def area(self) -> float:
        """See `Circle.area`."""
        return 0.0


class Shapes(Registry):
    """A registry of this module's classes, which cannot be imported by name."""

    def __init__(self) -> None:
        super().__init__("shape", {"circle": f"{__name__}:Circle", "point": f"{__name__}:Point"})
        self._loaded = {"circle": Circle, "point": Point}


SHAPES = Shapes()


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("circle", Circle()),
        ("point", Point()),
        ({"name": "circle"}, Circle()),
        ({"name": "circle", "radius": 2.0}, Circle(2.0)),
        (Circle(3.0), Circle(3.0)),
    ],
)
def test_make(choice: Any, expected: Any) -> None:
    assert make(SHAPES, choice, "area") == expected


def test_an_object_is_taken_as_it_is_and_a_mapping_left_as_it_is() -> None:
    circle, options = Circle(2.0), {"name": "circle", "radius": 2.0}
    assert make(SHAPES, circle, "area") is circle
    make(SHAPES, options, "area")
    assert options == {"name": "circle", "radius": 2.0}


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ("square", "unknown shape 'square'; known: circle, point"),
        ({"name": "square"}, "unknown shape 'square'; known: circle, point"),
        ({"name": ["circle"]}, "unknown shape ['circle']; known: circle, point"),
        ({"radius": 2.0}, "the options of a shape need its name: {'radius': 2.0}"),
        (
            {"name": "circle", "width": 1, "height": 1},
            "shape 'circle' has no option 'height', 'width'; known: radius",
        ),
        ({"name": "circle", "corners": 1}, "shape 'circle' has no option 'corners'; known: radius"),
        ({"name": "point", "radius": 1}, "shape 'point' has no option 'radius'; known: none"),
        ({"name": "circle", "radius": -1}, "radius must be positive"),
        (3, "a shape is a name, a mapping of its name and options, or an object, not 3"),
        (None, "a shape is a name, a mapping of its name and options, or an object, not None"),
        (
            ["circle"],
            "a shape is a name, a mapping of its name and options, or an object, not ['circle']",
        ),
        (
            Circle,
            f"a shape is a name, a mapping of its name and options, or an object, not {Circle!r}",
        ),
    ],
)
def test_choices_that_make_no_sense(choice: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(SHAPES, choice, "area")
    assert str(error.value) == sentence


def test_build() -> None:
    assert build(SHAPES, "circle", {"radius": 4.0}) == Circle(4.0)
    assert build(SHAPES, "point", {}) == Point()


@pytest.mark.parametrize("shape", [Circle(), Circle(5.0), Point()])
def test_a_description_makes_an_equal_object(shape: Any) -> None:
    assert make(SHAPES, describe(SHAPES, shape), "area") == shape


def test_descriptions() -> None:
    assert describe(SHAPES, Point()) == {"name": "point"}
    assert describe(SHAPES, Circle(5.0)) == {"name": "circle", "radius": 5.0}


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
