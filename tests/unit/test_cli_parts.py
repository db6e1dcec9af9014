"""Parts of the command line that a whole run does not show: line breaks on a terminal, threads."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import torch
from rich.console import Console
from rich.text import Text

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
