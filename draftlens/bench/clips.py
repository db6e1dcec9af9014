"""What is shown and asked: a clip, wherever it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from draftlens.core.errors import MediaError
from draftlens.media import Video, load_image
from draftlens.media.conversation import Conversation, ask, read

if TYPE_CHECKING:
    from draftlens.world.samples import Sample

Shown = Callable[[], Conversation]
"""Reads the media and returns the conversation: the part of reading that is timed."""

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
FILMS = frozenset(
    {".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v", ".mpg", ".mpeg", ".ts", ".flv", ".wmv"}
)


class Media(Protocol):
    """Where the pixels come from."""

    def prepare(self, prompt: str, frames: int) -> Shown:
        """Do what is not timed; what is returned is.

        Raises:
            MediaError: when it is called, if the media cannot be read.
        """
        ...

    def files(self) -> Sequence[Path]:
        """What is read from disk, so that a run is not resumed with another content; empty where
        nothing is."""
        ...


@dataclass(frozen=True)
class Clip:
    """One prompt of a benchmark.

    Args:
        name: unlike all others in the run.
        prompt: what is asked.
        media: what is shown.
        frames: that a video is sampled to.
        group: clips of one group are summed up together.
    """

    name: str
    prompt: str
    media: Media
    frames: int
    group: str

    def prepare(self) -> Shown:
        """See `Media.prepare`."""
        return self.media.prepare(self.prompt, self.frames)

    def files(self) -> Sequence[Path]:
        """See `Media.files`."""
        return self.media.files()


@dataclass(frozen=True)
class VideoFile:
    """A video on disk, read anew in every measurement."""

    path: Path

    def prepare(self, prompt: str, frames: int) -> Shown:
        """Nothing but the message is made beforehand."""
        return lambda: read(ask(prompt, video=self.path), frames)

    def files(self) -> Sequence[Path]:
        """The video."""
        return [self.path]


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk, read anew in every measurement."""

    paths: tuple[Path, ...]

    def prepare(self, prompt: str, frames: int) -> Shown:
        """Nothing but the message is made beforehand."""
        return lambda: read(ask(prompt, images=list(self.paths)), frames)

    def files(self) -> Sequence[Path]:
        """The images."""
        return self.paths


@dataclass(frozen=True)
class FrameFolder:
    """A video that is published as a folder of pictures, in the order of their names.

    Args:
        path: the folder.
        rate: pictures per second of film.
    """

    path: Path
    rate: float

    def prepare(self, prompt: str, frames: int) -> Shown:
        """The folder is listed in the measurement, as a video's index would be."""

        def shown() -> Conversation:
            chat = read(ask(prompt), frames)
            content = [{"type": "video"}, *chat.messages[0]["content"]]
            return Conversation(
                [{"role": "user", "content": content}], videos=[self._video(frames)]
            )

        return shown

    def files(self) -> Sequence[Path]:
        """The pictures, in order; the folder where there are none."""
        return self._pictures() or [self.path]

    def _pictures(self) -> list[Path]:
        return sorted(file for file in self.path.glob("*") if file.suffix.lower() in PICTURES)

    def _video(self, frames: int) -> Video:
        if not self.path.is_dir():
            raise MediaError(f"cannot read {self.path}: there is no such folder of frames")
        files = self._pictures()
        if not files:
            raise MediaError(f"cannot read {self.path}: it holds no pictures")
        count = min(frames, len(files))
        picks = [
            (2 * i + 1) * len(files) // (2 * count) for i in range(count)
        ]  # the middles of equal parts
        pictures = [np.asarray(load_image(files[i])) for i in picks]
        if len({picture.shape for picture in pictures}) > 1:
            raise MediaError(f"cannot read {self.path}: its pictures are not all of one size")
        times = tuple(i / self.rate for i in picks)
        return Video(
            str(self.path),
            np.stack(pictures),
            times,
            tuple(picks),
            self.rate,
            len(files),
            len(files) / self.rate,
        )


@dataclass(frozen=True)
class WorldScene:
    """A scene of the procedural world, rendered before the measurement: its frames are in memory.

    Args:
        sample: with one question.
        side: pixels a side.
    """

    sample: Sample
    side: int

    def prepare(self, prompt: str, frames: int) -> Shown:
        """Render; the sample holds the prompt already."""
        from draftlens.evaluate.asking import conversation

        chat = conversation(self.sample, frames, self.side)
        return lambda: chat

    def files(self) -> Sequence[Path]:
        """None: what is drawn is settled by the seed."""
        return []


def spread(items: list[Clip], count: int | None) -> list[Clip]:
    """`count` of the items, evenly spread from first to last: the files of a set are often sorted
    by kind."""
    if count is None or count >= len(items):
        return items
    return [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]


def unlike(names: Iterable[str]) -> list[str]:
    """The same names, with a number behind those that come again."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found
