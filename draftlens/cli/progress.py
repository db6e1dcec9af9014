"""What a person sees while something takes its time: all of it on the error stream, and gone when
it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.text import Text

from draftlens.cli.show import errors


def hidden(quiet: bool) -> bool:
    """Whether nothing is to be drawn: nobody wants it, or nobody would see it."""
    return quiet or not errors.is_terminal


def progress_of(quiet: bool, *columns: ProgressColumn, **settings: Any) -> Progress:
    """Bars that may be hidden: rich's own columns and settings."""
    return Progress(*columns, console=errors, transient=True, disable=hidden(quiet), **settings)


@contextmanager
def working(what: str, quiet: bool = False) -> Iterator[None]:
    """A spinner."""
    if hidden(quiet):
        yield
        return
    with errors.status(Text(what)):
        yield


@contextmanager
def count_bar(
    what: str, quiet: bool = False, *columns: ProgressColumn
) -> Iterator[Callable[[int, int], None] | None]:
    """A bar for things that come one after the other: gives what takes (done, total), or None where
    it is hidden.

    Args:
        columns: further ones, behind the count.
    """
    if hidden(quiet):
        yield None
        return
    usual = TextColumn(what, markup=False), BarColumn(), MofNCompleteColumn()
    with progress_of(quiet, *usual, *columns) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class Bar:
    """A bar for work that is planned first: the watcher of `draftlens.bench` and of
    `draftlens.evaluate`.

    Args:
        progress: draws it.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task: Any = progress.add_task("preparing", total=None)

    def plan(self, work: float) -> None:
        """So much is to be done."""
        self.progress.update(self.task, total=work)

    def begin(self, what: str) -> None:
        """This comes next."""
        self.progress.update(self.task, description=what)

    def done(self, work: float) -> None:
        """So much more is done."""
        self.progress.advance(self.task, work)
