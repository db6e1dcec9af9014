"""How rows join a session: the target reads their prompts, and the draft reads them later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch

from draftlens.core.prefill_readings import Readings
from draftlens.core.proposal import DraftTree, Verdict
from draftlens.core.sampling import SamplingRule, check_processors
from draftlens.core.sequence import Sequence, batch_of, sequences_of
from draftlens.core.stopping import StoppingRules
from draftlens.core.tree import EMPTY
from draftlens.decoding.drafter import TargetContext
from draftlens.decoding.observer import Observer
from draftlens.decoding.plan import Plan
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prepared, Prompt
from draftlens.models.rope import check_reach
from draftlens.prefill.base import PrefillOutput
from draftlens.prefill.reading import Reading


@dataclass(frozen=True)
class Arrival:
    """The rows of one call before the target has read them."""

    sequences: list[Sequence]
    prepared: Prepared
    draft_inputs: Mapping[str, Any]
    extras: Mapping[str, Any]

    @property
    def room(self) -> int:
        """Most tokens that an answer may gain."""
        return self.sequences[0].stopping.max_new_tokens


@dataclass(frozen=True)
class Admitted:
    """The rows of one call that the target has read and the draft has not.

    Args:
        arrival: these rows.
        prompt: as the target read it.
        cache: its keys and values of these rows.
        readings: those that were requested.
        verdict: the first token of each row.
    """

    arrival: Arrival
    prompt: Prompt
    cache: KVCache
    readings: Readings
    verdict: Verdict


class Admission:
    """Checks the calls of a session, and reads their prompts with the target.

    Args:
        target: reads.
        plan: of the session.
        observer: is told what drafters do, and measures phases.

    Attributes:
        waiting: rows that the target has not read.
        approximate: what of the prefill was not exact for the rows read so far.
        notes: what the user should know about the rows read so far.
    """

    def __init__(self, target: Backbone, plan: Plan, observer: Observer) -> None:
        plan.prefill.check(target)
        self.waiting: list[Arrival] = []
        self.approximate: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._target = target
        self._plan = plan
        self._observer = observer
        self._readings = plan.drafter.readings | observer.readings
        self._num_added = 0

    def add(
        self,
        prepared: Prepared,
        seeds: Seq[int],
        draft_inputs: Mapping[str, Any],
        extras: Mapping[str, Any],
    ) -> list[Sequence]:
        """See `Session.add`."""
        check_processors(prepared.processors)
        do_sample = bool(prepared.config.do_sample)
        self._plan.acceptance.check(do_sample)
        num_rows, length = prepared.input_ids.shape
        sampling = SamplingRule(prepared.processors, do_sample, self._plan.acceptance.rule)
        stopping = StoppingRules(prepared.criteria, length, num_rows, prepared.pad_token_id)
        if self._plan.drafter.max_nodes:
            longest = length + stopping.max_new_tokens
            check_reach(self._target.name, self._target.text_config, length, longest)
        sequences = sequences_of(prepared.input_ids, sampling, stopping, seeds)
        for number, sequence in enumerate(sequences, self._num_added):
            sequence.number = number
        self._num_added += num_rows
        self.notes = (*self.notes, *prepared.notes)
        self.waiting.append(Arrival(sequences, prepared, draft_inputs, extras))
        return sequences

    def read(
        self, arrival: Arrival, batch: KVCache | None, early: Callable[[TargetContext], None]
    ) -> Admitted:
        """Encode and prefill the prompts of rows, and choose the first token of each.

        Args:
            arrival: the rows.
            batch: the cache that they will join; None for an empty batch.
            early: receives the target's side of the rows as soon as the readings are taken, from
                inside the prefill.
        """
        sequences = arrival.sequences
        with self._observer.phase("vision"):
            prompt = self._target.encode(arrival.prepared)
            if batch is None:
                room = arrival.room + self._plan.drafter.max_nodes
                cache = self._plan.prefill.new_cache(self._target, prompt, room)
            else:
                cache = batch.new_rows(len(sequences))

        def hand_on(readings: Readings) -> None:
            early(self._context(arrival, prompt, cache, readings))

        with self._observer.phase("target_prefill"):
            reading = Reading(prompt, cache, self._readings, hand_on)
            output = self._plan.prefill.run(self._target, reading)
            no_tokens = torch.empty(len(sequences), 0, dtype=torch.long, device=self._target.device)
            verdict = self._plan.acceptance.judge(
                DraftTree.uniform(EMPTY, no_tokens), output.logits, sequences, batch_of(sequences)
            )
        self._collect_notes(sequences, output)
        return Admitted(arrival, prompt, cache, output.readings, verdict)

    def context(self, rows: Admitted) -> TargetContext:
        """The target's side of rows that it has read."""
        return self._context(rows.arrival, rows.prompt, rows.cache, rows.readings)

    def _context(
        self, arrival: Arrival, prompt: Prompt, cache: KVCache, readings: Readings
    ) -> TargetContext:
        return TargetContext(
            prompt=prompt,
            cache=cache,
            room=arrival.room,
            readings=readings,
            observer=self._observer,
            extras=arrival.extras,
            eos=arrival.sequences[0].stopping.eos,
        )

    def _collect_notes(self, sequences: Seq[Sequence], output: PrefillOutput) -> None:
        new = [name for name in output.approximate if name not in self.approximate]
        self.approximate = (*self.approximate, *new)
        for row, note in output.notes.items():
            self.notes = (*self.notes, f"row {sequences[row].number} was {note}")
