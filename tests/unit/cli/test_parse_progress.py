"""Pages a minute, and the time that is left."""

from __future__ import annotations

import pytest

from draftlens.cli import parse_progress
from draftlens.cli.parse_progress import ParseProgress
from draftlens.documents.results import ParsedPage


class Clock:
    """Moves on by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(parse_progress, "time", clock)
    return clock


def page(file: str, number: int, error: str | None = None) -> ParsedPage:
    return ParsedPage(file, number, error=error)


def test_time_is_estimated_from_the_documents_that_were_read(clock: Clock) -> None:
    """The first two were left out."""
    progress = ParseProgress([*"abcdef"])
    progress.count(page("c", 1))
    clock.now += 30
    assert progress.line() == "2 of 6 documents, 1 pages, 0 failed, 2.0 pages a minute"
    progress.count(page("c", 2, "no"))
    clock.now += 90
    progress.count(page("d", 1))
    assert progress.line() == (
        "3 of 6 documents, 3 pages, 1 failed, 1.5 pages a minute, about 6 minutes left"
    )
    one = ParseProgress(["a"])
    one.count(page("a", 1))
    clock.now += 60
    assert one.line() == "1 pages, 0 failed, 1.0 pages a minute"


def test_without_a_terminal_there_is_a_line_from_time_to_time(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    for quiet, expected in ((False, 2), (True, 0)):
        pages = iter([page(file, 1) for file in "abcd"])
        for _ in ParseProgress([*"abcd"]).shown(pages, quiet):
            clock.now += 16
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == expected
        assert all("pages a minute" in line for line in lines)
