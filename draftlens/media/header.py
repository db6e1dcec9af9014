"""Opening a clip, and what its header promises: the refusals that need no decoding live here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

from draftlens.core.errors import MediaError
from draftlens.media.files import A_VIDEO, is_text, lacks_mp4_index, what_instead
from draftlens.media.limits import Limits, check_pixels, refusal, too_much

# Formats whose index and timestamps can be trusted for seeking; every other one is decoded from its
# start.
_SEEKABLE = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"}
# Formats whose header states the duration, so that a shorter file is a truncated one. MPEG streams
# and raw ones do not: what FFmpeg reports for those is measured on the file as it is, or guessed
# from the bit rate.
_STATES_DURATION = _SEEKABLE | {"avi", "flv", "asf"}
_STILL_BRANDS = {"avif", "heic", "heix", "mif1"}
_TEXT_CODECS = {
    "ansi",
    "bintext",
    "xbin",
    "idf",
}  # FFmpeg can film a text scrolling by, and takes some for songs


@dataclass(frozen=True)
class Header:
    """What a clip says about itself before anything is decoded.

    Times are ticks, the stream's own integer clock, so that two ways of reaching a frame can be
    compared exactly. A tick is absolute: the stream's first frame need not be at 0.

    Attributes:
        path: the file, for messages.
        tick: seconds per tick.
        start: tick of the stream's start; None when the header does not say.
        rate: frames per second, on average; None when the header gives none.
        step: ticks that a frame lasts where it does not say so itself.
        counted: number of frames; 0 when the header does not count them.
        stated_s: duration in seconds; None when the header states none that can be trusted.
        of_video: whether `stated_s` is the video stream's own, and not that of the longest stream.
        seekable: whether seeking is worth trying.
        width, height: size of a frame before it is turned upright, in pixels; 0 when unknown.
        limits: the bounds that the clip must keep.
    """

    path: str
    tick: Fraction
    start: int | None
    rate: Fraction | None
    step: int
    counted: int
    stated_s: Fraction | None
    of_video: bool
    seekable: bool
    width: int
    height: int
    limits: Limits

    def seconds(self, at: int) -> Fraction:
        """Seconds from the stream's start to tick `at`."""
        return (at - (self.start or 0)) * self.tick

    def check_length(self, seconds: float, frames: int) -> None:
        """Raise `MediaError` when `seconds` or the number of `frames` passes the limits."""
        bounds = self.limits
        if seconds > bounds.max_duration_s:
            limit = f"{bounds.max_duration_s:.1f} s"
            raise too_much(self.path, f"it lasts {seconds:.1f} s or more", limit, "max_duration_s")
        if frames > bounds.max_frames:
            raise too_much(
                self.path, f"it has {frames} frames or more", f"{bounds.max_frames}", "max_frames"
            )

    def is_complete(self, end: int, latest: Fraction = Fraction(0)) -> bool:
        """Whether frames that end at tick `end` are all that the header stated; True where it
        stated nothing.

        `latest` is the second at which the last packet of any stream ends: where the header gives
        only the longest stream's duration, sound may run on behind the pictures.
        """
        if self.stated_s is None:
            return True
        # Some writers count from 0 and some from the first frame: let a late start count as
        # readable.
        reached = max(self.seconds(end), end * self.tick, Fraction(0) if self.of_video else latest)
        # Rounding, and a last frame or two that an encoder dropped, are no reason to refuse.
        return reached >= self.stated_s - max(Fraction(1, 2), 3 * self.step * self.tick)

    def cut_off(self, end: int) -> MediaError:
        """The error to raise when nothing can be read from tick `end` on, although the clip goes
        on."""
        figure = f"{float(self.seconds(end)):.1f} s"
        if self.stated_s is not None:
            figure += f" of {float(self.stated_s):.1f} s"
        return refusal(self.path, f"it is truncated or damaged: only {figure} could be read")


def open_container(path: str) -> InputContainer:
    """Open a file that exists.

    Raises:
        MediaError: it is text, a document, a truncated MP4, or anything else that FFmpeg does not
            recognise.
    """
    try:
        # The whitelist keeps a playlist from fetching what it names; "file:" keeps a name such as
        # "concat:a|b" a name.
        return av.open(
            f"file:{path}",
            metadata_errors="replace",
            container_options={"protocol_whitelist": "file"},
        )
    except av.FFmpegError as error:
        if lacks_mp4_index(path):
            cause = (
                "it is truncated: its index (the moov atom, often at the end of an MP4) is missing"
            )
        elif (instead := what_instead(path)) and instead != A_VIDEO:
            cause = f"{instead}, not a video"
        else:
            cause = (
                f"it is not a video that FFmpeg knows, or its start is damaged ({error.strerror})"
            )
        raise refusal(path, cause) from error


def pick_stream(path: str, container: InputContainer) -> VideoStream:
    """The video stream to show: the default one, else the first; the cover picture of a song is
    none.

    Raises:
        MediaError: an image, text, sound only, no stream at all, or a codec without a decoder.
    """
    name = container.format.name
    if (
        name.endswith("_pipe")
        or name == "image2"
        or container.metadata.get("major_brand") in _STILL_BRANDS
    ):
        raise refusal(path, "it is an image, not a video; use `ask` for images")
    streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
    stream = max(
        streams, key=lambda s: bool(s.disposition & Disposition.default), default=None
    )  # the first of equals
    if stream is not None and stream.codec_context is None:
        raise refusal(path, "this build of FFmpeg has no decoder for its video stream")
    if (stream is None or stream.codec_context.name in _TEXT_CODECS) and is_text(path):
        raise refusal(path, "it is text, not a video")
    if stream is None:
        kinds = sorted({s.type for s in container.streams if s.type != "video"})
        found = "sound" if kinds == ["audio"] else " and ".join(kinds)
        raise refusal(path, "it holds no video stream" + (f", only {found}" if found else ""))
    return stream


def read_header(
    path: str, container: InputContainer, stream: VideoStream, limits: Limits
) -> Header:
    """The header of an opened clip, checked against `limits`.

    Raises:
        MediaError: frames too large, or the stated duration or number of frames over its limit.
    """
    name = container.format.name
    tick = stream.time_base or Fraction(1, av.time_base)
    stated_s, of_video = (
        _stated_duration(container, stream, tick) if name in _STATES_DURATION else (None, False)
    )
    header = Header(
        path=path,
        tick=tick,
        start=stream.start_time,
        rate=stream.average_rate or stream.guessed_rate or None,
        step=max(1, round(1 / ((stream.guessed_rate or stream.average_rate or 25) * tick))),
        counted=stream.frames,
        stated_s=stated_s,
        of_video=of_video,
        seekable=name in _SEEKABLE and stream.start_time is not None and stated_s is not None,
        width=stream.codec_context.width,
        height=stream.codec_context.height,
        limits=limits,
    )
    check_pixels(path, header.width, header.height, limits)
    header.check_length(float(stated_s or 0), header.counted)
    return header


def _stated_duration(
    container: InputContainer, stream: VideoStream, tick: Fraction
) -> tuple[Fraction | None, bool]:
    """(seconds, whether they are the video stream's own)."""
    if container.format.name == "avi" and stream.frames and stream.average_rate:
        return (
            stream.frames / stream.average_rate,
            True,
        )  # FFmpeg shortens the duration of an AVI that was cut off
    if stream.duration:
        return stream.duration * tick, True
    if tagged := _clock_time(stream.metadata.get("DURATION", "")):
        return tagged, True
    return (Fraction(container.duration, av.time_base) if container.duration else None), False


def _clock_time(text: str) -> Fraction | None:
    """'00:01:02.500000000' as seconds; None for anything else."""
    match = re.fullmatch(r"(\d{1,6}):(\d\d):(\d\d(?:\.\d{1,12})?)", text, re.ASCII)
    if match is None:
        return None
    hours, minutes, seconds = (Fraction(part) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds
