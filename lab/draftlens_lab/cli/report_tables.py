"""Tables of reports on the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from draftlens.cli import show
from draftlens_lab.measure.tables import Table


def show_tables(tables: Iterable[Table], about: str) -> None:
    """Print the tables of a report and a line about the run."""
    for report_table in tables:
        show.table(report_table.title, report_table.columns, report_table.rows)
        if report_table.note:
            show.console.print(f"  {report_table.note}", style="dim", markup=False)
        show.console.print()
    show.console.print(about, markup=False, style="dim")
