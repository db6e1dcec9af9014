"""What clients share: threads, on which their work takes turns, and memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from draftlens.serve.errors import ApiError

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class _Work:
    client: str
    call: Callable[[], Any]
    is_large: bool
    answer: asyncio.Future[Any]


class Turns:
    """Threads for work of many clients. The next work is that of the client with the least work in
    progress, among several the one whose turn is longest ago.

    Of several threads, one takes no large work. If there are several clients, one of them never has
    all threads. Use it from one event loop.

    Args:
        count: of threads.
        many: whether there are several clients.
    """

    def __init__(self, count: int, many: bool, name: str) -> None:
        self._count = count
        self._many = many
        self._waiting: list[_Work] = []
        self._running: list[_Work] = []
        self._num_turns = 0
        self._last_turn: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, client: str, call: Callable[[], Value], is_large: bool = False) -> Value:
        """What `call` returns on one of the threads. A call that runs when its task is cancelled
        keeps its thread until it ends."""
        work = _Work(client, call, is_large, asyncio.get_running_loop().create_future())
        self._waiting.append(work)
        self._start()
        try:
            value: Value = await work.answer
        finally:
            if work in self._waiting:
                self._waiting.remove(work)
        return value

    def close(self, wait: bool = True) -> None:
        self._threads.shutdown(wait=wait, cancel_futures=True)

    def _start(self) -> None:
        while (work := self._next()) is not None:
            self._waiting.remove(work)
            self._running.append(work)
            self._num_turns += 1
            self._last_turn[work.client] = self._num_turns
            try:
                future = self._threads.submit(work.call)
            except RuntimeError:  # closed
                self._running.remove(work)
                work.answer.cancel()
                continue
            loop = work.answer.get_loop()

            def ended(future: Future[Any], work: _Work = work, loop: Any = loop) -> None:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._end, work, future)

            future.add_done_callback(ended)

    def _end(self, work: _Work, future: Future[Any]) -> None:
        self._running.remove(work)
        if not work.answer.done():
            if future.cancelled():
                work.answer.cancel()
            elif (error := future.exception()) is not None:
                work.answer.set_exception(error)
            else:
                work.answer.set_result(future.result())
        self._start()

    def _next(self) -> _Work | None:
        if len(self._running) >= self._count:
            return None
        num_running = Counter(work.client for work in self._running)
        num_large = sum(work.is_large for work in self._running)
        shares = self._count > 1
        heads: dict[tuple[str, bool], _Work] = {}
        for work in self._waiting:
            is_too_large = shares and work.is_large and num_large >= self._count - 1
            has_all = shares and self._many and num_running[work.client] >= self._count - 1
            if not is_too_large and not has_all:
                heads.setdefault((work.client, work.is_large), work)
        return min(
            heads.values(),
            key=lambda work: (num_running[work.client], self._last_turn[work.client]),
            default=None,
        )


class Budget:
    """Bytes that all requests together may hold.

    Args:
        most: their number; one of several clients may hold half of it.
        many: whether there are several clients.
        what: holds the bytes, for the message.
    """

    def __init__(self, most: int, many: bool, what: str) -> None:
        self._most = most
        self._share = most // 2 if many else most
        self._what = what
        self._held: Counter[str] = Counter()
        # A finalizer may run within any line of `take`.
        self._given: SimpleQueue[tuple[str, int]] = SimpleQueue()

    @property
    def held(self) -> int:
        while not self._given.empty():
            client, count = self._given.get()
            self._held[client] -= count
        return self._held.total()

    def take(self, client: str, count: int) -> None:
        """Raises `ApiError` if there is no room. Use it from one thread."""
        if self.held + count > self._most or self._held[client] + count > self._share:
            raise ApiError(429, f"the {self._what} of all requests are too large now: try later")
        self._held[client] += count

    def give(self, client: str, count: int) -> None:
        """From any thread."""
        self._given.put((client, count))


class Claim:
    """What one request holds of a budget, in bytes."""

    def __init__(self, budget: Budget, client: str) -> None:
        self.count = 0
        self._budget = budget
        self._client = client

    def take(self, count: int) -> None:
        self._budget.take(self._client, count)
        self.count += count

    def release(self) -> None:
        self._budget.give(self._client, self.count)
        self.count = 0
