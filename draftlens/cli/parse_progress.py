"""How far `draftlens parse` is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from draftlens.cli.progress import LINE_SECONDS, is_hidden, spinner
from draftlens.cli.show import say
from draftlens.documents.results import ParsedPage


class ParseProgress:
    """Pages a minute and the time that is left.

    The number of pages is not known before a document is opened, so the time is estimated from the
    documents that are finished.

    Args:
        files: the documents, in the order in which they are parsed.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self._places = {file: place for place, file in enumerate(files)}
        self._worked: dict[str, None] = {}
        self._place = 0
        self._pages = 0
        self._failed = 0
        self._began = self._printed = time.monotonic()

    def shown(self, pages: Iterator[ParsedPage], quiet: bool) -> Iterator[ParsedPage]:
        """The same pages, with a spinner while each is read, or a line from time to time where
        there is no terminal."""
        while True:
            with spinner(self.line() if self._pages else "reading", quiet):
                page = next(pages, None)
            if page is None:
                return
            self.count(page)
            yield page
            if is_hidden(quiet) and not quiet:
                self._log()

    def count(self, page: ParsedPage) -> None:
        self._place = self._places.get(page.file, self._place)
        self._worked[page.file] = None
        self._pages += 1
        self._failed += page.error is not None

    def line(self) -> str:
        """How far the run is."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        speed = f"{60 * self._pages / seconds:.1f} pages a minute"
        count = f"{self._pages} pages, {self._failed} failed, {speed}"
        if len(self._places) < 2:
            return count
        line = f"{self._place} of {len(self._places)} documents, {count}"
        done = len(self._worked) - 1  # the current one may have further pages
        if done:
            left = seconds / done * (len(self._places) - self._place) / 60
            line += f", about {left:.0f} minutes left"
        return line

    def _log(self) -> None:
        """Print the line, at most every `LINE_SECONDS`."""
        now = time.monotonic()
        if now - self._printed >= LINE_SECONDS:
            self._printed = now
            say(self.line())
