"""Objects from names and options, and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from draftlens.core.errors import ConfigError
from draftlens.core.options import Registry, build, describe, make


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
