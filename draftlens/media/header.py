"""Opens clips and reads their headers; raises the errors that need no decoding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

from draftlens.core.errors import MediaError
from draftlens.media.files import IS_VIDEO, ClipFile, guess_content, is_text, lacks_mp4_index
from draftlens.media.limits import Limits, check_pixels, over_limit, refusal

# Formats with an index and timestamps that allow seeking. Every other format is decoded from
# the start.
_SEEKABLE_FORMATS = frozenset({"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"})
# Formats with the duration in the header, so that a shorter file is a truncated one. For MPEG and
# raw streams FFmpeg measures the file as it is, or estimates the duration from the bit rate.
_FORMATS_WITH_DURATION = _SEEKABLE_FORMATS | {"avi", "flv", "asf"}
_IMAGE_BRANDS = frozenset({"avif", "heic", "heix", "mif1"})
# Codecs with which FFmpeg renders text as scrolling video. Some of them also match music files.
_TEXT_CODECS = frozenset({"ansi", "bintext", "xbin", "idf"})

# What `Limits.common_formats` leaves: names of FFmpeg's demuxers and decoders.
_COMMON_CONTAINERS = (
    *sorted(_SEEKABLE_FORMATS),
    *("avi", "flv", "mpeg", "mpegts", "mpegvideo", "h264", "hevc", "obu", "ivf", "m4v", "gif"),
)
_COMMON_CODECS = (
    *("h264", "hevc", "av1", "libdav1d", "libaom-av1", "vp8", "libvpx", "vp9", "libvpx-vp9"),
    *("mpeg4", "mpeg2video", "mpeg1video", "mjpeg", "h263", "flv", "gif"),
)

_DEFAULT_RATE = Fraction(25)


@dataclass(frozen=True)
class Header:
    """The header of a clip, read before anything is decoded.

    Times are ticks of the stream's integer clock, so that two ways of reaching a frame can be
    compared exactly. A tick is absolute: the stream's first frame need not be at 0.

    Attributes:
        tick: seconds per tick.
        start: tick of the stream's start; None when the header does not state it.
        rate: frames per second, on average; None when the header gives none.
        step: ticks that a frame lasts if it carries no duration.
        num_frames: number of frames; 0 when the header does not count them.
        stated_duration: seconds; None when the header states no reliable duration.
        is_video_duration: whether `stated_duration` is that of the video stream, rather than that
            of the longest stream.
        seekable: whether seeking is worth trying.
        width, height: size of a frame before it is turned upright, in pixels; 0 when unknown.
    """

    path: str
    tick: Fraction
    start: int | None
    rate: Fraction | None
    step: int
    num_frames: int
    stated_duration: Fraction | None
    is_video_duration: bool
    seekable: bool
    width: int
    height: int
    limits: Limits

    def seconds(self, tick: int) -> Fraction:
        """Seconds from the stream's start to `tick`."""
        return (tick - (self.start or 0)) * self.tick

    def check_length(self, seconds: float, frames: int) -> None:
        """Raise `MediaError` when `seconds` or the number of `frames` exceeds the limits."""
        max_seconds = self.limits.max_duration_s
        max_frames = self.limits.max_frames
        if seconds > max_seconds:
            figure = f"it lasts {seconds:.1f} s or more"
            raise over_limit(self.path, figure, f"{max_seconds:.1f} s", "max_duration_s")
        if frames > max_frames:
            figure = f"it has {frames} frames or more"
            raise over_limit(self.path, figure, str(max_frames), "max_frames")

    def is_complete(self, end: int, latest: Fraction = Fraction(0)) -> bool:
        """Whether frames that end at tick `end` reach the stated duration, if there is one.

        `latest`, the second at which the last packet of any stream ends, counts where the header
        gives only the longest stream's duration, because sound may continue after the pictures.
        """
        if self.stated_duration is None:
            return True
        # Some writers count from 0 and some from the first frame. Both readings are accepted.
        reached = max(self.seconds(end), end * self.tick)
        if not self.is_video_duration:
            reached = max(reached, latest)
        # Rounding, and a last frame or two that an encoder dropped, are no reason to refuse.
        tolerance = max(Fraction(1, 2), 3 * self.step * self.tick)
        return reached >= self.stated_duration - tolerance

    def truncation_error(self, end: int) -> MediaError:
        """The error for a clip that cannot be read after tick `end` although it goes on."""
        figure = f"{float(self.seconds(end)):.1f} s"
        if self.stated_duration is not None:
            figure += f" of {float(self.stated_duration):.1f} s"
        return refusal(self.path, f"it is truncated or damaged: only {figure} could be read")


@dataclass(frozen=True)
class _Duration:
    """Seconds, None if not stated, and whether they are those of the video stream rather than of
    the longest stream."""

    seconds: Fraction | None
    is_video: bool


# From version 19 on, PyAV reads names and values that are not UTF-8 without an option.
_AS_TEXT: dict[str, Any] = (
    {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}
)


def open_container(path: str, file: ClipFile, limits: Limits) -> InputContainer:
    # The whitelist keeps a playlist from fetching the files that it lists.
    options = {"protocol_whitelist": "file"}
    if limits.common_formats:  # FFmpeg decodes some frames while it opens a file
        options["format_whitelist"] = ",".join(_COMMON_CONTAINERS)
        options["codec_whitelist"] = ",".join(_COMMON_CODECS)
    try:
        container: InputContainer = av.open(file, "r", container_options=options, **_AS_TEXT)
        return container
    except av.FFmpegError as error:
        cause = _open_failure(path, error)
        if limits.common_formats:
            cause += ", or its format is not among those that are read here (Limits.common_formats)"
        raise refusal(path, cause) from error


def _open_failure(path: str, error: av.FFmpegError) -> str:
    if lacks_mp4_index(path):
        return "it is truncated: its index (the moov atom, often at the end of an MP4) is missing"
    content = guess_content(path)
    if content is not None and content != IS_VIDEO:
        return f"{content}, not a video"
    return f"it is not a video that FFmpeg can read, or its start is damaged ({error.strerror})"


def pick_stream(path: str, container: InputContainer, limits: Limits) -> VideoStream:
    """The video stream to read: the default one, else the first that is not the cover of a song."""
    if _is_image(container):
        raise refusal(path, "it is an image, not a video; use `ask` for images")
    stream = _first_video_stream(container)
    if stream is None:
        if is_text(path):
            raise refusal(path, "it is text, not a video")
        raise refusal(path, _no_video_stream(container))
    if stream.codec_context is None:
        raise refusal(path, "this build of FFmpeg has no decoder for its video stream")
    codec = stream.codec_context.name
    if limits.common_formats and codec not in _COMMON_CODECS:
        cause = f"its codec {codec} is not among those that are read here (Limits.common_formats)"
        raise refusal(path, cause)
    if codec in _TEXT_CODECS and is_text(path):
        raise refusal(path, "it is text, not a video")
    return stream


def _is_image(container: InputContainer) -> bool:
    name = container.format.name
    if name == "image2" or name.endswith("_pipe"):
        return True
    return container.metadata.get("major_brand") in _IMAGE_BRANDS


def _first_video_stream(container: InputContainer) -> VideoStream | None:
    """The first default video stream, else the first one that is not a cover picture."""
    streams = [
        stream
        for stream in container.streams.video
        if not stream.disposition & Disposition.attached_pic
    ]
    for stream in streams:
        if stream.disposition & Disposition.default:
            return stream
    return streams[0] if streams else None


def _no_video_stream(container: InputContainer) -> str:
    kinds = sorted({stream.type for stream in container.streams if stream.type != "video"})
    if kinds == ["audio"]:
        return "it holds no video stream, only sound"
    if kinds:
        return f"it holds no video stream, only {' and '.join(kinds)}"
    return "it holds no video stream"


def read_header(
    path: str, container: InputContainer, stream: VideoStream, limits: Limits
) -> Header:
    """The header of an opened clip, checked against `limits`."""
    tick = stream.time_base or Fraction(1, av.time_base)
    frame_rate = stream.guessed_rate or stream.average_rate or _DEFAULT_RATE
    duration = _stated_duration(container, stream, tick)
    header = Header(
        path=path,
        tick=tick,
        start=stream.start_time,
        rate=stream.average_rate or stream.guessed_rate or None,
        step=max(1, round(1 / (frame_rate * tick))),
        num_frames=stream.frames,
        stated_duration=duration.seconds,
        is_video_duration=duration.is_video,
        seekable=(
            container.format.name in _SEEKABLE_FORMATS
            and stream.start_time is not None
            and duration.seconds is not None
        ),
        width=stream.codec_context.width,
        height=stream.codec_context.height,
        limits=limits,
    )
    check_pixels(path, header.width, header.height, limits)
    header.check_length(float(duration.seconds or 0), header.num_frames)
    return header


def _stated_duration(container: InputContainer, stream: VideoStream, tick: Fraction) -> _Duration:
    name = container.format.name
    if name not in _FORMATS_WITH_DURATION:
        return _Duration(None, is_video=False)
    # FFmpeg shortens the duration of an AVI that was cut off, but not its number of frames.
    if name == "avi" and stream.frames and stream.average_rate:
        return _Duration(stream.frames / stream.average_rate, is_video=True)
    if stream.duration:
        return _Duration(stream.duration * tick, is_video=True)
    tagged = _clock_seconds(stream.metadata.get("DURATION", ""))
    if tagged:
        return _Duration(tagged, is_video=True)
    if container.duration:
        return _Duration(Fraction(container.duration, av.time_base), is_video=False)
    return _Duration(None, is_video=False)


def _clock_seconds(text: str) -> Fraction | None:
    """'00:01:02.500000000' as seconds; None for anything else."""
    match = re.fullmatch(r"(\d{1,6}):(\d\d):(\d\d(?:\.\d{1,12})?)", text, re.ASCII)
    if match is None:
        return None
    hours, minutes, seconds = (Fraction(part) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds
