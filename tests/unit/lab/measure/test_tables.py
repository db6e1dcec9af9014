"""Tables and pages in Markdown."""

from __future__ import annotations

from draftlens_lab.measure.tables import Table, format_number, markdown_page, markdown_table


def test_text_is_aligned_to_the_left_and_figures_to_the_right() -> None:
    columns = ("name", "seconds", "verdict")
    lines = markdown_table(columns, [("a|b", "1.0", "one\ntwo")], text_columns=(0, 2))
    assert lines == [
        "| name | seconds | verdict |",
        "|---|---:|---|",
        "| a\\|b | 1.0 | one two |",
    ]


def test_a_page_has_a_section_for_each_table() -> None:
    tables = [Table("First", ("x",), [("1",)], "A note."), Table("Second", ("x", "y"), [])]
    assert markdown_page("Title", "About it.", tables, ["plot.png"]) == (
        "# Title\n\nAbout it.\n\n## First\n\n| x |\n|---|\n| 1 |\n\nA note.\n\n"
        "## Second\n\n| x | y |\n|---|---:|\n\n![plot.png](plot.png)\n"
    )


def test_missing_numbers() -> None:
    assert format_number(1.25, 1) == "1.2"
    assert format_number(None, 1) == ""
    assert format_number(None, 1, "–") == "–"
