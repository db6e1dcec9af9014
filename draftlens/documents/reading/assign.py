"""Assigns words to regions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from draftlens.documents.reading.blocks import lines_of, split_columns
from draftlens.documents.reading.geometry import Box, around, reading_order
from draftlens.documents.reading.page import Piece, Reading, Region, RegionText
from draftlens.documents.reading.tables import (
    table_of,
    tables_in,
    without_captions,
)

_FIRM = 0.75
"""Share of a line's words in a region from which the others belong to it, too."""


def ordered(regions: Sequence[Region]) -> list[Region]:
    order = reading_order([region.box for region in regions])
    return [replace(regions[index], order=place) for place, index in enumerate(order)]


def owners(pieces: Sequence[Piece], regions: Sequence[Region]) -> list[int | None]:
    """For each word the smallest region that holds its middle; None for none."""
    by_size = sorted(range(len(regions)), key=lambda index: regions[index].box.area)
    indices: list[int | None] = []
    for piece in pieces:
        middle = piece.box.middle
        holding = (index for index in by_size if regions[index].box.holds(middle))
        indices.append(next(holding, None))
    return indices


def line_owners(pieces: Sequence[Piece], regions: Sequence[Region]) -> list[int | None]:
    """As `owners`, but single words of a line whose others are in one region of running text are
    in it, too."""
    owner_of = dict(zip(map(id, pieces), owners(pieces, regions), strict=True))
    for line in lines_of(pieces):
        for part in split_columns(line):
            counts = Counter(owner_of[id(piece)] for piece in part)
            owner, count = counts.most_common(1)[0]
            if owner is None or _is_whole(regions[owner]) or count < _FIRM * len(part):
                continue
            for piece in part:
                other = owner_of[id(piece)]
                if other is None or not _is_whole(regions[other]):
                    owner_of[id(piece)] = owner
    return [owner_of[id(piece)] for piece in pieces]


def _owner_of_word(regions: Sequence[Region], reading: Reading) -> dict[int, int | None]:
    """The results of `owners` by the `id` of a word: two words may be equal."""
    return dict(zip(map(id, reading.pieces), owners(reading.pieces, regions), strict=True))


def with_whole_lines(regions: Sequence[Region], reading: Reading) -> list[Region]:
    """Widen regions of running text by the words of their lines that lie beside them.

    Layouts find the edges of a region in a picture of the page and cut off first and last words.
    """
    owner_of_word = _owner_of_word(regions, reading)
    boxes = [region.box for region in regions]
    for line in lines_of(reading.pieces):
        for part in split_columns(line):
            inside = [
                (word, owner)
                for word in part
                if (owner := owner_of_word[id(word)]) is not None and not _is_whole(regions[owner])
            ]
            for word in part:
                if inside and owner_of_word[id(word)] is None:
                    _, owner = min(inside, key=lambda other: _distance(word, other[0]))
                    boxes[owner] = _widened(boxes[owner], word.box)
    return [replace(region, box=box) for region, box in zip(regions, boxes, strict=True)]


def _distance(word: Piece, other: Piece) -> float:
    """Points between two words of a line."""
    return max(word.box.left - other.box.right, other.box.left - word.box.right)


def _widened(box: Box, word: Box) -> Box:
    """The box with the word's width; unchanged if the word is above or below it."""
    if not box.top <= word.middle[1] <= box.bottom:
        return box
    return replace(box, left=min(box.left, word.left), right=max(box.right, word.right))


def with_texts(regions: Sequence[Region], readings: Sequence[Reading]) -> list[Region]:
    """The same regions with the texts of each reading, the most trusted reading first."""
    texts: list[list[RegionText]] = [list(region.texts) for region in regions]
    for reading in readings:
        for index, pieces in enumerate(pieces_by_region(regions, reading)):
            if pieces:
                texts[index].append(text_of(reading.source, regions[index].kind, pieces))
    return [
        replace(region, texts=tuple(region_texts))
        for region, region_texts in zip(regions, texts, strict=True)
    ]


def with_tables(regions: Sequence[Region], reading: Reading, by_region: bool) -> list[Region]:
    """Add the tables that the layout has missed, found by the positions of the words.

    Args:
        regions: by the layout. Those that hold such a table are divided into what is above and
            below it, unless the layout has read them.
        reading: the words of the page.
        by_region: whether regions are trusted to separate columns of text.
    """
    owner_of_word = _owner_of_word(regions, reading)
    columns = _columns(regions, reading, owner_of_word) if by_region else [reading.pieces]
    added: list[tuple[Box, set[int | None]]] = []  # tables, and the regions that hold their words
    for table in (table for column in columns for table in tables_in(column)):
        holders = [owner_of_word[id(word)] for word in table]
        if _is_missed(holders, regions):
            added.append((around(word.box for word in table), set(holders)))
    parts = [
        part
        for index, region in enumerate(regions)
        for part in _divided(region, [box for box, holders in added if index in holders])
    ]
    return [*parts, *(Region(box, "table") for box, _ in added)]


def _columns(
    regions: Sequence[Region], reading: Reading, owner_of_word: Mapping[int, int | None]
) -> list[Sequence[Piece]]:
    """The words of each region of running text, and those outside of all regions."""
    owned: dict[int | None, list[Piece]] = {}
    for word in reading.pieces:
        owned.setdefault(owner_of_word[id(word)], []).append(word)
    columns = [index for index, region in enumerate(regions) if not _is_whole(region)]
    return [owned.get(column, []) for column in (*columns, None)]


def _is_missed(holders: Sequence[int | None], regions: Sequence[Region]) -> bool:
    """Whether most words of a table lie outside of what the layout has found to be no text."""
    known = sum(owner is not None and _is_whole(regions[owner]) for owner in holders)
    return 2 * known < len(holders)


def _divided(region: Region, tables: Sequence[Box]) -> list[Region]:
    """The parts of a region above, between and below tables."""
    if region.texts or not tables:
        return [region]
    parts = []
    top = region.box.top
    for table in sorted(tables, key=lambda box: box.top):
        if table.top > top:
            parts.append(replace(region, box=replace(region.box, top=top, bottom=table.top)))
        top = max(top, table.bottom)
    if top < region.box.bottom:
        parts.append(replace(region, box=replace(region.box, top=top)))
    return parts


def _is_whole(region: Region) -> bool:
    """Whether a layout has found something that is no running text."""
    return region.kind in ("table", "figure", "formula")


def without_captions_inside(regions: Sequence[Region], reading: Reading) -> list[Region]:
    """Regions with tables that end at their first and last row (`tables.without_captions`)."""
    return [
        without_captions(region, inside) if region.kind == "table" and inside else region
        for region, inside in zip(regions, pieces_by_region(regions, reading), strict=True)
    ]


def pieces_by_region(regions: Sequence[Region], reading: Reading) -> list[list[Piece]]:
    """The words in each region."""
    inside: list[list[Piece]] = [[] for _ in regions]
    for piece, owner in zip(reading.pieces, line_owners(reading.pieces, regions), strict=True):
        if owner is not None:
            inside[owner].append(piece)
    return inside


def words_outside(reading: Reading, regions: Sequence[Region]) -> list[Piece]:
    """Words outside of all regions."""
    region_indices = line_owners(reading.pieces, regions)
    return [
        piece for piece, owner in zip(reading.pieces, region_indices, strict=True) if owner is None
    ]


def text_of(source: str, kind: str, pieces: Sequence[Piece]) -> RegionText:
    lines = [" ".join(piece.text for piece in line) for line in lines_of(pieces)]
    rows: tuple[tuple[str, ...], ...] = ()
    if kind == "table":
        rows = tuple(tuple(row) for row in table_of(pieces))
    score = fmean(piece.score for piece in pieces)
    return RegionText(source, tuple(lines), score, rows)


def regions_of_blocks(pieces: Sequence[Piece], whole: Box) -> list[Region]:
    blocks: dict[int, list[Piece]] = {}
    for piece in pieces:
        blocks.setdefault(piece.block, []).append(piece)
    regions = []
    for block in blocks.values():
        box = around(piece.box for piece in block).within(whole)
        if box.area:
            regions.append(Region(box, "text"))
    return regions
