"""Two ways to reach the frames shown at given times: seeking, and decoding the whole clip.

Both give the same frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from draftlens.media.header import Header
from draftlens.media.limits import Limits, refusal
from draftlens.media.source import OpenClip, TimedFrame, Unseekable, open_source


@dataclass(frozen=True)
class Extent:
    """The extent of a clip.

    Attributes:
        start: tick at which the clip begins.
        end: tick at which its last frame ends.
        count: number of frames.
    """

    start: int
    end: int
    count: int


def midpoints(start: int, end: int, count: int) -> list[int]:
    """Ticks in the middle of `count` equal parts of the time from `start` to `end`, rounded
    down."""
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
        """The frame shown at `tick`: the last one at or before it, else the first frame.

        Returns None if there are no frames.
        """
        while self._upcoming is not None:
            if self._current is not None and self._upcoming.tick > tick:
                break
            self._current = self._upcoming
            self._upcoming = next(self._frames, None)
        return self._current


def frames_by_decoding(source: OpenClip, ticks: Sequence[int]) -> Iterator[TimedFrame]:
    """The frame shown at each of the ascending `ticks`, found by decoding the whole clip.

    This is the slow reference for `frames_by_seeking`. It works for every format.

    Args:
        source: a source that has not been read from.
    """
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
    does.

    Args:
        scout: the same clip, opened a second time. It locates the next keyframe while `source`
            keeps its position.
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
    """Decode the whole of a clip to measure its extent."""
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
