"""Boxes, and the order in which they are read."""

from __future__ import annotations

import doctest
import random

import pytest

from draftlens.documents.reading import geometry
from draftlens.documents.reading import page as pages
from draftlens.documents.reading.geometry import Box, reading_order


@pytest.mark.parametrize("module", [geometry, pages], ids=lambda m: m.__name__)
def test_examples(module: object) -> None:
    outcome = doctest.testmod(module)  # type: ignore[arg-type]
    assert outcome.attempted > 0
    assert outcome.failed == 0


def page(*regions: tuple[float, float, float, float]) -> list[Box]:
    return [Box(*edges) for edges in regions]


PAGES = {
    "one column": page((0, 0, 90, 20), (0, 25, 60, 40), (0, 45, 90, 80)),
    "paragraphs of two columns begin together": page(
        (0, 0, 90, 10), (0, 15, 40, 30), (0, 35, 40, 60), (50, 15, 90, 30), (50, 35, 90, 60)
    ),
    "two pairs of columns below headings": page(
        (0, 0, 90, 10), (0, 15, 40, 30), (50, 15, 90, 35), (0, 40, 90, 50), (0, 55, 30, 70),
        (40, 55, 90, 70),
    ),
    "three columns and a foot": page(
        (0, 0, 25, 80), (30, 0, 55, 40), (30, 45, 55, 80), (60, 0, 90, 80), (0, 90, 90, 95)
    ),
    "boxes that overlap a little": page((0, 0, 41, 31), (0, 30, 41, 60), (40, 0, 90, 60)),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_reading_order(name: str) -> None:
    """Each page is listed in its order; it is found from any other one."""
    boxes = PAGES[name]
    for seed in range(5):
        places = list(range(len(boxes)))
        random.Random(seed).shuffle(places)
        found = reading_order([boxes[place] for place in places])
        assert [places[index] for index in found] == list(range(len(boxes)))


def test_no_boxes_and_boxes_that_cannot_be_told_apart() -> None:
    assert reading_order([]) == []
    assert sorted(reading_order([Box(0, 0, 9, 9)] * 3)) == [0, 1, 2]


def test_boxes() -> None:
    box = Box(10, 20, 30, 60)
    assert box.share_in(Box(0, 0, 20, 40)) == 0.25
    assert box.within(Box(50, 50, 60, 60)).area == 0
    assert box.holds((30, 60))
    assert not box.holds((31, 60))
    assert geometry.around([box, Box(0, 30, 5, 90)]) == Box(0, 20, 30, 90)
    with pytest.raises(ValueError, match="no boxes"):
        geometry.around([])


def test_parts_below_each_other_are_no_columns() -> None:
    """A running head at the right and a heading at the left, above a paragraph."""
    head, heading, text = Box(300, 36, 540, 45), Box(72, 74, 187, 84), Box(73, 99, 540, 217)
    assert reading_order([heading, text, head]) == [2, 0, 1]
    low, high = Box(300, 60, 540, 80), Box(72, 40, 187, 84)
    assert reading_order([low, text, high]) == [2, 0, 1]  # these stand beside each other
