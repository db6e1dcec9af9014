"""A drafter with its model in a draft worker, which runs at the same time as the target, and what
that worker reads."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import DraftlensError
from draftlens.core.sequence import Batch, replace_by_last
from draftlens.core.stats import Clock
from draftlens.core.timeline import Span
from draftlens.core.tree import DraftTree, NextProposal, Verdict, chain
from draftlens.decoding.observer import ignore, no_phase
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.pruning import Pruning
from draftlens.methods.parallelvlm.messages import (
    Decide,
    DraftTokens,
    FromDraft,
    Joined,
    Leave,
    Link,
    Read,
    TargetSide,
    WorkerLostError,
)
from draftlens.methods.parallelvlm.schedule import Round, Schedule
from draftlens.methods.parallelvlm.worker_session import DraftForward, Row, WorkerSession
from draftlens.passes import PassEngine
from draftlens.pruning import Choice

logger = logging.getLogger("draftlens")


@dataclass(frozen=True)
class OwnPrompt:
    """The worker's model encodes its own prompt and prunes it, if `pruning` is given. `readable`
    selects what of the draft's inputs the model takes; None for all of it."""

    pruning: Pruning | None = None
    readable: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    @property
    def waits(self) -> bool:
        """Pruners with features of the target's prefill wait for it."""
        return self.pruning is not None and bool(self.pruning.pruner.readings)

    def inputs(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of the draft's inputs that the worker needs."""
        return inputs if self.readable is None else self.readable(inputs)

    def message(self, answer: int, rows: tuple[int, ...], context: TargetContext) -> Read:
        """The message for which the worker waits; `answer` is the session in the worker."""
        return Read(answer, rows, side=TargetSide(context.prompt.outline(), context.readings))


@dataclass(frozen=True)
class TargetsPrompt:
    """The worker drafts with the target's own model: it reads the target's prompt, pruned here."""

    own_pruning: Pruning
    pruning: None = None
    waits: bool = True

    def inputs(self, inputs: Mapping[str, Any]) -> None:
        """The target has encoded the prompt."""

    def message(self, answer: int, rows: tuple[int, ...], context: TargetContext) -> Read:
        return Read(answer, rows, prompt=self.own_pruning.apply(context.prompt, context).prompt)


DraftReading = OwnPrompt | TargetsPrompt
"""How the prompts of rows get to the draft worker; see `OwnPrompt`."""


@dataclass
class WorkDone:
    """What the worker has reported so far, for the statistics."""

    forwards: int = 0
    cache_bytes: int = 0
    corrections: int = 0  # rejected draft tokens, each of which ended a run of accepted ones
    visual: int = 0  # visual tokens before pruning, since the last record
    kept: int = 0  # and after it
    spans: list[Span] = field(default_factory=list)
    forwards_to_judge: list[DraftForward] = field(default_factory=list)

    def record(self, clock: Clock, lost: str | None, has_session: bool) -> None:
        """Write it into the statistics; `lost` is why the worker was lost."""
        stats = clock.stats
        stats.corrections = self.corrections
        stats.worker_lost = lost
        stats.visual += self.visual
        stats.kept += self.kept
        self.visual = 0
        self.kept = 0
        over = [work for work in self.forwards_to_judge if not (work.unjudged and has_session)]
        self.forwards_to_judge = [work for work in self.forwards_to_judge if work not in over]
        clock.add_spans([*self.spans, *(work.finished() for work in over)])
        self.spans = []


class WorkerDrafter:
    """Drafts with a model that a worker runs ahead of the target (ParallelVLM, PEARL).

    The worker always continues its own last token, as if all of its tokens, also the one in place
    of the bonus token, were accepted. A tree of this drafter is the part of them that the target
    has not checked. After a rejection this is the empty tree, which the target checks while the
    worker writes (the paper's pre-verification). Each row is rolled back by itself.
    """

    def __init__(
        self,
        link: Link | None,
        reading: DraftReading,
        schedule: Schedule,
        vocab_size: int,
        engine: PassEngine,
    ) -> None:
        self.link = link  # None once the worker is lost
        self.reading = reading
        self.schedule = schedule
        self.vocab_size = vocab_size
        self.engine = engine
        self.cores = 0 if link is None else link.cores  # that the worker keeps busy
        self.lost: str | None = None  # why the worker was lost
        self.done = WorkDone()
        self._session: WorkerSession | None = None
        self._rows: list[Row] = []
        self._announced: list[list[Row]] = []  # calls whose rows have not begun
        self._unread: list[list[Row]] = []  # those of them for which the worker waits
        self._observe: Callable[[Choice], None] = ignore
        self._phase: Callable[[str], AbstractContextManager[None]] = no_phase
        self._proposed_at = 0.0
        self._width = 1

    def announce(self, batch: Batch, inputs: Mapping[str, Any], room: int, observed: bool) -> None:
        """Send rows to the worker.

        Raises:
            WorkerLostError: the worker has not received them.
        """
        self._withdraw()
        self.schedule.resume()
        if self._session is None:
            assert self.link is not None
            self._session = WorkerSession(
                self.link, self.vocab_size, self.reading.pruning, observed, self.engine
            )
        draft_inputs = self.reading.inputs(inputs)
        limit = min(self.schedule.window, room)
        rows = self._session.add(batch, draft_inputs, room, limit, self.reading.waits)
        self._expect(batch, rows)
        if self.reading.waits:
            self._unread.append(rows)

    def announce_undrafted(self, batch: Batch) -> None:
        """Let rows that the worker does not receive go without a draft."""
        self._expect(batch, [Row(0, 0, 0, finished=True) for _ in range(len(batch))])

    def _expect(self, batch: Batch, rows: list[Row]) -> None:
        for row, history in zip(rows, batch.histories, strict=True):
            row.answer = history.answer
        self._announced.append(rows)

    def _withdraw(self) -> None:
        """Drop rows whose prompts the target will not read: when other rows are announced, all that
        it has read have their first token."""
        for rows in [rows for rows in self._announced if not any(row.answer for row in rows)]:
            self._announced.remove(rows)
            if rows in self._unread:
                self._unread.remove(rows)
                if self._session is not None:
                    self._session.unjoined -= 1
            for row in rows:
                self._leave(row)

    def read(self, context: TargetContext) -> None:
        """Send the worker what it waits for to read the rows that were announced last."""
        for rows in self._announced[-1:]:
            self._read(rows, context)

    def _read(self, rows: list[Row], context: TargetContext) -> None:
        if rows in self._unread:
            self._unread.remove(rows)
            self._observe = context.observer.on_choice
            numbers = tuple(row.number for row in rows)
            self._guarded(
                lambda session: session.send(self.reading.message(session.answer, numbers, context))
            )

    def record(self, clock: Clock) -> None:
        """Write what the worker has done so far into the statistics."""
        self.done.record(clock, self.lost, has_session=self._session is not None)

    def encode(self, inputs: Mapping[str, Any]) -> None:
        """The worker has the inputs already."""

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        rows = self._announced.pop(0)
        self._observe = context.observer.on_choice
        self._phase = context.observer.phase
        self._read(rows, context)
        self._rows += rows
        self._guarded(lambda session: self._meet(session, rows))
        self._guarded(lambda session: self._decide(session, rows, batch))

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        """The draft tokens of the last round, one chain for each row."""
        limit = min(budget, self.schedule.window) if self.schedule.drafts else 0
        proposed = [row.proposed[:limit] for row in self._rows]
        counts = [len(tokens) for tokens in proposed]
        self._width = 1 + max(counts)
        table = torch.zeros(len(counts), max(counts), dtype=torch.long)
        for index, tokens in enumerate(proposed):
            table[index, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        probs = self._probs(counts) if batch.rejects else None
        self._proposed_at = time.perf_counter()
        return DraftTree(tuple(map(chain, counts)), table, probs)

    def _probs(self, counts: Sequence[int]) -> Tensor | None:
        """What the proposed tokens were drawn from, float32 ``[B, P, V]``, zeros in rows without
        rejection sampling; None if no token was drawn."""
        drawn_from = {
            (index, depth): row.probs[row.num_decided + depth]
            for index, (row, count) in enumerate(zip(self._rows, counts, strict=True))
            for depth in range(count)
            if row.num_decided + depth in row.probs
        }
        if not drawn_from:
            return None
        size = len(next(iter(drawn_from.values())))
        table = torch.zeros(len(counts), max(counts), size)
        for place, probs in drawn_from.items():
            table[place] = probs
        return table

    def next_proposals(self, tree: DraftTree) -> Sequence[NextProposal | None] | None:
        """The round ends here, before the verdict."""
        self._guarded(lambda session: self._meet(session, self._rows))
        if self._session is None:
            return None
        pairs = zip(self._rows, tree.topologies, strict=True)
        return [row.next_proposal(len(topology)) for row, topology in pairs]

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """End the round, and send the worker what the rows have gained."""
        self._guarded(lambda session: self._end_round(session, batch))

    def _end_round(self, session: WorkerSession, batch: Batch) -> None:
        pass_seconds = time.perf_counter() - self._proposed_at
        self._meet(session, self._rows)
        gained = [
            history.length - row.num_decided
            for row, history in zip(self._rows, batch.histories, strict=True)
            if not row.finished
        ]
        if gained and not self._is_reading(session):
            seconds = time.perf_counter() - self._proposed_at
            mean = sum(gained) / len(gained)
            self.schedule.finish(Round(pass_seconds, seconds, self._width, mean))
        self._decide(session, self._rows, batch)

    def remove(self, row: int) -> None:
        leaving = self._rows[row]
        replace_by_last(self._rows, row)
        self._leave(leaving)

    def _leave(self, row: Row) -> None:
        row.discard()
        if self._session is not None and self._session.forget(row):
            self._guarded(lambda session: session.send(Leave(session.answer, row.number)))

    def _decide(self, session: WorkerSession, rows: Sequence[Row], batch: Batch) -> None:
        """Compare the answers with the draft tokens, and send the worker what they gained."""
        decisions = []
        for row, history in zip(rows, batch.histories, strict=True):
            if not row.finished:
                start = row.num_decided
                self._count(row.advance(history))
                limit = row.met + self.schedule.window if self.schedule.drafts else row.num_decided
                row.limit = min(limit, row.room)
                decisions.append(row.decision(start))
        if decisions:
            session.send(Decide(session.answer, tuple(decisions)))

    def _meet(self, session: WorkerSession, rows: Sequence[Row]) -> None:
        """Wait until the worker has written its share of the round. A worker that reads prompts,
        which may take longer than the whole answer, is waited for only if γ is given."""

        def is_enough() -> bool:
            is_late = self._is_reading(session) and not self.schedule.is_fixed
            return is_late or all(row.is_written for row in rows)

        with self._phase("draft"):
            session.wait(is_enough, self._take)

    def _is_reading(self, session: WorkerSession) -> bool:
        """Whether the worker has prompts to read, besides those for which it waits."""
        return session.unjoined > len(self._unread)

    def _take(self, message: FromDraft) -> None:
        if isinstance(message, DraftTokens):
            self.done.forwards += 1
            self.done.cache_bytes = message.cache_bytes
            self.schedule.drafted(message.span.seconds)
            work = DraftForward(message.span, len(message.tokens))
            self.done.forwards_to_judge.append(work)
            for drafted in message.tokens:
                row = self._session.row(drafted.row) if self._session is not None else None
                if row is None:
                    work.judge(False)
                else:
                    self._count(row.take(drafted, work))
        elif isinstance(message, Joined):
            self.done.cache_bytes = message.cache_bytes
            self.done.visual += message.visual
            self.done.kept += message.kept
            self.done.spans += message.spans
            for choice in message.choices:
                self._observe(choice)
        elif isinstance(message.error, DraftlensError):
            raise message.error
        else:
            raise WorkerLostError(str(message.error))

    def _count(self, verdicts: Sequence[bool]) -> None:
        for accepted in verdicts:
            self.schedule.judged(accepted)
            self.done.corrections += not accepted

    def _guarded(self, work: Callable[[WorkerSession], None]) -> None:
        """Run `work` with the session of the worker, if any; its loss leaves empty trees."""
        if self._session is not None:
            try:
                work(self._session)
            except WorkerLostError as error:
                self.lose(error)

    def connect(self, link: Link) -> None:
        """Let a worker draft for the rows that join from now on."""
        self.link = link
        self.cores = link.cores

    def lose(self, error: WorkerLostError) -> None:
        """Go on without a draft in all rows."""
        self.lost = str(error)
        self.link = None
        self.cores = 0
        logger.warning("the draft is lost, the answer goes on without it: %s", error)
        self.close()

    def close(self) -> None:
        """End the session of the worker. Rows that have not ended go on without a draft."""
        if self._session is not None:
            self._session.close()
            self._session = None
        self._unread.clear()
        for row in itertools.chain(self._rows, *self._announced):
            row.finished = True
