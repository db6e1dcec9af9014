"""Streams and events, with their order: what a stream may read follows from the events that it
waited for, whatever the speed of the machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


class StreamError(RuntimeError):
    """A stream used memory that another stream may not have finished with."""


Clock = dict[int, int]
"""By number of a stream, how many of its operations have ended before."""


class Stream:
    """A stream of a device: operations of one stream run in order, those of two in any order."""

    _next = 0
    _numbering = threading.Lock()

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        with Stream._numbering:
            self.number = Stream._next
            Stream._next += 1
        self.device = device_of(device)
        self.priority = priority
        self.seen: Clock = {self.number: 0}

    @property
    def cuda_stream(self) -> int:
        return self.number

    def advance(self) -> int:
        """Begin an operation; returns its number in the stream."""
        self.seen[self.number] += 1
        return self.seen[self.number]

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        merge(self.seen, event.seen)

    def wait_stream(self, other: Stream) -> None:
        merge(self.seen, other.seen)

    def synchronize(self) -> None:
        HOST.wait("Stream.synchronize", self.seen)

    def query(self) -> bool:
        return HOST.knows(self.seen)


class Event:
    """A moment in a stream."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **_: Any) -> None:
        self.seen: Clock = {}

    def record(self, stream: Stream | None = None) -> None:
        self.seen = dict((stream or current_stream()).seen)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def synchronize(self) -> None:
        HOST.wait("Event.synchronize", self.seen)

    def query(self) -> bool:
        return HOST.knows(self.seen)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds; a count has no time."""
        return 0.0


class Host:
    """What the host knows to have ended, in all of its threads: a thread that hands something on
    has waited before, or not."""

    def __init__(self) -> None:
        self.seen: Clock = {}
        self.on_wait: Any = None

    def wait(self, name: str, seen: Mapping[int, int]) -> None:
        merge(self.seen, seen)
        if self.on_wait is not None:
            self.on_wait(name)

    def knows(self, seen: Mapping[int, int]) -> bool:
        return all(self.seen.get(number, 0) >= count for number, count in seen.items())


HOST = Host()
_DEFAULTS: dict[torch.device, Stream] = {}
_LOCAL = threading.local()


def merge(clock: Clock, other: Mapping[int, int]) -> None:
    for number, count in list(other.items()):
        clock[number] = max(clock.get(number, 0), count)


def device_of(device: Any = None) -> torch.device:
    """A device with an index, from anything that names one."""
    if isinstance(device, int):
        return torch.device("cuda", device)
    given = torch.device("cuda" if device is None else device)
    if given.type != "cuda" or given.index is not None:
        return given
    return torch.device("cuda", current_device())


def current_device() -> int:
    return getattr(_LOCAL, "device", 0)


def set_device(device: Any) -> None:
    _LOCAL.device = device_of(device).index


def default_stream(device: Any = None) -> Stream:
    place = device_of(device)
    if place not in _DEFAULTS:
        _DEFAULTS[place] = Stream(place)
    return _DEFAULTS[place]


def current_stream(device: Any = None) -> Stream:
    place = device if isinstance(device, torch.device) else device_of(device)
    if place.index is None:
        place = device_of(place)
    streams: dict[torch.device, Stream] = getattr(_LOCAL, "streams", {})
    return streams.get(place) or _DEFAULTS.get(place) or default_stream(place)


@contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    """`torch.cuda.stream`: this thread's operations go to a stream, on its device."""
    if stream is None:
        yield
        return
    streams = getattr(_LOCAL, "streams", {})
    device = current_device()
    _LOCAL.streams = {**streams, stream.device: stream}
    _LOCAL.device = stream.device.index
    try:
        yield
    finally:
        _LOCAL.streams = streams
        _LOCAL.device = device


def synchronize(device: Any = None) -> None:
    """`torch.cuda.synchronize`."""
    place = device_of(device)
    seen: Clock = {}
    for stream in ALL_STREAMS.on(place):
        merge(seen, stream.seen)
    HOST.wait("synchronize", seen)


class Streams:
    """The streams that have run anything."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}

    def add(self, stream: Stream) -> None:
        self._streams[stream.number] = stream

    def on(self, device: torch.device) -> list[Stream]:
        return [each for each in list(self._streams.values()) if each.device == device]

    def named(self, number: int) -> Stream | None:
        return self._streams.get(number)


ALL_STREAMS = Streams()


class Memory:
    """One storage of a device: who wrote it last, who has read it since, and where it was made.

    A read is in order if its stream, or the host, has seen the write.
    """

    __slots__ = ("free", "maker", "nbytes", "reads", "writer")

    def __init__(self, maker: Stream, nbytes: int, free: Callable[[Memory], None]) -> None:
        self.maker = maker
        self.nbytes = nbytes
        self.free = free
        self.writer: tuple[int, int] | None = None
        self.reads: Clock = {}

    def read(self, stream: Stream, count: int, name: str) -> None:
        self._check(stream, self.writer, name, "reads what stream {} writes")
        self.reads[stream.number] = count

    def write(self, stream: Stream, count: int, name: str) -> None:
        self._check(stream, self.writer, name, "writes what stream {} writes")
        for read in self.reads.items():
            self._check(stream, read, name, "writes what stream {} reads")
        self.reads = {}
        self.writer = (stream.number, count)

    def __del__(self) -> None:
        if _ended is not None and HOST is not None:  # as they are at the end of the interpreter
            self.free(self)

    def record_stream(self, stream: Stream) -> None:
        """The allocator waits for what the stream has done so far."""
        merge(self.maker.seen, {stream.number: self.reads.get(stream.number, 0)})

    def unfinished(self) -> int | None:
        """A stream that may still use the memory when its maker reuses it; None if there is
        none."""
        uses = [*self.reads.items(), *([] if self.writer is None else [self.writer])]
        return next((number for number, at in uses if not _ended(self.maker, number, at)), None)

    def _check(self, stream: Stream, use: tuple[int, int] | None, name: str, problem: str) -> None:
        if use is not None and not _ended(stream, *use):
            doing = problem.format(use[0])
            raise StreamError(f"{name} on stream {stream.number} {doing}, without an event between")


def _ended(stream: Stream, number: int, count: int) -> bool:
    """Whether an operation of another stream ends before the next one of `stream`."""
    return stream.seen.get(number, 0) >= count or HOST.seen.get(number, 0) >= count
