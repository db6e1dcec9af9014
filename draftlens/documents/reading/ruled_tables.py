"""Tables and forms between lines that are drawn on the page."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from draftlens.documents.reading.geometry import Box, around
from draftlens.documents.reading.page import Piece
from draftlens.documents.reading.tables import MOST_COLUMNS, rows_of

_COLUMNS_OF_FORM = 8
_FILLED = 0.35
"""Columns from which a table is a form if a smaller share of its cells is filled."""

_RULE_MARGIN = 3.0
"""Points between two strokes of one line."""

_RULED_ROWS = 0.4
"""Rows between lines to printed ones, at least: cells have a few lines, and a table that has a line
below its head alone has more."""


def ruled_table(pieces: Sequence[Piece], rules: Sequence[Box]) -> list[list[str]] | None:
    """The texts of a table's cells between the lines that are drawn around them; None if there are
    no two columns between lines, or fewer than printed rows have cells. Rows are those between
    lines, or else the printed ones."""
    box = around(piece.box for piece in pieces)
    near = [rule for rule in rules if rule.padded(1.0).share_in(box)]
    upright = [rule for rule in near if rule.height > rule.width]
    across = _edges([rule.middle[0] for rule in upright])
    down = _edges([rule.middle[1] for rule in near if rule.width > rule.height])
    apart = rows_of(pieces)
    printed = [[piece for cell in row for piece in cell.pieces] for row in apart]
    if len(down) + 1 < _RULED_ROWS * len(printed):
        down = [min(piece.box.top for piece in row) for row in printed]
    cells = _cells(printed, upright, across, down)
    rows, columns = (sorted({place[axis] for place in cells}) for axis in (0, 1))
    usual = Counter(map(len, apart)).most_common(1)[0][0]
    if len(rows) < 2 or not max(2, usual) <= len(columns) <= MOST_COLUMNS:
        return None
    return [[" ".join(cells.get((row, column), ())) for column in columns] for row in rows]


def _cells(
    printed: Sequence[Sequence[Piece]],
    upright: Sequence[Box],
    across: Sequence[float],
    down: Sequence[float],
) -> dict[tuple[int, int], list[str]]:
    """The words of printed rows by row and column; `across` and `down` are the places of lines. A
    cell over several columns, between which no line is drawn there, stands in the first of them."""
    cells: dict[tuple[int, int], list[str]] = {}
    for row in printed:
        level = fmean(piece.box.middle[1] for piece in row)
        edges = _edges([rule.middle[0] for rule in upright if rule.top <= level <= rule.bottom])
        first_columns: dict[int, int] = {}
        for piece in row:
            middle = piece.box.middle[0]
            column = first_columns.setdefault(
                bisect_right(edges, middle), bisect_right(across, middle)
            )
            cells.setdefault((bisect_right(down, level), column), []).append(piece.text)
    return cells


def _edges(places: Sequence[float]) -> list[float]:
    """Places of lines, of which those beside each other are one."""
    edges: list[float] = []
    for place in sorted(places):
        if not edges or place - edges[-1] > _RULE_MARGIN:
            edges.append(place)
    return edges


def is_form(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table of many columns is mostly empty, as a form is between its lines."""
    cells = [cell for row in rows for cell in row]
    filled = sum(map(bool, cells))
    return bool(rows) and len(rows[0]) >= _COLUMNS_OF_FORM and filled < _FILLED * len(cells)
