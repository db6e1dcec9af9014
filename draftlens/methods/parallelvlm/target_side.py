"""A drafter whose model runs in a lane of its own, at the same time as the target."""

from __future__ import annotations

import itertools
import logging
import pickle
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from draftlens.core.batch import Batch
from draftlens.core.errors import DraftlensError
from draftlens.core.history import History
from draftlens.core.proposal import DraftTree, NextGuess, Verdict
from draftlens.core.rows import replace_by_last
from draftlens.core.stats import Clock
from draftlens.core.timeline import DISCARDED, Span
from draftlens.core.tree import chain
from draftlens.decoding.drafter import Drafter, TargetContext
from draftlens.methods.parallelvlm.draft_inputs import Reading
from draftlens.methods.parallelvlm.link import LaneLostError, Link
from draftlens.methods.parallelvlm.messages import (
    Arrive,
    Close,
    Decide,
    Decision,
    FromDraft,
    Guess,
    Guesses,
    Joined,
    Leave,
    Open,
    ToDraft,
)
from draftlens.methods.parallelvlm.schedule import Pace
from draftlens.pruning import Choice

logger = logging.getLogger("draftlens")

UNSENDABLE = (TypeError, AttributeError, pickle.PicklingError)
"""What is raised when something cannot be sent to another process."""

_SERIAL = "the draft runs in the target's lane: %s"

SLICE = 0.05
"""Seconds of one wait for the lane; between two of them its life is checked."""

PATIENCE = 5.0
"""Seconds that the target waits for a silent lane with guesses to write before it gives it up. A
process that has ended or is stopped is noticed sooner, by its link."""

PATIENCE_TO_READ = 600.0
"""As `PATIENCE`, for a lane that starts or reads prompts."""

SLOWEST = 20
"""Steps of the draft, by the longest so far, that also make up the patience."""


@dataclass
class _Work:
    """A forward of the draft.

    Args:
        span: when it was.
        unjudged: how many of its guesses are not judged yet.
        was_used: whether any of its guesses was right.
    """

    span: Span
    unjudged: int
    was_used: bool = False

    def judge(self, is_right: bool) -> None:
        """Count the verdict on one guess."""
        self.unjudged -= 1
        self.was_used = self.was_used or is_right

    def finished(self) -> Span:
        """The span with what became of the guesses."""
        return self.span if self.was_used else replace(self.span, outcome=DISCARDED)


@dataclass
class _Row:
    """One row as the target's lane sees the drafting lane's hypothesis.

    Args:
        number: of the row in the lane.
        room: most tokens that the answer may gain.
        limit: length up to which the lane may guess.
        tokens: the hypothesis: answer and guesses, as far as guesses have come.
        answer: the target's own tokens, which only ever grow.
        known: how many of them the lane was told.
        epoch: of the last guess.
        agrees: whether nothing in `tokens` contradicts the answer.
        is_new: whether the row waits for the first guess behind a correction or its prompt.
        finished: whether the answer has ended.
        works: by position, the work of each guess that is not judged yet.
        probs: by position, what these guesses were drawn from, in rows with rejection sampling.
        met: length of the hypothesis when the lanes met last.
    """

    number: int
    room: int
    limit: int
    tokens: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    known: int = 0
    epoch: int = 0
    agrees: bool = True
    is_new: bool = True
    finished: bool = False
    works: dict[int, _Work] = field(default_factory=dict)
    probs: dict[int, Tensor] = field(default_factory=dict)
    met: int = 0

    @property
    def ready(self) -> int:
        """Guesses behind the answer that can be checked."""
        return max(0, len(self.tokens) - self.known) if self.agrees else 0

    @property
    def is_written(self) -> bool:
        """Whether the lane has written all that it may."""
        return self.finished or (self.agrees and len(self.tokens) >= self.limit)


class LaneDrafter:
    """Guesses with a model that a lane runs ahead of the target (ParallelVLM, PEARL).

    The lane always drafts on from its own last guess, as if all of its guesses, also the one in
    place of the bonus token, were right. A tree of this drafter is the part of that hypothesis that
    the target has not checked. Behind a correction this is the empty tree, which the target checks
    while the lane writes (the paper's pre-verification). Each row is contradicted, and rolled back,
    by itself.

    Where the lane cannot be used from the start, the serial drafter takes its place. A lane that is
    lost later leaves the rest of the answer to plain decoding.

    Args:
        link: the way to the lane; None if there is none.
        reading: what the draft reads, and who prunes it.
        pace: when the target takes guesses.
        vocab_size: ids that the target has.
        serial: drafts in the target's lane if there is no other.

    Attributes:
        corrections: how many guesses were contradicted, each of which ended a run of right ones.
        lost: why the lane was lost; None if it was not.
    """

    needs_target_scores = False

    def __init__(
        self, link: Link | None, reading: Reading, pace: Pace, vocab_size: int, serial: Drafter
    ) -> None:
        self.link = link
        self.reading = reading
        self.pace = pace
        self.vocab_size = vocab_size
        self.serial = serial
        self.readings = serial.readings
        self.max_nodes = max(serial.max_nodes, pace.longest)
        self.corrections = 0
        self.lost: str | None = None
        self._forwards = 0
        self._cache_bytes = 0
        self._visual = 0
        self._kept = 0
        self._spans: list[Span] = []
        self._works: list[_Work] = []
        self._in_lane: bool | None = None
        self._is_closed = False
        self._answer = 0
        self._rows: list[_Row] = []
        self._row_of: dict[int, _Row] = {}
        self._announced: deque[list[_Row]] = deque()
        self._unread: deque[list[_Row]] = deque()
        self._num_rows = 0
        self._num_joins = 0
        self._observe: Callable[[Choice], None] = _ignore
        self._phase: Callable[[str], AbstractContextManager[None]] = _no_phase
        self._proposed_at = 0.0
        self._waited = 0.0
        self._longest_step = 0.0
        self._silent_since = 0.0

    @property
    def cores(self) -> int:
        """Cores that the lane keeps busy; 0 where it is lost or the serial drafter took over."""
        if self.link is None or self._in_lane is False or self.lost is not None:
            return 0
        return self.link.cores

    def wait_until_ready(self) -> None:
        """Wait until the lane can draft, so that its start is no part of a measured answer."""
        if self.link is not None:
            self.link.wait_until_ready()

    def processes(self) -> Sequence[int]:
        """The ids of other processes that draft; none where the serial drafter takes over."""
        return self.link.processes if self.link is not None and self._in_lane else ()

    @property
    def forwards(self) -> int:
        """Decode forwards of the draft so far, as far as the lane has told."""
        return self._forwards + self.serial.forwards

    @property
    def cache_bytes(self) -> int:
        """Bytes of the draft's keys and values."""
        return self._cache_bytes + self.serial.cache_bytes

    def announce(self, batch: Batch, inputs: Mapping[str, Any], room: int, observed: bool) -> None:
        """See `SessionHooks.announce`. Behind `close`, a new session of the lane begins."""
        if self._in_lane and self._is_closed:
            self._reopen(observed)
        is_first = self._in_lane is None
        if is_first:
            self._in_lane = self._open(observed)
        if not self._in_lane:
            return
        numbers = range(self._num_rows, self._num_rows + len(batch))
        limit = min(self.pace.ahead, room)
        rows = [_Row(number, room, limit) for number in numbers]
        self._row_of.update(zip(numbers, rows, strict=True))
        self._num_rows += len(rows)
        self._announced.append(rows)
        if self.reading.waits:
            self._unread.append(rows)
        arrival = Arrive(
            self._answer,
            tuple(numbers),
            batch,
            self.reading.inputs(inputs),
            room,
            limit,
            self.reading.waits,
        )
        self._num_joins += 1
        if is_first:
            self._in_lane = self._begins_with(arrival)
        else:
            self._send(arrival)

    def _open(self, observed: bool) -> bool:
        """Open the session in the lane; whether it can be used."""
        if self.link is None:
            return False
        try:
            self._answer = self.link.new_answer()
        except LaneLostError as error:
            logger.warning(_SERIAL, error)
            return False
        pruning = self.reading.pruning
        return self._begins_with(Open(self._answer, self.vocab_size, pruning, observed))

    def _reopen(self, observed: bool) -> None:
        """Open another session in the lane for rows that join behind `close`. Where that fails, the
        lane is lost: the serial drafter does not know the rows that are there."""
        self._is_closed = False
        self._num_rows = 0
        self._num_joins = 0
        if self.link is None or self.lost is not None:
            return
        try:
            self._answer = self.link.new_answer()
        except LaneLostError as error:
            self._lose(str(error))
            return
        pruning = self.reading.pruning
        self._send(Open(self._answer, self.vocab_size, pruning, observed))

    def _begins_with(self, message: Open | Arrive) -> bool:
        """Send a first message. Where it cannot be sent, the serial drafter drafts."""
        assert self.link is not None
        try:
            self.link.send(message)
        except (LaneLostError, *UNSENDABLE) as error:
            logger.warning(_SERIAL, error)
            self._forget()
            return False
        return True

    def _forget(self) -> None:
        """End the session in the lane."""
        assert self.link is not None
        with suppress(LaneLostError):
            self.link.send(Close(self._answer))
        self.link.forget(self._answer)

    def read(self, context: TargetContext) -> None:
        """See `SessionHooks.read`."""
        if self._unread:
            self._unread.popleft()
            self._observe = context.observer.on_choice
            self._send(self.reading.message(self._answer, context))

    def record(self, clock: Clock) -> None:
        """Write what the lane has done so far into the statistics."""
        stats = clock.stats
        stats.corrections = self.corrections
        stats.lane_lost = self.lost
        stats.visual += self._visual
        stats.kept += self._kept
        self._visual = 0
        self._kept = 0
        over = [work for work in self._works if not work.unjudged or self._is_closed]
        self._works = [work for work in self._works if work not in over]
        clock.add_spans([*self._spans, *(work.finished() for work in over)])
        self._spans = []

    def close(self) -> None:
        """End the session in the lane; rows that have not ended go on without guesses."""
        if self._in_lane and not self._is_closed:
            self._is_closed = True
            self._forget()
            self._row_of.clear()
            self._unread.clear()
            for row in itertools.chain(self._rows, *self._announced):
                row.finished = True

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        """See `Drafter.encode`; a lane has the inputs already."""
        if self._in_lane is None:
            self._in_lane = False
        return None if self._in_lane else self.serial.encode(inputs)

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        """See `Drafter.begin`."""
        if not self._in_lane:
            self.serial.begin(batch, encoded, context)
            return
        rows = self._announced.popleft()
        self._observe = context.observer.on_choice
        self._phase = context.observer.phase
        if rows in self._unread:
            self.read(context)
        for row, history in zip(rows, batch.histories, strict=True):
            row.answer = history.answer
        self._rows += rows
        self._meet(rows)
        self._decide(rows, batch)

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        """The guesses that are there, one chain for each row."""
        if not self._in_lane:
            return self.serial.propose(batch, budget)
        began = time.perf_counter()
        if not self.pace.meets:
            self._wait_for_guesses(budget)
        most = min(budget, self.pace.window)
        counts = [min(self._num_offered(row), most) for row in self._rows]
        width = max(counts)
        tokens = torch.zeros(len(counts), width, dtype=torch.long)
        for index, (row, count) in enumerate(zip(self._rows, counts, strict=True)):
            guesses = row.tokens[row.known : row.known + count]
            tokens[index, :count] = torch.tensor(guesses, dtype=torch.long)
        self._proposed_at = time.perf_counter()
        self._waited = self._proposed_at - began
        probs = self._probs(counts) if batch.rejects else None
        return DraftTree(tuple(chain(count) for count in counts), tokens, probs)

    def _num_offered(self, row: _Row) -> int:
        """Guesses of a row that the target may check; in lock-step those that were there when the
        lanes met, whatever has come since."""
        if row.finished:
            return 0
        if self.pace.meets:
            return min(row.ready, row.met - row.known)
        return row.ready

    def _probs(self, counts: Sequence[int]) -> Tensor | None:
        """What the first guesses of each row were drawn from, float32 ``[B, P, V]``; zeros in rows
        that are judged by equality. None if no guess was drawn by chance."""
        places = []
        drawn_from = []
        for index, (row, count) in enumerate(zip(self._rows, counts, strict=True)):
            for depth in range(count):
                probs = row.probs.get(row.known + depth)
                if probs is not None:
                    places.append((index, depth))
                    drawn_from.append(probs)
        if not drawn_from:
            return None
        table = torch.zeros(len(counts), max(counts), len(drawn_from[0]))
        for place, probs in zip(places, drawn_from, strict=True):
            table[place] = probs
        return table

    def next_guesses(self, tree: DraftTree) -> Sequence[NextGuess | None] | None:
        """See `SessionHooks.next_guesses`. The lanes meet before the verdict."""
        if not self._in_lane:
            return None
        self._meet(self._rows)
        guesses: list[NextGuess | None] = []
        for row, topology in zip(self._rows, tree.topologies, strict=True):
            position = row.known + len(topology)
            probs = row.probs.get(position) if row.agrees else None
            guess = None
            if probs is not None and not row.finished:
                guess = NextGuess(row.tokens[position], probs)
            guesses.append(guess)
        return guesses

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """Tell the lane what the rows have gained."""
        if not self._in_lane:
            self.serial.update(verdict, batch)
            return
        self._count_pass(batch)
        self._meet(self._rows)
        self._decide(self._rows, batch)

    def _count_pass(self, batch: Batch) -> None:
        """Tell the pace how long the pass took and what the running rows gained."""
        seconds = time.perf_counter() - self._proposed_at
        gained = [
            history.length - row.known
            for row, history in zip(self._rows, batch.histories, strict=True)
            if not row.finished
        ]
        if gained:
            self.pace.passed(seconds, self._waited, sum(gained) / len(gained))

    def remove(self, row: int) -> None:
        """See `Drafter.remove`."""
        if not self._in_lane:
            self.serial.remove(row)
            return
        leaving = self._rows[row]
        if self._row_of.get(leaving.number) is leaving:  # else its session in the lane is over
            self._send(Leave(self._answer, leaving.number))
            del self._row_of[leaving.number]
        replace_by_last(self._rows, row)

    def _decide(self, rows: Sequence[_Row], batch: Batch) -> None:
        """Compare the answers with the hypotheses, and send the lane what they gained."""
        decisions = []
        for row, history in zip(rows, batch.histories, strict=True):
            if not row.finished:
                decisions.append(self._decision(row, history))
        if decisions:
            self._send(Decide(self._answer, tuple(decisions)))

    def _decision(self, row: _Row, history: History) -> Decision:
        start = row.known
        row.known = history.length
        row.finished = history.finished
        gained = history.answer[start : row.known]
        if row.agrees:
            guessed = row.tokens[start : row.known]
            for position, guess in enumerate(guessed, start):
                if not self._compare(row, position, guess):
                    break
        written = len(row.tokens) if row.agrees else row.known
        row.met = max(written, row.known)
        row.limit = min(self.pace.limit(row.known, row.met), row.room)
        return Decision(row.number, start, tuple(gained), row.limit, row.finished)

    def _compare(self, row: _Row, position: int, guess: int) -> bool:
        """Whether a guess is the answer's token; if not, its row is contradicted."""
        is_right = row.answer[position] == guess
        self.pace.judged(is_right)
        row.works.pop(position).judge(is_right)
        row.probs.pop(position, None)
        if not is_right:
            self.corrections += 1
            row.agrees = False
            row.is_new = True
            for work in row.works.values():
                work.judge(is_right=False)
            row.works.clear()
            row.probs.clear()
        return is_right

    def _wait_for_guesses(self, budget: int) -> None:
        """Wait for as many guesses of every row as the pace wants."""
        self._take_messages(0.0)
        if self._num_joins:
            return  # the lane reads prompts, which may take longer than the whole answer
        rows = [row for row in self._rows if not row.finished]

        def has_enough(row: _Row) -> bool:
            wanted = self.pace.guesses_to_wait_for(row.is_new)
            return row.ready >= min(wanted, budget, row.limit - row.known)

        self._wait(lambda: all(map(has_enough, rows)))
        for row in rows:
            row.is_new = not row.ready

    def _meet(self, rows: Sequence[_Row]) -> None:
        """In lock-step, wait until the lane has written its share of the round."""
        if self.pace.meets:
            with self._phase("draft"):
                self._wait(lambda: all(row.is_written for row in rows))

    def _wait(self, is_enough: Callable[[], bool]) -> None:
        """Take the lane's messages until there are enough, or until the lane is lost."""
        self._silent_since = time.perf_counter()
        self._take_messages(0.0)
        while not is_enough() and self.lost is None:
            self._take_messages(SLICE)
            self._give_up_if_silent()

    def _take_messages(self, timeout: float) -> None:
        if self.link is None or self.lost is not None or self._is_closed:
            return
        try:
            messages = self.link.receive(self._answer, timeout)
        except LaneLostError as error:
            self._lose(str(error))
            return
        if messages:
            self._silent_since = time.perf_counter()
        for message in messages:
            self._take(message)

    def _take(self, message: FromDraft) -> None:
        if isinstance(message, Guesses):
            self._cache_bytes = message.cache_bytes
            work = _Work(message.span, len(message.guesses))
            self._forwards += 1
            seconds = message.span.end - message.span.start
            self._longest_step = max(self._longest_step, seconds)
            self.pace.guessed(seconds)
            self._works.append(work)
            for guess in message.guesses:
                self._take_guess(guess, work)
        elif isinstance(message, Joined):
            self._num_joins -= 1
            self._cache_bytes = message.cache_bytes
            self._visual += message.visual
            self._kept += message.kept
            self._spans += message.spans
            for choice in message.choices:
                self._observe(choice)
        elif isinstance(message.error, DraftlensError):
            raise message.error
        else:
            self._lose(str(message.error))

    def _take_guess(self, guess: Guess, work: _Work) -> None:
        row = self._row_of.get(guess.row)
        if row is None:
            work.judge(is_right=False)
            return
        if guess.epoch != row.epoch:
            # The lane has followed the decisions up to here and goes on from the answer.
            row.epoch = guess.epoch
            row.tokens = row.answer[: guess.position]
            row.agrees = True
        row.tokens.append(guess.token)
        if not row.agrees:
            work.judge(is_right=False)
            return
        row.works[guess.position] = work
        if guess.probs is not None:
            row.probs[guess.position] = guess.probs
        if guess.position < row.known:
            self._compare(row, guess.position, guess.token)

    def _give_up_if_silent(self) -> None:
        """Lose a lane that has not been heard of for long while the target waits."""
        if self.lost is not None:
            return
        patience = PATIENCE
        if self._num_joins or not self._longest_step:
            patience = PATIENCE_TO_READ
        patience = max(patience, SLOWEST * self._longest_step)
        if time.perf_counter() - self._silent_since > patience:
            self._lose(f"it has been silent for {patience:.1f} s")

    def _send(self, message: ToDraft) -> None:
        if self.link is None or self.lost is not None or self._is_closed:
            return
        try:
            self.link.send(message)
        except (LaneLostError, *UNSENDABLE) as error:
            self._lose(str(error))

    def _lose(self, why: str) -> None:
        self.lost = why
        logger.warning("the draft is lost, the answer goes on without it: %s", why)


def _no_phase(name: str) -> AbstractContextManager[None]:
    """Measures nothing."""
    return nullcontext()


def _ignore(choice: Choice) -> None:
    """The default observer."""
