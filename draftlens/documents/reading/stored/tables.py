"""Rows of tables that are written as HTML."""

from __future__ import annotations

from html.parser import HTMLParser

from draftlens.documents.reading.stored.values import MOST_CELLS, Value

_MOST_SPAN = 1000


class _Cells(HTMLParser):
    """Collects the cells of the first table, each with the columns and rows that it spans."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[tuple[str, int, int]]] = []
        self._text: list[str] | None = None
        self._spans = (1, 1)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self._close()
            given = dict(attrs)
            self._text = []
            self._spans = (_span(given.get("colspan")), _span(given.get("rowspan")))
        elif tag == "br" and self._text is not None:
            self._text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "tr", "table"):
            self._close()

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)

    def _close(self) -> None:
        if self._text is None:
            return
        if not self.rows:
            self.rows.append([])
        self.rows[-1].append((" ".join("".join(self._text).split()), *self._spans))
        self._text = None


def _span(text: str | None) -> int:
    return min(max(int(text), 1), _MOST_SPAN) if text and text.isascii() and text.isdigit() else 1


def rows_of_html(table: Value) -> list[list[str]]:
    """The rows of an HTML table; a cell that spans several places is followed by empty ones. Raises
    `WrongValueError` for too many cells."""
    parser = _Cells()
    parser.feed(table.text())
    parser.close()
    rows: list[list[str]] = []
    held: dict[int, int] = {}  # rows that the column is still covered from above
    count = 0
    for cells in parser.rows:
        row: list[str] = []
        below: dict[int, int] = {}
        for text, across, down in cells:
            while held.get(len(row), 0):
                row.append("")
            below |= dict.fromkeys(range(len(row), len(row) + across), down)
            row += [text, *[""] * (across - 1)]
            count += across
            if count > MOST_CELLS:
                raise table.wrong(f"has more than {MOST_CELLS} cells")
        row += [""] * sum(column >= len(row) for column, rest in held.items() if rest)
        held = {
            column: rest
            for column in {*held, *below}
            if (rest := below.get(column, held.get(column, 0)) - 1) > 0
        }
        rows.append(row)
    return [row for row in rows if row]
