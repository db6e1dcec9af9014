"""Tables of a report, and their form as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

FIRST_COLUMN = (0,)


@dataclass(frozen=True)
class Table:
    """A table of text cells with a title.

    Args:
        note: sentence to print below the table; empty for none.
        text_columns: indices of the columns that hold text, which is aligned to the left; figures
            in the other columns are aligned to the right.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    text_columns: Collection[int] = FIRST_COLUMN


def markdown_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    text_columns: Collection[int] = FIRST_COLUMN,
) -> list[str]:
    """Lines of a Markdown table.

    Args:
        text_columns: indices of the columns that are aligned to the left.
    """
    marks = ["---" if index in text_columns else "---:" for index in range(len(columns))]
    return [_line(columns), f"|{'|'.join(marks)}|", *map(_line, rows)]


def markdown_page(
    title: str, about: str, tables: Iterable[Table], pictures: Sequence[str] = ()
) -> str:
    parts = [f"# {title}", about]
    for table in tables:
        parts.append(f"## {table.title}")
        parts.append("\n".join(markdown_table(table.columns, table.rows, table.text_columns)))
        if table.note:
            parts.append(table.note)
    parts += [f"![{picture}]({picture})" for picture in pictures]
    return "\n\n".join(parts) + "\n"


def format_number(value: float | None, digits: int, missing: str = "") -> str:
    """A number with a fixed number of decimal digits; `missing` for None."""
    return missing if value is None else f"{value:.{digits}f}"


def _line(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
    return f"| {' | '.join(escaped)} |"
