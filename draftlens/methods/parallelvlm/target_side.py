"""A drafter with its model in a draft worker, which runs at the same time as the target."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import DraftlensError
from draftlens.core.sequence import Batch, replace_by_last
from draftlens.core.stats import Clock
from draftlens.core.timeline import Span
from draftlens.core.tree import DraftTree, NextProposal, Verdict, chain
from draftlens.decoding.observer import ignore
from draftlens.decoding.plan import Drafter, DraftWorker, TargetContext
from draftlens.methods.parallelvlm.draft_inputs import DraftReading
from draftlens.methods.parallelvlm.link import Link, WorkerLostError
from draftlens.methods.parallelvlm.messages import Decide, DraftTokens, FromDraft, Joined, Leave
from draftlens.methods.parallelvlm.schedule import Round, Schedule
from draftlens.methods.parallelvlm.target_rows import DraftForward, Row
from draftlens.methods.parallelvlm.worker_session import WorkerSession
from draftlens.passes import BY_MODULES, PassEngine
from draftlens.pruning import Choice

logger = logging.getLogger("draftlens")


class ParallelDrafter(DraftWorker):
    """Drafts with a model that a worker runs ahead of the target (ParallelVLM, PEARL).

    The worker always continues its own last token, as if all of its tokens, also the one in place
    of the bonus token, were accepted. A tree of this drafter is the part of them that the target
    has not checked. After a rejection this is the empty tree, which the target checks while the
    worker writes (the paper's pre-verification). Each row is rolled back by itself.

    Where there is no worker, or it cannot be used when the first rows join, `serial` drafts. A
    worker that is lost later leaves the answer to plain decoding.
    """

    needs_target_scores = False

    def __init__(
        self,
        link: Link | None,
        reading: DraftReading,
        schedule: Schedule,
        vocab_size: int,
        serial: Drafter,
        engine: PassEngine = BY_MODULES,
    ) -> None:
        self.link = link
        self.reading = reading
        self.schedule = schedule
        self.vocab_size = vocab_size
        self.serial = serial
        self.engine = engine
        self.readings = serial.readings
        self.max_nodes = max(serial.max_nodes, schedule.longest)
        self.corrections = 0  # rejected draft tokens, each of which ended a run of accepted ones
        self.lost: str | None = None  # why the worker was lost
        self._is_parallel: bool | None = None
        self._session: WorkerSession | None = None
        self._rows: list[Row] = []
        self._announced: deque[list[Row]] = deque()
        self._unread: deque[list[Row]] = deque()
        self._forwards = 0
        self._cache_bytes = 0
        self._visual = 0
        self._kept = 0
        self._spans: list[Span] = []
        self._works: list[DraftForward] = []
        self._observe: Callable[[Choice], None] = ignore
        self._phase: Callable[[str], AbstractContextManager[None]] = _no_phase
        self._proposed_at = 0.0
        self._width = 1

    @property
    def cores(self) -> int:
        """Cores that the worker keeps busy; 0 where it is lost or the serial drafter drafts."""
        if self.link is None or self._is_parallel is False or self.lost is not None:
            return 0
        return self.link.cores

    def wait_until_ready(self) -> None:
        if self.link is not None:
            self.link.wait_until_ready()

    def processes(self) -> Sequence[int]:
        return self.link.processes if self.link is not None and self._is_parallel else ()

    @property
    def forwards(self) -> int:
        """Decode forwards of the draft that the worker has reported so far."""
        return self._forwards + self.serial.forwards

    @property
    def cache_bytes(self) -> int:
        return self._cache_bytes + self.serial.cache_bytes

    def announce(self, batch: Batch, inputs: Mapping[str, Any], room: int, observed: bool) -> None:
        """After `close`, a new session of the worker begins."""
        if self.link is None or self._is_parallel is False:
            return
        limit = min(self.schedule.window, room)
        waits = self.reading.waits
        rows = [Row(0, room, limit, finished=True) for _ in range(len(batch))]
        try:
            if self._session is None and self.lost is None:
                pruning = self.reading.pruning
                self._session = WorkerSession(
                    self.link, self.vocab_size, pruning, observed, self.engine
                )
            if self._session is not None:
                draft_inputs = self.reading.inputs(inputs)
                rows = self._session.add(batch, draft_inputs, room, limit, waits)
        except WorkerLostError as error:
            if self._is_parallel is None:
                logger.warning("the schedule is serial: %s", error)
                self._is_parallel = False
                self._end_session()
                return
            # The serial drafter lacks the rows that joined before.
            self._lose(error)
        self._is_parallel = True
        self._announced.append(rows)
        if waits:
            self._unread.append(rows)

    def read(self, context: TargetContext) -> None:
        if self._unread:
            self._unread.popleft()
            self._observe = context.observer.on_choice
            self._guarded(lambda session: session.send(self._message(session, context)))

    def _message(self, session: WorkerSession, context: TargetContext) -> Any:
        return self.reading.message(session.answer, context)

    def record(self, clock: Clock) -> None:
        """Write what the worker has done so far into the statistics."""
        stats = clock.stats
        stats.corrections = self.corrections
        stats.worker_lost = self.lost
        stats.visual += self._visual
        stats.kept += self._kept
        self._visual = 0
        self._kept = 0
        over = [work for work in self._works if not work.unjudged or self._session is None]
        self._works = [work for work in self._works if work not in over]
        clock.add_spans([*self._spans, *(work.finished() for work in over)])
        self._spans = []

    def close(self) -> None:
        """End the session of the worker. Rows that have not ended go on without a draft."""
        self._end_session()

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        """The worker has the inputs already."""
        if self._is_parallel is None:
            self._is_parallel = False
        return None if self._is_parallel else self.serial.encode(inputs)

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        if not self._is_parallel:
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
        self._guarded(lambda session: self._meet(session, rows))
        self._guarded(lambda session: self._decide(session, rows, batch))

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        """The draft tokens of the last round, one chain for each row."""
        if not self._is_parallel:
            return self.serial.propose(batch, budget)
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
        if not self._is_parallel:
            self.serial.update(verdict, batch)
            return
        self._guarded(lambda session: self._end_round(session, batch))

    def _end_round(self, session: WorkerSession, batch: Batch) -> None:
        pass_seconds = time.perf_counter() - self._proposed_at
        self._meet(session, self._rows)
        gained = [
            history.length - row.num_decided
            for row, history in zip(self._rows, batch.histories, strict=True)
            if not row.finished
        ]
        if gained:
            seconds = time.perf_counter() - self._proposed_at
            mean = sum(gained) / len(gained)
            self.schedule.finish(Round(pass_seconds, seconds, self._width, mean))
        self._decide(session, self._rows, batch)

    def remove(self, row: int) -> None:
        if not self._is_parallel:
            self.serial.remove(row)
            return
        leaving = self._rows[row]
        replace_by_last(self._rows, row)
        if self._session is not None and self._session.forget(leaving):
            self._guarded(lambda session: session.send(Leave(session.answer, leaving.number)))

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
            is_reading = session.unjoined > 0 and not self.schedule.is_fixed
            return is_reading or all(row.is_written for row in rows)

        with self._phase("draft"):
            session.wait(is_enough, self._take)

    def _take(self, message: FromDraft) -> None:
        if isinstance(message, DraftTokens):
            self._forwards += 1
            self._cache_bytes = message.cache_bytes
            self.schedule.drafted(message.span.seconds)
            work = DraftForward(message.span, len(message.tokens))
            self._works.append(work)
            for drafted in message.tokens:
                row = self._session.row(drafted.row) if self._session is not None else None
                if row is None:
                    work.judge(False)
                else:
                    self._count(row.take(drafted, work))
        elif isinstance(message, Joined):
            self._cache_bytes = message.cache_bytes
            self._visual += message.visual
            self._kept += message.kept
            self._spans += message.spans
            for choice in message.choices:
                self._observe(choice)
        elif isinstance(message.error, DraftlensError):
            raise message.error
        else:
            raise WorkerLostError(str(message.error))

    def _count(self, verdicts: Sequence[bool]) -> None:
        for accepted in verdicts:
            self.schedule.judged(accepted)
            self.corrections += not accepted

    def _guarded(self, work: Callable[[WorkerSession], None]) -> None:
        """Run `work` with the session of the worker, if any; its loss leaves empty trees."""
        if self._session is not None:
            try:
                work(self._session)
            except WorkerLostError as error:
                self._lose(error)

    def _lose(self, error: WorkerLostError) -> None:
        self.lost = str(error)
        logger.warning("the draft is lost, the answer goes on without it: %s", error)
        self._end_session()

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        self._unread.clear()
        for row in itertools.chain(self._rows, *self._announced):
            row.finished = True


def _no_phase(name: str) -> AbstractContextManager[None]:
    return nullcontext()
