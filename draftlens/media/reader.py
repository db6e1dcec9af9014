"""Reads media in a separate process, which is killed if it takes too long.

A damaged file can make a decoder hang or crash, and Python cannot stop a thread that decodes. The
process may also have been taken over by a file, so its answers are plain data, never pickled
objects.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil, prod
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import numpy as np
import psutil
from PIL import Image

from draftlens.core.errors import MediaError
from draftlens.media.image import load_image
from draftlens.media.limits import Limits, format_bytes, refusal
from draftlens.media.video import Video, load_video
from draftlens.processes.child import connected, start_child

START_SECONDS = 60.0
"""Time for a process to load its libraries, in seconds."""

LOOK_SECONDS = 0.02
"""Seconds between two checks of the process's memory."""

KINDS = {"video": "clip", "image": "image"}

_MIB = 2**20
_MOST_TEXT = 256 * _MIB
"""Bytes of an answer besides its pixels, such as the characters of a page."""
_PIXEL_BYTES = 32
"""Bytes of a pixel while it is decoded: copies of 64 bits for each channel of 16."""
_SPARE = 1024 * _MIB
_THREAD_SPARE = 80 * _MIB
"""Addresses that a process, and each thread of a decoder, may reserve without using the memory."""


class LostReaderError(MediaError):
    """The reading process crashed, took too long or needed too much memory."""


class MediaRequest(ABC):
    """A request to the reading process.

    Attributes:
        kinds: classes of this package whose objects the answer may hold, by their attributes,
            beside pictures, arrays of bytes, lists, tuples, texts and numbers.
    """

    kinds: ClassVar[tuple[type[Any], ...]] = ()

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

    kinds: ClassVar[tuple[type[Any], ...]] = (Video,)

    kind: str
    source: str
    num_frames: int = 8
    limits: Limits = field(default_factory=Limits)
    frame: int = 0

    @property
    def name(self) -> str:
        return self.source

    @property
    def max_memory(self) -> int:
        limits = self.limits
        return limits.max_output_bytes + _PIXEL_BYTES * limits.max_pixels + 256 * _MIB

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
            self._connection.send((request, self.seconds))
            excess = self._excess(request)
            if excess is not None:
                self.close()
                raise _lost(request, excess)
            with self._killed_after(self.seconds):
                answer = _received(self._connection, request)
        except (EOFError, OSError) as error:
            raise _lost(request, f"its decoder crashed ({self._ending()})") from error
        except _InvalidAnswerError as error:
            self.close()
            raise _lost(request, "its decoder gave no valid answer") from error
        if isinstance(answer, _Refused):
            raise MediaError(answer.sentence)
        return answer

    def _excess(self, request: MediaRequest) -> str | None:
        """Wait for the answer; a clause that names an exceeded bound, None if answered."""
        assert self._connection is not None
        assert self._process is not None
        if not self._connection.poll(START_SECONDS):
            return f"its decoder did not start within {START_SECONDS:g} seconds"
        self._connection.recv_bytes(0)  # the process has loaded what it needs, and begins
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

    @contextmanager
    def _killed_after(self, seconds: float) -> Iterator[None]:
        """End a process that does not go on sending."""
        assert self._process is not None
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

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
        # For copies of what is at addresses, which a process that is killed cannot remove.
        folder = tempfile.mkdtemp(prefix="draftlens-")
        start = partial(start_child, module="draftlens.media.reader", threads=1, folder=folder)
        try:
            ours, self._process = connected(start)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._connection = Connection(ours.detach())
        # Also without a call of `close`.
        self._end = weakref.finalize(self, _end, self._process, self._connection, folder)

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


def _end(process: subprocess.Popen[bytes], connection: Connection, folder: str) -> None:
    # It is closed already where the garbage collector came first.
    with suppress(OSError):
        connection.close()
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def main(descriptor: int, threads: int) -> None:
    """Entry point of the process: reads files until the parent has exited."""
    connection = Connection(descriptor)
    _set_limit(resource.RLIMIT_CORE, 0)  # the memory of a decoder that crashes is of no use
    with suppress(EOFError, OSError):
        while True:
            request, seconds = connection.recv()
            connection.send_bytes(b"")  # it begins
            _bound(request.max_memory, seconds)
            for part in _answer(request):
                connection.send_bytes(part)
    os._exit(0)


def _bound(memory: int | None, seconds: float) -> None:
    """Let the process take so much memory and time for the next request. The parent looks at both,
    too, but a decoder may take much between two looks, and the parent may be stopped."""
    num_cpus = os.cpu_count() or 1
    _set_limit(resource.RLIMIT_CPU, ceil(time.process_time() + seconds * num_cpus) + 1)
    room = resource.RLIM_INFINITY
    if memory is not None:
        reserved = psutil.Process().memory_info().vms
        room = reserved + memory + _SPARE + num_cpus * _THREAD_SPARE
    _set_limit(resource.RLIMIT_AS, room)


def _set_limit(kind: int, value: int) -> None:
    with suppress(ValueError, OSError):  # of a system that does not have it
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            value = most if value == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, most))


def _answer(request: MediaRequest) -> list[Any]:
    """The answer as it is sent; any error concerns this one file."""
    try:
        return _packed(request.answer())
    except MediaError as error:
        refused = _Refused(str(error))
    except MemoryError:
        refused = _Refused(str(refusal(request.name, "its decoder needs too much memory")))
    except Exception as error:
        refused = _Refused(f"cannot read {request.name}: {type(error).__name__}: {error}")
    return _packed(refused)


class _InvalidAnswerError(Exception):
    """The process sent something that is no answer."""


def _packed(answer: Any) -> list[Any]:
    """An answer as JSON, and the bytes of its pictures and arrays."""
    buffers: list[Any] = []

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [plain(each) for each in value]}
        if isinstance(value, Image.Image):
            return {
                "image": plain(np.asarray(value if value.mode == "RGB" else value.convert("RGB")))
            }
        if isinstance(value, np.ndarray):
            if value.dtype != np.uint8:
                raise TypeError(f"an array of {value.dtype}")
            buffers.append(np.ascontiguousarray(value).reshape(-1).data)
            return {"array": list(value.shape)}
        fields = {name: plain(each) for name, each in vars(value).items()}
        return {"object": [type(value).__name__, fields]}

    text = json.dumps(plain(answer)).encode()
    return [text, *buffers]


def _received(connection: Connection, request: MediaRequest) -> Any:
    """The answer that a process sends. Raises `_InvalidAnswerError`, EOFError and OSError."""
    kinds = {kind.__name__: kind for kind in (*request.kinds, _Refused)}
    room = request.max_memory

    def array(shape: Sequence[Any]) -> Any:
        nonlocal room
        if not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"an array of shape {shape}")
        size = prod(shape)
        if room is not None:
            room -= size
            if room < 0:
                raise ValueError("too many pixels")
        pixels = np.empty(size, np.uint8)
        if connection.recv_bytes_into(pixels.data) != size:
            raise ValueError("pixels are missing")
        return pixels.reshape(shape)

    def value_of(plain: Any) -> Any:
        if not isinstance(plain, dict):
            return plain
        [(kind, content)] = plain.items()
        if kind in ("list", "tuple"):
            values = map(value_of, content)
            return list(values) if kind == "list" else tuple(values)
        if kind == "array":
            return array(content)
        if kind == "image":
            return Image.fromarray(value_of(content))
        name, fields = content
        return kinds[name](**{key: value_of(each) for key, each in fields.items()})

    try:
        return value_of(json.loads(connection.recv_bytes(_MOST_TEXT)))
    except (EOFError, OSError):
        raise
    except Exception as error:
        raise _InvalidAnswerError(str(error)) from error


def _lost(request: MediaRequest, cause: str) -> LostReaderError:
    return LostReaderError(str(refusal(request.name, cause)))
