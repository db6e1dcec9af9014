"""Tables between drawn lines, and forms."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path

import pdfs
import pytest

from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.open import open_document
from draftlens.documents.reading.page import Piece
from draftlens.documents.reading.ruled_tables import is_form, ruled_table

pytest.importorskip("pypdfium2")

EDGES = (40.0, 100.0, 108.0, 200.0)
ROWS = (50.0, 70.0, 104.0, 124.0)


def table(canvas: pdfs.Canvas) -> None:
    """Three columns, of which the second is narrow; the second row has two lines in a cell."""
    pdfs.lines(canvas, 44, 54, ["Grain"])
    pdfs.lines(canvas, 101, 54, ["n"])
    pdfs.lines(canvas, 110, 54, ["Use"])
    pdfs.lines(canvas, 44, 74, ["Rye"])
    pdfs.lines(canvas, 101, 74, ["7"])
    pdfs.lines(canvas, 110, 74, ["Bread, as", "a letter says"])
    pdfs.lines(canvas, 44, 108, ["Both are ground here"])
    for across in EDGES:
        bottom = ROWS[-1] if across in (EDGES[0], EDGES[-1]) else ROWS[-2]
        canvas.line(across, pdfs.HEIGHT - ROWS[0], across, pdfs.HEIGHT - bottom)
    for down in ROWS:
        canvas.line(EDGES[0], pdfs.HEIGHT - down, EDGES[-1], pdfs.HEIGHT - down)


def boxes(canvas: pdfs.Canvas) -> None:
    """The same lines as sides of rectangles, and a picture's frame elsewhere."""
    for across, right in itertools.pairwise(EDGES):
        for down, bottom in itertools.pairwise(ROWS):
            canvas.rect(across, pdfs.HEIGHT - bottom, right - across, bottom - down)
    canvas.circle(50, 50, 20)
    pdfs.lines(canvas, 44, 54, ["a"])


def read(path: Path) -> tuple[tuple[Piece, ...], tuple[Box, ...]]:
    with closing(open_document(path)) as document:
        page = document.page(1)
        layer = page.text_layer()
        assert layer is not None
        return layer.pieces, page.facts().rules


def test_cells_are_what_stands_between_lines(tmp_path: Path) -> None:
    """Words are close to those of the next cell, and one cell spans all columns."""
    pieces, rules = read(pdfs.write(tmp_path / "a.pdf", [table]))
    assert len(rules) == len(EDGES) + len(ROWS)
    assert ruled_table(pieces, rules) == [
        ["Grain", "n", "Use"],
        ["Rye", "7", "Bread, as a letter says"],
        ["Both are ground here", "", ""],
    ]
    assert ruled_table(pieces, ()) is None


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_lines_of_rectangles_on_turned_pages(degrees: int, tmp_path: Path) -> None:
    def draw(canvas: pdfs.Canvas) -> None:
        canvas.setPageRotation(degrees)
        boxes(canvas)

    (piece,), rules = read(pdfs.write(tmp_path / "a.pdf", [draw]))
    sides = 4 * (len(EDGES) - 1) * (len(ROWS) - 1)
    assert len(rules) == sides
    assert sum(rule.width > rule.height for rule in rules) == sides / 2
    upright = [rule.left for rule in rules if rule.height > rule.width]
    left = max(place for place in upright if place < piece.box.left)
    right = min(place for place in upright if place > piece.box.right)
    assert right - left == pytest.approx(20 if degrees % 180 else 60)


def test_rows_are_the_printed_ones_where_lines_are_few() -> None:
    pieces = [
        Piece(
            f"{across}{down}", Box(20 * across, 12 * down, 20 * across + 12, 12 * down + 10), down
        )
        for down in range(6)
        for across in range(3)
    ]
    rules = [Box(20 * n - 4, 0, 20 * n - 4, 72) for n in range(4)] + [Box(0, 11, 60, 11)]
    rows = ruled_table(pieces, rules)
    assert rows == [[f"{across}{down}" for across in range(3)] for down in range(6)]


def test_a_form_is_mostly_empty() -> None:
    assert is_form([["Name"] + 9 * [""], ["Town", "", "Street", *7 * [""]]])
    assert not is_form([["Name"] + 9 * ["1"]])
    assert not is_form([["Name", "", ""]])
    assert not is_form([])
