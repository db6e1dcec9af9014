"""The jobs of a scheduler, their updates, limits and counters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from draftlens.core.errors import DraftlensError
from draftlens.core.result import Chunk
from draftlens.core.sequence import Sequence
from draftlens.request import Request


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
        max_cache_bytes: memory of keys and values; None for a share of what is free at the start.
        cache_share: this share.
    """

    max_rows: int = 16
    max_waiting: int = 64
    max_cache_bytes: int | None = None
    cache_share: float = 0.5


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
        failure: the error of a logits processor or criterion of the request.
        lossless, approximate, notes: as in `Result`, at the end.
        arrived, admitted, read: seconds of `time.perf_counter`; 0 before. `admitted` is when the
            target began to read the prompt, and `read` when it had read it for all samples.
        round_seconds: of the rounds that brought its tokens, summed over its rows.
        plain_seconds: estimate for plain decoding of these tokens in the same batch: the time of
            the verification passes times the share that a pass without draft tokens costs; 0 if
            costs were not measured.
    """

    request: Request
    notify: Callable[[Update], None]
    samples: int = 1
    client: str = ""
    sequences: list[Sequence] = field(default_factory=list)
    failure: Exception | None = None
    lossless: bool = True
    approximate: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    arrived: float = field(default_factory=time.perf_counter)
    admitted: float = 0.0
    read: float = 0.0
    round_seconds: float = 0.0
    plain_seconds: float = 0.0

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
        prompt_tokens, cached_tokens: tokens of prompts, and those of them from the prompt cache.
        stall_seconds: seconds in which running rows waited for the prompt of another one.
        failed_rounds: rounds that ended with an error.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    accepted_by_position: Counter[int] = field(default_factory=Counter)
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    stall_seconds: float = 0.0
    failed_rounds: int = 0
    cache_bytes: int = 0

    @classmethod
    def total(cls, several: Iterable[Counters]) -> Counters:
        """Of several schedulers, whose threads may be counting."""
        whole = cls()
        for counters in several:
            for name, value in vars(counters).items():
                count = value.copy() if isinstance(value, Counter) else value
                setattr(whole, name, getattr(whole, name) + count)
        return whole

    def count_read(self, job: Job) -> None:
        """Count the prompt of a job that has been read."""
        self.prompt_tokens += job.prompt_length * job.num_rows
        self.cached_tokens += sum(sequence.cached_tokens for sequence in job.sequences)
