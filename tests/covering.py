"""Pairwise testing: a small part of a product in which any two values still meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations


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
