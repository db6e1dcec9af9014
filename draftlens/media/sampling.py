"""Which frames to take, and two ways to reach them that must give the same ones: seeking, and
decoding everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from draftlens.media.limits import Limits, refusal
from draftlens.media.source import Source, Stamped, Unseekable, open_source


def midpoints(start: int, end: int, count: int) -> list[int]:
    """The middles of `count` equal parts of the time from tick `start` to tick `end`, rounded down
    to ticks."""
    return [start + (2 * i + 1) * (end - start) // (2 * count) for i in range(count)]


class Cursor:
    """Walks forward over frames in order of time and never back."""

    def __init__(self, frames: Iterable[Stamped]) -> None:
        self._frames = iter(frames)
        self._held: Stamped | None = None
        self._next = next(self._frames, None)

    @property
    def reached(self) -> int:
        """Tick of the latest frame decoded so far, which a later call can still return."""
        latest = self._next or self._held
        return latest.tick if latest else 0

    def at(self, tick: int) -> Stamped | None:
        """The frame on show at `tick`: the last one at or before it, else the first of all; None
        without frames."""
        while self._next is not None and (self._held is None or self._next.tick <= tick):
            self._held, self._next = self._next, next(self._frames, None)
        return self._held


def by_decoding(source: Source, ticks: Sequence[int]) -> Iterator[Stamped]:
    """The frame on show at each of the ascending `ticks`, decoding the whole of a freshly opened
    source.

    The slow twin of `by_seeking`: right for every format, and what the other is tested against.

    Raises:
        MediaError: no frame can be decoded, or the clip is truncated or damaged.
    """
    cursor = Cursor(source.frames())
    for tick in ticks:
        shown = cursor.at(tick)
        if shown is None:
            raise refusal(source.header.path, "not one frame of it can be decoded")
        yield shown


def by_seeking(source: Source, scout: Source, ticks: Sequence[int]) -> Iterator[Stamped]:
    """The frame on show at each of the ascending `ticks`, decoding only from the keyframe before
    each.

    `scout` is the same clip opened a second time: it looks where the next keyframe is while
    `source` keeps its place, so that frames between two ticks are decoded on when no keyframe lies
    between them, and skipped when one does.

    Raises:
        MediaError: a packet on the way is damaged.
        Unseekable: seeking does not lead to the frames it should.
    """
    cursor: Cursor | None = None
    for tick in ticks:
        key = scout.keyframe_before(tick)
        if cursor is None or key > cursor.reached:
            cursor = Cursor(source.frames(key))
        shown = cursor.at(tick)
        if shown is None or not key <= shown.tick <= tick:  # the keyframe itself was not shown
            raise Unseekable
        yield shown


@dataclass(frozen=True)
class Extent:
    """Where a clip begins and ends, in ticks, and how many frames it has."""

    start: int
    end: int
    count: int


def measure(path: str, limits: Limits) -> Extent:
    """Decode all of a clip to learn its extent.

    Raises:
        MediaError: no frame can be decoded, the clip is truncated or damaged, or it is longer than
            `limits` allow.
    """
    with open_source(path, limits) as source:
        header = source.header
        first = last = None
        for last in source.frames():
            first = first or last
            header.check_length(float((last.tick - first.tick) * header.tick), last.index + 1)
    if first is None or last is None:
        if header.stated_s is not None:
            raise header.cut_off(header.start or 0)
        raise refusal(path, "it has no frames, or not one of them can be decoded")
    if not header.is_complete(last.end):
        with open_source(path, limits) as source:
            latest = source.last_packets()[1]
        if not header.is_complete(last.end, latest):
            raise header.cut_off(last.end)
    start = first.tick if header.start is None else min(header.start, first.tick)
    return Extent(start, last.end, last.index + 1)
