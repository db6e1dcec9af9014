"""Pairwise testing: a small part of a product in which any two values still meet; and half of a
product in which each value still occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from zlib import crc32

FEW = 6
"""Values of a column of which `halved` leaves all."""


def covering(rows: Sequence[Mapping[str, str]]) -> set[int]:
    """Indices of rows that hold every pair of values that two columns of any row hold: a covering
    array of strength 2, greedily, where each row that is taken has the most new pairs.

    Example::

        >>> sorted(covering([{"a": x, "b": y, "c": z} for x in "01" for y in "01" for z in "01"]))
        [0, 3, 5, 6]
    """
    pairs = [set(combinations(row.items(), 2)) for row in rows]
    missing = set().union(*pairs)
    chosen = set[int]()
    while missing:
        best = max(range(len(rows)), key=lambda row: len(pairs[row] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return chosen


def halved(rows: Sequence[Mapping[str, str]], column: str) -> set[int]:
    """Indices of rows that hold every second value of a column: for each combination of the other
    columns either those with even or those with odd numbers, which is drawn by a checksum of the
    combination, so that it stays the same in every run.

    Example::

        >>> rows = [{"a": x, "b": y} for x in "uvwxyz" for y in "01"]
        >>> [rows[row]["a"] for row in sorted(halved(rows, "a")) if rows[row]["b"] == "0"]
        ['v', 'x', 'z']
    """
    values = list(dict.fromkeys(row[column] for row in rows))
    if len(values) < FEW:
        return set(range(len(rows)))
    kept = set[int]()
    for number, row in enumerate(rows):
        others = sorted((name, value) for name, value in row.items() if name != column)
        if (values.index(row[column]) + crc32(repr(others).encode())) % 2 == 0:
            kept.add(number)
    return kept
