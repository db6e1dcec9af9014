"""The rows of one method, and the jobs they belong to."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any

import psutil
import torch
from torch import Tensor
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from draftlens.core.errors import ConfigError, DraftlensError, InputError
from draftlens.core.forms import FormProcessor
from draftlens.core.result import Chunk
from draftlens.core.sampling import HISTORY_FREE, ROW_BLIND, STATEFUL, row_seeds
from draftlens.core.sequence import ROW_WISE
from draftlens.core.stats import Clock, Stats
from draftlens.decoding.loop import decode
from draftlens.decoding.plan import DraftWorker, Plan
from draftlens.decoding.session import Session
from draftlens.drafting.adaptive.history import costs_of
from draftlens.methods.base import MethodLike, Models
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prepared
from draftlens.request import Call, Request, add_rows, plan_of, prepare, seeds_of
from draftlens.scheduling.jobs import (
    AnswerError,
    Counters,
    Job,
    QueueFullError,
    SchedulerLimits,
    Update,
)
from draftlens.streaming import approximations


class Batch:
    """A session, and the job of each row.

    Attributes:
        rows: by the number of a sequence: its job, and the row in the job.
        jobs: in order of admission.
        reading: the job whose prompt is being read; None if there is none.
    """

    def __init__(self, method: MethodLike, plan: Plan, target: Backbone) -> None:
        self.method = method
        self.plan = plan
        self.session = Session(target, plan, Clock(Stats()))
        self.rounds = plan.worker.attached(self.session)
        next(self.rounds)
        self.rows: dict[int, tuple[Job, int]] = {}
        self.jobs: dict[Job, None] = {}
        self.reading: Job | None = None

    def add(self, job: Job, prepared: Prepared) -> None:
        """Let the rows of all samples of a job be read, one sample after the other."""
        self.jobs[job] = None
        self.reading = job
        for request in _samples(job, seeds_of(job.request.seed, prepared)):
            for sequence in add_rows(self.session, self.plan, prepared, request):
                self.rows[sequence.number] = (job, len(job.sequences))
                job.sequences.append(sequence)

    def read(self) -> list[Chunk]:
        """Read the prompt of `reading`, or one part of it if other rows are running."""
        chunks = self.session.start()
        if not self.session.waiting:
            self.reading = None
        return chunks

    def round(self, counters: Counters) -> list[Chunk]:
        """Propose, verify and accept once."""
        session = self.session
        passes, drafted = session.stats.passes, session.stats.drafted
        verifying = session.stats.phases["verify"]
        began = time.perf_counter()
        session.begin()
        chunks = session.accept(session.check(session.propose()))
        next(self.rounds)
        if session.stats.drafted > drafted:
            counters.drafts += session.stats.passes - passes
            counters.draft_tokens += session.stats.drafted - drafted
        seconds = time.perf_counter() - began
        verifying = session.stats.phases["verify"] - verifying
        plain = verifying * self._plain_share(session.stats.drafted - drafted)
        for chunk in chunks:
            accepted = sum(chunk.from_draft)
            counters.accepted += accepted
            counters.accepted_by_position.update(range(accepted))
            job = self.rows[chunk.row][0]
            job.round_seconds += seconds
            job.plain_seconds += plain * len(chunk.tokens)
        if session.cache is not None:
            counters.cache_bytes = session.cache.nbytes + session.drafter.cache_bytes
        return chunks

    def _plain_share(self, num_drafted: int) -> float:
        """What a pass over the rows alone costs / what it costs with these draft tokens of all
        rows, as measured; 0 if unknown. The speed of the machine cancels out."""
        costs, lock = costs_of(self.session.target)
        with lock:
            if self.session.cache is None or not costs.is_measured:
                return 0.0
            rows, context = len(self.session.sequences), max(self.session.cache.lengths)
            return costs.cost(rows, rows, context) / costs.cost(rows + num_drafted, rows, context)

    def drop(self, job: Job) -> None:
        """Remove all rows of a job."""
        for sequence in job.sequences:
            self.rows.pop(sequence.number, None)
            if self.session.holds(sequence):
                self.session.remove(sequence)
        self.jobs.pop(job, None)
        if self.reading is job:
            self.reading = None

    def drop_ended(self) -> None:
        """Remove the rows that have ended."""
        for sequence in [each for each in self.session.sequences if each.finished]:
            self.session.remove(sequence)
            del self.rows[sequence.number]

    def by_job(self, chunks: Seq[Chunk]) -> dict[Job, list[Chunk]]:
        """The chunks of each job, by the rows of the job."""
        gained: dict[Job, list[Chunk]] = {}
        for chunk in chunks:
            job, row = self.rows[chunk.row]
            gained.setdefault(job, []).append(replace(chunk, row=row))
        return gained


def _samples(job: Job, seeds: list[int]) -> list[Request]:
    """The request of each sample, with the seeds of its rows."""
    if job.samples == 1:
        return [replace(job.request, seed=seeds)]
    return [replace(job.request, seed=[seed]) for seed in row_seeds(seeds[0], job.samples)]


class _Guarded:
    """A logits processor or criterion of the caller whose error ends its own job only: from then on
    scores stay as they are, and every row meets the criterion."""

    def __init__(self, job: Job, called: Any) -> None:
        self._job = job
        self._called = called

    def __getattr__(self, name: str) -> Any:
        return getattr(self._called, name)

    def __call__(self, ids: Tensor, scores: Tensor | None) -> Any:
        if self._job.failure is None:
            try:
                result = torch.as_tensor(self._called(ids, scores))
                return result if scores is None else result.expand_as(scores)
            except Exception as error:
                self._job.failure = error
        return True if scores is None else scores


def _guarded(job: Job, prepared: Prepared) -> Prepared:
    """A call whose own processors and criteria cannot end a round with an error."""
    processors = tuple(
        each
        if type(each) in (*HISTORY_FREE, *ROW_BLIND) or type(each).__name__ in STATEFUL
        else each.guarded(partial(_Guarded, job))
        if isinstance(each, FormProcessor)
        else _Guarded(job, each)
        for each in prepared.processors
    )
    library = (EosTokenCriteria, MaxLengthCriteria, *ROW_WISE)
    criteria = tuple(
        each if isinstance(each, library) else _Guarded(job, each) for each in prepared.criteria
    )
    return replace(prepared, processors=processors, criteria=criteria)


_log = logging.getLogger("draftlens")

FAILED = "the answer failed in this round of the batch"
CLOSED = "the scheduler is closed"


class Scheduler:
    """Answers jobs on a thread of its own, which starts at once and ends with `close`."""

    def __init__(self, models: Models, limits: SchedulerLimits | None = None) -> None:
        self.models = models
        self.limits = limits = limits or SchedulerLimits()
        self.counters = Counters()
        self.alive = True
        self._max_cache = limits.max_cache_bytes or _free_bytes(models.target) * limits.cache_share
        self._token_bytes = sum(
            _token_bytes(model) for model in (models.target, models.draft) if model is not None
        )
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: list[Job] = []
        self._batches: list[Batch] = []
        self._num_turns = 0
        self._turns: Counter[str] = Counter()  # by client, the number of its last turn
        self._lock = Lock()
        self._num_waiting = 0
        self._closing = False
        self._thread = Thread(target=self._run, name="draftlens-scheduler", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    @property
    def num_rows(self) -> int:
        """Rows that are being answered."""
        return sum(len(batch.rows) for batch in self._batches)

    @property
    def num_jobs(self) -> int:
        """Requests that are being answered."""
        return sum(len(batch.jobs) for batch in self._batches)

    @property
    def cache_share(self) -> float:
        """The part of the memory for keys and values that running requests may come to need."""
        running = [job for batch in list(self._batches) for job in list(batch.jobs)]
        longest = max((job.length for job in running), default=0)
        return self._bytes(self.num_rows, longest) / self._max_cache

    def submit(self, job: Job) -> None:
        """Let a job wait for its place; from any thread.

        Raises:
            InputError: the job alone needs more rows or memory than there are.
            QueueFullError, AnswerError: too many wait, or the scheduler is closed.
        """
        if job.num_rows > self.limits.max_rows:
            raise InputError(f"{job.num_rows} answers at once are more than {self.limits.max_rows}")
        if self._bytes(job.num_rows, job.length) > self._max_cache:
            raise InputError(f"prompt and answer of {job.length} tokens need too much memory")
        with self._lock:
            if self._closing:
                raise AnswerError(CLOSED)
            if self._num_waiting >= self.limits.max_waiting:
                raise QueueFullError(f"{self._num_waiting} requests wait already")
            self._num_waiting += 1
            self._inbox.put(lambda: self._waiting.append(job))

    def cancel(self, job: Job) -> None:
        """Drop a job before the next round; from any thread. It gets no further updates."""
        self._inbox.put(lambda: self._cancel(job))

    def close(self, wait: bool = True) -> None:
        """End the thread after this round; jobs that are left get an error."""
        with self._lock:
            self._closing = True
        self._inbox.put(lambda: None)
        if wait and current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._receive()
                self._admit()
                for batch in list(self._batches):
                    self._read(batch)
                    self._advance(batch)
        except BaseException:
            _log.exception("the scheduler has ended")
        finally:
            with self._lock:
                self._closing = True
                self.alive = False
            self._receive_all()
            running = [job for batch in self._batches for job in batch.jobs]
            for job in [*running, *self._waiting]:
                job.notify(Update(error=AnswerError(CLOSED)))
            self._waiting.clear()
            for batch in list(self._batches):
                self._end(batch)

    def _receive(self) -> None:
        """Carry out what other threads asked for; without any job, wait for it."""
        if not self._waiting and not self._batches:
            self._inbox.get()()
        self._receive_all()

    def _receive_all(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()

    def _cancel(self, job: Job) -> None:
        if job in self._waiting:
            self._stop_waiting(job)
        for batch in list(self._batches):
            self._leave(batch, job)

    def _stop_waiting(self, job: Job) -> None:
        self._waiting.remove(job)
        with self._lock:
            self._num_waiting -= 1

    def _admit(self) -> None:
        """Let the next job be read, if no other one is."""
        if any(batch.reading and not batch.session.holds_back for batch in self._batches):
            return
        job = self._next()
        if job is None:
            return
        self._stop_waiting(job)
        self._num_turns += 1
        self._turns[job.client] = self._num_turns
        job.admitted = time.perf_counter()
        try:
            with self._stalling():
                prepared = _guarded(job, prepare(self.models.target, job.request))
                of_method = [each for each in self._batches if each.method == job.request.method]
                admitting = (batch for batch in of_method if batch.session.admits(prepared))
                batch = next(admitting, None) or self._new_batch(job.request)
                batch.add(job, prepared)
                job.notes = prepared.notes
        except Exception as error:
            self._refuse(job, error)

    def _read(self, batch: Batch) -> None:
        """Let the target read the prompt of a job, beside running rows a part of it."""
        job = batch.reading
        if job is None:
            return
        try:
            with self._stalling():
                chunks = batch.read()
        except Exception as error:
            self._refuse(job, error)
            return
        if batch.reading is None:
            job.read = time.perf_counter()
            self.counters.count_read(job)
        with self._failing_together(batch):
            self._deliver(batch, chunks)

    @contextmanager
    def _stalling(self) -> Iterator[None]:
        """Count the time inside, if rows are running."""
        stalls = any(batch.session.running for batch in self._batches)
        began = time.perf_counter()
        try:
            yield
        finally:
            if stalls:
                self.counters.stall_seconds += time.perf_counter() - began

    def _refuse(self, job: Job, error: Exception) -> None:
        """End a job that could not begin; the rows of the others go on."""
        if not isinstance(error, DraftlensError):
            _log.exception("a request could not begin")
            error = AnswerError("the prompt could not be read")
        for batch in list(self._batches):
            self._leave(batch, job)
        job.notify(Update(error=error))

    def _next(self) -> Job | None:
        """The longest waiting job of the client with the fewest rows, among several the one whose
        turn is longest ago; None if there is no room for it."""
        if not self._waiting:
            return None
        rows = Counter(job.client for batch in self._batches for job, _ in batch.rows.values())
        heads: dict[str, Job] = {}
        for job in self._waiting:
            heads.setdefault(job.client, job)
        job = min(heads.values(), key=lambda head: (rows[head.client], self._turns[head.client]))
        return job if self._has_room(job) else None

    def _has_room(self, job: Job) -> bool:
        running = [each for batch in self._batches for each in batch.jobs]
        num_rows = self.num_rows + job.num_rows
        longest = max(each.length for each in [*running, job])
        fits = self._bytes(num_rows, longest) <= self._max_cache
        return fits and num_rows <= self.limits.max_rows

    def _bytes(self, num_rows: int, length: int) -> int:
        """Memory of the caches, whose rows are as long as the longest one."""
        return num_rows * length * self._token_bytes

    def _new_batch(self, request: Request) -> Batch:
        plan = plan_of(self.models, request)
        check_joins(plan)
        batch = Batch(request.method, plan, self.models.target)
        self._batches.append(batch)
        return batch

    def _advance(self, batch: Batch) -> None:
        """Run one round and hand on what the rows have gained."""
        if batch in self._batches and batch.session.running:
            with self._failing_together(batch):
                self._deliver(batch, batch.round(self.counters))

    @contextmanager
    def _failing_together(self, batch: Batch) -> Iterator[None]:
        """After an error in a round, the caches of a session may not fit its rows: all rows fail,
        and the next request gets a new session."""
        try:
            yield
        except Exception:
            _log.exception("a round failed")
            self.counters.failed_rounds += 1
            self._end(batch)
            for job in batch.jobs:
                job.notify(Update(error=AnswerError(FAILED)))

    def _deliver(self, batch: Batch, chunks: Seq[Chunk]) -> None:
        """Hand the chunks of a round to their jobs, and remove the rows that have ended."""
        gained = batch.by_job(chunks)
        batch.drop_ended()
        for job, job_chunks in gained.items():
            if job.failure is not None:
                self._leave(batch, job)
                job.notify(Update(error=job.failure))
                continue
            self.counters.tokens += sum(len(chunk.tokens) for chunk in job_chunks)
            done = all(sequence.finished for sequence in job.sequences)
            if done:
                call = Call(batch.plan, batch.session, job.sequences, self.models.target.dtype)
                approximate = approximations(call)
                job.lossless = not approximate
                job.approximate = (*self.models.target.passes.rounding, *approximate)
                del batch.jobs[job]
            job.notify(Update(tuple(job_chunks), done))
        self._discard_if_empty(batch)

    def _leave(self, batch: Batch, job: Job) -> None:
        """Remove a job, if it is in this batch, between two rounds."""
        if job in batch.jobs:
            with self._failing_together(batch):
                batch.drop(job)
        self._discard_if_empty(batch)

    def _discard_if_empty(self, batch: Batch) -> None:
        """A session without rows ends, and its cache with it."""
        if not batch.rows and batch in self._batches:
            self._end(batch)

    def _end(self, batch: Batch) -> None:
        self._batches.remove(batch)
        batch.rounds.close()
        self.counters.cache_bytes = 0


def check_joins(plan: Plan) -> None:
    """Raise ConfigError for a method whose rows cannot join and leave between rounds."""
    if plan.schedule is not decode and type(plan.worker) is DraftWorker:
        raise ConfigError("rows that join and leave need the schedule 'serial' or 'parallel'")


def _token_bytes(model: Backbone) -> int:
    """Bytes of the keys and values of a token."""
    config = model.text_config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * model.dtype.itemsize)


def _free_bytes(model: Backbone) -> int:
    if model.device.type == "cuda":
        return torch.cuda.mem_get_info(model.device)[0]
    return int(psutil.virtual_memory().available)
