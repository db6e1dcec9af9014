"""Media files of the world: clips as H.264 in mp4, pictures as PNG; and folders that appear only
when whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from draftlens.core.errors import ConfigError

RATE = 24  # frames a second
Frames = NDArray[np.uint8]


def write_clip(path: Path, frames: Frames, rate: int = RATE, crf: int = 18) -> None:
    """H.264 in mp4 from ``[T, H, W, 3]`` uint8 RGB frames; height and width must be even."""
    # The same bytes every time: x264's macroblock tree gives others from run to run, for small
    # frames.
    options = {"crf": str(crf), "preset": "slow", "x264-params": "mbtree=0"}
    with av.open(str(path), "w", options={"movflags": "faststart"}) as file:
        stream: Any = file.add_stream("libx264", rate=Fraction(rate), options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(stream.encode())


def png(picture: Frames) -> bytes:
    """A picture ``[H, W, 3]`` uint8 RGB as a PNG file, the same bytes every time."""
    file = BytesIO()
    Image.fromarray(picture).save(file, "PNG", optimize=True)
    return file.getvalue()


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A hidden folder to write into, which takes the name ``folder`` when the block ends well and
    goes if it does not.

    Raises:
        ConfigError: the folder is there and not empty.
    """
    folder = folder.resolve()  # of "." the name matters too
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already; remove it or choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as hidden:
        content = (
            Path(hidden) / folder.name
        )  # one level deeper: temporary folders are for their owner's eyes alone
        content.mkdir()
        yield content
        if not folder.exists():
            os.replace(content, folder)
            return
        for part in content.iterdir():  # an empty folder stays: somebody may be in it
            os.replace(part, folder / part.name)
