"""Questions and answers of `draftlens chat`, on a terminal or from standard input."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from draftlens.chat import Chat
from draftlens.cli.show import error_console, is_quiet, result_json, say, show_stats, show_stream
from draftlens.core.errors import DraftlensError, InputError
from draftlens.core.result import Chunk, Result
from draftlens.core.text import printable
from draftlens.engine import Engine
from draftlens.media.files import SUFFIXES
from draftlens.media.limits import is_url
from draftlens.models.prompt_cache import PromptCache
from draftlens.streaming import Stream

HELP = "Ctrl-C stops an answer, Ctrl-D ends the chat, /add FILE adds a clip or an image."


class ChatLoop:
    """A chat whose questions are lines. On a terminal an error ends the turn, elsewhere the chat.

    Args:
        generation: options of each answer.
        as_json: whether each answer is printed as one line of JSON.
    """

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        prompt_cache: PromptCache,
        generation: dict[str, Any],
        as_json: bool,
    ) -> None:
        self.engine = engine
        self.chat = chat
        self.prompt_cache = prompt_cache
        self.generation = generation
        self.as_json = as_json
        self.is_terminal = sys.stdin.isatty()

    def run(self, media: list[str]) -> None:
        """Answer lines until there are no more; `media` belong to the first question."""
        for name in media:
            self.add(name)
        if self.is_terminal:
            with suppress(ImportError):
                import readline  # noqa: F401 - gives `input` a history and the arrow keys
            if not is_quiet():
                error_console.print(HELP, style="dim", soft_wrap=True)
        for line in self._lines():
            try:
                self._carry_out(line)
            except DraftlensError as error:
                if not self.is_terminal:
                    raise
                say(f"error: {error}", style="red")

    def add(self, name: str) -> None:
        """Add a clip or an image, by its ending, to the next question."""
        path = urlsplit(name).path if is_url(name) else name
        is_image = PurePath(path).suffix.lower() in SUFFIXES["image"]
        self.chat.add(**{"images" if is_image else "video": name})

    def _lines(self) -> Iterator[str]:
        if not self.is_terminal:
            yield from sys.stdin
            return
        while True:
            try:
                yield input("> ")
            except KeyboardInterrupt:
                print()  # as in a shell: an empty line and a new prompt
            except EOFError:
                print()
                return

    def _carry_out(self, line: str) -> None:
        command, *arguments = _words(line)
        if command == "/add":
            if not arguments:
                raise InputError("/add needs the name of a file or its address")
            for name in arguments:
                self.add(name)
        elif command == "/help":
            error_console.print(HELP, style="dim", soft_wrap=True)
        elif command.startswith("/") and "/" not in command[1:]:
            raise InputError(f"{command} is no command: /add FILE, /help")
        elif line.strip():
            self._answer(line.strip())

    def _answer(self, question: str) -> None:
        stop = _Stop()
        before = signal.signal(signal.SIGINT, stop)
        try:
            stop.stream = self.chat.stream(question, **self.generation)
            if self.as_json:
                for _ in stop:
                    pass
                line = json.dumps(result_json(stop.result), ensure_ascii=False)
                print(printable(line), flush=True)
            else:
                show_stats(show_stream(stop, self.engine.pieces), self.engine.notice)
        except _Stopped:
            self.prompt_cache.clear()  # an entry may be half written
            error_console.print("stopped before the first token", style="dim")
        finally:
            signal.signal(signal.SIGINT, before)


class _Stopped(KeyboardInterrupt):
    """Ctrl-C came before the first token of an answer."""


class _Stop:
    """An answer that Ctrl-C ends: before the first token at once, later after a whole round."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self._has_begun = False
        self._is_stopped = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._is_stopped = True
        if not self._has_begun:
            raise _Stopped

    def __iter__(self) -> Iterator[Chunk]:
        assert self.stream is not None
        for chunk in self.stream:
            self._has_begun = True
            yield chunk
            if self._is_stopped:
                return

    @property
    def result(self) -> Result:
        assert self.stream is not None
        return self.stream.result


def _words(line: str) -> list[str]:
    """The words of a command with its quotes removed; of a question the first word is enough."""
    if not line.startswith("/"):
        return ["", line]
    try:
        return shlex.split(line) or [""]
    except ValueError as error:
        raise InputError(f"{line.strip()!r:.80} has a quote without its end") from error
