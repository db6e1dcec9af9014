"""`draftlens chat`: lines of standard input, and a terminal with Ctrl-C and Ctrl-D."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import draftlens
from draftlens.cli import chat_loop
from draftlens.core.result import Chunk
from tests.e2e.conftest import CLIPS

SHAPES = str(CLIPS / "shapes.mp4")
QUESTIONS = ["Describe the video.", "Which colour comes first?"]


def give(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


@pytest.mark.usefixtures("steady_costs")  # what is remembered depends on the passes
def test_each_line_is_a_turn(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Loaded here, as by the command: the prompt cache of a shared engine holds other tests' turns.
    chat = draftlens.load(device="cpu", calibrate=False).chat(video=SHAPES)
    expected = [chat.ask(question, max_new_tokens=24) for question in QUESTIONS]
    give(monkeypatch, QUESTIONS[0], "", QUESTIONS[1])
    words = ["chat", SHAPES, "--max-new-tokens", "24", "--no-calibrate", "--device", "cpu"]
    status, out, err = command(*words, "--json")
    assert status == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["tokens"] for answer in answers] == [result.tokens for result in expected]
    cached = [answer["stats"]["cached_tokens"] for answer in answers]
    assert cached[0] == 0
    assert cached[1] == expected[1].stats.cached_tokens > 0

    give(monkeypatch, *QUESTIONS)
    status, out, err = command(*words, "--prompt-cache", "0")
    assert status == 0, err
    assert out.split() == " ".join(result.text for result in expected).split()
    assert "cached" not in err


def test_bytes_of_the_cache_are_those_of_its_tensors() -> None:
    """Features of media, too, of which nothing is held that is not counted."""
    engine = draftlens.load(device="cpu", calibrate=False, prompt_cache="1GB")
    cache = engine.prompt_cache
    assert cache is not None
    chat = engine.chat(video=SHAPES, images=str(CLIPS / "shapes.png"))
    for question in QUESTIONS:
        chat.ask(question, max_new_tokens=4)
    held: dict[int, int] = {}
    seen, pending = set[int](), [cache._trees, cache._features]
    while pending:
        value: Any = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            held[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, Mapping):
            pending += [*value.values(), *vars_of(value).values()]
        elif isinstance(value, (list, tuple)):
            pending += value
        else:
            pending += vars_of(value).values()
    assert cache.counted() == cache.nbytes
    assert sum(held.values()) == pytest.approx(cache.nbytes, rel=0.02)


def vars_of(value: Any) -> dict[str, Any]:
    return getattr(value, "__dict__", {})


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["/add nowhere.png"], "cannot read nowhere.png: there is no such file"),
        (["/add"], "/add needs the name of a file"),
        (["/bye"], "/bye is no command"),
        (["/add 'a.png"], "a quote without its end"),
    ],
)
def test_without_a_terminal_an_error_ends_the_chat(
    lines: list[str],
    cause: str,
    command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give(monkeypatch, *lines, "not asked")
    status, out, err = command("chat", "--no-calibrate", "--device", "cpu")
    assert status == 2
    assert not out
    assert cause in err


def test_a_wrong_size_of_the_cache_is_refused(command: Callable[..., Any]) -> None:
    status, _, err = command("chat", "--prompt-cache", "much")
    assert status == 2
    assert "'much'" in err


class Terminal:
    """`draftlens chat` on a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "draftlens.cli", "chat", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "200"},
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, pattern: str) -> str:
        """What was printed up to this; the rest is for the next call."""
        while True:
            found = re.search(pattern, self.seen)
            if found is not None:
                text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
                return text
            ready, _, _ = select.select([self.master], [], [], 120)
            assert ready, f"{pattern!r} did not come after {self.seen!r}"
            self.seen += os.read(self.master, 4096).decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_on_a_terminal() -> None:
    """Ctrl-C leaves the chat open, at the prompt and in an answer; Ctrl-D ends it."""
    terminal = Terminal("--no-calibrate", "--device", "cpu", "--max-new-tokens", "320")
    try:
        terminal.wait_for("Ctrl-D ends the chat.*\n")
        terminal.wait_for("> ")
        terminal.type("/add nowhere.png\n")
        terminal.wait_for("error: cannot read nowhere.png: there is no such file")
        terminal.wait_for("> ")
        terminal.type("half a line")
        terminal.wait_for("half a line")
        terminal.type("\x03")
        terminal.type("\n")  # readline looks at a signal that came between two keys with the next
        terminal.wait_for("> ")
        terminal.type(f"/add '{SHAPES}'\nDescribe the video.\n")
        terminal.wait_for("The ")
        terminal.type("\x03")
        terminal.wait_for(r"\d+ tokens in .*lossless")
        terminal.wait_for("> ")
        terminal.type(f"{QUESTIONS[1]}\n")
        assert "prompt tokens cached" in terminal.wait_for(r"\d+ tokens in .*lossless")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.process.wait(timeout=60) == 0
    finally:
        terminal.close()


class FakeStream:
    """A stream of three chunks, in which Ctrl-C comes while number `interrupted` is made."""

    def __init__(self, interrupted: int) -> None:
        self.interrupted = interrupted
        self.result = SimpleNamespace(text="")

    def __iter__(self) -> Iterator[Chunk]:
        for number in range(3):
            if number == self.interrupted:
                signal.raise_signal(signal.SIGINT)
            yield Chunk((number,), (False,))


@pytest.mark.parametrize("interrupted", [0, 1, 2])
def test_ctrl_c_ends_an_answer_after_a_whole_round(
    interrupted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = chat_loop._Stop()
    stop.stream = FakeStream(interrupted)  # type: ignore[assignment]
    before = signal.signal(signal.SIGINT, stop)
    try:
        if interrupted == 0:
            with pytest.raises(chat_loop._Stopped):
                list(stop)
        else:
            assert len(list(stop)) == interrupted + 1
    finally:
        signal.signal(signal.SIGINT, before)
