"""Many requests answered in one batch: rows join and leave between rounds.

One thread owns the models and runs every pass. The tokens of a row depend neither on its neighbours
nor on the round in which it joins.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Lock, Thread

import psutil
import torch

from draftlens.core.errors import ConfigError, DraftlensError, InputError
from draftlens.core.result import Chunk
from draftlens.core.sampling import row_seeds
from draftlens.core.sequence import Sequence
from draftlens.core.stats import Clock, Stats
from draftlens.decoding.loop import decode
from draftlens.decoding.plan import Plan
from draftlens.decoding.session import Session
from draftlens.methods.base import MethodLike, Models
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prepared
from draftlens.request import Call, Request, add_rows, plan_of, prepare, seeds_of
from draftlens.streaming import approximations

_log = logging.getLogger("draftlens")

CACHE_SHARE = 0.5
"""Share of the free memory that the caches may take by default."""
FAILED = "the answer failed in this round of the batch"
CLOSED = "the scheduler is closed"


class QueueFullError(DraftlensError):
    """As many requests wait as may."""


class AnswerError(DraftlensError):
    """An answer ended before its last token for a reason that is not the request's."""


@dataclass(frozen=True)
class SchedulerLimits:
    """Bounds on the batch.

    Args:
        max_rows: rows that are answered together.
        max_waiting: requests that wait; further ones are refused.
        max_cache_bytes: memory of keys and values; None for half of what is free at the start.
    """

    max_rows: int = 16
    max_waiting: int = 64
    max_cache_bytes: int | None = None


@dataclass(frozen=True)
class Update:
    """What a job gained in a round. `Chunk.row` counts the rows of the job; with `error` or `done`
    nothing follows."""

    chunks: tuple[Chunk, ...] = ()
    done: bool = False
    error: Exception | None = None


@dataclass(eq=False)
class Job:
    """A request from its arrival to its last token.

    Args:
        request: holds the processors' output; the models read it when the job is admitted.
        notify: receives each `Update` on the scheduler's thread; it must return at once.
        samples: answers to the request, with seeds derived from its own.
        client: jobs of different clients take turns.

    Attributes:
        sequences: the rows of all samples, once they are admitted.
        lossless, approximate, notes: as in `Result`, at the end.
    """

    request: Request
    notify: Callable[[Update], None]
    samples: int = 1
    client: str = ""
    sequences: list[Sequence] = field(default_factory=list)
    approximate: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    arrived: float = field(default_factory=time.perf_counter)
    admitted: float = 0.0

    @property
    def prompt_length(self) -> int:
        """With padding, in tokens."""
        return int(self.request.inputs["input_ids"].shape[1])

    @property
    def num_rows(self) -> int:
        return self.samples * len(self.request.inputs["input_ids"])

    @property
    def length(self) -> int:
        """Most tokens of a row, prompt and answer."""
        return self.prompt_length + int(self.request.options.get("max_new_tokens") or 1024)


@dataclass
class Counters:
    """Counts since the start.

    Attributes:
        drafts: proposals that were verified, per row.
        accepted_by_position: how often the draft token at this depth was accepted, from 0.
        stall_seconds: seconds in which running rows waited for the prompt of another one.
        failed_rounds: rounds that ended with an error.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    accepted_by_position: Counter[int] = field(default_factory=Counter)
    tokens: int = 0
    prompt_tokens: int = 0
    stall_seconds: float = 0.0
    failed_rounds: int = 0
    cache_bytes: int = 0


class _Batch:
    """A session with the rows of one method, and the jobs they belong to."""

    def __init__(self, method: MethodLike, plan: Plan, target: Backbone) -> None:
        self.method = method
        self.plan = plan
        self.session = Session(target, plan, Clock(Stats()))
        self.rows: dict[int, tuple[Job, int]] = {}  # by number: the job, and the row in it
        self.jobs: dict[Job, None] = {}  # in order of admission

    def add(self, job: Job, request: Request, prepared: Prepared) -> None:
        for sequence in add_rows(self.session, self.plan, prepared, request):
            self.rows[sequence.number] = (job, len(job.sequences))
            job.sequences.append(sequence)
        self.jobs[job] = None

    def drop(self, job: Job) -> None:
        """Remove all rows of a job that the session has read."""
        for sequence in job.sequences:
            self.rows.pop(sequence.number, None)
            if sequence in self.session.sequences:
                self.session.remove(sequence)
        self.jobs.pop(job, None)


class Scheduler:
    """Answers jobs on a thread of its own, which starts at once and ends with `close`."""

    def __init__(self, models: Models, limits: SchedulerLimits = SchedulerLimits()) -> None:
        self.models = models
        self.limits = limits
        self.counters = Counters()
        self.alive = True
        self._max_cache = limits.max_cache_bytes or _free_bytes(models.target) * CACHE_SHARE
        self._token_bytes = sum(
            _token_bytes(model) for model in (models.target, models.draft) if model is not None
        )
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: list[Job] = []
        self._batches: list[_Batch] = []
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
        if wait:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._receive()
                self._admit()
                for batch in list(self._batches):
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
            self._batches.clear()

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
        """Let the target read the prompt of at most one job."""
        job = self._next()
        if job is None:
            return
        self._stop_waiting(job)
        self._num_turns += 1
        self._turns[job.client] = self._num_turns
        stalls = bool(self._batches)
        job.admitted = time.perf_counter()
        try:
            batch = self._batch_of(job.request)
            prepared = prepare(self.models.target, job.request)
            chunks: list[Chunk] = []
            for request in _samples(job, seeds_of(job.request.seed, prepared)):
                batch.add(job, request, prepared)
                while batch.session.waiting:
                    chunks += batch.session.start()
        except Exception as error:
            self._refuse(job, error)
            return
        if stalls:
            self.counters.stall_seconds += time.perf_counter() - job.admitted
        self.counters.prompt_tokens += job.prompt_length * job.num_rows
        job.notes = prepared.notes
        with self._failing_together(batch):
            self._deliver(batch, chunks)

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
        return (
            num_rows <= self.limits.max_rows and self._bytes(num_rows, longest) <= self._max_cache
        )

    def _bytes(self, num_rows: int, length: int) -> int:
        """Memory of the caches, whose rows are as long as the longest one."""
        return num_rows * length * self._token_bytes

    def _batch_of(self, request: Request) -> _Batch:
        """The batch of a request's method; a new one if the method has no rows."""
        for batch in self._batches:
            if batch.method == request.method:
                return batch
        plan = plan_of(self.models, request)
        check_joins(plan)
        batch = _Batch(request.method, plan, self.models.target)
        self._batches.append(batch)
        return batch

    def _advance(self, batch: _Batch) -> None:
        """Run one round and hand on what the rows have gained."""
        session = batch.session
        passes, drafted = session.stats.passes, session.stats.drafted
        with self._failing_together(batch):
            session.begin()
            chunks = session.accept(session.check(session.propose()))
            self._count(session, chunks, session.stats.passes - passes, drafted)
            self._deliver(batch, chunks)

    @contextmanager
    def _failing_together(self, batch: _Batch) -> Iterator[None]:
        """After an error in a round, the caches of a session may not fit its rows: all rows fail,
        and the next request gets a new session."""
        try:
            yield
        except Exception:
            _log.exception("a round failed")
            self.counters.failed_rounds += 1
            self._batches.remove(batch)
            for job in batch.jobs:
                job.notify(Update(error=AnswerError(FAILED)))

    def _count(self, session: Session, chunks: Seq[Chunk], passes: int, drafted: int) -> None:
        counters = self.counters
        if session.stats.drafted > drafted:
            counters.drafts += passes
            counters.draft_tokens += session.stats.drafted - drafted
        for chunk in chunks:
            accepted = sum(chunk.from_draft)
            counters.accepted += accepted
            counters.accepted_by_position.update(range(accepted))
        if session.cache is not None:
            counters.cache_bytes = session.cache.nbytes + session.drafter.cache_bytes

    def _deliver(self, batch: _Batch, chunks: Seq[Chunk]) -> None:
        """Hand the chunks of a round to their jobs, and remove the rows that have ended."""
        gained: dict[Job, list[Chunk]] = {}
        for chunk in chunks:
            job, row = batch.rows[chunk.row]
            gained.setdefault(job, []).append(replace(chunk, row=row))
            self.counters.tokens += len(chunk.tokens)
        for sequence in [each for each in batch.session.sequences if each.finished]:
            batch.session.remove(sequence)
            del batch.rows[sequence.number]
        for job, own in gained.items():
            done = all(sequence.finished for sequence in job.sequences)
            if done:
                call = Call(batch.plan, batch.session, job.sequences, self.models.target.dtype)
                job.approximate = approximations(call)
                del batch.jobs[job]
            job.notify(Update(tuple(own), done))
        self._discard_if_empty(batch)

    def _leave(self, batch: _Batch, job: Job) -> None:
        """Remove a job, if it is in this batch, between two rounds."""
        if job in batch.jobs:
            with self._failing_together(batch):
                batch.drop(job)
        self._discard_if_empty(batch)

    def _discard_if_empty(self, batch: _Batch) -> None:
        """A session without rows ends, and its cache with it."""
        if not batch.rows and batch in self._batches:
            self._batches.remove(batch)
            self.counters.cache_bytes = 0


def check_joins(plan: Plan) -> None:
    """Raise ConfigError for a method whose rows cannot join and leave between rounds."""
    if plan.schedule is not decode:
        raise ConfigError("rows that join and leave need the schedule 'serial'")


def _samples(job: Job, seeds: list[int]) -> list[Request]:
    """The request of each sample, with the seeds of its rows."""
    if job.samples == 1:
        return [replace(job.request, seed=seeds)]
    return [replace(job.request, seed=[seed]) for seed in row_seeds(seeds[0], job.samples)]


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
