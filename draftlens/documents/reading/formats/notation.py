"""How targets write tables and formulas, and what their answers show of it."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from draftlens.documents.reading.variants import clean

Rows = Sequence[Sequence[str]]


class TableNotation(Protocol):
    def write(self, rows: Rows) -> str:
        """A table whose first row is its head; short rows are padded."""
        ...


@dataclass(frozen=True)
class MarkdownTables:
    """`pad` stands on both sides of a cell, `rule` below each cell of the head."""

    pad: str = " "
    rule: str = "---"

    def write(self, rows: Rows) -> str:
        width = max(len(row) for row in rows)
        lines = []
        for row in rows:
            cells = [clean(cell).replace("|", "\\|") for cell in row] + [""] * (width - len(row))
            lines.append("".join(f"|{self.pad}{cell}{self.pad}" for cell in cells) + "|")
        lines.insert(1, f"|{self.rule}" * width + "|")
        return "\n".join(lines)


@dataclass(frozen=True)
class HtmlTables:
    """The texts before, between and after the cells of a table, tags included."""

    start: str = "<table><tr><td>"
    in_head: str = "</td><td>"
    after_head: str = "</td></tr><tr><td>"
    in_row: str = "</td><td>"
    after_row: str = "</td></tr><tr><td>"
    end: str = "</td></tr></table>"
    end_of_head: str = "</td></tr></table>"  # of a table that has no other row

    def write(self, rows: Rows) -> str:
        head, *others = [[html.escape(clean(cell), quote=False) for cell in row] for row in rows]
        written = self.start + self.in_head.join(head)
        if not others:
            return written + self.end_of_head
        body = self.after_row.join(self.in_row.join(row) for row in others)
        return f"{written}{self.after_head}{body}{self.end}"


@dataclass(frozen=True)
class OtslTables:
    """OTSL (arXiv 2305.03393): a mark before each cell and after each row.

    Args:
        head: the mark of filled cells of the first row.
        cell: the mark of other filled cells.
        empty: stands for an empty cell.
        end: stands after the last cell of a row.
    """

    head: str = "<fcel>"
    cell: str = "<fcel>"
    empty: str = "<ecel>"
    end: str = "<nl>"

    def write(self, rows: Rows) -> str:
        width = max(len(row) for row in rows)
        written = ""
        for number, row in enumerate(rows):
            mark = self.cell if number else self.head
            cells = [clean(cell) for cell in row] + [""] * (width - len(row))
            written += "".join(mark + cell if cell else self.empty for cell in cells) + self.end
        return written


MARKDOWN_TABLES = MarkdownTables()
HTML_TABLES = HtmlTables()
OTSL_TABLES = OtslTables()
OTSL_TABLES_WITH_HEADS = OtslTables("<ched>")

_HTML_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL | re.IGNORECASE)
_CELL = re.compile(r"(<t[dh]\b[^>]*>)(.*?)(</t[dh]>)", re.DOTALL | re.IGNORECASE)
_GROUP = re.compile(r"</?t(head|body)\b[^>]*>\s*", re.IGNORECASE)
_ROW = re.compile(r"<tr\b", re.IGNORECASE)
_OTSL_TABLE = re.compile(r"<(?:fcel|ched)>")
_MARKDOWN_TABLE = re.compile(r"^\|([ ]?)[^\n]*\|[ ]*\n\|([ ]*:?-+:?[ ]*)\|", re.MULTILINE)


def table_notation(answer: str) -> TableNotation | None:
    """The notation of the first table of an answer; None if it has none."""
    found = _HTML_TABLE.search(answer)
    if found is not None:
        return _html_notation(found.group())
    if _OTSL_TABLE.search(answer):
        return OTSL_TABLES_WITH_HEADS if "<ched>" in answer else OTSL_TABLES
    head = _MARKDOWN_TABLE.search(answer)
    return None if head is None else MarkdownTables(head[1], head[2])


def _html_notation(table: str) -> HtmlTables | None:
    """The texts around cells, each from the first place at which it occurs; None without cells."""
    cells = list(_CELL.finditer(table))
    if not cells:
        return None
    starts = [cell.start(2) for cell in cells]
    ends = [cell.end(2) for cell in cells]
    between = [table[end:start] for end, start in zip(ends, starts[1:], strict=False)]
    breaks = [place for place, text in enumerate(between) if _ROW.search(text)]
    first = breaks[0] if breaks else len(between)
    second = breaks[1] if len(breaks) > 1 else len(between)
    notation = HtmlTables(start=table[: starts[0]])
    if first:
        in_row = between[0].replace("th>", "td>").replace("<th ", "<td ")
        notation = replace(notation, in_head=between[0], in_row=in_row)
    if not breaks:
        return replace(notation, end_of_head=table[ends[-1] :])
    notation = replace(notation, after_head=between[first], end=table[ends[-1] :])
    if second > first + 1:
        notation = replace(notation, in_row=between[first + 1])
    if second < len(between):
        return replace(notation, after_row=between[second])
    # There is one row besides the head: what follows the head, without groups of rows.
    after_row = _GROUP.sub("", between[first].replace(cells[first][3], cells[-1][3]))
    return replace(notation, after_row=after_row)


@dataclass(frozen=True)
class FormulaNotation:
    """The texts before and after the LaTeX of a displayed formula."""

    start: str = "$$\n"
    end: str = "\n$$"

    def write(self, latex: str) -> str:
        return f"{self.start}{latex.strip()}{self.end}"


DOLLARS = FormulaNotation()
BRACKETS = FormulaNotation("\\[\n", "\n\\]")

_FORMULA = re.compile(
    r"(?P<start>\$\$\s*)[^$]+?(?P<end>\s*\$\$)|(?P<open>\\\[\s*).+?(?P<close>\s*\\\])", re.DOTALL
)


def formula_notation(answer: str) -> FormulaNotation | None:
    """The notation of the first displayed formula of an answer; None if it has none."""
    found = _FORMULA.search(answer)
    if found is None:
        return None
    if found["start"] is not None:
        return FormulaNotation(found["start"], found["end"])
    return FormulaNotation(found["open"], found["close"])


@dataclass(frozen=True)
class Notations:
    """The notations of tables and formulas in a target's answers.

    Args:
        table, formula: the likeliest.
        other_table, other_formula: a further one that is tried, too; None once an answer has shown
            which one it is.
    """

    table: TableNotation = MARKDOWN_TABLES
    other_table: TableNotation | None = HTML_TABLES
    formula: FormulaNotation = DOLLARS
    other_formula: FormulaNotation | None = BRACKETS

    def after(self, answer: str) -> Notations:
        """The notations that a finished answer shows; the others stay."""
        notations = self
        table = table_notation(answer)
        if table is not None:
            notations = replace(notations, table=table, other_table=None)
        formula = formula_notation(answer)
        if formula is not None:
            notations = replace(notations, formula=formula, other_formula=None)
        return notations

    def tables(self, rows: Rows) -> list[str]:
        return [one.write(rows) for one in (self.table, self.other_table) if one is not None]

    def formulas(self, latex: str) -> list[str]:
        return [one.write(latex) for one in (self.formula, self.other_formula) if one is not None]


WITH_MARKDOWN = Notations()
WITH_HTML = Notations(HTML_TABLES, MARKDOWN_TABLES)
WITH_OTSL = Notations(OTSL_TABLES, HTML_TABLES, BRACKETS, DOLLARS)
WITH_HTML_AND_BRACKETS = Notations(HTML_TABLES, None, BRACKETS, DOLLARS)
