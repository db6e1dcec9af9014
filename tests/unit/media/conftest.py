"""Clips of 64x48 pixels in which every frame displays its number, so that a test can identify the
frames that were read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

WIDTH, HEIGHT = 64, 48


def numbered(number: int) -> np.ndarray:
    """uint8 [48, 64, 3]: eight stripes, white for a 1 and black for a 0 of the number, above a grey
    foot."""
    bits = [number >> shift & 1 for shift in range(8)]
    picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    picture[:32] = np.repeat(np.array(bits, np.uint8) * 255, 8)[None, :, None]
    picture[32:] = 100
    return picture


def number_of(frame: np.ndarray) -> int:
    """The number that `numbered` drew, after any codec."""
    stripes = frame[4:28].astype(float).reshape(24, 8, 8, 3).mean(axis=(0, 2, 3))
    assert np.all((stripes < 64) | (stripes > 192)), (
        f"no numbered frame: stripes of {stripes.round()}"
    )
    return sum(1 << shift for shift, stripe in enumerate(stripes) if stripe > 128)


def make_clip(
    path: Path,
    count: int = 60,
    *,
    rate: int | Fraction = 30,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    format: str | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    pts: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    start: int = 0,
    sound_s: float = 0.0,
    draw: Callable[[int], np.ndarray] = numbered,
) -> Path:
    """Film `count` drawings; `pts` and `start` are in `time_base` (default 1 / rate)."""
    base = time_base or 1 / Fraction(rate)
    with av.open(path, "w", format=format, options=container_options or {}) as container:
        stream: Any = container.add_stream(codec, rate=rate, options=options or {})
        height, width = draw(0).shape[:2]
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        stream.time_base = stream.codec_context.time_base = base
        stream.codec_context.thread_count = 1
        sound: Any = container.add_stream("aac", rate=8000, layout="mono") if sound_s else None
        for i in range(count):
            frame = av.VideoFrame.from_ndarray(
                draw(i), "rgb24" if draw(i).shape[2] == 3 else "rgba"
            )
            frame.pts, frame.time_base = start + (pts[i] if pts else i), base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if sound:
            add_sound(container, sound, sound_s)
    return path


def turn_clip(path: Path, matrix: Sequence[int]) -> Path:
    """A copy of the same packets with a display matrix.

    Encoding a second time would not give the same pixels.

    `matrix` is a, b, c, d of x' = a x + c y, y' = b x + d y, with y growing downwards.
    """
    a, b, c, d = (value << 16 for value in matrix)
    copy = path.with_name(f"turned_{path.name}")
    with av.open(path) as source, av.open(copy, "w") as target:
        stream: Any = target.add_stream_from_template(source.streams.video[0])
        stream.set_display_matrix([a, b, 0, c, d, 0, 0, 0, 1 << 30])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    return copy


def add_sound(container: Any, stream: Any, seconds: float) -> None:
    """Mux `seconds` of silence."""
    silence = av.AudioFrame.from_ndarray(
        np.zeros((1, round(8000 * seconds)), np.float32), "fltp", "mono"
    )
    silence.sample_rate, silence.pts = 8000, 0
    container.mux(stream.encode(silence))
    container.mux(stream.encode(None))


@pytest.fixture
def film(tmp_path: Path) -> Callable[..., Path]:
    """film(name, count=60, ...) -> path of a new clip; see `make_clip`."""
    return lambda name, *args, **kwargs: make_clip(tmp_path / name, *args, **kwargs)


@pytest.fixture
def turn() -> Callable[[Path, Sequence[int]], Path]:
    """turn(clip, (a, b, c, d)) -> path of a turned or mirrored copy; see `turn_clip`."""
    return turn_clip


@pytest.fixture
def numbers() -> Callable[[np.ndarray], list[int]]:
    """numbers(frames [T, 48, 64, 3]) -> which frames of the source they are."""
    return lambda frames: [number_of(frame) for frame in frames]


@pytest.fixture
def as_stranger() -> Any:
    """Run the test as an unprivileged user where the tests run as root, which may read every
    file."""
    import os

    if not hasattr(os, "geteuid"):
        pytest.skip("this system has no user ids to change")
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
