"""Reads a few RGB frames of a clip, spread evenly over its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from draftlens.core.errors import ConfigError
from draftlens.media.files import check_file, local_copy
from draftlens.media.header import Header
from draftlens.media.limits import Limits, display_name, format_bytes, over_limit
from draftlens.media.pixels import PixelCanvas, Pixels
from draftlens.media.source import (
    TimedFrame,
    Unseekable,
    frames_by_decoding,
    frames_by_seeking,
    measure_extent,
    midpoints,
    open_source,
)

if TYPE_CHECKING:
    from transformers.video_utils import VideoMetadata

Progress = Callable[[int, int], None]  # (frames read so far, frames to read)

# Two rates, or two numbers of frames, agree if they differ by at most this share.
_TOLERANCE = Fraction(1, 20)


@dataclass(frozen=True, eq=False)
class Video:
    """Frames of one clip, upright and in order of time.

    Attributes:
        path: the file or address that they come from, for messages.
        frames: uint8 [T, H, W, 3], RGB.
        timestamps: T times at which the frames appear, in seconds from the start of the video
            stream.
        frame_indices: T positions in the source, in order of presentation, from 0. Counted when
            every frame was decoded, else estimated as timestamp times `fps`, which is exact at a
            constant frame rate.
        fps: average frames per second of the source; where not every frame was decoded, as the
            header gives it.
        total_frames: frames in the source: counted, as the header counts them, or duration times
            `fps`.
        duration: seconds from the start of the video stream to the end of its last frame.
    """

    path: str
    frames: Pixels
    timestamps: tuple[float, ...]
    frame_indices: tuple[int, ...]
    fps: float
    total_frames: int
    duration: float

    @property
    def metadata(self) -> VideoMetadata:
        """The metadata that a transformers video processor needs with do_sample_frames=False.

        Processors compute a frame's time as index / fps, so the indices given here are timestamp
        times fps. At a constant frame rate they equal `frame_indices`; at a variable frame rate
        they give the right time.
        """
        # This import takes seconds, and only processors need it.
        from transformers.video_utils import VideoMetadata

        _, height, width, _ = self.frames.shape
        return VideoMetadata(
            total_num_frames=self.total_frames,
            fps=self.fps,
            width=width,
            height=height,
            duration=self.duration,
            video_backend="pyav",
            frames_indices=_nearest_indices(self.timestamps, self.fps, self.total_frames),
        )


@dataclass(frozen=True)
class _Clip:
    """The extent of a clip: tick at which it begins, duration in seconds, number of frames."""

    header: Header
    start: int
    duration: Fraction
    total_frames: int

    @property
    def fps(self) -> float:
        """Frames per second: the header's rate, unless the number of frames contradicts it. Their
        quotient is slightly wrong where timestamps are rounded: 30 give 30.015 in Matroska."""
        measured = self.total_frames / self.duration
        rate = self.header.rate
        if rate is not None and abs(rate - measured) <= measured * _TOLERANCE:
            return float(rate)
        return float(measured)

    def timestamps(self, ticks: Iterable[int]) -> tuple[float, ...]:
        """Seconds from the start, clipped at 0."""
        tick_seconds = self.header.tick
        return tuple(max(0.0, float((tick - self.start) * tick_seconds)) for tick in ticks)


@dataclass(frozen=True)
class _Selection:
    """Frames that were read from a clip.

    Attributes:
        frames: uint8 [T, H, W, 3], RGB.
        ticks: T times at which the frames appear.
        indices: T positions, counted from where decoding began.
    """

    frames: Pixels
    ticks: tuple[int, ...]
    indices: tuple[int, ...]


def load_video(
    path: str | Path,
    *,
    num_frames: int = 8,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    on_progress: Progress | None = None,
) -> Video:
    """Read `num_frames` frames, spread evenly over the time of a clip.

    The clip's duration is divided into `num_frames` equal parts. Each part gives the frame that is
    shown at its middle: the last frame at or before that time. At a variable frame rate, a frame
    that is shown for longer than a part is returned more than once. A clip with no more than
    `num_frames` frames gives each of its frames once.

    MP4, MOV, Matroska and WebM clips are read by seeking. Other formats, clips without a stated
    duration and very short clips are decoded from start to end twice, the first time to measure
    their length. This gives the same frames, but takes longer.

    Args:
        path: the file, or its address.
        num_frames: how many frames to read, 1 or more.
        limits: bounds on the size of the clip.
        on_progress: called with (frames read so far, frames to read), first with 0 frames read.
            Exceptions that it raises are passed on. The count starts again from 0 when a clip turns
            out not to be seekable.

    Raises:
        ConfigError: `num_frames` is less than 1.
        MediaError: the file is missing, unreadable, empty, truncated, damaged, not a video, or over
            one of `limits`.
    """
    if num_frames < 1:
        raise ConfigError(f"num_frames is {num_frames}, but at least 1 frame must be read")
    report = on_progress or _ignore_progress
    with local_copy(path, limits) as copy:
        name = check_file(copy, limits)
        try:
            video = _load_by_seeking(name, num_frames, limits, report)
        except Unseekable:
            video = _load_by_decoding(name, num_frames, limits, report)
    return replace(video, path=display_name(path))


def _ignore_progress(done: int, total: int) -> None:
    """The default callback."""


def _load_by_seeking(path: str, num_frames: int, limits: Limits, report: Progress) -> Video:
    with open_source(path, limits) as source, open_source(path, limits) as scout:
        header = source.header
        if not header.seekable or header.start is None:
            raise Unseekable
        end = scout.find_end()
        duration = header.seconds(end)
        total = _estimate_total(header, duration)
        # With so few frames, nearly all of them are needed, and the estimate may be too high.
        if duration <= 0 or total <= 2 * num_frames:
            raise Unseekable
        header.check_length(float(duration), total)
        clip = _Clip(header, header.start, duration, total)
        frames = frames_by_seeking(source, scout, midpoints(clip.start, end, num_frames))
        selection = _collect(header, _check_ascending(frames), num_frames, report)
    indices = _nearest_indices(clip.timestamps(selection.ticks), clip.fps, total)
    return _to_video(clip, selection, indices)


def _load_by_decoding(path: str, num_frames: int, limits: Limits, report: Progress) -> Video:
    extent = measure_extent(path, limits)
    num_frames = min(num_frames, extent.count)
    with open_source(path, limits) as source:
        header = source.header
        duration = (extent.end - extent.start) * header.tick
        clip = _Clip(header, extent.start, duration, extent.count)
        frames: Iterable[TimedFrame] = source.frames()
        if num_frames < extent.count:
            ticks = midpoints(extent.start, extent.end, num_frames)
            frames = frames_by_decoding(source, ticks)
        selection = _collect(header, frames, num_frames, report)
    return _to_video(clip, selection, selection.indices)


def _to_video(clip: _Clip, selection: _Selection, indices: Sequence[int]) -> Video:
    return Video(
        path=clip.header.path,
        frames=selection.frames,
        timestamps=clip.timestamps(selection.ticks),
        frame_indices=tuple(indices),
        fps=clip.fps,
        total_frames=clip.total_frames,
        duration=float(clip.duration),
    )


def _estimate_total(header: Header, duration: Fraction) -> int:
    """The header's number of frames, which includes frames that an edit list removes, if the frame
    rate confirms it; else duration times rate."""
    total = round(duration * (header.rate or 0))
    if abs(header.num_frames - total) <= total * _TOLERANCE:
        return header.num_frames
    return total


def _check_ascending(frames: Iterable[TimedFrame]) -> Iterable[TimedFrame]:
    last_tick = None
    for frame in frames:
        if frame.tick == last_tick:
            raise Unseekable
        last_tick = frame.tick
        yield frame


def _collect(
    header: Header, frames: Iterable[TimedFrame], count: int, report: Progress
) -> _Selection:
    """Convert `count` frames one by one, so that only their RGB arrays are kept in memory."""
    _check_output(header, count, header.height, header.width)
    report(0, count)
    canvas = PixelCanvas()
    output: Pixels | None = None
    ticks: list[int] = []
    indices: list[int] = []
    for position, timed in enumerate(frames):
        pixels = canvas.draw(timed.frame)
        if output is None:
            _check_output(header, count, *pixels.shape[:2])
            output = np.empty((count, *pixels.shape), dtype=np.uint8)
        output[position] = pixels
        ticks.append(timed.tick)
        indices.append(timed.index)
        report(position + 1, count)
    assert output is not None
    assert len(ticks) == count
    return _Selection(output, tuple(ticks), tuple(indices))


def _check_output(header: Header, count: int, height: int, width: int) -> None:
    size = count * height * width * 3
    limit = header.limits.max_output_bytes
    if size > limit:
        figure = f"{count} frames of {width}x{height} pixels need {format_bytes(size)}"
        raise over_limit(header.path, figure, format_bytes(limit), "max_output_bytes")


def _nearest_indices(timestamps: Iterable[float], fps: float, total: int) -> list[int]:
    return [min(round(time * fps), total - 1) for time in timestamps]
