"""An opened clip: its frames in order of time, where its keyframes are, and where it really
ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

import av
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from draftlens.media.header import Header, open_container, pick_stream, read_header
from draftlens.media.limits import Limits, refusal

# What FFmpeg raises where data is damaged or stops; anything else (no memory, a failing disk) is
# another matter.
_DAMAGE = (av.error.InvalidDataError, av.error.EOFError)


class Unseekable(Exception):  # noqa: N818 - a signal between two functions, never an error that a caller sees
    """Seeking cannot be trusted on this clip: decode all of it instead."""


@dataclass(frozen=True)
class Stamped:
    """A decoded frame and its place in time.

    Attributes:
        index: position in order of time, counted from where the walk began.
        tick: when the frame appears.
        end: when it is due to go.
        frame: the picture, not yet converted.
    """

    index: int
    tick: int
    end: int
    frame: av.VideoFrame


@contextmanager
def open_source(path: str, limits: Limits) -> Iterator[Source]:
    """Open a clip, check its header, and close it again whatever happens.

    Raises:
        MediaError: not a video, damaged beyond opening, over a limit, or FFmpeg fails on it while
            it is open.
    """
    try:
        with open_container(path) as container:
            stream = pick_stream(path, container)
            yield Source(container, stream, read_header(path, container, stream, limits))
    except av.FFmpegError as error:
        raise refusal(path, f"FFmpeg fails on it ({error.strerror})") from error


class Source:
    """A clip that is open for reading; made by `open_source`."""

    def __init__(self, container: InputContainer, stream: VideoStream, header: Header) -> None:
        self._container, self._stream, self.header = container, stream, header

    def frames(self, key: int | None = None) -> Iterator[Stamped]:
        """Frames in order of time: from the start of a freshly opened source, or from the keyframe
        at tick `key`.

        Pictures that FFmpeg marks as corrupt, because they build on frames before the first
        keyframe, are left out.

        Raises:
            MediaError: a packet is damaged before the clip is over.
            Unseekable: the keyframe cannot be found again, or frames behind it carry no ordered
                timestamps.
        """
        last: Stamped | None = None
        for packet in self._packets(key):
            try:
                pictures = self._stream.decode(packet)
                damaged = packet is not None and packet.is_corrupt
            except _DAMAGE:
                pictures, damaged = [], True
            if damaged:
                self._check_tail(last)
                return
            for picture in pictures:
                if not picture.is_corrupt:
                    last = self._stamp(picture, last, strict=key is not None)
                    yield last

    def _demux(self) -> Iterator[Packet[VideoStream] | None]:
        """The stream's packets from here on, and last None, at which a decoder gives what it still
        holds back."""
        try:
            for packet in self._container.demux(self._stream):
                if packet.size:  # an empty one would tell the decoder that no more will come
                    yield packet
        except IndexError:
            pass  # behind the last packet, PyAV stumbles over streams that turned up midway
        yield None

    def _packets(self, key: int | None) -> Iterator[Packet[VideoStream] | None]:
        packets = self._demux()
        if key is not None:
            self._seek(key)
            first = next(
                (
                    p
                    for p in packets
                    if p is None or (p.is_keyframe and (p.pts is None or p.pts >= key))
                ),
                None,
            )
            if first is None or first.pts != key:
                raise Unseekable
            yield first
        yield from packets

    def _check_tail(self, last: Stamped | None) -> None:
        """Data behind `last` is damaged: refuse the clip unless its last moments are all that is
        lost."""
        end = last.end if last else self.header.start or 0
        if self.header.stated_s is None or not self.header.is_complete(end):
            raise self.header.cut_off(end)

    def _stamp(self, picture: av.VideoFrame, last: Stamped | None, *, strict: bool) -> Stamped:
        tick = picture.pts
        if tick is None or (last is not None and tick <= last.tick):
            if strict:
                raise Unseekable
            tick = last.end if last else self.header.start or 0
        # PyAV before 15 does not know how long a frame lasts.
        end = tick + (getattr(picture, "duration", 0) or self.header.step)
        return Stamped(last.index + 1 if last else 0, tick, end, picture)

    def keyframe_before(self, tick: int) -> int:
        """Tick of the keyframe from which decoding must begin to reach `tick`; moves the reading
        position.

        Raises:
            Unseekable: none was found.
        """
        # Indexes go by decoding time, which runs ahead of presentation: step back until the
        # keyframe is early enough.
        for seconds in (0, 1, 4, 16, 64):
            self._seek(max(tick - round(seconds / self.header.tick), self.header.start or 0))
            keyframe = next((p for p in self._demux() if p is None or p.is_keyframe), None)
            if keyframe is not None and keyframe.pts is not None and keyframe.pts <= tick:
                return keyframe.pts
        raise Unseekable

    def _seek(self, tick: int) -> None:
        try:
            self._container.seek(tick, stream=self._stream)
        except av.FFmpegError as error:
            raise Unseekable from error

    def find_end(self) -> int:
        """Tick at which the last readable frame ends, without decoding: reads from the last
        keyframe to the end.

        Raises:
            MediaError: frames are missing before the end that the header states.
            Unseekable: packets carry no timestamps.
        """
        header = self.header
        start = header.start or 0
        self._seek(start + round((header.stated_s or 0) / header.tick))
        end, latest = self.last_packets()
        if end is None:  # the clip is cut off before that point: see how far it goes
            self._seek(start)
            end, latest = self.last_packets()
        if not header.is_complete(start if end is None else end, latest):
            raise header.cut_off(start if end is None else end)
        if end is None:
            raise Unseekable
        return end

    def last_packets(self) -> tuple[int | None, Fraction]:
        """Read on to the end without decoding.

        Returns:
            (tick at which the last intact video packet ends, second at which the last packet of any
            stream ends)
        """
        shown, end, latest = None, None, Fraction(0)
        try:
            for packet in self._container.demux():
                if packet.pts is None or packet.is_corrupt or packet.is_discard:
                    continue
                own = packet.stream.index == self._stream.index
                stop = packet.pts + (packet.duration or (self.header.step if own else 0))
                latest = max(latest, stop * packet.time_base)
                if own and (shown is None or packet.pts > shown):
                    shown, end = packet.pts, stop
        except (*_DAMAGE, IndexError):
            pass  # what lies behind a damaged packet counts as unreadable; for IndexError see _demux
        return end, latest
