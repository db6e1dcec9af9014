"""Heartbeats, by which the surviving ranks agree on the rank that was lost first."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

BEAT_SECONDS = 0.5
"""Seconds between two heartbeats of a rank."""

SILENCE_SECONDS = 2.5
"""A rank without a heartbeat for this many seconds is lost."""

ANSWER_SECONDS = 2.0
"""Longest time in seconds that the store needs to respond."""

LOST = "lost"
"""Key of the sentence with the cause of the loss."""


def ignore_loss(why: str) -> None:
    """Rank 0 detects a loss by itself, and raises."""


class Signs(ABC):
    """Detects lost ranks and informs the others."""

    @abstractmethod
    def silent(self) -> list[int]:
        """The ranks without a sign of life, earliest first."""

    @abstractmethod
    def tell(self, why: str) -> str:
        """Tell the others, in a sentence, why the group is lost; returns the first such sentence,
        perhaps of another rank."""

    def stop(self) -> None:  # noqa: B027 - only a heartbeat has to be stopped
        """The group is used no more."""


class Heartbeat(Signs):
    """Writes the heartbeat of one rank from a thread of its own, until `stop`. A stopped or dead
    process writes none. A busy one does, since torch's operations release the interpreter lock.

    Args:
        store: a client of the group's key-value store for this object alone.
        on_lost: called from that thread with the sentence that another rank passed to `tell`.
    """

    def __init__(
        self, store: Any, rank: int, size: int, on_lost: Callable[[str], None] = ignore_loss
    ) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._on_lost = on_lost
        self._using = threading.Lock()
        self._stopped = threading.Event()
        self._beat()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def tell(self, why: str) -> str:
        reasons = [why]
        watch = threading.Thread(target=self._tell, args=(reasons,), daemon=True)
        watch.start()
        watch.join(ANSWER_SECONDS)
        return reasons[-1]

    def _tell(self, told: list[str]) -> None:
        with suppress(RuntimeError), self._using:  # the store may have ended
            told.append(self._store.compare_set(LOST, "", told[0]).decode())

    def silent(self) -> list[int]:
        """The ranks without a heartbeat for `SILENCE_SECONDS`, which it waits; earliest first."""
        silent_ranks: list[int] = []
        watch = threading.Thread(target=self._watch, args=(silent_ranks,), daemon=True)
        watch.start()
        watch.join(SILENCE_SECONDS + ANSWER_SECONDS)
        if watch.is_alive() and self._rank:
            return [0]  # the store, on rank 0, does not answer
        return list(silent_ranks)

    def _watch(self, silent_ranks: list[int]) -> None:
        try:
            before = self._signs()
            time.sleep(SILENCE_SECONDS)
            after = self._signs()
        except RuntimeError:  # the store has ended, and with it rank 0
            silent_ranks += [0] if self._rank else []
            return
        still = [rank for rank, sign in before.items() if after[rank] == sign]
        silent_ranks += sorted(still, key=lambda rank: before[rank])

    def _signs(self) -> dict[int, float]:
        """The time of the last heartbeat of every other rank, by its own clock."""
        ranks = [rank for rank in range(self._size) if rank != self._rank]
        with self._using:
            return {rank: float(self._store.get(_key(rank))) for rank in ranks}

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS):
            try:
                self._beat()
                why = self._told()
            except RuntimeError:  # the store has ended, and with it all readers
                return
            if why:
                self._on_lost(why)
                return

    def _told(self) -> str:
        with self._using:
            return self._store.get(LOST).decode() if self._store.check([LOST]) else ""

    def _beat(self) -> None:
        with self._using:
            self._store.set(_key(self._rank), str(time.time()))


def _key(rank: int) -> str:
    return f"beat/{rank}"
