"""One session in the draft worker, as the target's side uses it."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from draftlens.core.batch import Batch
from draftlens.drafting.pruning import Pruning
from draftlens.methods.parallelvlm.link import Link, WorkerLostError
from draftlens.methods.parallelvlm.messages import (
    Arrive,
    Close,
    DraftTokens,
    FromDraft,
    Joined,
    Open,
    ToDraft,
)
from draftlens.methods.parallelvlm.target_rows import Row

UNSENDABLE = (TypeError, AttributeError, pickle.PicklingError)
"""What is raised when something cannot be sent to another process."""

SLICE = 0.05
"""Seconds of one wait for the worker; between two of them its life is checked."""

PATIENCE = 5.0
"""Seconds that the target waits for a silent worker with tokens to write before it gives it up. A
process that has ended or is stopped is noticed sooner, by its link."""

PATIENCE_TO_READ = 600.0
"""As `PATIENCE`, for a worker that starts or reads prompts."""

SLOWEST = 20
"""Steps of the draft, by the longest so far, that also make up the patience."""


class WorkerSession:
    """A session, which begins when this object is made.

    Args:
        link: to the draft worker.
        vocab_size: ids that the target has.
        pruning: which visual tokens the draft reads; None for all.
        observed: whether somebody wants the choices of the pruner.

    Attributes:
        answer: number of the session in the worker.
        unjoined: calls whose prompts the worker has not read yet.

    Raises:
        WorkerLostError: by every method but `close`; the worker is lost, hangs, or cannot be sent
            the message.
    """

    def __init__(
        self, link: Link, vocab_size: int, pruning: Pruning | None, observed: bool
    ) -> None:
        self._link = link
        self._rows: dict[int, Row] = {}
        self._num_rows = 0
        self._longest_step = 0.0
        self.unjoined = 0
        self.answer = link.new_answer()
        try:
            self.send(Open(self.answer, vocab_size, pruning, observed))
        except WorkerLostError:
            self.close()
            raise

    def add(
        self, batch: Batch, inputs: Mapping[str, Any] | None, room: int, limit: int, waits: bool
    ) -> list[Row]:
        """Send the prompts of rows; arguments as for `Arrive`."""
        numbers = tuple(range(self._num_rows, self._num_rows + len(batch)))
        self._num_rows += len(batch)
        rows = [Row(number, room, limit) for number in numbers]
        self._rows.update(zip(numbers, rows, strict=True))
        self.send(Arrive(self.answer, numbers, batch, inputs, room, limit, waits))
        self.unjoined += 1
        return rows

    def row(self, number: int) -> Row | None:
        """A row by its number; None if it has left."""
        return self._rows.get(number)

    def forget(self, row: Row) -> bool:
        """Drop a row; whether it was of this session."""
        if self._rows.get(row.number) is not row:
            return False
        del self._rows[row.number]
        return True

    def send(self, message: ToDraft) -> None:
        """Send a message."""
        try:
            self._link.send(message)
        except UNSENDABLE as error:
            raise WorkerLostError(str(error)) from error

    def wait(self, is_enough: Callable[[], bool], take: Callable[[FromDraft], None]) -> None:
        """Take messages until there are enough, those that are there already in any case."""
        heard_at = time.perf_counter()
        timeout = 0.0
        while True:
            messages = self._receive(timeout)
            for message in messages:
                take(message)
            if is_enough():
                return
            timeout = SLICE
            now = time.perf_counter()
            if messages:
                heard_at = now
            patience = self._patience
            if now - heard_at > patience:
                raise WorkerLostError(f"it has been silent for {patience:.1f} s")

    @property
    def _patience(self) -> float:
        is_reading = self.unjoined or not self._longest_step
        patience = PATIENCE_TO_READ if is_reading else PATIENCE
        return max(patience, SLOWEST * self._longest_step)

    def _receive(self, timeout: float) -> Sequence[FromDraft]:
        messages = self._link.receive(self.answer, timeout)
        for message in messages:
            if isinstance(message, Joined):
                self.unjoined -= 1
            elif isinstance(message, DraftTokens):
                self._longest_step = max(self._longest_step, message.span.seconds)
        return messages

    def close(self) -> None:
        """End the session, also in a worker that is lost."""
        with suppress(WorkerLostError):
            self._link.send(Close(self.answer))
        self._link.forget(self.answer)
