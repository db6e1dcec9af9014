"""One session in the draft worker, as the target's side uses it."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from draftlens.core.sequence import Batch
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
from draftlens.passes import PassEngine

# Raised when something cannot be sent to another process.
UNSENDABLE = (TypeError, AttributeError, pickle.PicklingError)

SLICE = 0.05  # Seconds of one wait for the worker; between two its life is checked.

# Seconds of silence after which a worker with tokens to write is given up. A process that has ended
# or is stopped is noticed sooner, by its link.
PATIENCE = 5.0

PATIENCE_TO_READ = 600.0  # The same for a worker that starts or reads prompts.
SLOWEST = 20  # The patience is at least this multiple of the longest draft step so far.


class WorkerSession:
    """A session, which begins when this object is made.

    Raises:
        WorkerLostError: by every method but `close`; the worker is lost, hangs, or cannot be sent
            the message.
    """

    def __init__(
        self,
        link: Link,
        vocab_size: int,
        pruning: Pruning | None,
        observed: bool,
        engine: PassEngine,
    ) -> None:
        self._link = link
        self._rows: dict[int, Row] = {}
        self._num_rows = 0
        self._longest_step = 0.0
        self.unjoined = 0  # calls with prompts that the worker has not read yet
        self.answer = link.new_answer()  # number of the session in the worker
        try:
            self.send(Open(self.answer, vocab_size, pruning, observed, engine))
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
        return self._rows.get(number)

    def forget(self, row: Row) -> bool:
        """Drop a row; false if it is not of this session."""
        if self._rows.get(row.number) is not row:
            return False
        del self._rows[row.number]
        return True

    def send(self, message: ToDraft) -> None:
        try:
            self._link.send(message)
        except UNSENDABLE as error:
            raise WorkerLostError(str(error)) from error

    def wait(self, is_enough: Callable[[], bool], take: Callable[[FromDraft], None]) -> None:
        """Take messages until there are enough, and all that have already come in any case."""
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
