"""How rows join a session: the target reads their prompts, and the draft reads them later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from draftlens.core.errors import UnsupportedModelError
from draftlens.core.forms import FormProcessor
from draftlens.core.prefill_readings import PrefillFeatures
from draftlens.core.sampling import SamplingRule, check_processors
from draftlens.core.sequence import Sequence, StoppingRules, batch_of, sequences_of
from draftlens.core.tree import EMPTY, DraftTree, Verdict
from draftlens.decoding.observer import Observer
from draftlens.decoding.plan import Plan, TargetContext
from draftlens.models.adapter import Backbone, wait_for
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prepared, Prompt
from draftlens.models.support import Frequencies, changing_frequencies, check_reach, frequencies_of
from draftlens.prefill.base import PrefillOutput, PrefillReading

FIRST = 64
MIN_TOKENS = 16


class PartSize:
    """The tokens of a prompt that can be read in a given time, by the last part that was read."""

    def __init__(self) -> None:
        self._seconds_per_token: float | None = None

    def record(self, num_tokens: int, seconds: float) -> None:
        if num_tokens:
            self._seconds_per_token = seconds / num_tokens

    def within(self, seconds: float) -> int:
        if not self._seconds_per_token:
            return FIRST
        return max(MIN_TOKENS, int(seconds / self._seconds_per_token))


NAMESPACE = "namespace"
"""The extra of a call that names whose entries of the prompt cache it uses."""


@dataclass(frozen=True)
class Arrival:
    """The rows of one call before the target has read them."""

    sequences: list[Sequence]
    prepared: Prepared
    draft_inputs: Mapping[str, Any]
    extras: Mapping[str, Any]
    frequencies: Frequencies

    @property
    def room(self) -> int:
        """Most tokens that an answer may gain."""
        return self.sequences[0].stopping.max_new_tokens

    @property
    def ended(self) -> bool:
        return all(sequence.finished for sequence in self.sequences)


@dataclass(frozen=True)
class Admitted:
    """The rows of one call that the target has read and the draft has not."""

    arrival: Arrival
    prompt: Prompt  # as the target read it
    cache: KVCache  # the target's, of these rows
    readings: PrefillFeatures
    verdict: Verdict  # the first token of each row


class Admission:
    """Checks the calls of a session, and reads their prompts with the target."""

    def __init__(self, target: Backbone, plan: Plan, observer: Observer) -> None:
        plan.prefill.check(target)
        self.waiting: list[Arrival] = []  # not read by the target yet
        self.approximate: tuple[str, ...] = ()  # of the prefills so far
        self.notes: tuple[str, ...] = ()  # for the user, on the rows so far
        self._target = target
        self._plan = plan
        self._observer = observer
        self._readings = plan.drafter.readings | observer.readings
        if target.plain_only and self._readings:
            raise UnsupportedModelError(
                f"{target.plain_only}; its prefill cannot be measured: leave out the readings"
            )
        self._num_added = 0
        # the rows that are being read, and their parts
        self._reading: tuple[Arrival, Iterator[Admitted | None]] | None = None
        self._part_size = PartSize()
        self._delay: float | None = None
        self._frequencies = Frequencies()  # of the rows that were read last

    def add(
        self,
        prepared: Prepared,
        seeds: Seq[int],
        draft_inputs: Mapping[str, Any],
        extras: Mapping[str, Any],
    ) -> list[Sequence]:
        check_processors(prepared.processors)
        do_sample = bool(prepared.config.do_sample)
        self._plan.acceptance.check(do_sample)
        num_rows = len(prepared.input_ids)
        stopping = _stopping_of(prepared)
        length = prepared.input_ids.shape[1]
        processors = tuple(
            each.bound(length, stopping.eos) if isinstance(each, FormProcessor) else each
            for each in prepared.processors
        )
        sampling = SamplingRule(processors, do_sample, self._plan.acceptance.rule)
        frequencies = self._frequencies_of(prepared, stopping)
        if self._plan.drafter.max_nodes:
            prompt = max(prepared.prompt_positions)
            longest = prompt + stopping.max_new_tokens
            check_reach(self._target.name, self._target.text_config, prompt, longest)
        sequences = sequences_of(prepared.input_ids, sampling, stopping, seeds)
        for number, sequence in enumerate(sequences, self._num_added):
            sequence.number = number
        self._num_added += num_rows
        self.notes = (*self.notes, *prepared.notes)
        self.waiting.append(Arrival(sequences, prepared, draft_inputs, extras, frequencies))
        return sequences

    def holds_back(self, running: bool) -> bool:
        """Whether the next call waits until the `running` rows have ended, since in passes with
        them it would have other rotary frequencies than by itself."""
        if not running or self._reading is not None or not self.waiting:
            return False
        return not self.waiting[0].frequencies.allow_passes_with(self._frequencies)

    def would_hold_back(self, prepared: Prepared) -> bool:
        """Whether a call would wait for the rows that the session has. Raises `InputError` as
        `add`."""
        frequencies = self._frequencies_of(prepared, _stopping_of(prepared))
        others = [self._frequencies, *(arrival.frequencies for arrival in self.waiting)]
        return not all(map(frequencies.allow_passes_with, others))

    def _frequencies_of(self, prepared: Prepared, stopping: StoppingRules) -> Frequencies:
        if not changing_frequencies(self._target.text_config):
            return Frequencies()
        return frequencies_of(
            self._target.name,
            self._target.text_config,
            prepared.prompt_positions,
            stopping.max_new_tokens,
            rereads=hasattr(self._target.model.config, "original_max_position_embeddings"),
        )

    @property
    def is_idle(self) -> bool:
        """Whether no rows wait and none are being read."""
        return not self.waiting and self._reading is None

    def holds(self, sequence: Sequence) -> bool:
        """Whether a row waits or is being read."""
        arrivals = self.waiting if self._reading is None else [*self.waiting, self._reading[0]]
        return any(sequence in arrival.sequences for arrival in arrivals)

    def drop_ended(self) -> None:
        """Forget calls all of whose rows have ended before they were read."""
        self.waiting = [each for each in self.waiting if not each.ended]
        if self._reading is not None and self._reading[0].ended:
            self._reading = None

    def read(
        self,
        batch: KVCache | None,
        delay: float | None,
        announce: Callable[[Arrival], None],
        early: Callable[[TargetContext], None],
    ) -> Admitted | None:
        """Encode and prefill the prompts of the next call, and choose the first token of each row.

        Args:
            batch: the cache that the rows will join; None for an empty batch.
            delay: seconds that a part of a long prompt may take: one part is read in each call, and
                all calls but the last return None. With None the prompts are read at once.
            announce: receives the rows before they are read.
            early: receives the target's side of the rows from inside the prefill, as soon as the
                readings are taken.
        """
        self._delay = delay
        if self._reading is None:
            arrival = self.waiting.pop(0)
            self._frequencies = arrival.frequencies
            announce(arrival)
            self._reading = arrival, self._read(arrival, batch, early)
        reading, self._reading = self._reading, None  # after an error these rows are gone
        admitted = next(reading[1])
        if admitted is None:
            self._reading = reading
        return admitted

    def _read(
        self, arrival: Arrival, batch: KVCache | None, early: Callable[[TargetContext], None]
    ) -> Iterator[Admitted | None]:
        sequences = arrival.sequences
        with self._observer.phase("vision"):
            prompt = self._target.encode(arrival.prepared)
            if not self._target.plain_only:
                prompt = replace(prompt, namespace=arrival.extras.get(NAMESPACE))
        in_parts = arrival.frequencies.are_original and self._is_long(prompt)
        if batch is not None and not in_parts:
            cache = batch.new_rows(len(sequences))
        else:  # of its own, since rows may leave the batch between the parts
            room = arrival.room + self._plan.drafter.max_nodes
            cache = self._plan.prefill.new_cache(self._target, prompt, room)
            if self._readings.attention or self._readings.keys:
                cache = cache.whole()

        def hand_on(readings: PrefillFeatures) -> None:
            early(self._context(arrival, prompt, cache, readings))

        parts = self._parts(PrefillReading(prompt, cache, self._readings, hand_on), in_parts)
        output = None
        while output is None:
            began, num_read = perf_counter(), max(cache.lengths)
            with self._observer.phase("target_prefill"):
                output = next(parts)
                if in_parts:
                    wait_for(self._target.device)
            if num_read or prompt.namespace is None:  # the first part restores what was stored
                self._part_size.record(max(cache.lengths) - num_read, perf_counter() - began)
            if output is None:
                yield None
        with self._observer.phase("target_prefill"):
            no_tokens = torch.empty(len(sequences), 0, dtype=torch.long, device=self._target.device)
            verdict = self._plan.acceptance.judge(
                DraftTree.uniform(EMPTY, no_tokens), output.logits, sequences, batch_of(sequences)
            )
        self._collect_notes(sequences, output)
        for sequence, cached in zip(sequences, output.cached, strict=False):
            sequence.cached_tokens = cached
        for sequence in sequences:
            sequence.in_parts = in_parts or sequence.cached_tokens > 0
        yield Admitted(arrival, prompt, cache, output.readings, verdict)

    def _is_long(self, prompt: Prompt) -> bool:
        """Whether reading a prompt at once would delay running rows for too long."""
        size = self._size()
        divides = self._plan.prefill.divides_prompts and not self._target.plain_only
        return divides and size is not None and max(prompt.lengths) > size

    def _size(self) -> int | None:
        return None if self._delay is None else self._part_size.within(self._delay)

    def _parts(self, reading: PrefillReading, in_parts: bool) -> Iterator[PrefillOutput | None]:
        prefill = self._plan.prefill
        if in_parts:
            yield from prefill.run_parts(self._target, reading, self._size)
        else:
            yield prefill.run(self._target, reading)

    def context(self, rows: Admitted) -> TargetContext:
        return self._context(rows.arrival, rows.prompt, rows.cache, rows.readings)

    def _context(
        self, arrival: Arrival, prompt: Prompt, cache: KVCache, readings: PrefillFeatures
    ) -> TargetContext:
        return TargetContext(
            prompt=prompt,
            cache=cache,
            room=arrival.room,
            readings=readings,
            observer=replace(
                self._observer, on_reference=partial(self._on_reference, arrival.sequences)
            ),
            extras=arrival.extras,
            eos=arrival.sequences[0].stopping.eos,
        )

    def _on_reference(self, call: Seq[Sequence], row: int, reference: int) -> None:
        call[row].accepted_by_reference[reference] += 1
        self._observer.on_reference(row, reference)

    def _collect_notes(self, sequences: Seq[Sequence], output: PrefillOutput) -> None:
        new = [name for name in output.approximate if name not in self.approximate]
        self.approximate = (*self.approximate, *new)
        for row, note in output.notes.items():
            self.notes = (*self.notes, f"row {sequences[row].number} was {note}")


def _stopping_of(prepared: Prepared) -> StoppingRules:
    num_rows, length = prepared.input_ids.shape
    return StoppingRules(prepared.criteria, length, num_rows, prepared.pad_token_id)
