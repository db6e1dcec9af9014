"""Tables: rows and columns of cells from words and their boxes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import isfinite
from statistics import fmean, median

from draftlens.documents.reading.geometry import Box, around
from draftlens.documents.reading.marks import BULLETS, DASHES
from draftlens.documents.reading.page import Piece, Region

_CELL_GAP = 1.0
"""A space of this many line heights separates the cells of a table's row."""

_WRAPPED = 0.8
"""A row without a first cell that is nearer to the row above it than this share of the usual
distance of rows continues its cells."""

_LONG_CELL = 20
"""Characters above which a cell may be a line of running text."""

_LEAST_CELLS = 6
"""Cells of the smallest table that is found without a layout."""

_LONG_SIDE = 9
"""Mean number of characters on both sides of a space above which it separates columns of text."""

_LEAST_PROSE = 3
"""Rows that have this space."""

_MOST_PLACES = 32
"""Places between columns of text that are tried, the most frequent first."""

MOST_COLUMNS = 64
"""A page with more cells in one row is no table: its rows would be padded to that width."""

_ROW_GAP = 2.0
"""Rows of a table are at most this many line heights apart."""

_DOTS = "._\u2026\u00b7"
_LEAST_DOTS = 3
"""What leads from the first cell of a row to its numbers, and how many words of it do."""

_MARK = re.compile(rf"^([{re.escape(BULLETS + DASHES)}]|\(?\w{{1,3}}[.)])$")
"""The mark of a list's item."""


@dataclass(frozen=True)
class Cell:
    """The words of a table's row that are close together."""

    pieces: tuple[Piece, ...]

    @cached_property
    def box(self) -> Box:
        return around(piece.box for piece in self.pieces)

    @cached_property
    def text(self) -> str:
        return " ".join(piece.text for piece in self.pieces)


Row = list[Cell]


def rows_of(pieces: Sequence[Piece]) -> list[Row]:
    """Words at one height are a row; wide spaces divide it into cells."""
    height = median(piece.box.height for piece in pieces)
    rows: list[list[Piece]] = []
    total = 0.0  # of the heights of the last row's words
    for piece in sorted(pieces, key=lambda piece: piece.box.middle[1]):
        middle = piece.box.middle[1]
        if rows and middle - total / len(rows[-1]) <= height / 2:
            rows[-1].append(piece)
            total += middle
        else:
            rows.append([piece])
            total = middle
    kept = [words for row in rows if (words := _without_leaders(row))]
    return [_cells(row, height) for row in kept or rows]


def _without_leaders(row: list[Piece]) -> list[Piece]:
    """The words of a row without the dots that lead to its numbers."""
    words = [piece for piece in row if piece.text.strip(_DOTS)]
    return words if len(row) - len(words) >= _LEAST_DOTS else row


def _cells(row: Sequence[Piece], height: float) -> Row:
    cells: list[list[Piece]] = []
    right: float | None = None
    for piece in sorted(row, key=lambda piece: piece.box.left):
        if right is not None and piece.box.left - right <= _CELL_GAP * height:
            cells[-1].append(piece)
        else:
            cells.append([piece])
        right = piece.box.right
    return [Cell(tuple(cell)) for cell in cells]


def table_of(pieces: Sequence[Piece]) -> list[list[str]]:
    """The texts of a table's cells by rows and columns; none if there are too many columns.

    A cell stands in the column that it overlaps most, so that missing cells are empty texts; one
    that spans several columns stands in the first of them. Lines of wrapped cells are joined.
    """
    rows = rows_of(pieces)
    if max(len(row) for row in rows) > MOST_COLUMNS:
        return []
    columns = columns_of(rows)
    if columns is None:
        return [[cell.text for cell in row] for row in rows]
    placed = [_placed(row, columns) for row in rows]
    return _joined(placed, [_box_of([row]).middle[1] for row in rows])


def columns_of(rows: Sequence[Row]) -> list[tuple[float, float]] | None:
    """Left and right end of each column, from the rows with the most cells; None if these do not
    stand below each other."""
    most = max(len(row) for row in rows)
    full = [row for row in rows if len(row) == most]
    columns = [
        (min(row[place].box.left for row in full), max(row[place].box.right for row in full))
        for place in range(most)
    ]
    are_apart = all(left[1] <= right[0] for left, right in pairwise(columns))
    return columns if are_apart else None


def _placed(row: Row, columns: Sequence[tuple[float, float]]) -> list[str]:
    """The texts of a row by column."""
    texts = [""] * len(columns)
    if len(row) == len(columns):
        return [cell.text for cell in row]
    for cell in row:
        place = _column(cell.box, columns)
        texts[place] = f"{texts[place]} {cell.text}".strip()
    return texts


def _column(box: Box, columns: Sequence[tuple[float, float]]) -> int:
    """The first column that holds half of the box or is half covered by it, or else the nearest."""
    for place, (left, right) in enumerate(columns):
        overlap = min(box.right, right) - max(box.left, left)
        if overlap > 0 and overlap >= min(box.width, right - left) / 2:
            return place
    middle = box.middle[0]
    return min(range(len(columns)), key=lambda place: abs(sum(columns[place]) / 2 - middle))


def _joined(rows: Sequence[list[str]], middles: Sequence[float]) -> list[list[str]]:
    """Rows with the lines of wrapped cells in one row."""
    usual = _usual_distance(rows, middles)
    joined: list[list[str]] = []
    for place, row in enumerate(rows):
        if place and not row[0] and middles[place] - middles[place - 1] < _WRAPPED * usual:
            joined[-1] = [f"{a} {b}".strip() for a, b in zip(joined[-1], row, strict=True)]
        else:
            joined.append(row)
    return joined


def _usual_distance(rows: Sequence[list[str]], middles: Sequence[float]) -> float:
    """The median distance of rows that have first cells; 0 where there are fewer than two."""
    distances = [
        low - high for (_, high), (row, low) in pairwise(zip(rows, middles, strict=True)) if row[0]
    ]
    return median(distances) if distances else 0.0


def is_prose(rows: Sequence[Row]) -> bool:
    """Whether a third of the rows holds two long cells, as lines of neighbouring columns do; a
    table of terms and definitions has one per row."""
    long = [sum(len(cell.text) > _LONG_CELL for cell in row) for row in rows]
    return 3 * sum(count > 1 for count in long) > len(rows)


def tables_in(pieces: Sequence[Piece], most_cuts: int = 3) -> list[list[Piece]]:
    """The words of tables: rows of several cells in columns. Lists, and lines of neighbouring
    columns of text, are none; the page is cut between such columns `most_cuts` times at most."""
    if not pieces:
        return []
    rows = rows_of(pieces)
    gutter = _gutter(rows)
    if gutter is not None:
        if not most_cuts:
            return []
        sides = _sides(pieces, gutter)
        return [table for side in sides for table in tables_in(side, most_cuts - 1)]
    height = median(piece.box.height for piece in pieces)
    runs = [_trimmed(run) for run in _runs(rows, height)]
    tables = [run for run in runs if _is_table(run)]
    return [[piece for row in run for cell in row for piece in cell.pieces] for run in tables]


def _gutter(rows: Sequence[Row]) -> float | None:
    """The middle of the space between two columns of running text; None if there is none."""
    gaps = [(left, right) for row in rows for left, right in pairwise(row)]
    ends = [(left.box.right, right.box.left) for left, right in gaps]
    boxes = [cell.box for row in rows for cell in row]
    # Rounded, since lines end at different places; any place between the columns will do.
    middles = [(left + right) / 2 for left, right in ends]
    places = Counter(round(middle) for middle in middles if isfinite(middle))
    for place, _ in places.most_common(_MOST_PLACES):
        around_it = [
            gap for gap, (left, right) in zip(gaps, ends, strict=True) if left < place < right
        ]
        crossing = sum(box.left <= place <= box.right for box in boxes)
        if len(around_it) >= max(_LEAST_PROSE, 2 * crossing) and all(
            fmean(len(gap[side].text) for gap in around_it) > _LONG_SIDE for side in (0, 1)
        ):
            return place
    return None


def _sides(pieces: Sequence[Piece], place: float) -> tuple[list[Piece], list[Piece]]:
    left = [piece for piece in pieces if piece.box.middle[0] < place]
    right = [piece for piece in pieces if piece.box.middle[0] >= place]
    return left, right


def _runs(rows: Sequence[Row], height: float) -> list[list[Row]]:
    """Consecutive rows of several cells."""
    runs: list[list[Row]] = [[]]
    for row in rows:
        if len(row) < 2:
            runs.append([])
            continue
        if runs[-1]:
            gap = _box_of([row]).top - _box_of(runs[-1][-1:]).bottom
            if gap > _ROW_GAP * height:
                runs.append([])
        runs[-1].append(row)
    return [run for run in runs if run]


def _trimmed(rows: list[Row]) -> list[Row]:
    """Rows without the first and last ones whose cells all stand in one column, such as the items
    of a list above the table."""
    columns = columns_of(rows)
    if columns is None or len(columns) > MOST_COLUMNS:
        return rows
    filled = [len(row) == len(columns) or sum(map(bool, _placed(row, columns))) > 1 for row in rows]
    first = filled.index(True)
    last = len(rows) - filled[::-1].index(True)
    return rows[first:last]


def _is_table(rows: Sequence[Row]) -> bool:
    columns = columns_of(rows)
    if columns is None or len(rows) < 2 or len(columns) > MOST_COLUMNS:
        return False
    if len(rows) * len(columns) < _LEAST_CELLS:
        return False
    return not is_prose(rows) and not all(_MARK.match(row[0].text) for row in rows)


def _box_of(rows: Sequence[Row]) -> Box:
    return around(cell.box for row in rows for cell in row)


def without_captions(region: Region, pieces: Sequence[Piece]) -> Region:
    """A table without lines at its top or bottom that are one cell, such as a caption, if all
    others have several cells. `pieces` are the words in its box."""
    rows = rows_of(pieces)
    several = [place for place, row in enumerate(rows) if len(row) > 1]
    if region.kind != "table" or not several or several[-1] - several[0] + 1 != len(several):
        return region
    box = _box_of(rows[several[0] : several[-1] + 1])
    top = box.top if several[0] else region.box.top
    bottom = box.bottom if several[-1] + 1 < len(rows) else region.box.bottom
    return replace(region, box=replace(region.box, top=top, bottom=bottom))
