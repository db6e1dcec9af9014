"""Clips: the prompts of a benchmark with their media."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from draftlens.core.errors import MediaError
from draftlens.media import Video, load_image
from draftlens.media.conversation import Conversation, ask, read
from draftlens.media.source import midpoints
from draftlens_lab.evaluate.answers import conversation

if TYPE_CHECKING:
    from draftlens_lab.world.samples import Sample

Reader = Callable[[], Conversation]
"""Reads the media and returns the conversation. The time that it takes is part of a measurement."""

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
VIDEO_SUFFIXES = frozenset(
    {".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v", ".mpg", ".mpeg", ".ts", ".flv", ".wmv"}
)


class Media(Protocol):
    """Source of the pixels of a clip."""

    def prepare(self, prompt: str, frames: int) -> Reader:
        """Do all work that is not to be timed.

        Returns:
            A function that reads the media. It raises MediaError if they cannot be read.
        """
        ...

    def files(self) -> Sequence[Path]:
        """Files that are read from disk; empty if there are none.

        Their fingerprints are stored, so that a run is not resumed with other content.
        """
        ...


@dataclass(frozen=True)
class Clip:
    """One prompt of a benchmark.

    Args:
        media: source of the pixels.
    """

    name: str
    prompt: str
    media: Media
    frames: int
    group: str

    def prepare(self) -> Reader:
        return self.media.prepare(self.prompt, self.frames)

    def files(self) -> Sequence[Path]:
        return self.media.files()


@dataclass(frozen=True)
class VideoFile:
    """A video on disk, which is read in every measurement."""

    path: Path

    def prepare(self, prompt: str, frames: int) -> Reader:
        return lambda: read(ask(prompt, video=self.path), frames)

    def files(self) -> Sequence[Path]:
        return [self.path]


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk, which are read in every measurement."""

    paths: tuple[Path, ...]

    def prepare(self, prompt: str, frames: int) -> Reader:
        return lambda: read(ask(prompt, images=list(self.paths)), frames)

    def files(self) -> Sequence[Path]:
        return self.paths


@dataclass(frozen=True)
class FrameFolder:
    """A video that is published as a folder of pictures, in the order of their names.

    Args:
        rate: pictures per second of video.
    """

    path: Path
    rate: float

    def prepare(self, prompt: str, frames: int) -> Reader:
        """See `Media.prepare`. The folder is listed by the reader, since reading the index of a
        video file is timed as well."""

        def read_folder() -> Conversation:
            chat = read(ask(prompt), frames)
            content = [{"type": "video"}, *chat.messages[0]["content"]]
            message = {"role": "user", "content": content}
            return Conversation([message], videos=[self._video(frames)])

        return read_folder

    def files(self) -> Sequence[Path]:
        """The pictures in order; the folder itself if it holds none."""
        return self._pictures() or [self.path]

    def _pictures(self) -> list[Path]:
        files = self.path.glob("*")
        return sorted(file for file in files if file.suffix.lower() in IMAGE_SUFFIXES)

    def _video(self, frames: int) -> Video:
        if not self.path.is_dir():
            raise MediaError(f"cannot read {self.path}: there is no such folder of frames")
        files = self._pictures()
        if not files:
            raise MediaError(f"cannot read {self.path}: it holds no pictures")
        indices = tuple(midpoints(0, len(files), min(frames, len(files))))
        pictures = [np.asarray(load_image(files[index])) for index in indices]
        if len({picture.shape for picture in pictures}) > 1:
            raise MediaError(f"cannot read {self.path}: its pictures are not all of one size")
        times = tuple(index / self.rate for index in indices)
        duration = len(files) / self.rate
        pixels = np.stack(pictures)
        return Video(str(self.path), pixels, times, indices, self.rate, len(files), duration)


@dataclass(frozen=True)
class WorldScene:
    """A scene of the procedural world, which is rendered before the measurement.

    Args:
        side: pixels a side of the frames.
    """

    sample: Sample
    side: int

    def prepare(self, prompt: str, frames: int) -> Reader:
        """See `Media.prepare`. The sample already holds the prompt."""
        chat = conversation(self.sample, frames, self.side)
        return lambda: chat

    def files(self) -> Sequence[Path]:
        return []


def select_clips(items: list[Clip], count: int | None) -> list[Clip]:
    """Select items at equal distances from first to last, since datasets are often sorted by task.

    Args:
        count: number of items to select; None selects all.
    """
    if count is None or count >= len(items):
        return items
    return [items[index] for index in midpoints(0, len(items), count)]


def unique_names(names: Iterable[str]) -> list[str]:
    """The names, with a number appended to each repetition: ``a``, ``a#2``, ``a#3``."""
    counts: dict[str, int] = {}
    result = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        result.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return result
