"""Progress of long work on the error stream; it disappears when the work is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Timer
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.text import Text

from draftlens.cli.show import error_console, is_quiet

LINE_SECONDS = 30.0
"""Time between two lines about progress where there is no terminal."""


def is_hidden(quiet: bool) -> bool:
    """Whether nothing is drawn: on request, or because the error stream is not a terminal."""
    return quiet or is_quiet() or not error_console.is_terminal


def progress_bars(quiet: bool, *columns: ProgressColumn, **settings: Any) -> Progress:
    """Return rich's progress bars with columns and settings, on the error stream.

    Args:
        quiet: whether the bars are hidden even on a terminal.
    """
    return Progress(
        *columns, console=error_console, transient=True, disable=is_hidden(quiet), **settings
    )


@contextmanager
def spinner(description: str, quiet: bool = False, after: float = 0.0) -> Iterator[None]:
    """Show a spinner while the body of the `with` statement runs, from `after` seconds on."""
    if is_hidden(quiet):
        yield
        return
    status = error_console.status(Text(description))
    if not after:
        with status:
            yield
        return
    timer = Timer(after, status.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


@contextmanager
def count_bar(
    description: str, quiet: bool = False, *columns: ProgressColumn
) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar with a count.

    Yields:
        a function of the number of finished items and of all items; None where the bar is hidden.

    Args:
        quiet: whether the bar is hidden even on a terminal.
    """
    if is_hidden(quiet):
        yield None
        return
    count_columns = (TextColumn(description, markup=False), BarColumn(), MofNCompleteColumn())
    with progress_bars(quiet, *count_columns, *columns) as progress:
        task = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class ProgressBar:
    """A bar for work of a known amount: the listener of `draftlens_lab.bench` and
    `draftlens_lab.evaluate`."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task = progress.add_task("preparing", total=None)

    def plan(self, work: float) -> None:
        self.progress.update(self.task, total=work)

    def begin(self, description: str) -> None:
        self.progress.update(self.task, description=description)

    def done(self, work: float) -> None:
        self.progress.advance(self.task, work)


class ProgressLines:
    """The same listener without a terminal: a line from time to time."""

    def __init__(self, seconds: float = LINE_SECONDS) -> None:
        self._seconds = seconds
        self._work = 0.0
        self._done = 0.0
        self._printed: float | None = None

    def plan(self, work: float) -> None:
        self._work = work

    def begin(self, description: str) -> None:
        """See `ProgressBar`; prints a line if it is time."""
        if is_quiet():
            return
        now = time.monotonic()
        if self._printed is not None and now - self._printed < self._seconds:
            return
        self._printed = now
        share = 100 * self._done / self._work if self._work else 0.0
        error_console.print(f"{share:.0f}%: {description}", markup=False, soft_wrap=True)

    def done(self, work: float) -> None:
        self._done += work


class SavingBar(ProgressBar):
    """A bar that also saves the finished part of a report."""

    def __init__(self, progress: Progress, save: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(progress)
        self._save = save

    def saved(self, report: Mapping[str, Any]) -> None:
        """Write the report, which has a further finished section."""
        self._save(report)
