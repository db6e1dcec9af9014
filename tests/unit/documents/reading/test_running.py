"""Running heads and feet of files whose pages repeat them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pdfs
import pytest

from draftlens.documents.entry import parse
from draftlens.documents.reading.open import open_document
from draftlens.documents.reading.page import Page

pytest.importorskip("pypdfium2")

NAMES = ("one", "two", "three", "four")


def drawn(number: int) -> Callable[[pdfs.Canvas], None]:
    """A page with a head, a number at its foot and three lines, the first of which is at the same
    height on all pages."""

    def draw(canvas: pdfs.Canvas) -> None:
        pdfs.lines(canvas, 30, 15, ["Of mills and bridges"])
        pdfs.lines(canvas, 150, 15, [f"Chapter {NAMES[number]}"])
        pdfs.lines(canvas, 30, 90, [f"Page {NAMES[number]} says", "that rye is", "no oats."])
        pdfs.lines(canvas, 140, 375, [str(number + 11)])

    return draw


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return pdfs.write(tmp_path / "a.pdf", [drawn(number) for number in range(len(NAMES))])


def running(page: Page) -> list[str]:
    boxes = page.facts().running
    layer = page.text_layer()
    assert layer is not None
    return [
        piece.text for piece in layer.pieces if any(box.holds(piece.box.middle) for box in boxes)
    ]


def test_lines_that_neighbours_repeat_and_what_stands_beside_them(path: Path) -> None:
    with closing(open_document(path)) as document:
        for number in (3, 1, 2, 4):  # in any order
            found = running(document.page(number))
            assert found == [
                *["Of", "mills", "and", "bridges"],
                "Chapter",
                NAMES[number - 1],
                str(number + 10),
            ]


@pytest.mark.parametrize("layout", ["blocks", "auto"])
def test_they_are_left_out_unless_they_are_asked_for(path: Path, layout: str) -> None:
    for number, page in enumerate(parse(path, layout=layout)):
        assert page.markdown == f"Page {NAMES[number]} says that rye is no oats."
    kept = " ".join(page.markdown for page in parse(path, layout=layout, running_heads=True))
    assert kept.count("Of mills and bridges") == len(NAMES)
    assert kept.count("Chapter") == len(NAMES)


def test_a_page_of_nothing_else_keeps_its_words(tmp_path: Path) -> None:
    def draw(canvas: pdfs.Canvas) -> None:
        pdfs.lines(canvas, 30, 15, ["Of mills and bridges"])

    path = pdfs.write(tmp_path / "a.pdf", [draw, draw])
    assert [page.markdown for page in parse(path, layout="blocks")] == ["Of mills and bridges"] * 2


def test_one_page_repeats_nothing(tmp_path: Path) -> None:
    with closing(open_document(pdfs.write(tmp_path / "a.pdf", [drawn(0)]))) as document:
        assert document.page(1).facts().running == ()


def test_equal_lines_at_other_heights_are_text(tmp_path: Path) -> None:
    def drawn_at(top: float) -> Callable[[pdfs.Canvas], None]:
        return lambda canvas: pdfs.lines(canvas, 30, top, ["See the mill.", "It stands.", "So."])

    path = pdfs.write(tmp_path / "a.pdf", [drawn_at(8), drawn_at(25)])
    with closing(open_document(path)) as document:
        assert running(document.page(1)) == running(document.page(2)) == []
