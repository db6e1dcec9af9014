"""Many clips, one prompt: answers as they finish, in batches of clips of similar length."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from os import PathLike
from queue import SimpleQueue
from typing import Any

import torch

from draftlens.core.errors import ConfigError, DraftlensError
from draftlens.core.options import as_whole, real, shown, whole, wrong
from draftlens.core.result import Result, TokenLogprob
from draftlens.media import Limits
from draftlens.media.conversation import Conversation, ask, read
from draftlens.media.reader import KINDS, MediaReader, ReadRequest

READERS = 2
"""Number of processes that read media."""

MOST_READERS = 256

BATCHES_AHEAD = 2
"""Batches of clips that are read ahead, and from which clips of similar length are chosen."""


@dataclass(frozen=True)
class ClipAnswer:
    """The answer about one clip, or why there is none.

    Args:
        index: position of the clip among those that were given.
        source: the clip as it was given.
        from_draft: for each of `tokens`, whether the draft supplied it.
        logprobs: for each of `tokens`, its log probability, if `logprobs` is given.
        error: why there is no answer, in one sentence; None if there is one.
        seconds: end-to-end time of the clip's batch, divided by its clips.
        rows: clips of the batch.
        mean_acceptance_length: of the batch.
        lossless: whether everything on the target's side was exact.
    """

    index: int
    source: Any
    text: str = ""
    tokens: tuple[int, ...] = ()
    from_draft: tuple[bool, ...] = ()
    error: str | None = None
    seconds: float = 0.0
    rows: int = 0
    mean_acceptance_length: float = 0.0
    lossless: bool = True
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class MapOptions:
    """How clips are read and batched.

    Args:
        kind: `video` or `image`.
        num_frames: frames to sample from each clip.
        batch: clips that are answered together.
        clip_seconds: time for reading one clip, after which its decoder is killed.
        readers: processes that read.
        seed: seed of the sampling noise of every clip; None draws one for each batch.

    Raises:
        ConfigError: a value is not valid.
    """

    kind: str = "video"
    num_frames: int = 8
    limits: Limits = field(default_factory=Limits)
    batch: int = 4
    clip_seconds: float = 60.0
    readers: int = READERS
    seed: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise ConfigError(f"unknown kind {shown(self.kind)}; known: {', '.join(KINDS)}")
        for name in ("num_frames", "batch", "readers"):
            maximum = MOST_READERS if name == "readers" else None
            object.__setattr__(self, name, whole(1, maximum)(name, getattr(self, name)))
        real(0, above=True)("clip_seconds", self.clip_seconds)
        if not isinstance(self.limits, Limits):
            raise wrong("limits", self.limits, "a draftlens.media.Limits")
        if self.seed is not None and as_whole(self.seed) is None:
            raise wrong("seed", self.seed, "a whole number, or None")


Answer = Callable[[list[Conversation], list[int] | None], Result]
"""Answers a batch of chats; takes their seeds, or None."""


def map_clips(
    answer: Answer, clips: Iterable[Any], prompt: str, options: MapOptions
) -> Generator[ClipAnswer, None, None]:
    """The answers about clips, in the order in which they finish (`Engine.map`)."""
    with _reading(clips, prompt, options) as clips_read:
        for group in batches(clips_read, options.batch):
            yield from _answer(answer, group, options.seed)


@dataclass(frozen=True)
class ReadClip:
    """A clip as a chat, or the error of reading it; `size` is the pixels of all frames, with which
    the length of the prompt grows."""

    index: int
    source: Any
    chat: Conversation | None = None
    size: int = 0
    error: str | None = None


def batches(clips: Iterable[ReadClip], batch: int) -> Iterator[list[ReadClip]]:
    """Groups of clips of similar size, in which every clip comes once.

    From the clips that are read ahead (`BATCHES_AHEAD` batches), each group takes the one that has
    waited longest and those nearest to it in size. A clip that cannot be read is a group by itself
    and does not wait.
    """
    waiting: list[ReadClip] = []
    for clip in clips:
        if clip.error is not None:
            yield [clip]
            continue
        waiting.append(clip)
        if len(waiting) >= batch * BATCHES_AHEAD:
            yield _take(waiting, batch)
    while waiting:
        yield _take(waiting, batch)


def _take(waiting: list[ReadClip], batch: int) -> list[ReadClip]:
    oldest = waiting[0]
    nearest = sorted(waiting, key=lambda clip: abs(clip.size - oldest.size))[:batch]
    for clip in nearest:
        waiting.remove(clip)
    return nearest


def _answer(answer: Answer, group: list[ReadClip], seed: int | None) -> Iterator[ClipAnswer]:
    if group[0].error is not None:
        yield ClipAnswer(group[0].index, group[0].source, error=group[0].error)
        return
    try:
        result = _generate(answer, group, seed)
    except Exception as error:  # a library below may raise anything, and other clips must go on
        if len(group) > 1:
            for clip in group:
                yield from _answer(answer, [clip], seed)
            return
        yield ClipAnswer(group[0].index, group[0].source, error=_sentence(error))
        return
    for row, clip in enumerate(group):
        yield ClipAnswer(
            clip.index,
            clip.source,
            text=result.texts[row],
            tokens=tuple(result.tokens[row]),
            from_draft=tuple(result.from_draft[row]),
            seconds=result.stats.e2e / len(group),
            rows=len(group),
            mean_acceptance_length=result.stats.mean_acceptance_length,
            lossless=result.lossless,
            logprobs=tuple(result.logprobs[row]) if result.logprobs else (),
        )


def _generate(answer: Answer, group: list[ReadClip], seed: int | None) -> Result:
    chats = [clip.chat for clip in group if clip.chat is not None]
    # The same seed for every clip: its answer does not depend on the clips beside it.
    return answer(chats, None if seed is None else [seed] * len(chats))


def _sentence(error: Exception) -> str:
    if isinstance(error, DraftlensError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "the memory of the device does not suffice for this clip"
    return f"{type(error).__name__}: {error}"


@contextmanager
def _reading(
    clips: Iterable[Any], prompt: str, options: MapOptions
) -> Iterator[Iterator[ReadClip]]:
    pool = _ReaderPool(options)
    try:
        yield pool.read_all(clips, prompt)
    finally:
        pool.close()


@dataclass
class _ReaderPool:
    options: MapOptions
    idle: SimpleQueue[MediaReader] = field(default_factory=SimpleQueue)

    def __post_init__(self) -> None:
        self._readers = [
            MediaReader(self.options.clip_seconds) for _ in range(self.options.readers)
        ]
        for reader in self._readers:
            self.idle.put(reader)
        self._threads = ThreadPoolExecutor(self.options.readers)

    def read_all(self, clips: Iterable[Any], prompt: str) -> Iterator[ReadClip]:
        """Clips in the order in which they are read; few are read ahead of the consumer."""
        ahead = self.options.readers + self.options.batch
        numbered = enumerate(clips)
        running: set[Future[ReadClip]] = set()
        while True:
            for index, source in islice(numbered, ahead - len(running)):
                running.add(self._threads.submit(self._read, index, source, prompt))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            clips_read = [future.result() for future in done]
            yield from sorted(clips_read, key=lambda clip: clip.index)

    def close(self) -> None:
        """End threads and processes, even while they read."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for reader in self._readers:
            reader.kill()
        self._threads.shutdown()
        for reader in self._readers:
            reader.close()

    def _read(self, index: int, source: Any, prompt: str) -> ReadClip:
        reader = self.idle.get()
        try:
            media = _read_media(reader, source, self.options)
            chat = _chat(media, prompt, self.options)
        except DraftlensError as error:
            return ReadClip(index, source, error=str(error))
        finally:
            self.idle.put(reader)
        return ReadClip(index, source, chat, _num_pixels(chat))


def _read_media(reader: MediaReader, source: Any, options: MapOptions) -> Any:
    if not isinstance(source, (str, PathLike)):
        return source
    request = ReadRequest(options.kind, os.fspath(source), options.num_frames, options.limits)
    return reader.read(request)


def _chat(media: Any, prompt: str, options: MapOptions) -> Conversation:
    if options.kind == "image":
        return read(ask(prompt, images=[media]), options.num_frames, options.limits)
    return read(ask(prompt, video=media), options.num_frames, options.limits)


def _num_pixels(chat: Conversation) -> int:
    pixels = 0
    for video in chat.videos:
        pixels += video.frames.size // 3
    for image in chat.images:
        pixels += image.width * image.height
    return pixels
