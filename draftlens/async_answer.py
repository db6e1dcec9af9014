"""The answer to one job of a scheduler, for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

import torch

from draftlens.core.result import Chunk, Result
from draftlens.core.stats import Stats
from draftlens.core.text import TextDecoder
from draftlens.request import Request
from draftlens.scheduling import Job, Scheduler, Update


class AsyncAnswer:
    """An answer that is being made: iterate over its `Chunk`s with `async for`, inside of a `with`
    block that ends the answer when it is left.

    Args:
        decode_ids: from token ids to text; None leaves the text of chunks empty.
        samples, client: as for `Job`.
        began: when the request came, in seconds of `time.perf_counter`.

    Raises:
        InputError, QueueFullError, AnswerError: as `Scheduler.submit`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        request: Request,
        decode_ids: Callable[[list[int]], str] | None = None,
        samples: int = 1,
        client: str = "",
        began: float | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._updates: asyncio.Queue[Update] = asyncio.Queue()
        self.job = Job(request, self._notify, samples, client)
        self.began = self.job.arrived if began is None else began
        self.first_at: float | None = None
        self.last_at = self.began
        self.done = False
        self._accepted_by_depth: Counter[int] = Counter()
        self._num_chunks = Counter[int]()
        self._decode_ids = decode_ids
        self._streamer = request.options.get("streamer")
        self._decoders = [TextDecoder(decode_ids or _no_text) for _ in range(self.job.num_rows)]
        scheduler.submit(self.job)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()
        if self._streamer is not None:  # also after an exception, since a reader may wait for it
            self._streamer.end()

    def cancel(self) -> None:
        """End the answer; its rows leave the batch before the next round."""
        if not self.done:
            self._end()
            self._scheduler.cancel(self.job)

    def _end(self) -> None:
        """Without the cycle of job and answer, the job's inputs are freed with the answer."""
        self.done = True
        self.job.notify = _ignore

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while not self.done:
            for chunk in await self.next_round():
                yield chunk

    async def next_round(self) -> list[Chunk]:
        """The chunks of the next round in which the answer gains tokens, and at its end the text
        that was held back. Raises the error that ended the answer."""
        update = await self._updates.get()
        if update.error is not None:
            self._end()
            raise update.error
        if self._streamer is not None:
            for chunk in update.chunks:
                self._streamer.put(torch.tensor(chunk.tokens))
        chunks = [self._received(chunk) for chunk in update.chunks]
        if update.done:
            self._end()
            rest = [decoder.flush() for decoder in self._decoders]
            chunks += [Chunk((), (), text, row) for row, text in enumerate(rest) if text]
        return chunks

    @property
    def result(self) -> Result:
        """The answer so far."""
        rows = self.job.sequences
        decode_ids = self._decode_ids
        return Result(
            tokens=[list(row.tokens) for row in rows],
            from_draft=[list(row.from_draft) for row in rows],
            stats=self.stats,
            lossless=self.job.lossless,
            approximate=self.job.approximate,
            texts=[] if decode_ids is None else [decode_ids(row.tokens) for row in rows],
            notes=self.job.notes,
            logprobs=[list(row.logprobs.tokens) for row in rows if row.logprobs],
        )

    @property
    def stats(self) -> Stats:
        """Counters and times of this answer alone."""
        rows = self.job.sequences
        emitted = sum(len(row.tokens) for row in rows)
        return Stats(
            emitted=emitted,
            first=min(emitted, len(rows)),
            passes=sum(self._accepted_by_depth.values()),
            drafted=sum(row.drafted for row in rows),
            accepted=sum(sum(row.from_draft) for row in rows),
            cached_tokens=sum(row.cached_tokens for row in rows),
            accepted_by_depth=Counter(self._accepted_by_depth),
            e2e=self.last_at - self.began,
            ttft=(self.last_at if self.first_at is None else self.first_at) - self.began,
        )

    def _received(self, chunk: Chunk) -> Chunk:
        self.last_at = time.perf_counter()
        if self.first_at is None:
            self.first_at = self.last_at
        if self._num_chunks[chunk.row]:  # the first one is that of the prompt
            self._accepted_by_depth[sum(chunk.from_draft)] += 1
        self._num_chunks[chunk.row] += 1
        return replace(chunk, text=self._decoders[chunk.row].add(chunk.tokens))

    def _notify(self, update: Update) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._updates.put_nowait, update)


def _ignore(update: Update) -> None:
    """In place of `notify` after the end."""


def _no_text(ids: list[int]) -> str:
    return ""
