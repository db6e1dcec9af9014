"""Parts of the command line that a whole run does not show: line breaks and bars on a terminal, threads."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import torch
from rich.console import Console
from rich.text import Text

from draftlens.cli import progress
from draftlens.cli.progress import Bar, count_bar, progress_of, working
from draftlens.cli.show import WordWriter
from draftlens.cli.threads import SMALL, settle_threads


def written(pieces: list[str], terminal: bool) -> str:
    file = io.StringIO()
    writer = WordWriter(Console(file=file, width=12, force_terminal=terminal, no_color=True))
    for piece in pieces:
        writer.write(Text(piece))
    writer.end()
    return file.getvalue()


@pytest.mark.parametrize(
    "pieces", [["a large purple ring moves"], list("a large purple ring moves"), ["a lar", "ge purple ri", "ng moves"]]
)
def test_words_stay_whole_on_a_terminal_however_they_come(pieces: list[str]) -> None:
    lines = [line.rstrip() for line in written(pieces, terminal=True).splitlines()]
    assert lines == ["a large", "purple ring", "moves"]


def test_elsewhere_nothing_is_broken_and_newlines_are_kept() -> None:
    assert written(["a large purple", " ring\nmoves  on"], terminal=False) == "a large purple ring\nmoves  on\n"
    assert written(["a\n", "b"], terminal=True) == "a\nb\n"


@pytest.fixture
def drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is drawn on the error stream, a terminal or not."""
    file = io.StringIO()
    monkeypatch.setattr(progress, "errors", Console(file=file, width=60, force_terminal=request.param, no_color=True))
    return file


def draw_all(quiet: bool) -> list[bool]:
    """Every kind of progress once; whether the two that give something to call gave it."""
    with working("loading the model", quiet):
        pass
    with count_bar("reading frames", quiet) as told:
        if told:
            told(2, 5)
    with progress_of(quiet) as bars:
        bar = Bar(bars)
        bar.plan(4)
        bar.begin("captions")
        bar.done(1)
        bar.done(2)
        assert (bars.tasks[0].completed, bars.tasks[0].total, bars.tasks[0].description) == (3, 4, "captions")
    return [told is not None, not bars.disable]


@pytest.mark.parametrize("drawn", [True], indirect=True)
def test_progress_is_drawn_on_a_terminal(drawn: io.StringIO) -> None:
    assert draw_all(quiet=False) == [True, True]
    for words in ("loading the model", "reading frames", "2/5", "captions"):
        assert words in drawn.getvalue()


@pytest.mark.parametrize(("drawn", "quiet"), [(False, False), (False, True), (True, True)], indirect=["drawn"])
def test_progress_is_hidden_elsewhere_and_where_it_is_unwanted(drawn: io.StringIO, quiet: bool) -> None:
    assert draw_all(quiet) == [False, False]
    assert drawn.getvalue() == ""


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Sized(torch.nn.Module):
    """A model of a given number of parameters that holds no memory."""

    device = torch.device("cpu")

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, device="meta"))


@pytest.mark.usefixtures("two_threads")
def test_small_models_get_one_thread_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    settle_threads(Sized(SMALL))
    assert torch.get_num_threads() == 2
    settle_threads(Sized(SMALL - 1))
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    settle_threads(Sized(SMALL - 1))
    assert torch.get_num_threads() == 2
