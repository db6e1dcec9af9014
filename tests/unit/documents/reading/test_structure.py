"""What a page's regions become where their text is the answer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan

import pytest

from draftlens.documents.reading.assign import (
    line_owners,
    ordered,
    regions_of_blocks,
    words_outside,
)
from draftlens.documents.reading.blocks import with_blocks
from draftlens.documents.reading.formats import Canvas
from draftlens.documents.reading.formats.markdown import Markdown
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.headings import Headings
from draftlens.documents.reading.page import KINDS, PageFacts, Piece, Reading, Region
from draftlens.documents.reading.structure import prepared, structured, with_depths

PAGE = Box(0, 0, 400, 1000)
NOTHING = PageFacts()


def line(text: str, number: int, top: float, left: float = 20) -> list[Piece]:
    """Words of five points a character, 10 points high."""
    pieces = []
    for word in text.split():
        right = left + 5 * len(word)
        pieces.append(Piece(word, Box(left, top, right, top + 10), number, number))
        left = right + 4
    return pieces


def reading(*lines: Sequence[Piece]) -> Reading:
    return Reading("mine", tuple(piece for pieces in lines for piece in pieces))


def kinds(regions: Sequence[Region], read: Reading, facts: PageFacts = NOTHING) -> list[str]:
    return [region.kind for region in prepared(regions, read, facts, PAGE)]


BODY = [line("the mill grinds rye and oats for seven villages", n, 300 + 12 * n) for n in range(9)]
TEXT = Region(Box(0, 290, 400, 420), "text")


@pytest.mark.parametrize(("top", "kind"), [(20, "header"), (200, "text"), (970, "text")])
def test_a_running_head_stands_at_the_top(top: float, kind: str) -> None:
    head = Region(Box(0, top - 2, 400, top + 12), "header")
    assert kinds([head, TEXT], reading(line("Of mills", 90, top), *BODY)) == [kind, "text"]


def test_a_long_running_head_and_much_of_a_page_are_text() -> None:
    words = " ".join(["mill"] * 45)
    head = Region(Box(0, 18, 2000, 32), "header")
    assert kinds([head, TEXT], reading(line(words, 90, 20), *BODY, *BODY)) == ["text", "text"]
    short = line("Of mills and bridges", 90, 20)
    assert kinds([head], reading(short)) == ["text"]


def test_a_repeated_line_is_a_running_head_whatever_the_layout_says() -> None:
    words = line("Of mills", 90, 20)
    facts = PageFacts(running=(Box(18, 18, 100, 32), Box(18, 960, 60, 972)))
    title = Region(Box(19, 19, 99, 31), "title")
    found = prepared([title, TEXT], reading(words, *BODY), facts, PAGE)
    assert [region.kind for region in found] == ["text", "header", "footer"]


def test_a_region_in_another_one_is_part_of_it() -> None:
    inner = Region(Box(10, 300, 390, 330), "text")
    assert kinds([inner, TEXT], reading(*BODY)) == ["text"]
    beside = Region(Box(10, 400, 390, 480), "text")
    assert kinds([beside, TEXT], reading(*BODY)) == ["text", "text"]
    assert kinds([Region(inner.box, "title"), TEXT], reading(*BODY)) == ["title", "text"]


def test_words_of_a_figure_are_read_and_the_figure_stays() -> None:
    figure = Region(Box(0, 500, 400, 600), "figure")
    read = reading(*BODY, line("wheel", 50, 520), line("stone", 51, 560))
    assert kinds([figure, TEXT], read) == ["figure", "figure", "figure", "text"]


def test_the_title_of_a_form_that_fills_the_page_is_text() -> None:
    figure = Region(Box(0, 0, 400, 900), "figure")
    read = reading(line("Application", 50, 20), line("Name", 51, 560))
    assert kinds([figure], read) == ["text", "figure", "figure"]


def test_labels_at_the_top_of_a_diagram_below_a_heading_are_no_text() -> None:
    figure = Region(Box(0, 60, 400, 900), "figure")
    heading = Region(Box(0, 18, 400, 32), "title")
    labels = [line("Events", 50, 80), line("the mill grinds rye and oats", 51, 560)]
    read = reading(line("3.1 Events", 1, 20), *labels)
    assert kinds([figure, heading], read) == ["figure", "figure", "figure", "title"]
    head = replace(heading, kind="header")
    assert kinds([figure, head], read) == ["text", "figure", "figure", "header"]


def test_a_form_between_wide_lines_is_no_picture() -> None:
    """Its words are captions of fields, and are read row by row."""
    figure = Region(Box(0, 0, 400, 900), "figure")
    words = [line(f"Field {number}", number, 20 + 150 * number) for number in range(5)]
    right = line("Amount", 9, 470, left=300)
    rules = tuple(Box(10, 140 + 150 * number, 390, 140 + 150 * number) for number in range(3))
    read = reading(*words, right)
    found = prepared([figure], read, PageFacts(rules=rules), PAGE)
    assert [region.kind for region in found] == ["text", *["caption"] * 5, "text"]
    parts = structured(ordered(found), read, NOTHING, Headings())
    texts = [part.texts[0].text for part in parts if part.texts]
    assert texts == ["Field 0", "Field 1", "Field 2", "Field 3", "Amount", "Field 4"]
    as_drawing = ["text", *["figure"] * 6]
    assert kinds([figure], read, PageFacts(rules=rules[:2])) == as_drawing
    narrow = tuple(Box(10, rule.top, 150, rule.top) for rule in rules)
    assert kinds([figure], read, PageFacts(rules=narrow)) == as_drawing
    # The grid of a chart is level with its labels.
    grid = tuple(Box(60, 25 + 150 * number, 390, 25 + 150 * number) for number in range(5))
    assert kinds([figure], read, PageFacts(rules=grid)) == as_drawing


def test_a_table_of_one_row_is_text() -> None:
    words = [*line("Key", 0, 20), *line("Meaning", 0, 20, left=200)]
    table = Region(Box(0, 15, 400, 35), "table")
    assert kinds([table], reading(words)) == []  # its words become blocks later
    second = [*line("rye", 1, 32), *line("grain", 1, 32, left=200)]
    assert kinds([Region(Box(0, 15, 400, 50), "table")], reading(words, second)) == ["table"]


def test_contents_are_one_list_with_the_numbers_before_them() -> None:
    entries = [
        line(f"{number} Mills ............ {number + 6}", number, 100 + 12 * number)
        for number in range(1, 5)
    ]
    cut = [Region(Box(45, 105, 150, 160), "text"), Region(Box(18, 105, 40, 160), "title")]
    read = reading(*entries)
    found = prepared(cut, read, NOTHING, PAGE)
    assert [region.kind for region in found] == ["list"]
    parts = structured(found, read, NOTHING, Headings())
    assert [part.texts[0].lines for part in parts] == [
        (f"{number} Mills \u2026 {number + 6}",) for number in range(1, 5)
    ]
    assert kinds(cut, reading(*entries[:2])) == ["text", "title"]


def test_a_form_is_read_by_blocks() -> None:
    """Between its lines are many cells, which are mostly empty."""
    words = [line("Name", 0, 20), line("Town", 1, 60), line("Street", 2, 60, left=300)]
    table = Region(Box(0, 10, 400, 100), "table")
    upright = [Box(40 * n, 10, 40 * n, 100) for n in range(1, 10)]
    level = [Box(0, 40, 400, 40), Box(0, 80, 400, 80)]
    facts = PageFacts(rules=(*upright, *level))
    wide = [line("a", 9 + n, 90, left=5 + 40 * n) for n in range(10)]
    parts = structured([table], reading(*words, *wide[:1]), facts, Headings())
    assert [part.kind for part in parts] == ["table"]  # of two columns that are filled
    read = reading(*words, *wide)
    (part,) = structured([table], read, facts, Headings())
    assert part.kind == "table"
    assert len(part.texts[0].rows[0]) == 10


def test_depths_follow_indentation() -> None:
    lefts = [(20, "list"), (40, "list"), (60, "list"), (40, "list"), (20, "list")]
    lefts += [(60, "text"), (60, "list"), (20, "list")]
    regions = [Region(Box(left, 0, 400, 10), kind) for left, kind in lefts]
    assert [region.level for region in with_depths(regions)] == [0, 1, 2, 1, 0, 0, 0, 0]


def test_single_words_beside_a_region_belong_to_its_line() -> None:
    words = line("It is a mill that grinds rye and oats", 0, 300)
    beside = words[1].box.right
    right = Region(Box(beside, 290, 400, 320), "text")
    left = Region(Box(0, 290, beside, 320), "text")
    assert set(line_owners(words, [right, left])) == {0}
    assert set(line_owners(words, [right])) == {0}
    table = Region(left.box, "table")
    assert line_owners(words, [right, table])[:2] == [1, 1]
    half = Region(Box(words[3].box.right, 290, 400, 320), "text")
    assert line_owners(words, [half])[0] is None


WORDS = ("Mill", "the", "\u2022", "1.", "(a)", "\u2014", "....", "2.1", "rye\x02", "ROYAL", "12")
STRANGE = (0.0, -5.0, 1e9, -1e9, 1e38, inf, -inf, nan, 1e-30)


class Pages:
    """Random words and regions; those of damaged files stand anywhere."""

    def __init__(self, seed: int, damaged: bool) -> None:
        self._draw = random.Random(seed)
        self._damaged = damaged
        self.words = [
            word for number in range(self._draw.randint(1, 14)) for word in self._line(number)
        ]
        self.regions = [
            Region(self._box(), self._draw.choice(KINDS)) for _ in range(self._draw.randint(0, 5))
        ]
        self.facts = PageFacts(
            bookmarks=(("Mill the", self._draw.randint(1, 9)),),
            running=tuple(self._box() for _ in range(self._draw.randint(0, 2))),
            rules=tuple(self._box() for _ in range(self._draw.randint(0, 9))),
            size=self._number(0, 20),
        )

    def _number(self, low: float, high: float) -> float:
        if self._damaged and self._draw.random() < 0.3:
            return self._draw.choice(STRANGE)
        return self._draw.uniform(low, high)

    def _box(self) -> Box:
        across = sorted(self._number(0, 400) for _ in range(2))
        down = sorted(self._number(0, 1000) for _ in range(2))
        return Box(across[0], down[0], across[1], down[1])

    def _line(self, number: int) -> list[Piece]:
        top, left = self._number(0, 980), self._number(0, 300)
        size = self._number(8, 14) if self._draw.random() < 0.8 else 0.0
        words = []
        for text in self._draw.choices(WORDS, k=self._draw.randint(1, 5)):
            box = Box(left, top, left + 5 * len(text), top + 10)
            left = box.right + self._draw.choice((3, 3, 30))
            font = (size, self._draw.random() < 0.2, self._draw.random() < 0.2)
            words.append(Piece(text, box, number, 0, 1.0, *font))
        return words

    def markdown(self) -> str:
        read = Reading("mine", tuple(with_blocks(self.words)))
        found = prepared(self.regions, read, self.facts, PAGE)
        found += regions_of_blocks(words_outside(read, found), PAGE)
        form = Markdown(leave_out=())
        written = [
            (part, form.region(part, part.texts[0])[0])
            for part in structured(ordered(found), read, self.facts, Headings())
            if part.texts
        ]
        return form.page(written, Canvas(PAGE, 400, 1000))


def letters(text: str) -> Counter[str]:
    return Counter(filter(str.isalnum, text))


@pytest.mark.parametrize("seed", range(120))
def test_no_letter_of_a_page_is_lost_or_there_twice(seed: int) -> None:
    page = Pages(seed, damaged=False)
    shown = [word for word in page.words if PAGE.holds(word.box.middle)]
    beside = [word for word in page.words if word not in shown]
    markdown = letters(page.markdown())
    assert letters("".join(word.text for word in shown)) <= markdown
    assert markdown <= letters("".join(word.text for word in [*shown, *beside]))


@pytest.mark.parametrize("seed", range(120))
def test_words_of_damaged_files_may_stand_anywhere(seed: int) -> None:
    assert len(Pages(seed, damaged=True).markdown()) < 10_000
