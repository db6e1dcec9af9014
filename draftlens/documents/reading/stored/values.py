"""JSON values with their places in a file, and pages made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, TypeVar

from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Region, RegionText

MOST_PAGES = 100_000
"""The highest number of a page."""

MOST_CELLS = 100_000
"""Of a table."""

MOST_REGIONS = 2000
"""Of a page."""

_OUTSIDE = 0.02
"""Share of a page by which a box may reach over its edge; it is cut."""

Kind = TypeVar("Kind", str, list[Any], dict[str, Any])


class WrongValueError(ValueError):
    """A value of a file is not what its form says; the text is a clause with the place."""


@dataclass(frozen=True)
class Value:
    """A value of a JSON file.

    Args:
        value: itself.
        place: such as `pages[3].size`; empty for the whole file.
    """

    value: Any
    place: str = ""

    def wrong(self, cause: str) -> WrongValueError:
        return WrongValueError(f"{self.place or 'it'} {cause}")

    def get(self, key: str) -> Value | None:
        """A value of an object; None if it is absent or null."""
        found = self._of(dict, "an object").get(key)
        return None if found is None else self._inside(found, key)

    def need(self, key: str) -> Value:
        found = self.get(key)
        if found is None:
            raise self.wrong(f"has no {key}")
        return found

    def names(self) -> list[str]:
        return list(self._of(dict, "an object"))

    def items(self) -> list[Value]:
        """Of a list."""
        items = self._of(list, "a list")
        return [Value(item, f"{self.place}[{place}]") for place, item in enumerate(items)]

    def items_of(self, key: str) -> list[Value]:
        """Of a list of an object; none if it is absent."""
        found = self.get(key)
        return [] if found is None else found.items()

    def text(self) -> str:
        return self._of(str, "a text")

    def text_of(self, key: str) -> str:
        """Of an object; empty if it is absent."""
        found = self.get(key)
        return "" if found is None else found.text()

    def number(self) -> float:
        is_number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        # A whole number may be too large for a float.
        if not is_number or abs(self.value) > 1e12 or not isfinite(self.value):
            raise self.wrong(f"is no number of a page: {_shown(self.value)}")
        return float(self.value)

    def whole(self, least: int = 0, most: int = MOST_PAGES) -> int:
        number = self.number()
        if not number.is_integer() or not least <= number <= most:
            raise self.wrong(f"is no whole number from {least} to {most}: {_shown(self.value)}")
        return int(number)

    def box(self, size: tuple[float, float], bottom_up: bool = False) -> Box:
        """A list of four numbers or an object with `l`, `t`, `r` and `b`: a box of a page.

        Args:
            size: of the page, in the units of the box.
            bottom_up: whether heights are measured from the bottom.
        """
        sides = [self.need(key) for key in "ltrb"] if self.is_object else self.items()
        if len(sides) != 4:
            raise self.wrong("has not four edges")
        left, top, right, bottom = (side.number() for side in sides)
        width, height = size
        if bottom_up:
            top, bottom = height - top, height - bottom
        page = Box(0.0, 0.0, width, height)
        near = Box(left, top, right, bottom).within(page)
        reach = max(abs(near.left - left), abs(near.right - right)) / width
        reach = max(reach, abs(near.top - top) / height, abs(near.bottom - bottom) / height)
        if reach > _OUTSIDE:
            raise self.wrong(f"lies outside of its page of {width:g} x {height:g}")
        if not near.area:
            raise self.wrong("has no area")
        return near

    @property
    def is_object(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list)

    def size(self) -> tuple[float, float]:
        """Two positive numbers, in a list or as `width` and `height` of an object."""
        both = self.items() if self.is_list else [self.need("width"), self.need("height")]
        numbers = [number.number() for number in both]
        if len(numbers) != 2 or min(numbers) <= 0:
            raise self.wrong("is no size of a page")
        return numbers[0], numbers[1]

    def _of(self, kind: type[Kind], name: str) -> Kind:
        if not isinstance(self.value, kind):
            raise self.wrong(f"is not {name}")
        return self.value

    def _inside(self, value: Any, key: str) -> Value:
        return Value(value, f"{self.place}.{key}" if self.place else key)


def _shown(value: Any) -> str:
    """The beginning of a value; a whole number may have thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 100:
        return "a number of very many digits"
    return f"{value!s:.30}"


@dataclass(frozen=True)
class StoredPage:
    """A page of another pipeline.

    Args:
        size: width and height in the units of its boxes.
        regions: in reading order.
    """

    size: tuple[float, float]
    regions: tuple[Region, ...]

    def on(self, page: Box) -> list[Region]:
        """The regions with their boxes in points of a page."""
        across, down = page.width / self.size[0], page.height / self.size[1]
        return [
            replace(region, box=_stretched(region.box, across, down), order=place)
            for place, region in enumerate(self.regions)
        ]


def _stretched(box: Box, across: float, down: float) -> Box:
    return Box(box.left * across, box.top * down, box.right * across, box.bottom * down)


def region_of(
    source: str,
    box: Box,
    kind: str,
    text: str,
    level: int = 0,
    rows: Sequence[Sequence[str]] = (),
) -> Region:
    """A region with one text; none if the text is empty. Formulas are LaTeX without marks."""
    is_formula = kind == "formula"
    lines = tuple((without_marks(text) if is_formula else text.strip()).splitlines())
    cells = tuple(tuple(row) for row in rows)
    texts = (RegionText(source, lines, rows=cells, latex=is_formula),) if lines else ()
    return Region(box, kind, 0, texts, level=level)


def without_marks(latex: str) -> str:
    """LaTeX without the marks of displayed formulas around it."""
    text = latex.strip()
    for start, end in (("$$", "$$"), ("\\[", "\\]"), ("$", "$")):
        if text.startswith(start) and text.endswith(end) and len(text) > len(start + end):
            return text[len(start) : -len(end)].strip()
    return text
