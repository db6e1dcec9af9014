"""One row of a request while its answer grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from draftlens.core.batch import Batch
from draftlens.core.history import History
from draftlens.core.sampling import SEED_MASK, SamplingRule, generator_of
from draftlens.core.stopping import Emission, StoppingRules


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
