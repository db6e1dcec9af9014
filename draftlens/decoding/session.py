"""A batch while it is answered. Each method of `Session` is one step of a request's life."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.errors import InputError, UnsupportedModelError
from draftlens.core.result import Chunk
from draftlens.core.sequence import (
    Batch,
    Emission,
    Sequence,
    batch_of,
    emissions_of,
    replace_by_last,
    without_row,
)
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import DraftTree, NextProposal, Topology, Verdict
from draftlens.decoding.admission import Admission, Admitted, Arrival
from draftlens.decoding.observer import NO_OBSERVER, Observer, StatsRecorder, ignore
from draftlens.decoding.plan import Plan, TargetContext
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prepared, Prompt, remembering
from draftlens.models.prompt_reading import store_answer
from draftlens.models.support import changing_frequencies

PART_SECONDS = 0.05
"""Delay of running rows by the part of a prompt that is read between two rounds."""

NO_EXTRAS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class SessionHooks:
    """What a schedule does inside the steps of a session; a hook that is not given does nothing.

    Args:
        announce: receives rows that the target is about to read (a batch without any token yet),
            their draft inputs, the most tokens that an answer may gain, and whether the choices of
            the pruner are observed.
        read: receives the target's side of these rows from inside the prefill, as soon as the
            readings are taken. Its cache may not hold the whole prompt yet.
        next_proposals: the draft tokens after those of the proposal (a chain in each row) that the
            target has just checked, one for each row; None for all rows or one without any. Called
            only if a row uses rejection sampling.
    """

    announce: Callable[[Batch, Mapping[str, Any], int, bool], None] = ignore
    read: Callable[[TargetContext], None] = ignore
    next_proposals: Callable[[DraftTree], Seq[NextProposal | None] | None] = ignore


class Session:
    """Everything that changes while a batch is answered.

    Between rounds, and also when a consumer stops early, a running row's cache holds its prompt and
    all tokens it emitted but the last, which is the root of the next tree. Rows that have ended
    leave before the next round. The drafter of a plan serves one session only.
    """

    def __init__(
        self, target: Backbone, plan: Plan, clock: Clock, observer: Observer = NO_OBSERVER
    ) -> None:
        self.target = target
        self.drafter = plan.drafter
        self.acceptance = plan.acceptance
        self.clock = clock
        self.hooks = SessionHooks()  # set by the schedule
        # rows of the batch: those that run, and those that ended in the last round, in any order
        self.sequences: list[Sequence] = []
        self.prompt_lengths: list[int] = []  # without padding
        self.cache: KVCache | None = None  # the target's
        self._cuts_all = bool(changing_frequencies(target.text_config))
        self._recorder = StatsRecorder(clock, observer)
        self._admission = Admission(target, plan, self._recorder.observer)
        self._unread: list[Admitted] = []
        self._next_position: Tensor | None = None
        self._base: list[int] = []
        self._round_seconds = 0.0
        self._round_began = 0.0
        self._batch = Batch(())

    @property
    def stats(self) -> Stats:
        return self.clock.stats

    @property
    def approximate(self) -> tuple[str, ...]:
        """What of the prefill was not exact for the rows read so far."""
        return self._admission.approximate

    @property
    def notes(self) -> tuple[str, ...]:
        return self._admission.notes

    @property
    def waiting(self) -> bool:
        """Whether there are rows that the target has not read."""
        return not self._admission.is_idle

    @property
    def holds_back(self) -> bool:
        """Whether the next call waits until the running rows have ended."""
        return self._admission.holds_back(self.running)

    def admits(self, prepared: Prepared) -> bool:
        """Whether the rows of a call may share passes with those of the session. Raises
        `InputError` as `add`."""
        return self.done or not self._admission.would_hold_back(prepared)

    @property
    def running(self) -> bool:
        """Whether a row that the target has read goes on."""
        return not all(sequence.finished for sequence in self.sequences)

    @property
    def done(self) -> bool:
        """Whether every row has ended and no request waits."""
        return not self.waiting and not self.running

    def add(
        self,
        prepared: Prepared,
        seeds: Seq[int],
        draft_inputs: Mapping[str, Any] = NO_EXTRAS,
        extras: Mapping[str, Any] = NO_EXTRAS,
    ) -> list[Sequence]:
        """Let the rows of a call join; they are read by the next `start`.

        `prepared` comes from stock `generate`; `seeds` are those of the rows' noise. Returns the
        sequences of these rows, in order. Their tokens depend neither on the other rows of the
        batch nor on the moment at which they join.

        Raises:
            ConfigError: a logits processor cannot be applied to draft tokens, or tokens are to be
                drawn while draft tokens are accepted with tolerance.
            InputError: draft tokens could change the target's rotary positions (`models.support`).
        """
        return self._admission.add(prepared, seeds, draft_inputs, extras)

    def remove(self, sequence: Sequence) -> None:
        """End a row between two rounds, also one that waits or of whose prompt a part is read; the
        last row takes its place in the batch. Raises InputError for a sequence that has left."""
        if not self.holds(sequence):
            raise InputError("only a sequence of the session can be removed")
        sequence.finished = True
        if sequence in self.sequences:
            self._read_by_draft()
            self._drop([self.sequences.index(sequence)])
        else:
            self._admission.drop_ended()

    def holds(self, sequence: Sequence) -> bool:
        """Whether a row is in the batch, or waits for it."""
        return sequence in self.sequences or self._admission.holds(sequence)

    def _drop_ended(self) -> None:
        """Let rows that have ended leave, so that the next passes hold running rows only."""
        ended = [row for row, sequence in enumerate(self.sequences) if sequence.finished]
        if ended:
            with self.clock.phase("rollback"):
                self._drop(ended)

    def _drop(self, rows: Seq[int]) -> None:
        assert self.cache is not None
        for row in sorted(rows, reverse=True):  # so that none of them takes a place
            assert self._next_position is not None
            self.cache.remove(row)
            self.drafter.remove(row)
            self._next_position = without_row(self._next_position, row)
            replace_by_last(self.sequences, row)
            replace_by_last(self.prompt_lengths, row)
        self._batch = batch_of(self.sequences)

    def start(self) -> list[Chunk]:
        """Encode and prefill the rows that wait, and take the first token of each. Beside running
        rows a long prompt is read in parts, one in each call, which delays them by at most
        `PART_SECONDS` or the time of a round, whichever is longer. Rows whose rotary frequencies
        differ from those of running rows wait until these have ended."""
        if not self._unread:
            self._drop_ended()
        chunks: list[Chunk] = []
        while not self._admission.is_idle and not self.holds_back:
            batch = self.cache if self.sequences else None
            rows = self._admission.read(batch, self._delay(), self._announce, self.hooks.read)
            if rows is None:
                break
            chunks += self._admit(rows)
        return chunks

    def _delay(self) -> float | None:
        """Seconds that reading prompts may delay running rows; None if there are none."""
        return max(PART_SECONDS, self._round_seconds) if self.running else None

    def _announce(self, arrival: Arrival) -> None:
        self.hooks.announce(
            batch_of(arrival.sequences),
            arrival.draft_inputs,
            arrival.room,
            self._recorder.observer.wants_choices,
        )

    def _admit(self, rows: Admitted) -> list[Chunk]:
        sequences = rows.arrival.sequences
        emissions = emissions_of(sequences, rows.verdict.tokens)
        chunks = _emit(sequences, rows.verdict, emissions)
        self._join(sequences, rows.prompt, rows.cache)
        self._unread.append(rows)
        self.stats.draft_forwards = self.drafter.forwards
        self.stats.cached_tokens += sum(sequence.cached_tokens for sequence in sequences)
        self._recorder.prefilled(emissions)
        return chunks

    def _join(self, sequences: Seq[Sequence], prompt: Prompt, cache: KVCache) -> None:
        if self.cache is None or self._next_position is None or not self.sequences:
            self.cache = cache
            self._next_position = prompt.next_position
        else:
            self.cache.join(cache if cache.shares(self.cache) else self.cache.copied(cache))
            self._next_position = torch.cat([self._next_position, prompt.next_position], dim=-2)
        self.sequences += sequences
        self.prompt_lengths += prompt.lengths
        self._batch = batch_of(self.sequences)

    def begin(self) -> None:
        """Let the drafter read the prompts of rows that joined, and rows that have ended leave."""
        self._read_by_draft()
        self._drop_ended()

    def _read_by_draft(self) -> None:
        while self._unread:
            rows = self._unread.pop(0)
            with self.clock.phase("draft_prefill"):
                context = self._admission.context(rows)
                with remembering(context.prompt.namespace):
                    encoded = self.drafter.encode(rows.arrival.draft_inputs)
                    self.drafter.begin(batch_of(rows.arrival.sequences), encoded, context)

    def propose(self) -> DraftTree:
        """Request draft tokens, at most as deep as the longest answer that may still come."""
        self._round_began = time.perf_counter()
        with self.clock.phase("draft"):
            budget = max(sequence.remaining for sequence in self.sequences) - 1
            tree = self.drafter.propose(self._batch, budget)
            topologies = self._within_answers(tree.topologies)
            if self.target.chains_only and any(t.depth < len(t) for t in topologies):
                raise UnsupportedModelError(f"{self.target.chains_only}, not a tree")
            # The widest row of a draft that runs ahead may be the one that is cut.
            tokens = tree.tokens[:, : max(map(len, topologies))]
            return DraftTree(topologies, tokens.to(self.target.device), tree.probs)

    def _within_answers(self, topologies: Seq[Topology]) -> tuple[Topology, ...]:
        """The trees of a proposal without the nodes beyond the end of each row's own answer.

        Rejection sampling needs this, where every verified draft token uses noise, and rotary
        frequencies that follow from the furthest position: the last tokens of a row would depend on
        how long the answers of the other rows may become.
        """
        if not (self._batch.rejects or self._cuts_all):
            return tuple(topologies)
        cuts = list(topologies)
        for row, sequence in enumerate(self.sequences):
            if sequence.sampling.rejects or self._cuts_all:
                cuts[row] = trees.cut(topologies[row], max(sequence.remaining - 1, 0))
        return tuple(cuts)

    def check(self, tree: DraftTree) -> Verdict:
        """One target forward over the last token and all draft tokens, and the verdict on them."""
        assert self.cache is not None
        assert self._next_position is not None
        with self.clock.phase("verify"):
            device = self.target.device
            self._base = list(self.cache.lengths)
            tokens = torch.cat([self._batch.roots(device), tree.tokens], 1)
            depths = trees.batch_depths(tree.topologies, device)
            positions = self._next_position + (self._batch.steps(device) - 1 + depths)
            window = trees.batch_ancestors(tree.topologies, device)
            mask = trees.attention_mask(self._base, window)
            logits = self.target.forward(tokens, positions, self.cache, mask)
            next_proposals = self.hooks.next_proposals(tree) if self._batch.rejects else None
            verdict = self.acceptance.judge(
                tree, logits, self.sequences, self._batch, next_proposals
            )
        self._recorder.checked(self.sequences, tree)
        if self.drafter.needs_target_scores:
            return verdict
        return replace(verdict, scores=None)

    def accept(self, verdict: Verdict) -> list[Chunk]:
        """Emit the accepted tokens and roll both caches back to them."""
        assert self.cache is not None
        with self.clock.phase("rollback"):
            emissions = emissions_of(self.sequences, verdict.tokens)
            chunks = _emit(self.sequences, verdict, emissions)
            # The root and the accepted nodes stay, as far as the row goes on; its last token is the
            # next root.
            slots = [
                [0, *(node + 1 for node in path)][: emission.count]
                for path, emission in zip(verdict.paths, emissions, strict=True)
            ]
            self.cache.keep(self._base, slots)
            self._batch = batch_of(self.sequences)
            self.drafter.update(_emitted_part(verdict, emissions), self._batch)
            self.stats.draft_forwards = self.drafter.forwards
            self._recorder.accepted(verdict, emissions)
            self._store_ended()
        self._round_seconds = time.perf_counter() - self._round_began
        self.clock.mark_last()  # after the phase, which must not be longer than the whole
        return chunks

    def _store_ended(self) -> None:
        """Store rows that have just ended in the prompt cache, if there is one."""
        assert self.cache is not None
        assert self._next_position is not None
        for row, sequence in enumerate(self.sequences):
            if sequence.finished and self.cache.held[row] is not None:
                count = self.cache.lengths[row] - self.prompt_lengths[row]
                tokens = sequence.history.tokens[:count]
                position = self._next_position[..., row, :]
                store_answer(self.target, self.cache, row, tokens, position)


def _emit(sequences: Seq[Sequence], verdict: Verdict, emissions: Seq[Emission]) -> list[Chunk]:
    """Append each running row's new tokens, as far as its answer goes."""
    chunks = []
    for row, (sequence, emission) in enumerate(zip(sequences, emissions, strict=True)):
        if sequence.finished:
            continue
        tokens = verdict.tokens[row]
        from_draft = sequence.append(tokens, emission, len(verdict.paths[row]))
        record = sequence.logprobs
        logprobs = () if record is None else record.add(verdict.logprobs[row][: emission.count])
        chunks.append(Chunk(tokens[: emission.count], from_draft, "", sequence.number, logprobs))
    return chunks


def _emitted_part(verdict: Verdict, emissions: Seq[Emission]) -> Verdict:
    """The verdict as far as its tokens were emitted: rows that advance in step may emit fewer, and
    then the last of these tokens is the root of the next tree."""
    paths = list(verdict.paths)
    tokens = list(verdict.tokens)
    for row, emission in enumerate(emissions):
        if 0 < emission.count < len(tokens[row]):
            tokens[row] = tokens[row][: emission.count]
            paths[row] = paths[row][: emission.count - 1]
    return replace(verdict, paths=tuple(paths), tokens=tuple(tokens))
