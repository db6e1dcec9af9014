"""Media files of the world (clips as H.264 in MP4, pictures as PNG) and folders that are written
completely or not at all."""

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

RATE = 24  # frames per second
Frames = NDArray[np.uint8]


def write_clip(path: Path, frames: Frames, rate: int = RATE, crf: int = 18) -> None:
    """Write frames as H.264 in MP4.

    Args:
        frames: uint8 ``[T, H, W, 3]``, RGB; height and width must be even.
        rate: frames per second.
        crf: constant rate factor of x264; less is better.
    """
    # With its macroblock tree, x264 writes different bytes in each run for small frames.
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
    """Encode a picture as PNG; equal pictures give equal bytes.

    Args:
        picture: uint8 ``[H, W, 3]``, RGB.
    """
    file = BytesIO()
    Image.fromarray(picture).save(file, "PNG", optimize=True)
    return file.getvalue()


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A hidden folder to write into.

    It takes the name ``folder`` when the block ends, and is removed if the block raises.
    """
    folder = folder.resolve()  # "." has no name of its own
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already; remove it or choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as hidden:
        # One level deeper, because only the owner may read a temporary folder itself.
        content = Path(hidden) / folder.name
        content.mkdir()
        yield content
        if not folder.exists():
            os.replace(content, folder)
            return
        # An empty folder is filled rather than replaced: it may be a process's working directory.
        for part in content.iterdir():
            os.replace(part, folder / part.name)
