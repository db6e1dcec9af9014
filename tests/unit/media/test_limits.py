"""Formats that a server reads: those of `Limits.common_formats`."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from draftlens.core.errors import MediaError
from draftlens.media import Limits, load_image, load_video

COMMON = Limits(common_formats=True)
SIDE = 64


def write_clip(path: Path, codec: str, pixels: str) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width = stream.height = SIDE  # type: ignore[union-attr]
        stream.pix_fmt = pixels  # type: ignore[union-attr]
        for number in range(12):
            grey = np.full((SIDE, SIDE, 3), 20 * number, np.uint8)
            frame = av.VideoFrame.from_ndarray(grey, format="rgb24")
            container.mux(stream.encode(frame))  # type: ignore[union-attr]
        container.mux(stream.encode())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "codec", "pixels", "is_common"),
    [
        ("a.mp4", "libx264", "yuv420p", True),
        ("a.webm", "libvpx-vp9", "yuv420p", True),
        ("a.mkv", "libx264", "yuv420p", True),
        ("a.avi", "mpeg4", "yuv420p", True),
        ("a.mpg", "mpeg2video", "yuv420p", True),
        ("a.ts", "libx264", "yuv420p", True),
        ("a.gif", "gif", "rgb8", True),
        ("magicyuv.avi", "magicyuv", "gbrp", False),  # CVE-2026-8461
        ("jpeg2000.mov", "jpeg2000", "yuv420p", False),  # CVE-2026-22778
        ("huffyuv.avi", "huffyuv", "yuv422p", False),
        ("a.nut", "mpeg4", "yuv420p", False),
        ("a.asf", "mpeg4", "yuv420p", False),
    ],
)
def test_clips(tmp_path: Path, name: str, codec: str, pixels: str, is_common: bool) -> None:
    write_clip(tmp_path / name, codec, pixels)
    assert len(load_video(tmp_path / name, num_frames=3).frames) == 3
    if is_common:
        assert len(load_video(tmp_path / name, num_frames=3, limits=COMMON).frames) == 3
        return
    with pytest.raises(MediaError, match=r"that are read here \(Limits\.common_formats\)"):
        load_video(tmp_path / name, num_frames=3, limits=COMMON)


@pytest.mark.parametrize(
    ("format_name", "is_common"),
    [("PNG", True), ("JPEG", True), ("TIFF", True), ("JPEG2000", False), ("PCX", False)],
)
def test_pictures(tmp_path: Path, format_name: str, is_common: bool) -> None:
    path = tmp_path / "picture"
    Image.new("RGB", (SIDE, SIDE), "red").save(path, format_name)
    assert load_image(path).size == (SIDE, SIDE)
    if is_common:
        assert load_image(path, limits=COMMON).size == (SIDE, SIDE)
        return
    with pytest.raises(MediaError, match="it is no image that Pillow can read"):
        load_image(path, limits=COMMON)
