"""One session in the draft worker, as the target's side uses it, and its rows: the answers and the
draft tokens after them."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from draftlens.core.sequence import Batch, History
from draftlens.core.timeline import DISCARDED, Span
from draftlens.core.tree import NextProposal
from draftlens.drafting.pruning import Pruning
from draftlens.methods.parallelvlm.messages import (
    Arrive,
    Close,
    Decision,
    DraftToken,
    DraftTokens,
    FromDraft,
    Joined,
    Link,
    Open,
    ToDraft,
    UnsendableError,
    WorkerLostError,
)
from draftlens.passes import PassEngine

# Raised when something cannot be sent to another process.
UNSENDABLE = (TypeError, AttributeError, pickle.PicklingError)

SLICE = 0.05  # Seconds of one wait for the worker; between two its life is checked.

# Seconds of silence after which a worker with tokens to write is given up. A process that has ended
# or is stopped is noticed sooner, by its link.
PATIENCE = 5.0

PATIENCE_TO_READ = 600.0  # The same for a worker that starts or reads prompts.
SLOWEST = 20  # The patience is at least this multiple of the longest draft step so far.


@dataclass
class DraftForward:
    """A forward of the draft."""

    span: Span
    unjudged: int  # how many of its tokens have no verdict yet
    was_used: bool = False  # whether any of its tokens was accepted

    def judge(self, accepted: bool) -> None:
        self.unjudged -= 1
        self.was_used = self.was_used or accepted

    def finished(self) -> Span:
        """The span, marked if all tokens were rejected."""
        return self.span if self.was_used else replace(self.span, outcome=DISCARDED)


@dataclass(eq=False)
class Row:
    """One row."""

    number: int  # of the row in its session of the draft worker
    room: int  # most tokens that the answer may gain
    limit: int  # length up to which the worker may write
    # answer and draft tokens, as far as the worker has written them
    tokens: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)  # the target's own tokens, which only ever grow
    num_decided: int = 0  # how many of these were sent to the worker
    epoch: int = 0  # of the last draft token
    agrees: bool = True  # whether nothing in `tokens` contradicts the answer
    finished: bool = False  # whether the answer has ended, or goes on without a draft
    # by position, the forward of each draft token without a verdict
    works: dict[int, DraftForward] = field(default_factory=dict)
    # by position, what these were drawn from, float32 ``[V]``; for rejection sampling
    probs: dict[int, Tensor] = field(default_factory=dict)
    met: int = 0  # length of answer and draft tokens at the end of the last round

    @property
    def is_written(self) -> bool:
        """Whether the worker has written all that it may."""
        if self.finished or self.limit <= self.num_decided:
            return True
        return self.agrees and len(self.tokens) >= self.limit

    @property
    def proposed(self) -> list[int]:
        """The draft tokens to verify: those of the last round, without later ones."""
        if self.finished or not self.agrees:
            return []
        return self.tokens[self.num_decided : self.met]

    def next_proposal(self, depth: int) -> NextProposal | None:
        """The draft token after the first `depth` ones, with what it was drawn from."""
        position = self.num_decided + depth
        probs = self.probs.get(position)
        if probs is None or self.finished or not self.agrees:
            return None
        return NextProposal(self.tokens[position], probs)

    def take(self, drafted: DraftToken, work: DraftForward) -> list[bool]:
        """Append a token of the worker; returns its verdict if the answer has come so far."""
        if drafted.epoch != self.epoch:
            # The worker has followed the decisions up to here and goes on from the answer.
            self.epoch = drafted.epoch
            self.tokens = self.answer[: drafted.position]
            self.agrees = True
        self.tokens.append(drafted.token)
        if not self.agrees:
            work.judge(False)
            return []
        self.works[drafted.position] = work
        if drafted.probs is not None:
            self.probs[drafted.position] = drafted.probs
        return [self._compare(drafted.position)] if drafted.position < self.num_decided else []

    def advance(self, history: History) -> list[bool]:
        """Follow the answer; returns the verdicts on draft tokens that it has reached."""
        verdicts = []
        reached = min(history.length, len(self.tokens)) if self.agrees else 0
        for position in range(self.num_decided, reached):
            verdicts.append(self._compare(position))
            if not self.agrees:
                break
        self.num_decided = history.length
        self.finished = history.finished
        self.met = max(len(self.tokens), self.num_decided) if self.agrees else self.num_decided
        return verdicts

    def decision(self, start: int) -> Decision:
        gained = tuple(self.answer[start : self.num_decided])
        return Decision(self.number, start, gained, self.limit, self.finished)

    def _compare(self, position: int) -> bool:
        """Whether a draft token is accepted; if not, all after it are rejected, too."""
        accepted = self.answer[position] == self.tokens[position]
        self.works.pop(position).judge(accepted)
        self.probs.pop(position, None)
        if not accepted:
            self.agrees = False
            self.discard()
        return accepted

    def discard(self) -> None:
        """Reject the draft tokens that have no verdict."""
        for work in self.works.values():
            work.judge(False)
        self.works.clear()
        self.probs.clear()


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
        """Send the prompts of rows; arguments as for `Arrive`. Raises `UnsendableError`, which
        leaves the session as it was."""
        numbers = tuple(range(self._num_rows, self._num_rows + len(batch)))
        self.send(Arrive(self.answer, numbers, batch, inputs, room, limit, waits))
        self.unjoined += 1
        self._num_rows += len(batch)
        rows = [Row(number, room, limit) for number in numbers]
        self._rows.update(zip(numbers, rows, strict=True))
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
            raise UnsendableError(str(error)) from error

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
