"""Rows of a request while their answers grow: histories, where answers end, batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StopStringCriteria,
)

from draftlens.core.logprobs import LogprobRecord
from draftlens.core.repetition import LoopCriterion
from draftlens.core.sampling import SEED_MASK, NodeHistories, SamplingRule, generator_of
from draftlens.core.tree import ROOT, Topology, path_to, upload


@dataclass(frozen=True, eq=False)
class History:
    """One sequence up to a moment. Tokens that are emitted later do not change it.

    Args:
        prompt_ids: int64 ``[L]``, left-padded as in stock `generate`: processors and criteria read
            it.
        answer: the token list of the sequence, which only ever grows; the first `length` tokens
            count.
        seed: seed of the sampling noise, in [0, 2**63).
        row, num_rows: the row in its call of `generate`, and the rows of that call.
        from_draft: for each token of `answer`, whether the draft supplied it.
    """

    prompt_ids: Tensor
    answer: list[int]
    length: int
    seed: int
    sampling: SamplingRule
    row: int = 0
    num_rows: int = 1
    finished: bool = False
    from_draft: Seq[bool] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self.answer[: self.length])

    @property
    def last_token(self) -> int:
        return self.answer[self.length - 1]

    def ids(self, more: Seq[int] = ()) -> Tensor:
        """Prompt, answer and `more`, int64 ``[length]``."""
        answer = self.prompt_ids.new_tensor([*self.answer[: self.length], *more])
        return torch.cat([self.prompt_ids, answer])

    def extended(self, more: Seq[int]) -> History:
        answer = [*self.tokens, *more]
        return replace(self, answer=answer, length=len(answer))


ROW_WISE = (StopStringCriteria, MaxTimeCriteria, LoopCriterion)
"""Criteria that decide about each row independently of the others."""


@dataclass(frozen=True)
class Emission:
    """How many of the verdict's tokens a row emits, and whether its answer ends with them."""

    count: int
    finished: bool


class StoppingRules:
    """Decides token by token like stock `generate`, although several tokens arrive at a time.

    Args:
        criteria: of transformers. End-of-sequence ids and lengths are extracted and cheap; all
            others are called for every single token.
        prompt_length: L, padding included, as stock `generate` counts.
        pad_token_id: written by stock `generate` after the end of a row.

    Attributes:
        in_step: whether all rows must emit equally many tokens in every round: a criterion may
            compare rows, and without an end-of-sequence id stock `generate` continues every row
            until all rows have met a criterion.
    """

    def __init__(
        self,
        criteria: Seq[Any],
        prompt_length: int,
        num_rows: int = 1,
        pad_token_id: int = 0,
    ) -> None:
        eos_criteria = [c for c in criteria if isinstance(c, EosTokenCriteria)]
        limits = [
            c.max_length - prompt_length for c in criteria if isinstance(c, MaxLengthCriteria)
        ]
        self.eos = frozenset(
            int(token) for c in eos_criteria for token in c.eos_token_id.flatten().tolist()
        )
        self.max_new_tokens: int = max(1, min(limits, default=1))
        self.pad_token_id = pad_token_id
        self.criteria = [
            c for c in criteria if not isinstance(c, (EosTokenCriteria, MaxLengthCriteria))
        ]
        # Stock `generate` pads rows that have ended only if a criterion has this attribute.
        self._pads = any(hasattr(c, "eos_token_id") for c in criteria)
        row_wise = all(isinstance(c, ROW_WISE) for c in self.criteria)
        can_be_alone = not self.criteria or (row_wise and self._pads)
        self.in_step = num_rows > 1 and not can_be_alone
        self._met: set[int] = set()

    def cut(self, history: History, tokens: Seq[int]) -> Emission:
        """How many of `tokens` one row emits, independently of other rows."""
        for count, token in enumerate(tokens, start=1):
            if self._ends(history, token, count) or self._row_meets_criterion(
                history, tokens[:count]
            ):
                return Emission(count, finished=True)
        return Emission(len(tokens), finished=False)

    def cut_in_step(self, histories: Seq[History], tokens: Seq[Seq[int]]) -> list[Emission]:
        """`cut` for all rows of the call, equally many tokens in each running row."""
        running = [row for row, history in enumerate(histories) if not history.finished]
        self._met.update(row for row, history in enumerate(histories) if history.finished)
        longest = min(len(tokens[row]) for row in running)
        ended_at: dict[int, int] = {}
        for count in range(1, longest + 1):
            ids = self._ids_in_step(histories, tokens, count, ended_at)
            ends = self._all_meet_criterion(ids)
            for row in running:
                if ends[row] or self._ends(histories[row], tokens[row][count - 1], count):
                    self._met.add(row)
                    if self._pads:
                        ended_at.setdefault(row, count)
            if len(self._met) == len(histories):
                for row in running:
                    ended_at.setdefault(row, count)
                longest = count
                break
        return [
            Emission(ended_at.get(row, longest), finished=row in ended_at)
            for row in range(len(histories))
        ]

    def _ends(self, history: History, token: int, count: int) -> bool:
        return token in self.eos or history.length + count >= self.max_new_tokens

    def _row_meets_criterion(self, history: History, new: Seq[int]) -> bool:
        if not self.criteria:
            return False
        ids = history.ids(new)[None]
        return any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in self.criteria)

    def _all_meet_criterion(self, ids: Tensor) -> list[bool]:
        """Per row whether any criterion is met; a scalar criterion counts for all rows."""
        met = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for criterion in self.criteria:
            met |= torch.as_tensor(criterion(ids, None), device=ids.device).bool()
        return met.tolist()

    def _ids_in_step(
        self,
        histories: Seq[History],
        tokens: Seq[Seq[int]],
        count: int,
        ended_at: dict[int, int],
    ) -> Tensor:
        """What stock `generate` passes to its criteria after `count` new tokens, ``[B, n]``."""
        rows = [
            history.ids(() if history.finished else tokens[row][: ended_at.get(row, count)])
            for row, history in enumerate(histories)
        ]
        return torch.nn.utils.rnn.pad_sequence(
            rows, batch_first=True, padding_value=self.pad_token_id
        )


@dataclass(frozen=True, eq=False)
class Batch:
    histories: tuple[History, ...]
    _tables: dict[torch.device, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.histories)

    @cached_property
    def rules(self) -> dict[SamplingRule, list[int]]:
        rows: dict[SamplingRule, list[int]] = {}
        for row, history in enumerate(self.histories):
            rows.setdefault(history.sampling, []).append(row)
        return rows

    @cached_property
    def rejects(self) -> bool:
        """Whether any row uses rejection sampling, which needs the draft's probabilities."""
        return any(rule.rejects for rule in self.rules)

    @cached_property
    def is_greedy(self) -> bool:
        """Whether every row takes the argmax of the unprocessed logits."""
        return not any(rule.do_sample or rule.processors for rule in self.rules)

    def roots(self, device: torch.device) -> Tensor:
        """Last emitted tokens, the roots of the next draft trees, int64 ``[B, 1]``."""
        return self._table(device)[0]

    def steps(self, device: torch.device) -> Tensor:
        """Index in its answer of the token that each row chooses next, int64 ``[B, 1]``."""
        return self._table(device)[1]

    def seeds(self, device: torch.device) -> Tensor:
        """Seeds of the rows' noise, int64 ``[B]``."""
        return self._table(device)[2, :, 0]

    def _table(self, device: torch.device) -> Tensor:
        """Roots, steps and seeds, int64 ``[3, B, 1]``, of one copy to the device."""
        if device not in self._tables:
            rows = [(h.last_token if h.length else 0, h.length, h.seed) for h in self.histories]
            self._tables[device] = upload(rows, device).t()[..., None]
        return self._tables[device]

    def process(
        self,
        logits: Tensor,
        topologies: Seq[Topology],
        tokens: Tensor,
        nodes: Seq[Seq[int]],
    ) -> Tensor:
        """Scores after the logits processors, ``[B, M, V]`` like `logits`, at M nodes of each row's
        tree (`nodes`, `ROOT` allowed; shorter lists are followed by fillers). Of the draft tokens,
        int64 ``[B, N]``, only ancestors of `nodes` are read."""
        if len(self.rules) == 1:
            rule = next(iter(self.rules))
            all_rows = range(len(self))
            return rule.process(
                logits, lambda: self.node_histories(all_rows, topologies, tokens, nodes)
            )
        dtype = logits.dtype if all(not rule.processors for rule in self.rules) else torch.float32
        scores = logits.to(dtype, copy=True)
        for rule, rows in self.rules.items():

            def histories(rows: list[int] = rows) -> Iterator[NodeHistories]:
                return self.node_histories(rows, topologies, tokens, nodes)

            scores[rows] = rule.process(logits[rows], histories).to(dtype)
        return scores

    def ranking(self, scores: Tensor, steps: Tensor) -> Tensor:
        """`SamplingRule.ranking` of processed scores ``[B, M, V]``; `steps` is the index in its
        answer of the token chosen at each node, int64 ``[B, M]``."""
        if not any(rule.do_sample for rule in self.rules):
            return scores
        seeds = self.seeds(steps.device)
        if len(self.rules) == 1:
            return next(iter(self.rules)).ranking(scores, seeds, steps)
        ranking = scores.double()
        for rule, rows in self.rules.items():
            ranking[rows] = rule.ranking(scores[rows], seeds[rows], steps[rows]).double()
        return ranking

    def node_histories(
        self,
        rows: Seq[int],
        topologies: Seq[Topology],
        tokens: Tensor,
        nodes: Seq[Seq[int]],
    ) -> Iterator[NodeHistories]:
        """Histories at nodes of some rows' trees, grouped by length; arguments as for `process`.
        `NodeHistories.index` counts within `rows`."""
        table = tokens.tolist()
        for index, row in enumerate(rows):
            history = self.histories[row]
            topology = topologies[row]
            by_depth: dict[int, list[int]] = {}
            for place, node in enumerate(nodes[row]):
                depth = 0 if node == ROOT else topology.depths[node]
                by_depth.setdefault(depth, []).append(place)
            for places in by_depth.values():
                ids = [
                    history.ids([table[row][n] for n in path_to(topology, nodes[row][place])])
                    for place in places
                ]
                yield NodeHistories(index, places, torch.stack(ids), history.row, history.num_rows)


@dataclass(eq=False)
class Sequence:
    """One row of a request: its prompt, its rules and the answer so far (`tokens`).

    Args:
        prompt_ids: int64 ``[L]``, left-padded as stock `generate` has them.
        stopping: one object for all rows of a call.
        seed: seed of the sampling noise, in [0, 2**63).
        row, num_rows: the row in its call, and the rows of the call.
        number: the number of the sequence in its session, in order of arrival.
        from_draft: for each token, whether the draft supplied it.
        drafted: draft tokens that were verified for it.
        accepted_by_reference: accepted draft tokens by the index of their reference; -1 stands for
            the prompt and the answer itself.
        cached_tokens: tokens of the prompt that came from the prompt cache.
        logprobs: the log probabilities of `tokens`; None if they are not recorded.
        in_parts: whether the prompt was read in several passes, now or for the prompt cache.
        call: all rows of the call, in order.
    """

    prompt_ids: Tensor
    sampling: SamplingRule
    stopping: StoppingRules
    seed: int = 0
    row: int = 0
    num_rows: int = 1
    number: int = 0
    tokens: list[int] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
    drafted: int = 0
    accepted_by_reference: Counter[int] = field(default_factory=Counter)
    cached_tokens: int = 0
    logprobs: LogprobRecord | None = None
    in_parts: bool = False
    finished: bool = False
    call: Seq[Sequence] = field(default=(), repr=False)

    @cached_property
    def generator(self) -> torch.Generator:
        """The noise of rejection sampling, which advances with every verdict."""
        return generator_of(self.seed + 1)

    @property
    def remaining(self) -> int:
        return 0 if self.finished else self.stopping.max_new_tokens - len(self.tokens)

    @property
    def history(self) -> History:
        return History(
            prompt_ids=self.prompt_ids,
            answer=self.tokens,
            length=len(self.tokens),
            seed=self.seed,
            sampling=self.sampling,
            row=self.row,
            num_rows=self.num_rows,
            finished=self.finished,
            from_draft=self.from_draft,
        )

    def append(self, tokens: Seq[int], emission: Emission, num_drafted: int) -> tuple[bool, ...]:
        """Emit the first tokens of a verdict, of which the draft supplied `num_drafted`; returns
        for each whether the draft supplied it."""
        from_draft = tuple(index < num_drafted for index in range(emission.count))
        self.tokens.extend(tokens[: emission.count])
        self.from_draft.extend(from_draft)
        self.finished = emission.finished
        return from_draft


def sequences_of(
    prompt_ids: Tensor, sampling: SamplingRule, stopping: StoppingRules, seeds: Seq[int]
) -> list[Sequence]:
    """The sequences of one call: `prompt_ids` int64 ``[B, L]``, left-padded, and a seed per row."""
    num_rows = len(prompt_ids)
    rows = [
        Sequence(ids, sampling, stopping, seed & SEED_MASK, row, num_rows)
        for row, (ids, seed) in enumerate(zip(prompt_ids, seeds, strict=True))
    ]
    for row in rows:
        row.call = rows
    return rows


def batch_of(sequences: Seq[Sequence]) -> Batch:
    return Batch(tuple(sequence.history for sequence in sequences))


def emissions_of(sequences: Seq[Sequence], tokens: Seq[Seq[int]]) -> list[Emission]:
    """How many of its new tokens each row emits; zero in finished rows."""
    emissions = [Emission(0, finished=True)] * len(sequences)
    row_of = {sequence: row for row, sequence in enumerate(sequences)}
    calls_in_step: dict[StoppingRules, Seq[Sequence]] = {}
    for row, sequence in enumerate(sequences):
        if sequence.finished:
            continue
        if sequence.stopping.in_step:
            calls_in_step[sequence.stopping] = sequence.call
        else:
            emissions[row] = sequence.stopping.cut(sequence.history, tokens[row])
    for stopping, call in calls_in_step.items():
        # Rows of the call that have left the batch have ended.
        new = [tokens[row_of[each]] if each in row_of else () for each in call]
        cuts = stopping.cut_in_step([each.history for each in call], new)
        for sequence, emission in zip(call, cuts, strict=True):
            if not sequence.finished:
                emissions[row_of[sequence]] = emission
    return emissions


T = TypeVar("T")


def replace_by_last(table: list[T], row: int) -> None:
    last = table.pop()
    if row < len(table):
        table[row] = last


def without_row(table: Tensor, row: int) -> Tensor:
    """``[..., B, 1]`` to ``[..., B - 1, 1]``: the last row takes the place of `row`."""
    shorter = table[..., :-1, :].clone()
    if row < shorter.shape[-2]:
        shorter[..., row, :] = table[..., -1, :]
    return shorter
