"""Reads media in a separate process, which is killed if it takes too long.

A damaged file can make a decoder hang or crash, and Python cannot stop a thread that decodes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import psutil

from draftlens.core.errors import MediaError
from draftlens.media.image import load_image
from draftlens.media.limits import Limits, format_bytes, refusal
from draftlens.media.video import load_video
from draftlens.processes.child import connected, start_child

START_SECONDS = 60.0
"""Time for a process to load its libraries, in seconds."""

LOOK_SECONDS = 0.02
"""Seconds between two checks of the process's memory."""

KINDS = {"video": "clip", "image": "image"}


class LostReaderError(MediaError):
    """The reading process crashed, took too long or needed too much memory."""


class MediaRequest(ABC):
    """A request to the reading process."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The medium's name, for messages."""

    @property
    def max_memory(self) -> int | None:
        """Bytes by which the process may grow; None for no bound."""
        return None

    @abstractmethod
    def answer(self) -> Any:
        """Read it; runs in the process."""


@dataclass(frozen=True)
class ReadRequest(MediaRequest):
    """A file to read; the limits bound its pixels.

    Args:
        kind: `video` or `image`.
        source: path or address.
        num_frames: frames to sample from a clip.
        frame: of an image file, from 0.
    """

    kind: str
    source: str
    num_frames: int = 8
    limits: Limits = field(default_factory=Limits)
    frame: int = 0

    @property
    def name(self) -> str:
        return self.source

    def answer(self) -> Any:
        """The `Video`, or the PIL image."""
        if self.kind == "image":
            return load_image(self.source, limits=self.limits, frame=self.frame)
        return load_video(self.source, num_frames=self.num_frames, limits=self.limits)


@dataclass(frozen=True)
class _Refused:
    """The message of a `MediaError` in the process."""

    sentence: str


class MediaReader:
    """A process that reads one file after the other, each in at most `seconds`. It starts with the
    first file, and again after it was killed. Use it from one thread."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._killed = False
        self._connection: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[Any, Any] | None = None

    def read(self, request: MediaRequest) -> Any:
        """The result of the request, such as the `Video` or the PIL image.

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

    def _excess(self, request: MediaRequest) -> str | None:
        """Wait for the answer; a clause that names an exceeded bound, None if answered."""
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
            limit = request.max_memory
            if limit is not None and _memory(process) - before > limit:
                return f"its decoder needs more than {format_bytes(limit)} of memory"
        return None

    def kill(self) -> None:
        """End the process for good; from any thread, while another one reads."""
        self._killed = True
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process, even while it reads; from the thread that reads."""
        self._connection = None
        self._process = None
        if self._end is not None:
            self._end()

    def _start(self) -> None:
        start = partial(start_child, module="draftlens.media.reader", threads=1)
        ours, self._process = connected(start)
        self._connection = Connection(ours.detach())
        # Also without a call of `close`.
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
    """Resident bytes of a process; 0 if it has ended, which its connection reports."""
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
    """Entry point of the process: reads files until the parent has exited."""
    connection = Connection(descriptor)
    with suppress(EOFError, OSError):
        while True:
            request = connection.recv()
            connection.send(True)  # it begins
            connection.send(_answer(request))
    os._exit(0)


def _answer(request: MediaRequest) -> Any:
    try:
        return request.answer()
    except MediaError as error:
        return _Refused(str(error))
    except Exception as error:  # any error concerns this one file
        return _Refused(f"cannot read {request.name}: {type(error).__name__}: {error}")


def _lost(request: MediaRequest, cause: str) -> LostReaderError:
    return LostReaderError(str(refusal(request.name, cause)))
