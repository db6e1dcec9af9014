"""A clip on disk -> a few RGB frames, spread evenly over its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from draftlens.core.errors import ConfigError
from draftlens.media.files import check_file
from draftlens.media.header import Header
from draftlens.media.limits import Limits, in_bytes, too_much
from draftlens.media.pixels import Canvas, Pixels
from draftlens.media.sampling import by_decoding, by_seeking, measure, midpoints
from draftlens.media.source import Stamped, Unseekable, open_source

if TYPE_CHECKING:
    from transformers.video_utils import VideoMetadata

Progress = Callable[[int, int], None]  # (frames kept so far, frames to keep)


@dataclass(frozen=True, eq=False)
class Video:
    """Frames of one clip, upright and in order of time.

    Attributes:
        path: the file that they come from.
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
        """What a transformers video processor wants beside the frames when called with
        do_sample_frames=False.

        Processors recover a frame's time as index / fps, so the indices given here are timestamp
        times fps: the same as `frame_indices` at a constant frame rate, and the ones that tell the
            right time at a variable one.
        """
        from transformers.video_utils import (
            VideoMetadata,  # takes seconds to import, and only processors need it
        )

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


def load_video(
    path: str | Path,
    *,
    num_frames: int = 8,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    on_progress: Progress | None = None,
) -> Video:
    """Read `num_frames` frames, spread evenly over the time of a clip.

    The clip's duration is cut into `num_frames` equal parts, and each part gives the frame on show
    at its middle: the last frame at or before that moment. At a variable frame rate a frame shown
    for longer than a part comes back more than once. A clip with no more than `num_frames` frames
    gives each of its frames once.

    MP4, MOV, Matroska and WebM clips are read by seeking. Other formats, clips without a stated
    duration and very short clips are decoded from start to end twice, first to learn their length:
    the same frames, only slower.

    Args:
        path: the file.
        num_frames: how many frames to keep, 1 or more.
        limits: what is refused as too large.
        on_progress: called with (frames kept so far, frames to keep), first with 0 kept; what it
            raises passes through. It starts again from 0 when a clip turns out not to be seekable.

    Raises:
        ConfigError: `num_frames` is less than 1.
        MediaError: the file is missing, unreadable, empty, truncated, damaged, not a video, or over
            one of `limits`.
    """
    if num_frames < 1:
        raise ConfigError(f"num_frames is {num_frames}, but at least 1 frame must be read")
    name = check_file(path, limits)
    report = on_progress or (lambda done, total: None)
    try:
        return _load_by_seeking(name, num_frames, limits, report)
    except Unseekable:
        return _load_by_decoding(name, num_frames, limits, report)


def _load_by_seeking(path: str, num_frames: int, limits: Limits, report: Progress) -> Video:
    with open_source(path, limits) as source, open_source(path, limits) as scout:
        header = source.header
        if not header.seekable or header.start is None:
            raise Unseekable
        end = scout.find_end()
        duration = header.seconds(end)
        total = round(duration * (header.rate or 0))
        if (
            abs(header.counted - total) <= total / 20
        ):  # it counts the frames that an edit list cuts out, too
            total = header.counted
        if (
            duration <= 0 or total <= 2 * num_frames
        ):  # too close to wanting every frame to rely on an estimate
            raise Unseekable
        header.check_length(float(duration), total)
        picks = by_seeking(source, scout, midpoints(header.start, end, num_frames))
        frames, stamps = _collect(header, _without_repeats(picks), num_frames, report)
    fps = _average_rate(header, total, duration)
    times = _timestamps(header, header.start, stamps)
    return Video(
        path, frames, times, tuple(_nearest_indices(times, fps, total)), fps, total, float(duration)
    )


def _load_by_decoding(path: str, num_frames: int, limits: Limits, report: Progress) -> Video:
    extent = measure(path, limits)
    with open_source(path, limits) as source:
        header = source.header
        everything = extent.count <= num_frames
        kept = extent.count if everything else num_frames
        picks = (
            source.frames()
            if everything
            else by_decoding(source, midpoints(extent.start, extent.end, kept))
        )
        frames, stamps = _collect(header, picks, kept, report)
    duration = (extent.end - extent.start) * header.tick
    fps = _average_rate(header, extent.count, duration)
    times = _timestamps(header, extent.start, stamps)
    return Video(
        path, frames, times, tuple(s.index for s in stamps), fps, extent.count, float(duration)
    )


def _without_repeats(picks: Iterable[Stamped]) -> Iterable[Stamped]:
    """`picks` as they are, giving up when one frame comes twice: there may be fewer frames than the
    header implies."""
    last = None
    for shown in picks:
        if shown.tick == last:
            raise Unseekable
        last = shown.tick
        yield shown


def _collect(
    header: Header, picks: Iterable[Stamped], count: int, report: Progress
) -> tuple[Pixels, list[Stamped]]:
    """Convert each of `count` picked frames as it comes, so that only the RGB ones are held."""
    size = count * header.height * header.width * 3
    if size > header.limits.max_output_bytes:
        figure = f"{count} frames of {header.width}x{header.height} pixels need {in_bytes(size)}"
        raise too_much(
            header.path, figure, in_bytes(header.limits.max_output_bytes), "max_output_bytes"
        )
    report(0, count)
    canvas = Canvas()
    frames: Pixels | None = None
    stamps: list[Stamped] = []
    for shown in picks:
        pixels = canvas.draw(shown.frame)
        if frames is None:
            frames = np.empty((count, *pixels.shape), dtype=np.uint8)
        frames[len(stamps)] = pixels
        stamps.append(shown)
        report(len(stamps), count)
    assert frames is not None
    assert len(stamps) == count
    return frames, stamps


def _timestamps(header: Header, start: int, stamps: Iterable[Stamped]) -> tuple[float, ...]:
    """Seconds from `start`; never negative, although a stream may show a frame before its stated
    start."""
    return tuple(max(0.0, float((stamp.tick - start) * header.tick)) for stamp in stamps)


def _average_rate(header: Header, total: int, duration: Fraction) -> float:
    """The header's frame rate, unless the number of frames belies it, as where the rate varies.

    The division alone would be a little off where timestamps are rounded: 30 per second reads as
    30.015 in Matroska.
    """
    measured = total / duration
    if header.rate is not None and abs(header.rate - measured) <= measured / 20:
        return float(header.rate)
    return float(measured)


def _nearest_indices(timestamps: Iterable[float], fps: float, total: int) -> list[int]:
    return [min(round(time * fps), total - 1) for time in timestamps]
