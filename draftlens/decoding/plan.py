"""The parts of a session: the drafter, the rule of acceptance and a method's plan."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.logprobs import logprobs_of
from draftlens.core.options import Registry, shown
from draftlens.core.prefill_readings import NO_FEATURES, FeatureSpec, PrefillFeatures
from draftlens.core.result import Chunk
from draftlens.core.sequence import Batch, Sequence
from draftlens.core.tree import EMPTY, ROOT, DraftTree, NextProposal, Verdict, batch_depths
from draftlens.core.verify import match, reject, tolerant
from draftlens.decoding.observer import NO_OBSERVER, Observer, no_phase
from draftlens.media.conversation import ChatSource
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import FullPrefill, Prefill


@dataclass(frozen=True)
class Acceptance:
    """The rule by which a target accepts draft tokens (`core/verify.py`)."""

    rule: str = "coupled"  # `"coupled"` or `"rejection"`
    # τ of `core.verify.tolerant`; below 1 it replaces `rule`, and answers are greedy
    tolerance: float = 1.0

    @property
    def approximate(self) -> tuple[str, ...]:
        """What is not exact about accepted tokens, in words for the user."""
        if self.tolerance >= 1:
            return ()
        return (f"draft tokens accepted with tolerance {self.tolerance:g}",)

    def check(self, do_sample: bool) -> None:
        """Raise `ConfigError` if tokens are drawn and draft tokens are accepted with tolerance."""
        if self.tolerance < 1 and do_sample:
            raise ConfigError(
                f"a tolerance of {self.tolerance:g} compares draft tokens with the likeliest "
                "token, and with do_sample tokens are drawn: use tolerance=1.0, or greedy decoding"
            )

    def judge(
        self,
        tree: DraftTree,
        logits: Tensor,
        rows: Seq[Sequence],
        batch: Batch,
        next_proposals: Seq[NextProposal | None] | None = None,
    ) -> Verdict:
        """The verdict on a proposal, with the target's processed scores.

        `logits` are the target's, at the root and at every node, ``[B, N+1, V]``; `batch` is
        `rows` as they are now; for `next_proposals` see `core.verify.reject`.
        """
        nodes = [(ROOT, *range(len(topology))) for topology in tree.topologies]
        scores = batch.process(logits, tree.topologies, tree.tokens, nodes)
        if self.tolerance < 1:
            verdict = tolerant(tree, scores, self.tolerance, [row.stopping.eos for row in rows])
        else:
            steps = batch.steps(scores.device) + batch_depths(tree.topologies, scores.device)
            verdict = match(tree, batch.ranking(scores, steps))
            if batch.rejects:
                generators = [None if row.finished else row.generator for row in rows]
                by_chance = reject(tree, scores, generators, next_proposals)
                verdict = _by_own_rule(batch, by_chance, verdict)
        records = any(row.logprobs is not None for row in rows)
        logprobs = logprobs_of(verdict, logits, scores, rows) if records else ()
        return replace(verdict, scores=scores, logprobs=logprobs)


def _by_own_rule(batch: Batch, by_chance: Verdict, by_match: Verdict) -> Verdict:
    """The verdict of each row by its own rule."""
    verdicts = [by_chance if each.sampling.rejects else by_match for each in batch.histories]
    return Verdict(
        tuple(verdict.paths[row] for row, verdict in enumerate(verdicts)),
        tuple(verdict.tokens[row] for row, verdict in enumerate(verdicts)),
    )


DRAFT_NOISE = 0x5DEECE66D5DEECE6  # Makes the seed of a draft's own noise from that of the target's.


@dataclass(frozen=True)
class TargetContext:
    """The target's side of rows that join a drafter.

    Args:
        prompt: as the target's language model read it.
        cache: the target's keys and values of these rows, holding the prompt; not to be changed.
        room: most tokens that an answer may still gain.
        readings: the readings of the prefill that the drafter requested.
        observer: receives what the drafter does.
        extras: what the method reads of a call besides the prompts (`Plan.extras`), by name.
        eos: ids that end the answers of these rows.
    """

    prompt: Prompt
    cache: KVCache
    room: int = 0
    readings: PrefillFeatures = field(default_factory=PrefillFeatures)
    observer: Observer = NO_OBSERVER
    extras: Mapping[str, Any] = field(default_factory=dict)
    eos: frozenset[int] = frozenset()


class Drafter(Protocol):
    """Proposes next tokens for every row of a batch: `encode` and `begin` once for rows that join,
    then `propose` and `update` in turn, and `remove` for a row that leaves."""

    max_nodes: int
    """Most draft tokens of a row that `propose` returns; 0 for none ever."""

    readings: FeatureSpec
    """The features of the target's prefill that `begin` needs."""

    needs_target_scores: bool
    """Whether `update` needs `Verdict.scores`."""

    @property
    def forwards(self) -> int:
        """Decode forwards of the draft model so far, for the statistics."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Bytes of the drafter's keys and values in all processes, for the statistics; also after
        the end of an answer."""
        ...

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        """What `begin` needs of the output of the draft's processor for rows that will join."""
        ...

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        """Let rows join, after the rows that are there.

        Args:
            batch: the rows that join; each has its first token already.
            encoded: the result of `encode` for them.
            context: the target's side of them.
        """
        ...

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        """Draft tokens for every row.

        Args:
            batch: all rows.
            budget: greatest useful depth of a tree. The empty tree is legal.
        """
        ...

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """Receive the verdict on the last proposal.

        Args:
            verdict: as far as its tokens were emitted.
            batch: all rows, with these tokens. Rows that have ended need not be kept up to date;
                after the last round of an answer all have.
        """
        ...

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        ...


class NoDraft:
    """Drafts nothing, which makes the loop plain decoding."""

    max_nodes = 0
    readings = NO_FEATURES
    needs_target_scores = False
    forwards: int = 0
    cache_bytes: int = 0

    def encode(self, inputs: Mapping[str, Any]) -> None: ...
    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None: ...

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        return DraftTree.uniform(EMPTY, torch.empty(len(batch), 0, dtype=torch.long))

    def update(self, verdict: Verdict, batch: Batch) -> None: ...
    def remove(self, row: int) -> None: ...


def draw_children(batch: Batch, scores: Tensor, most: int, steps: Tensor) -> Tensor:
    """The `most` draft tokens at each node, best first, int64 ``[B, M, most]``.

    Greedy: the likeliest. Coupled: the likeliest under the noise that the target will use at this
    position, so equal models choose equally. Rejection: drawn one after the other without
    replacement (the order of Gumbel-perturbed scores is exactly that), with other noise than the
    target's. That noise is keyed by the position too: of all draft tokens at one position the
    target verifies those of one node at most, so no noise is used twice.

    `scores` are processed, ``[B, M, V]``; `steps` are the indices in the answers of the tokens to
    draft, int64 ``[B, M]`` or ``[B, 1]``.
    """
    ranking = batch.ranking(scores, steps)
    if batch.rejects:
        ranking = ranking.double()
        seeds = batch.seeds(scores.device) ^ DRAFT_NOISE
        for rule, rows in batch.rules.items():
            if rule.rejects:
                ranking[rows] = rule.ranking(scores[rows], seeds[rows], steps[rows])
    if most == 1:
        return ranking.argmax(-1, keepdim=True)
    return ranking.topk(most).indices


# Answers all requests of a `Session`, its only argument; see `decoding.loop.decode`.
Schedule = Callable[..., Iterator[Chunk]]

SCHEDULES = Registry(
    "schedule",
    {
        "serial": "draftlens.decoding.loop:decode",
        "parallel": "draftlens.methods.parallelvlm.loop:decode",
    },
)


def make_schedule(name: str) -> Schedule:
    """A schedule by name; raises `ConfigError` if it is unknown."""
    if not isinstance(name, str):
        raise ConfigError(f"schedule must be one of {', '.join(SCHEDULES)}, not {shown(name)}")
    schedule: Schedule = SCHEDULES[name]
    return schedule


class DraftWorker:
    """Drafts in other processes; this base class has none."""

    def attached(self, session: Any) -> Generator[None]:
        """Do what the plan's schedule does around the rounds of a session, from the first item
        until this is closed; the caller takes another item after each round."""
        while True:
            yield

    def processes(self) -> Seq[int]:
        """Ids of the processes that have been started, so that their memory can be measured."""
        return ()

    def wait_until_ready(self) -> None:
        """Wait until they can work, so that their start is no part of a measured answer."""


@dataclass(frozen=True)
class ExtraSource:
    """What extras of a call are made of besides the value that the caller gave."""

    num_rows: int
    tokenizer: Any = None  # of the target; None if it is not known
    chat: ChatSource | None = None  # the messages of the prompts; None if they are not known
    phase: Callable[[str], AbstractContextManager[None]] = no_phase  # measures a stretch of time


# Checks what a caller gave under one name (None for nothing) and makes the value that the drafter
# gets in `TargetContext.extras`. Raises `ConfigError` or `InputError`.
ReadExtra = Callable[[Any, ExtraSource], Any]


@dataclass(frozen=True)
class Plan:
    """How one session answers.

    Args:
        drafter: proposes draft tokens. It keeps state, so a plan serves one session.
        schedule: the order of drafting and verifying.
        prefill: reads prompts with the target.
        acceptance: the rule by which draft tokens are accepted.
        uses_draft: whether the method needs the draft model and its inputs.
        timed: the models with costs on which the choices of the drafter depend
            (`drafting.adaptive.history.calibrate`); empty if it does not choose.
        worker: drafts in other processes; None if this process does everything.
        extras: what the method reads of a call besides the prompts, such as references, by name.
    """

    drafter: Drafter
    schedule: Schedule = field(default_factory=partial(make_schedule, "serial"))
    prefill: Prefill = field(default_factory=FullPrefill)
    acceptance: Acceptance = field(default_factory=Acceptance)
    uses_draft: bool = False
    timed: tuple[Backbone, ...] = ()
    worker: DraftWorker = field(default_factory=DraftWorker)
    extras: Mapping[str, ReadExtra] = field(default_factory=dict)

    @property
    def approximate(self) -> tuple[str, ...]:
        """What may not be exact on the target's side, in words for the user."""
        return (*self.prefill.approximate, *self.acceptance.approximate)

    def processes(self) -> Seq[int]:
        return self.worker.processes()

    def wait_until_ready(self) -> None:
        self.worker.wait_until_ready()
