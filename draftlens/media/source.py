"""Reads an opened clip: its frames in order of time, its keyframes, and where it ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import av
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from draftlens.media.files import ClipFile
from draftlens.media.header import Header, open_container, pick_stream, read_header
from draftlens.media.limits import Limits, check_pixels, refusal

# FFmpeg's errors for damaged or missing data. Other errors (no memory, a failing disk) do not
# concern the clip.
_DAMAGE = (av.error.InvalidDataError, av.error.EOFError)

# How far back to search for a keyframe, in seconds.
_SEEK_BACK = (0, 1, 4, 16, 64)


class Unseekable(Exception):  # noqa: N818 - a signal between functions, not an error for callers
    """Seeking is not reliable on this clip: decode the whole clip instead."""


@dataclass(frozen=True)
class TimedFrame:
    """A decoded frame and its position in time.

    Attributes:
        index: position in order of time, counted from where the iteration began.
        tick: time at which the frame appears.
        end: time at which the next frame is due.
        frame: the picture, not yet converted.
    """

    index: int
    tick: int
    end: int
    frame: av.VideoFrame


@dataclass(frozen=True)
class PacketEnds:
    """Tick at which the last intact video packet ends, None without one, and second at which the
    last packet of any stream ends."""

    video_tick: int | None
    latest_second: Fraction


@contextmanager
def open_source(path: str, limits: Limits) -> Iterator[OpenClip]:
    """Open a clip and check its header; the clip is closed when the block ends."""
    try:
        with ClipFile(path) as file, open_container(path, file, limits) as container:
            stream = pick_stream(path, container, limits)
            header = read_header(path, container, stream, limits)
            file.expect_frames(header.width * header.height)
            yield OpenClip(container, stream, header, file)
    except av.FFmpegError as error:
        raise refusal(path, f"FFmpeg fails on it ({error.strerror})") from error


class OpenClip:
    """A clip that is open for reading; made by `open_source`."""

    def __init__(
        self, container: InputContainer, stream: VideoStream, header: Header, file: ClipFile
    ) -> None:
        self.header = header
        self._file = file
        self._container = container
        self._stream = stream

    def frames(self, keyframe: int | None = None) -> Iterator[TimedFrame]:
        """Frames in order of time, from the keyframe at this tick, or by default from the current
        position.

        Pictures that FFmpeg marks as corrupt, because they depend on frames before the first
        keyframe, are omitted.
        """
        last: TimedFrame | None = None
        for packet in self._packets(keyframe):
            try:
                pictures = self._stream.decode(packet)
            except _DAMAGE:
                self._check_tail(last)
                return
            if packet is not None and packet.is_corrupt:
                self._check_tail(last)
                return
            for picture in pictures:
                # Its size may differ from the header's.
                check_pixels(self.header.path, picture.width, picture.height, self.header.limits)
                if not picture.is_corrupt:
                    last = self._stamp(picture, last, strict=keyframe is not None)
                    yield last
        if self._file.is_exhausted:
            self._check_tail(last)

    def keyframe_before(self, tick: int) -> int:
        """Tick of the keyframe to decode from to reach `tick`; moves the position."""
        # Indexes use decoding time, which is ahead of presentation time: step back until the
        # keyframe is early enough.
        start = self.header.start or 0
        for seconds in _SEEK_BACK:
            self._seek(max(tick - round(seconds / self.header.tick), start))
            keyframe = self._next_keyframe_tick()
            if keyframe is not None and keyframe <= tick:
                return keyframe
        raise Unseekable

    def find_end(self) -> int:
        """Tick at which the last readable frame ends, from its packets, without decoding."""
        header = self.header
        start = header.start or 0
        self._seek(start + round((header.stated_duration or 0) / header.tick))
        ends = self.read_packet_ends()
        if ends.video_tick is None:  # the clip is cut off before that position
            self._seek(start)
            ends = self.read_packet_ends()
        readable_end = start if ends.video_tick is None else ends.video_tick
        if not header.is_complete(readable_end, ends.latest_second):
            raise header.truncation_error(readable_end)
        if ends.video_tick is None:
            raise Unseekable
        return ends.video_tick

    def read_packet_ends(self) -> PacketEnds:
        """Read the remaining packets of all streams, without decoding."""
        latest_start: int | None = None
        video_end: int | None = None
        latest_second = Fraction(0)
        try:
            for packet in self._all_packets():
                if packet.pts is None or packet.is_corrupt or packet.is_discard:
                    continue
                is_video = packet.stream.index == self._stream.index
                default_duration = self.header.step if is_video else 0
                end = packet.pts + (packet.duration or default_duration)
                latest_second = max(latest_second, end * packet.time_base)
                if is_video and (latest_start is None or packet.pts > latest_start):
                    latest_start = packet.pts
                    video_end = end
        except (*_DAMAGE, IndexError):
            pass  # data after a damaged packet counts as unreadable; for IndexError see _demux
        return PacketEnds(video_end, latest_second)

    def _seek(self, tick: int) -> None:
        try:
            self._container.seek(tick, stream=self._stream)
        except av.FFmpegError as error:
            raise Unseekable from error

    def _all_packets(self) -> Iterator[Packet[Any]]:
        for packet in self._container.demux():
            self._file.count_packet()
            yield packet

    def _demux(self) -> Iterator[Packet[VideoStream] | None]:
        """The remaining packets, then None, which makes a decoder return its last frames."""
        try:
            for packet in self._all_packets():
                # A decoder takes an empty packet as the end of the stream.
                if packet.size and packet.stream.index == self._stream.index:
                    yield cast("Packet[VideoStream]", packet)
        except IndexError:
            pass  # PyAV fails after the last packet if a stream appeared midway
        yield None

    def _packets(self, keyframe: int | None) -> Iterator[Packet[VideoStream] | None]:
        if keyframe is None:
            yield from self._demux()
            return
        self._seek(keyframe)
        packets = self._demux()
        first = next(packets)
        while first is not None and not _is_keyframe_from(first, keyframe):
            first = next(packets)
        if first is None or first.pts != keyframe:
            raise Unseekable
        yield first
        yield from packets

    def _next_keyframe_tick(self) -> int | None:
        """Tick of the next keyframe; None if there is none or it has no timestamp."""
        for packet in self._demux():
            if packet is not None and packet.is_keyframe:
                return packet.pts
        return None

    def _check_tail(self, last: TimedFrame | None) -> None:
        """Refuse a clip that is damaged after `last`, unless only its last moments are lost."""
        end = last.end if last else self.header.start or 0
        if self.header.stated_duration is None or not self.header.is_complete(end):
            raise self.header.truncation_error(end)

    def _stamp(
        self, picture: av.VideoFrame, last: TimedFrame | None, *, strict: bool
    ) -> TimedFrame:
        tick = picture.pts
        if tick is None or (last is not None and tick <= last.tick):
            if strict:
                raise Unseekable
            tick = last.end if last else self.header.start or 0
        # Frames have no duration before PyAV 15.
        duration = getattr(picture, "duration", 0) or self.header.step
        index = last.index + 1 if last else 0
        return TimedFrame(index, tick, tick + duration, picture)


def _is_keyframe_from(packet: Packet[VideoStream], tick: int) -> bool:
    """Whether a packet is a keyframe at or after `tick`, or one without a timestamp."""
    return packet.is_keyframe and (packet.pts is None or packet.pts >= tick)


@dataclass(frozen=True)
class Extent:
    """Ticks of a clip's start and of its last frame's end, and its number of frames."""

    start: int
    end: int
    count: int


def midpoints(start: int, end: int, count: int) -> list[int]:
    """Ticks in the middle of `count` equal parts from `start` to `end`, rounded down."""
    return [start + (2 * i + 1) * (end - start) // (2 * count) for i in range(count)]


class Cursor:
    """Walks forward through frames in order of time."""

    def __init__(self, frames: Iterable[TimedFrame]) -> None:
        self._frames = iter(frames)
        self._current: TimedFrame | None = None
        self._upcoming = next(self._frames, None)

    @property
    def reached(self) -> int:
        """Tick of the latest frame decoded so far, which a later call can still return."""
        latest = self._upcoming or self._current
        if latest is None:
            return 0
        return latest.tick

    def at(self, tick: int) -> TimedFrame | None:
        """The last frame at or before `tick`, else the first frame, or None without frames."""
        while self._upcoming is not None:
            if self._current is not None and self._upcoming.tick > tick:
                break
            self._current = self._upcoming
            self._upcoming = next(self._frames, None)
        return self._current


def frames_by_decoding(source: OpenClip, ticks: Sequence[int]) -> Iterator[TimedFrame]:
    """The frame shown at each of the ascending `ticks`, found by decoding a fresh source as a
    whole. The slow reference for `frames_by_seeking`; it works for every format."""
    cursor = Cursor(source.frames())
    for tick in ticks:
        frame = cursor.at(tick)
        if frame is None:
            raise refusal(source.header.path, "not one frame of it can be decoded")
        yield frame


def frames_by_seeking(
    source: OpenClip, scout: OpenClip, ticks: Sequence[int]
) -> Iterator[TimedFrame]:
    """The frame shown at each of the ascending `ticks`, decoded from the keyframe before it.

    Frames between two ticks are decoded when no keyframe lies between them, and skipped when one
    does. `scout` is the same clip, opened a second time; it locates the next keyframe while
    `source` keeps its position.
    """
    cursor: Cursor | None = None
    for tick in ticks:
        keyframe = scout.keyframe_before(tick)
        if cursor is None or keyframe > cursor.reached:
            cursor = Cursor(source.frames(keyframe))
        frame = cursor.at(tick)
        # A frame before the keyframe means that the keyframe itself was not shown.
        if frame is None or not keyframe <= frame.tick <= tick:
            raise Unseekable
        yield frame


def measure_extent(path: str, limits: Limits) -> Extent:
    first: TimedFrame | None = None
    last: TimedFrame | None = None
    with open_source(path, limits) as source:
        header = source.header
        for frame in source.frames():
            if first is None:
                first = frame
            last = frame
            header.check_length(float((frame.tick - first.tick) * header.tick), frame.index + 1)
    if first is None or last is None:
        if header.stated_duration is not None:
            raise header.truncation_error(header.start or 0)
        raise refusal(path, "it has no frames, or not one of them can be decoded")
    _check_complete(header, last.end)
    start = first.tick if header.start is None else min(header.start, first.tick)
    return Extent(start, last.end, last.index + 1)


def _check_complete(header: Header, end: int) -> None:
    if header.is_complete(end):
        return
    latest = _latest_second(header)
    if not header.is_complete(end, latest):
        raise header.truncation_error(end)


def _latest_second(header: Header) -> Fraction:
    with open_source(header.path, header.limits) as source:
        return source.read_packet_ends().latest_second
