"""Which combinations of a `pairwise` test's parameters run."""

from __future__ import annotations

from itertools import combinations, product

from covering import covering, halved


def test_any_two_values_meet_in_far_fewer_rows() -> None:
    names = ("family", "kind", "method", "drafter")
    values = product("abcdefgh", "0123", "vwxyz", ("noisy", "self"))
    rows = [dict(zip(names, row, strict=True)) for row in values]
    # Not every combination exists.
    rows = [row for row in rows if (row["method"], row["drafter"]) != ("v", "self")]
    chosen = [rows[number] for number in covering(rows)]
    pairs, left = (
        {pair for row in some for pair in combinations(row.items(), 2)} for some in (rows, chosen)
    )
    assert left == pairs
    assert 40 <= len(chosen) <= 50 < len(rows) == 288


def test_two_parameters_or_one_run_whole() -> None:
    rows = [{"family": family, "kind": kind} for family in "abc" for kind in "01"]
    assert covering(rows) == set(range(6))


def test_tests_that_have_parameters_in_common_share_their_pairs() -> None:
    """Each of them meets every value, and any two values meet in one of them."""
    names = ("", "family", "method")
    rows = [dict(zip(names, row, strict=True)) for row in product("st", "abcdefgh", "uvwxyz")]
    chosen = [rows[number] for number in covering(rows)]
    pairs, left = (
        {pair for row in some for pair in combinations(row.items(), 2)} for some in (rows, chosen)
    )
    assert left == pairs
    assert len(chosen) == 48 == len(rows) / 2


def test_half_of_the_families_meets_each_combination() -> None:
    """Either the even ones or the odd ones, so that all of them run in a test of two methods."""
    names = ("", "family", "method")
    rows = [dict(zip(names, row, strict=True)) for row in product("s", "abcdefgh", "uvwxyz")]
    kept = [rows[number] for number in sorted(halved(rows, "family"))]
    assert len(kept) == len(rows) / 2
    halves = {
        method: "".join(row["family"] for row in kept if row["method"] == method)
        for method in "uvwxyz"
    }
    assert set(halves.values()) == {"aceg", "bdfh"}
    few = [row for row in rows if row["family"] < "f"]
    assert halved(few, "family") == set(range(len(few)))
