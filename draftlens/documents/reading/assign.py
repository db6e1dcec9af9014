"""Assigns words to regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

from draftlens.documents.reading.blocks import lines_of
from draftlens.documents.reading.geometry import Box, around
from draftlens.documents.reading.order import reading_order
from draftlens.documents.reading.values import Piece, Reading, Region, RegionText

_CELL_GAP = 1.0
"""A space of this many line heights separates the cells of a table's row."""


_LONG_CELL = 20
"""Characters above which a cell may be a line of running text."""


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


def with_texts(regions: Sequence[Region], readings: Sequence[Reading]) -> list[Region]:
    """The same regions with the texts of each reading, the most trusted reading first."""
    texts: list[list[RegionText]] = [list(region.texts) for region in regions]
    for reading in readings:
        inside: list[list[Piece]] = [[] for _ in regions]
        for piece, owner in zip(reading.pieces, owners(reading.pieces, regions), strict=True):
            if owner is not None:
                inside[owner].append(piece)
        for index, pieces in enumerate(inside):
            if pieces:
                texts[index].append(text_of(reading.source, regions[index].kind, pieces))
    return [
        replace(region, texts=tuple(region_texts))
        for region, region_texts in zip(regions, texts, strict=True)
    ]


def without_prose(regions: Sequence[Region], reading: Reading) -> list[Region]:
    """Remove tables that are columns of running text, which layouts detect on pages of small type:
    their rows would mix the columns."""
    owned = owners(reading.pieces, regions)
    remaining = []
    for place, region in enumerate(regions):
        inside = [p for p, owner in zip(reading.pieces, owned, strict=True) if owner == place]
        if not (region.kind == "table" and inside and _is_prose(cells_by_row(inside))):
            remaining.append(region)
    return remaining


def _is_prose(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a third of the rows holds two long cells, as lines of neighbouring columns do; a
    table of terms and definitions has one per row."""
    long = [sum(len(cell) > _LONG_CELL for cell in row) for row in rows]
    return 3 * sum(count > 1 for count in long) > len(rows)


def words_outside(reading: Reading, regions: Sequence[Region]) -> list[Piece]:
    """Words outside of all regions."""
    region_indices = owners(reading.pieces, regions)
    return [
        piece for piece, owner in zip(reading.pieces, region_indices, strict=True) if owner is None
    ]


def text_of(source: str, kind: str, pieces: Sequence[Piece]) -> RegionText:
    lines = [" ".join(piece.text for piece in line) for line in lines_of(pieces)]
    rows: tuple[tuple[str, ...], ...] = ()
    if kind == "table":
        rows = tuple(tuple(row) for row in cells_by_row(pieces))
    score = fmean(piece.score for piece in pieces)
    return RegionText(source, tuple(lines), score, rows)


def cells_by_row(pieces: Sequence[Piece]) -> list[list[str]]:
    """The cells of a table by rows: words at one height are a row, wide spaces divide it."""
    height = median(piece.box.height for piece in pieces)
    rows: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: piece.box.middle[1]):
        if rows and piece.box.middle[1] - _middle_of(rows[-1]) <= height / 2:
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return [_cells(row, height) for row in rows]


def _middle_of(row: Sequence[Piece]) -> float:
    return fmean(piece.box.middle[1] for piece in row)


def _cells(row: Sequence[Piece], height: float) -> list[str]:
    cells: list[str] = []
    right: float | None = None
    for piece in sorted(row, key=lambda piece: piece.box.left):
        if right is not None and piece.box.left - right <= _CELL_GAP * height:
            cells[-1] = f"{cells[-1]} {piece.text}"
        else:
            cells.append(piece.text)
        right = piece.box.right
    return cells


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
