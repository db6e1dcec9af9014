"""Gives one input after the other and watches each: its time, its memory, its error.

A decoder that never returns to Python cannot be interrupted; then the process ends with the stacks
of its threads.
"""

from __future__ import annotations

import faulthandler
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Self

import psutil

from draftlens.core.errors import DraftlensError

LOOK_SECONDS = 0.05
"""Time between two looks at the memory of this process and its children."""

LONGEST = 1000
"""Characters of a refusal."""

_INTERNAL = re.compile(r"\b[A-Za-z]+(Error|Exception): ")
"""How a sentence looks that was made of an exception nobody thought of."""


Give = Callable[[], object]
"""Gives an input to what a user would call."""


@dataclass(frozen=True)
class Input:
    """One malformed input.

    Args:
        kind: of inputs that are counted together.
        what: what is wrong with it, in words.
        give: gives it to what a user would call.
    """

    kind: str
    what: str
    give: Give


@dataclass(frozen=True)
class Outcome:
    """What became of an input.

    Attributes:
        given: the input.
        seconds: that it took.
        memory: bytes by which this process and its children grew meanwhile, at most.
        refusal: the sentence of the refusal; None if there is an answer.
        fault: what went wrong; None if nothing did.
    """

    given: Input
    seconds: float
    memory: int
    refusal: str | None = None
    fault: str | None = None


class OverTimeError(BaseException):
    """Raised in the main thread when an input takes too long; nobody catches it by accident."""


@dataclass
class Watch:
    """Gives inputs under limits; a context manager.

    Args:
        seconds: limit of each input.
        memory: bytes by which the process and its children may grow.
    """

    seconds: float
    memory: int
    _peak: int = field(default=0, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _looks: threading.Thread | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGALRM, _over_time)
        self._looks = threading.Thread(target=self._look, daemon=True)
        self._looks.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        assert self._looks is not None
        self._looks.join()
        signal.signal(signal.SIGALRM, self._before)

    def give(self, given: Input) -> Outcome:
        """Give an input and wait for what becomes of it."""
        refusal = fault = None
        before = self._peak = _memory()
        highest = _highest()
        faulthandler.dump_traceback_later(max(60, 4 * self.seconds), exit=True, file=sys.__stderr__)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        began = time.monotonic()
        try:
            given.give()
        except DraftlensError as error:
            refusal = str(error)
            fault = _blemish(refusal)
        except OverTimeError:
            fault = f"it takes longer than {self.seconds:g} seconds"
        except (Exception, SystemExit) as error:
            fault = f"{type(error).__name__}: {str(error)[:300]} at {_place(error)}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
        seconds = time.monotonic() - began
        peak = max(self._peak, _memory(), _highest() if _highest() > highest else 0)
        grown = peak - before
        if grown > self.memory and fault is None:
            fault = f"memory grows by {grown >> 20} MiB"
        return Outcome(given, seconds, grown, refusal, fault)

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self._peak = max(self._peak, _memory())


def _over_time(number: int, frame: FrameType | None) -> None:
    raise OverTimeError


def _memory() -> int:
    """Bytes that this process and its children hold."""
    here = psutil.Process()
    held = int(here.memory_info().rss)
    for child in here.children(recursive=True):
        with suppress(psutil.Error):
            held += child.memory_info().rss
    return held


def _highest() -> int:
    """The most bytes that this process has ever held, which includes what no look has seen."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _blemish(sentence: str) -> str | None:
    """What is wrong with the sentence of a refusal; None if it is one a user can read."""
    if not sentence or not sentence.isprintable():
        return f"a refusal is not one line of text: {sentence[:300]!r}"
    if len(sentence) > LONGEST:
        return f"a refusal has {len(sentence)} characters: {sentence[:300]}..."
    if _INTERNAL.search(sentence):
        return f"a refusal is an exception in disguise: {sentence[:300]}"
    return None


def _place(error: BaseException) -> str:
    """The file and line where an exception was raised, and the last line of draftlens before it."""
    places = []
    traceback = error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        places.append((file, f"{file.rpartition('/')[2]}:{traceback.tb_lineno}"))
        traceback = traceback.tb_next
    ours = [place for file, place in places if "/draftlens/" in file]
    return ", from ".join(dict.fromkeys([places[-1][1], *ours[-1:]]))
