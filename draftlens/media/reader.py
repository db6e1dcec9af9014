"""Reads media in a process of its own, which is killed if it takes too long.

A damaged file can make a decoder hang or crash. In the process of the models either would be the
end of a long run, and Python cannot stop a thread that decodes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any

from draftlens.core.errors import MediaError
from draftlens.media.image import load_image
from draftlens.media.limits import Limits, refusal
from draftlens.media.video import load_video

START_SECONDS = 60.0
"""Time for a new process to load its libraries, in addition to that for its first file."""

KINDS = {"video": "clip", "image": "image"}

_START = """
import os, select, sys, threading

def end_with_the_parent():
    poll = select.poll()
    poll.register({descriptor}, 0)  # reports only that the other side has gone
    poll.poll()
    os._exit(0)

# A decoder that hangs must not outlive its parent.
threading.Thread(target=end_with_the_parent, daemon=True).start()
sys.path[:] = {path!r}
from draftlens.media.reader import serve
serve({descriptor})
"""


@dataclass(frozen=True)
class ReadRequest:
    """A file to read.

    Args:
        kind: `video` or `image`.
        source: path or address.
        num_frames: frames to sample from a clip.
        limits: bounds on its size.
    """

    kind: str
    source: str
    num_frames: int = 8
    limits: Limits = field(default_factory=Limits)


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

    def read(self, request: ReadRequest) -> Any:
        """The `Video`, or the PIL image.

        Raises:
            MediaError: the file is refused, or its decoder crashed or took too long.
        """
        limit = self.seconds
        if self._connection is None:
            self._start()
            limit += START_SECONDS
        if self._killed:
            raise refusal(request.source, "the reading was ended")
        assert self._connection is not None
        try:
            self._connection.send(request)
            if not self._connection.poll(limit):
                self.close()
                raise refusal(
                    request.source, f"its decoder did not end within {self.seconds:g} seconds"
                )
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            ending = self._ending()
            raise refusal(request.source, f"its decoder crashed ({ending})") from error
        if isinstance(answer, _Refused):
            raise MediaError(answer.sentence)
        return answer

    def kill(self) -> None:
        """End the process for good; from any thread, while another one reads."""
        self._killed = True
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process, whatever it does; from the thread that reads."""
        if self._connection is not None:
            # It is closed already where the garbage collector came first.
            with suppress(OSError):
                self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        here, there = Pipe()
        code = _START.format(descriptor=there.fileno(), path=sys.path)
        try:
            # Ctrl-C is for this process, which ends the other one.
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                start_new_session=True,
            )
        except OSError:
            here.close()
            raise
        finally:
            there.close()
        self._connection = here

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


def serve(descriptor: int) -> None:
    """Read files until the parent has gone: what the process runs."""
    connection = Connection(descriptor)
    with suppress(EOFError, OSError):
        while True:
            connection.send(_answer(connection.recv()))
    os._exit(0)


def _answer(request: ReadRequest) -> Any:
    try:
        if request.kind == "image":
            return load_image(request.source, limits=request.limits)
        return load_video(request.source, num_frames=request.num_frames, limits=request.limits)
    except MediaError as error:
        return _Refused(str(error))
    except Exception as error:  # whatever it is, it concerns this one file
        return _Refused(f"cannot read {request.source}: {type(error).__name__}: {error}")
