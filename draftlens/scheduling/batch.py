"""The rows of one method, and the jobs they belong to."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from draftlens.core.result import Chunk
from draftlens.core.sampling import HISTORY_FREE, ROW_BLIND, STATEFUL, row_seeds
from draftlens.core.stats import Clock, Stats
from draftlens.core.stopping import ROW_WISE
from draftlens.decoding.plan import Plan
from draftlens.decoding.session import Session
from draftlens.drafting.adaptive.history import costs_of
from draftlens.methods.base import MethodLike
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prepared
from draftlens.request import Request, add_rows, seeds_of
from draftlens.scheduling.jobs import Counters, Job


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
        self.rows: dict[int, tuple[Job, int]] = {}
        self.jobs: dict[Job, None] = {}
        self.reading: Job | None = None

    def add(self, job: Job, prepared: Prepared) -> None:
        """Let the rows of all samples of a job be read, one sample after the other."""
        prepared = _guarded(job, prepared)
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
            width = rows + num_drafted
            return costs.cost(rows, rows, context) / costs.cost(width, rows, context)

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
        else _Guarded(job, each)
        for each in prepared.processors
    )
    library = (EosTokenCriteria, MaxLengthCriteria, *ROW_WISE)
    criteria = tuple(
        each if isinstance(each, library) else _Guarded(job, each) for each in prepared.criteria
    )
    return replace(prepared, processors=processors, criteria=criteria)
