"""Rows and columns of tables, from words with boxes."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import pdfs
import pytest

from draftlens.documents.reading import LayoutPipeline, StandardPipeline
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.open import open_document
from draftlens.documents.reading.page import Page, Piece, Reading, Region, RegionText
from draftlens.documents.reading.readers import lines_of_rapidocr
from draftlens.documents.reading.tables import MOST_COLUMNS, table_of, tables_in, without_captions
from draftlens.documents.reading.tesseract import words_of_tesseract

HEIGHT = 10.0

Cells = Sequence[tuple[float, str]]
"""Left ends and texts of the cells of a row."""


def pieces_of(rows: Sequence[Cells], gap: float = 15.0) -> list[Piece]:
    """The words of rows that are `gap` apart; each character is five points wide."""
    pieces = []
    for number, row in enumerate(rows):
        for left, text in row:
            for word in text.split():
                box = Box(left, number * gap, left + 5.0 * len(word), number * gap + HEIGHT)
                pieces.append(Piece(word, box, number))
                left = box.right + 3
    return pieces


def test_missing_cells_are_empty_and_wide_ones_stand_in_their_first_column() -> None:
    rows = [
        [(0, "Mill"), (60, "Sacks"), (120, "Year")],
        [(0, "Upper mill"), (120, "1482")],
        [(64, "12"), (120, "1483")],
        [(0, "all of the mills")],
        [(0, "Lower"), (62, "7 12"), (122, "99")],
    ]
    assert table_of(pieces_of(rows)) == [
        ["Mill", "Sacks", "Year"],
        ["Upper mill", "", "1482"],
        ["", "12", "1483"],
        ["all of the mills", "", ""],
        ["Lower", "7 12", "99"],
    ]


def test_lines_of_a_wrapped_cell_are_one_cell() -> None:
    rows = [[(0, "Mill"), (60, "Grain")], [(0, "Upper"), (60, "rye and")], [(60, "wheat")]]
    pieces = pieces_of(rows, 20.0)
    wrapped = [piece for piece in pieces if piece.text == "wheat"]
    moved = Piece("wheat", Box(60, 31, 85, 41), 2)
    near = [piece for piece in pieces if piece not in wrapped] + [moved]
    assert table_of(near) == [["Mill", "Grain"], ["Upper", "rye and wheat"]]
    assert table_of(pieces) == [["Mill", "Grain"], ["Upper", "rye and"], ["", "wheat"]]


def test_rows_whose_cells_do_not_align_keep_their_order() -> None:
    rows = [[(0, "a"), (40, "b")], [(30, "c"), (80, "d")]]
    assert table_of(pieces_of(rows)) == [["a", "b"], ["c", "d"]]


def test_too_many_columns_are_no_table() -> None:
    rows = [[(40.0 * place, "a") for place in range(MOST_COLUMNS + 1)]] * 3
    assert table_of(pieces_of(rows)) == []
    assert tables_in(pieces_of(rows)) == []


TABLE = [
    [(0, "Mill"), (60, "Sacks"), (120, "Year")],
    [(0, "Upper"), (60, "12"), (120, "1482")],
]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (TABLE, 1),
        ([[(0, "A line of text above")], *TABLE, [(0, "and one below")], *TABLE], 2),
        ([[(0, "•"), (20, "an item")], *TABLE], 1),
        ([TABLE[0]], 0),
        ([row[:2] for row in TABLE], 0),
        ([[(0, "•"), (30, "one item")], [(0, "•"), (30, "another")], [(0, "•"), (30, "last")]], 0),
        ([[(0, "1."), (30, "one")], [(0, "2."), (30, "two")], [(0, "3."), (30, "three")]], 0),
        ([[(0, "a line of the left column"), (150, "beside one of the right")]] * 4, 0),
        ([], 0),
    ],
)
def test_tables_are_found_among_words(rows: list[Cells], found: int) -> None:
    tables = tables_in(pieces_of(rows))
    assert len(tables) == found
    for table in tables:
        assert len(table_of(table)[0]) == 3


def test_a_table_beside_a_column_of_text_has_no_words_of_it() -> None:
    left = [[(0, "words of the left side")], [(0, "that are longer still")], [(0, "and another")]]
    rows = [
        *([*row, (160, "words of the right side")] for row in left * 2),
        *([*row, (160, "and of its other lines")] for row in TABLE),
    ]
    (table,) = tables_in(pieces_of(rows))
    assert table_of(table) == [["Mill", "Sacks", "Year"], ["Upper", "12", "1482"]]


def test_odd_words_do_not_stop_a_page() -> None:
    """Words without characters, and boxes without end."""
    empty = [Piece("", Box(40.0 * n, 0, 40.0 * n + 5, 10), 0) for n in range(3)]
    far = [Piece("a", Box(-inf, 20, inf, 30), 1), Piece("b", Box(inf, 20, inf, 30), 1)]
    assert tables_in([*empty, *far]) == []
    assert table_of(far) == [["a", "b"]]


def test_captions_leave_their_table() -> None:
    pieces = pieces_of([[(0, "Table 1: mills")], *TABLE, [(0, "Source: the valley")]])
    region = Region(Box(-5, -5, 300, 80), "table")
    trimmed = without_captions(region, pieces)
    assert [piece.text for piece in pieces if trimmed.box.holds(piece.box.middle)] == [
        text for row in TABLE for _, text in row
    ]
    between = [*TABLE, [(0, "a wide row")], *TABLE]
    assert without_captions(region, pieces_of(between)) == region


def draw(canvas: Any) -> None:
    """A line, a table and another line."""
    pdfs.lines(canvas, 30, 30, ["These are the mills of the valley."])
    for place, (left, column) in enumerate(((30, "Mill Upper Lower"), (120, "Sacks 12 7"))):
        pdfs.lines(canvas, left, 60, column.split())
        assert place < 2
    pdfs.lines(canvas, 200, 60, ["Year"])
    pdfs.lines(canvas, 200, 84, ["1483"])
    pdfs.lines(canvas, 30, 120, ["All of them grind rye."])


CELLS = (("Mill", "Sacks", "Year"), ("Upper", "12", ""), ("Lower", "7", "1483"))


class NamedTable:
    """A layout that names the table, and a formula that it has read itself."""

    sees = True

    def missing(self) -> str | None:
        return None

    def find(self, page: Page, pieces: Sequence[Piece]) -> list[Region]:
        own = RegionText("layout", ("a^2",), latex=True)
        return [
            Region(Box(20, 25, 290, 100), "table"),
            Region(Box(20, 110, 290, 140), "formula", texts=(own,)),
        ]


@pytest.mark.parametrize("layout", ["blocks", "page", NamedTable()], ids=["blocks", "page", "own"])
def test_tables_of_a_text_layer(tmp_path: Path, layout: Any) -> None:
    """The line above the table is no row of it, wherever the layout puts its edge."""
    document = open_document(pdfs.write(tmp_path / "a.pdf", [draw]))
    pipeline: LayoutPipeline = StandardPipeline("text-layer", layout)
    regions = pipeline.read(document.page(1))
    document.close()
    (table,) = [region for region in regions if region.kind == "table"]
    assert table.texts[0].rows == CELLS
    assert regions[0].texts[0].lines == ("These are the mills of the valley.",)
    if isinstance(layout, NamedTable):
        (formula,) = [region for region in regions if region.kind == "formula"]
        assert [text.source for text in formula.texts] == ["layout", "text-layer"]
        assert formula.texts[0].latex


def corners(box: Box) -> list[list[float]]:
    return [
        [box.left, box.top],
        [box.right, box.top],
        [box.right, box.bottom],
        [box.left, box.bottom],
    ]


def test_all_readers_give_cells() -> None:
    """Words by tesseract, whole cells by RapidOCR."""
    words = pieces_of(TABLE)
    columns = "level\tblock_num\tpar_num\tline_num\tleft\ttop\twidth\theight\tconf\ttext\n"
    table = columns + "".join(
        f"5\t1\t1\t{piece.line}\t{piece.box.left}\t{piece.box.top}\t{piece.box.width}\t"
        f"{piece.box.height}\t90\t{piece.text}\n"
        for piece in words
    )
    by_lines = lines_of_rapidocr(
        [corners(piece.box) for piece in words], [p.text for p in words], [0.9] * len(words), 1.0
    )
    whole = Region(Box(-5, -5, 300, 80), "table")
    for pieces in (tuple(words_of_tesseract(table, 1.0)), tuple(by_lines)):
        (region,) = StandardPipeline([Fixed(pieces)], Whole(whole)).read(FakePage())
        assert region.texts[0].rows == (("Mill", "Sacks", "Year"), ("Upper", "12", "1482"))


class Fixed:
    """A reader of fixed words."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        self.pieces = pieces

    def missing(self) -> str | None:
        return None

    def read(self, page: Page) -> Reading:
        return Reading("fixed", self.pieces)


class Whole:
    """A layout of one region."""

    sees = True

    def __init__(self, region: Region) -> None:
        self.region = region

    def missing(self) -> str | None:
        return None

    def find(self, page: Page, pieces: Sequence[Piece]) -> list[Region]:
        return [self.region]


class FakePage:
    """A page of which nothing but its size is asked."""

    source = "fake"
    number = 1
    box = Box(0, 0, 300, 200)

    def picture(self, dpi: float) -> Any:
        raise AssertionError("nothing has to be rendered")

    def text_layer(self) -> Any:
        return None


def test_dots_that_lead_to_numbers_are_no_cells() -> None:
    """Nor are they a row, where they stand a little lower than the words."""
    dots = [(40.0 + 15 * place, ".") for place in range(4)]
    pieces = pieces_of([[(0, "Rye"), *dots, (120, "12"), (150, "7")], [(0, "Oats"), (120, "9")]])
    assert table_of(pieces) == [["Rye", "12", "7"], ["Oats", "9", ""]]
    lower = pieces_of([[], dots])
    lower = [Piece(dot.text, Box(dot.box.left, 7, dot.box.right, 17), 9) for dot in lower]
    words = [piece for piece in pieces if piece.text != "."]
    assert table_of([*words, *lower]) == [["Rye", "12", "7"], ["Oats", "9", ""]]
    assert table_of(lower)  # a page of dots is a table of them
