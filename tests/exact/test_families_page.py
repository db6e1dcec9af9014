"""The tables of families in `docs/families.md` are those of the census."""

from __future__ import annotations

from census import written
from families_page import PAGE, page


def test_the_tables_are_those_of_the_census() -> None:
    text = PAGE.read_text()
    assert page(text, written()) == text, "run: PYTHONPATH=.:tests python tests/families_page.py"
