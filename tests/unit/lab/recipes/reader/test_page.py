"""Pages of the reader's training: known Markdown, known places, the same every time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pypdfium2
import pytest

from recipes.reader.data import Bucket
from recipes.reader.layout import make_crop, make_page
from recipes.reader.page import NOT_SAID, Page, render
from recipes.reader.scan import random_scan
from recipes.reader.words import GLUE, REAL_WORDS, Split, Wording, is_held_out

TRAINED = Split()
HELD_OUT = Split(held_out=True)
BUCKETS = (Bucket(256, 32, 1), Bucket(320, 192, 1), Bucket(416, 592, 1, 1), Bucket(416, 592, 1, 2))


def pages(bucket: Bucket, count: int = 6, split: Split = TRAINED) -> list[Page]:
    rng = np.random.default_rng(bucket.height + bucket.columns)
    return [bucket.draw(rng, split) for _ in range(count)]


def ids(bucket: Bucket) -> str:
    return f"{bucket.width}x{bucket.height}-{bucket.columns}"


def test_a_seed_gives_the_same_file_and_markdown() -> None:
    first = make_page(np.random.default_rng(3), TRAINED, 416, 592, 2)
    second = make_page(np.random.default_rng(3), TRAINED, 416, 592, 2)
    assert first == second
    assert first != make_page(np.random.default_rng(4), TRAINED, 416, 592, 2)


@pytest.mark.parametrize("bucket", BUCKETS, ids=ids)
def test_glyphs_are_where_pdfium_finds_them(bucket: Bucket) -> None:
    for page in pages(bucket):
        document = pypdfium2.PdfDocument(page.pdf)
        text = document[0].get_textpage()
        found = []
        for index in range(text.count_chars()):
            character = text.get_text_range(index, 1)
            if not character.isspace():
                found.append((character, text.get_charbox(index, loose=True)))
        assert [glyph.character for glyph in page.glyphs] == [character for character, _ in found]
        for glyph, (_, (left, bottom, right, top)) in zip(page.glyphs, found, strict=True):
            assert glyph.x == pytest.approx((left + right) / 2, abs=1.5)
            # A loose box spans the font's own ascent and descent, which differ between fonts.
            middle = page.height - (bottom + top) / 2
            assert glyph.y == pytest.approx(middle, abs=0.15 * (top - bottom))
        document.close()


@pytest.mark.parametrize("bucket", BUCKETS, ids=ids)
def test_the_ink_is_at_the_glyphs_and_the_markdown_names_them(bucket: Bucket) -> None:
    for page in pages(bucket):
        picture = render(page)
        assert picture.shape == (page.height, page.width)
        for glyph in page.glyphs:
            row, column = int(glyph.y), int(glyph.x)
            around = picture[max(0, row - 9) : row + 9, max(0, column - 4) : column + 5]
            assert around.min() < 160, glyph
        said = [glyph for glyph in page.glyphs if glyph.place != NOT_SAID]
        assert [glyph.place for glyph in said] == sorted({glyph.place for glyph in said})
        for glyph in said:
            expected = "-" if glyph.character == "\u2022" else glyph.character
            assert page.markdown[glyph.place] == expected


def test_heads_and_feet_are_left_out_and_regions_cover_the_rest() -> None:
    kinds = set()
    for page in pages(Bucket(416, 592, 1, 1), 12):
        covered = ""
        for region in page.regions:
            kinds.add(region.kind)
            left, top, right, bottom = region.box
            assert 0 <= left < right <= page.width
            assert 0 <= top < bottom <= page.height
            assert (region.start == NOT_SAID) == (region.kind in ("head", "foot"))
            if region.start != NOT_SAID:
                covered += page.markdown[region.start : region.end] + "\n\n"
        assert covered == page.markdown + "\n\n"
        assert page.markdown == page.markdown.strip()
    assert kinds == {
        "title", "heading", "paragraph", "bullets", "numbered", "table", "head", "foot"
    }  # fmt: skip


def test_a_table_has_as_many_cells_in_each_row() -> None:
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(30):
        page = make_crop(rng, TRAINED, 320, 192)
        for region in page.regions:
            if region.kind == "table":
                rows = page.markdown[region.start : region.end].split("\n")
                assert len({row.count("|") for row in rows}) == 1
                assert set(rows[1]) == {"|", "-"}
                seen += 1
    assert seen > 3


def test_the_splits_share_no_word_and_no_size() -> None:
    for split in (TRAINED, HELD_OUT):
        wording = Wording(np.random.default_rng(1), split)
        words = {wording.word() for _ in range(800)} - set(GLUE)
        assert {is_held_out(word) for word in words} == {split.held_out}
    assert len(REAL_WORDS[True]) > 50
    sizes = {}
    for split in (TRAINED, HELD_OUT):
        rng = np.random.default_rng(2)
        found = set()
        for _ in range(20):
            page = make_crop(rng, split, 256, 32)
            found |= {size for size in (14, 14.5, 15, 16, 17, 18) if _has_size(page, size)}
        sizes[split.held_out] = found
    assert sizes[True] == {16}
    assert 16 not in sizes[False]


def test_a_scan_moves_the_ink_and_knows_where_to() -> None:
    page = make_page(np.random.default_rng(8), TRAINED, 416, 592, 1)
    scan = replace(random_scan(np.random.default_rng(0)), angle=2.0)
    picture = scan.apply(render(page))
    assert picture.shape == (592, 416)
    assert np.array_equal(picture, scan.apply(render(page)))
    moves = []
    for glyph in page.glyphs:
        x, y = scan.place(glyph.x, glyph.y, page.width, page.height)
        moves.append(abs(y - glyph.y))
        around = picture[int(y) - 9 : int(y) + 9, int(x) - 4 : int(x) + 5]
        assert around.min() < scan.ink + 130, glyph
    assert max(moves) > 5


def _has_size(page: Page, size: float) -> bool:
    """Whether a PDF, which is not compressed, sets text at this size."""
    operators = [line for line in page.pdf.split(b"\n") if b" Tf" in line]
    return any(f" {size:g} Tf".encode() in line for line in operators)
