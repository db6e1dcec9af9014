"""Reads media in a process of its own, which is killed if it takes too long.

A damaged file can make a decoder hang or crash. In the process of the models either would be the
end of a long run, and Python cannot stop a thread that decodes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

import psutil

from draftlens.core.errors import MediaError
from draftlens.media.image import load_image
from draftlens.media.limits import Limits, format_bytes, refusal
from draftlens.media.video import load_video
from draftlens.processes.child import connected, start_child

START_SECONDS = 60.0
"""Time for a process to load its libraries."""

LOOK_SECONDS = 0.02
"""Time between two looks at the memory of the process."""

KINDS = {"video": "clip", "image": "image"}


class LostReaderError(MediaError):
    """The process that reads crashed, took too long or needed too much memory."""


class Request(Protocol):
    """What the process is asked for."""

    @property
    def name(self) -> str:
        """What is read, for messages."""
        ...

    @property
    def max_memory(self) -> int | None:
        """Bytes by which the process may grow; None for no bound."""
        ...

    def answer(self) -> Any:
        """Read it; runs in the process."""
        ...


@dataclass(frozen=True)
class ReadRequest:
    """A file to read.

    Args:
        kind: `video` or `image`.
        source: path or address.
        num_frames: frames to sample from a clip.
        limits: bounds on its size.
        frame: of an image file, from 0.
    """

    kind: str
    source: str
    num_frames: int = 8
    limits: Limits = field(default_factory=Limits)
    frame: int = 0

    @property
    def name(self) -> str:
        """See `Request.name`."""
        return self.source

    @property
    def max_memory(self) -> None:
        """See `Request.max_memory`: the limits bound the pixels instead."""

    def answer(self) -> Any:
        """The `Video`, or the PIL image."""
        if self.kind == "image":
            return load_image(self.source, limits=self.limits, frame=self.frame)
        return load_video(self.source, num_frames=self.num_frames, limits=self.limits)


@dataclass(frozen=True)
class _Refused:
    """A file that cannot be read, and the sentence that says why."""

    sentence: str


class MediaReader:
    """A process that reads one file after the other. It starts with the first file, and again after
    it was killed. Use it from one thread.

    Args:
        seconds: time for one file; the process is killed when it is over.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._killed = False
        self._connection: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[Any, Any] | None = None

    def read(self, request: Request) -> Any:
        """What the request asks for, such as the `Video` or the PIL image.

        Raises:
            MediaError: the file is refused.
            LostReaderError: its decoder crashed, took too long, or needed too much memory.
        """
        if self._connection is None:
            self._start()
        if self._killed:
            raise refusal(request.name, "the reading was ended")
        assert self._connection is not None
        try:
            self._connection.send(request)
            excess = self._excess(request)
            if excess is not None:
                self.close()
                raise _lost(request, excess)
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise _lost(request, f"its decoder crashed ({self._ending()})") from error
        if isinstance(answer, _Refused):
            raise MediaError(answer.sentence)
        return answer

    def _excess(self, request: Request) -> str | None:
        """Wait for the answer. What the process takes too much of, as a clause; None if it has
        answered."""
        assert self._connection is not None
        assert self._process is not None
        if not self._connection.poll(START_SECONDS):
            return f"its decoder did not start within {START_SECONDS:g} seconds"
        self._connection.recv()  # the process has loaded what it needs, and begins
        deadline = time.monotonic() + self.seconds
        process = psutil.Process(self._process.pid)
        before = _memory(process)
        while not self._connection.poll(LOOK_SECONDS):
            if time.monotonic() > deadline:
                return f"its decoder did not end within {self.seconds:g} seconds"
            most = request.max_memory
            if most is not None and _memory(process) - before > most:
                return f"its decoder needs more than {format_bytes(most)} of memory"
        return None

    def kill(self) -> None:
        """End the process for good; from any thread, while another one reads."""
        self._killed = True
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process, whatever it does; from the thread that reads."""
        self._connection = None
        self._process = None
        if self._end is not None:
            self._end()

    def _start(self) -> None:
        start = partial(start_child, module="draftlens.media.reader", threads=1)
        ours, self._process = connected(start)
        self._connection = Connection(ours.detach())
        # Also where nobody calls `close`.
        self._end = weakref.finalize(self, _end, self._process, self._connection)

    def _ending(self) -> str:
        """How the process ended by itself, in words."""
        status: int | None = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                status = self._process.wait(1.0)
        self.close()
        if status is None:
            return "it closed its connection"
        if status < 0:
            return signal.Signals(-status).name
        return f"exit status {status}"


def _memory(process: psutil.Process) -> int:
    """Bytes that a process holds; 0 where it has ended, which its connection will say."""
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    # It is closed already where the garbage collector came first.
    with suppress(OSError):
        connection.close()
    process.kill()
    process.wait()


def main(descriptor: int, threads: int) -> None:
    """Read files until the parent has gone: what the process runs."""
    connection = Connection(descriptor)
    with suppress(EOFError, OSError):
        while True:
            request = connection.recv()
            connection.send(True)  # it begins
            connection.send(_answer(request))
    os._exit(0)


def _answer(request: Request) -> Any:
    try:
        return request.answer()
    except MediaError as error:
        return _Refused(str(error))
    except Exception as error:  # whatever it is, it concerns this one file
        return _Refused(f"cannot read {request.name}: {type(error).__name__}: {error}")


def _lost(request: Request, cause: str) -> LostReaderError:
    return LostReaderError(str(refusal(request.name, cause)))
