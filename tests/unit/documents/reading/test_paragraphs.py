"""Paragraphs, headings, items and code, by lines that are drawn here."""

from __future__ import annotations

from collections.abc import Sequence

from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.headings import Headings
from draftlens.documents.reading.marks import Marks
from draftlens.documents.reading.page import PageFacts, Piece, Region
from draftlens.documents.reading.paragraphs import divided

SIZE = 10.0
WIDE = 5.0
"""Points of a character, and of a space."""

WORDS = "The mill grinds rye for seven villages in one year"


def words(
    text: str, number: int, left: float = 0, top: float | None = None, **font: float
) -> list[Piece]:
    """A printed line, 12 points below the one before it."""
    size = font.pop("size", SIZE)
    height = 12.0 * number if top is None else top
    pieces = []
    for word in text.split():
        right = left + WIDE * len(word) * size / SIZE
        box = Box(left, height, right, height + size)
        pieces.append(Piece(word, box, number, 0, 1.0, size, **font))  # type: ignore[arg-type]
        left = right + WIDE * size / SIZE
    return pieces


def page(*lines: Sequence[Piece]) -> list[Piece]:
    return [piece for line in lines for piece in line]


def regions(pieces: Sequence[Piece], kind: str = "text", facts: PageFacts | None = None):  # type: ignore[no-untyped-def]
    headings = Headings()
    headings.read(pieces, facts or PageFacts(size=SIZE))
    found = divided(Region(Box(0, 0, 600, 600), kind), pieces, "mine", Marks(), headings)
    return headings.with_levels(found)


def parts(pieces: Sequence[Piece], kind: str = "text") -> list[tuple[str, str]]:
    return [(region.kind, region.texts[0].text) for region in regions(pieces, kind)]


def test_lines_that_are_full_are_one_paragraph() -> None:
    pieces = page(words(WORDS, 0), words(WORDS + "s", 1), words("and oats.", 2))
    assert parts(pieces) == [("text", f"{WORDS}\n{WORDS}s\nand oats.")]


def test_a_wide_space_divides_paragraphs() -> None:
    first = [words(WORDS, number) for number in range(3)]
    second = [words(WORDS, number, top=12.0 * number + 8) for number in (3, 4)]
    assert [text.count("\n") for _, text in parts(page(*first, *second))] == [2, 1]


def test_an_indented_line_begins_a_paragraph_where_a_sentence_ends() -> None:
    full = f"{WORDS} and oats"
    body = [words(full, 0), words(f"{full}.", 1), words(full, 2, left=15), words(full, 3)]
    assert [text.count("\n") for _, text in parts(page(*body))] == [1, 1]
    body[1] = words(f"{full},", 1)
    assert [text.count("\n") for _, text in parts(page(*body))] == [3]


def test_a_line_that_had_room_for_the_next_word_ends_a_paragraph() -> None:
    full = f"{WORDS} and oats"
    body = page(words(full, 0), words("in spring.", 1), words(full, 2), words("and so on.", 3))
    assert parts(body) == [("text", f"{full}\nin spring."), ("text", f"{full}\nand so on.")]


def test_lines_of_an_address_stay() -> None:
    body = page(words("Linn", 0), words("18720 Oxnard Street", 1), words("Tarzana", 2))
    (region,) = regions(body)
    assert region.texts[0].breaks
    (region,) = regions(page(words(WORDS, 0), words("of our valley", 1)))
    assert not region.texts[0].breaks


def test_bullets_and_numbers_that_follow_each_other_begin_items() -> None:
    body = page(
        words("It has", 0),
        words("\u2022 a wheel", 1),
        words("that turns", 2, left=10),
        words("\u2022 a stone", 3),
        words("1. first", 4),
        words("2. second", 5),
        words("9. and a year", 6),
    )
    assert parts(body) == [
        ("text", "It has"),
        ("list", "\u2022 a wheel\nthat turns"),
        ("list", "\u2022 a stone"),
        ("list", "1. first"),
        ("list", "2. second\n9. and a year"),
    ]


def test_letters_and_roman_numbers() -> None:
    marks = Marks()
    begins = ["(a)", "(b)", "(i)", "(ii)", "(iii)", "(iv)", "(c)", "(e)", "12)"]
    assert [marks.begins(mark, True) for mark in begins] == [True] * 7 + [False, False]
    assert not Marks().begins("(a)", False)
    assert Marks().begins("\u2022", False)
    assert not Marks().begins("word", True)


def test_headings_by_size_by_number_and_by_weight() -> None:
    body = page(
        words("Of mills and bridges", 0, size=18.0),
        words("2.1 The mill", 3, bold=True),
        words(WORDS, 4),
        words(f"and {WORDS}", 5),
        words(f"{WORDS} and more", 6),
        words("The bridge", 8, bold=True),
        words(WORDS, 9),
        words(f"and {WORDS}", 10),
    )
    found = regions(body)
    assert [(one.kind, one.level) for one in found] == [
        ("title", 1),
        ("title", 3),
        ("text", 0),
        ("title", 3),
        ("text", 0),
    ]


def test_a_term_above_its_indented_definition_is_no_heading() -> None:
    term = words("Mill", 0, bold=True)
    definition = [words(WORDS, number, left=20) for number in (1, 2)]
    assert [kind for kind, _ in parts(page(term, *definition))] == ["text", "text"]
    hanging = page(term, words(WORDS, 1, left=20), words(WORDS, 2))
    assert [kind for kind, _ in parts(hanging)] == ["title", "text"]


def test_a_caption_with_a_number_of_three_levels_is_a_heading() -> None:
    assert parts(words("3.1.2 The mill", 0, bold=True), "caption") == [("title", "3.1.2 The mill")]
    assert parts(words("Figure 3: The mill", 0, bold=True), "caption")[0][0] == "caption"


def test_what_the_layout_takes_for_a_title_is_one_if_its_font_says_so() -> None:
    plain = words("An odd line of the running text", 0)
    assert parts(plain, "title") == [("text", "An odd line of the running text")]
    heavy = words("An odd line of the running text", 0, bold=True)
    assert parts(heavy, "title") == [("title", "An odd line of the running text")]
    scanned = words("An odd line of the running text", 0)
    scanned = [Piece(piece.text, piece.box, piece.line) for piece in scanned]
    assert parts(scanned, "title") == [("title", "An odd line of the running text")]


def test_a_bookmark_says_what_is_a_heading_and_how_deep() -> None:
    facts = PageFacts((("A plain line", 4),), size=SIZE)
    found = regions(page(words("A plain line", 0), words(WORDS, 3)), facts=facts)
    assert [(one.kind, one.level) for one in found] == [("title", 4), ("text", 0)]


def test_code_keeps_its_lines_and_its_spaces() -> None:
    body = page(
        words("for row in rows:", 0, fixed=True),
        words("print( row )", 1, left=20, fixed=True),
    )
    assert parts(body) == [("code", "for row in rows:\n    print( row )")]
    assert parts(words("word", 0, fixed=True)) == [("text", "word")]


def test_entries_of_a_table_of_contents_are_items_without_dots() -> None:
    body = page(words("1 Mills ........ 7", 0), words("2 Bridges . . . . . . 12", 1))
    assert parts(body, "list") == [
        ("list", "1 Mills \u2026 7"),
        ("list", "2 Bridges \u2026 12"),
    ]


def test_a_note_begins_with_a_small_number() -> None:
    note = words("3 Of oats", 2)
    note[0] = Piece("3", note[0].box, 2, 0, 1.0, 6.0)
    body = page(words(WORDS, 0), words("and rye.", 1), note)
    assert [text for _, text in parts(body)] == [f"{WORDS}\nand rye.", "3 Of oats"]


def test_parts_of_one_line_are_one_line() -> None:
    """Wide spaces divide lines into columns, which a region does not have."""
    left, right = words("Telephone:", 0), words("+49 30 1234", 0, left=200)
    right = [Piece(piece.text, piece.box, 1, 0, 1.0, SIZE) for piece in right]
    assert parts(page(left, right)) == [("text", "Telephone: +49 30 1234")]
