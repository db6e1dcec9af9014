"""A batch while it is answered: target, cache, sequences, drafter. Each method is one step of a
request's life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.batch import Batch
from draftlens.core.errors import ConfigError, InputError
from draftlens.core.prefill_readings import NO_READINGS, Readings, ReadingSpec
from draftlens.core.proposal import DraftTree, NextGuess, Verdict
from draftlens.core.references import NO_REFERENCES, References
from draftlens.core.result import Chunk
from draftlens.core.rows import replace_by_last, without_row
from draftlens.core.sampling import SamplingRule, check_processors
from draftlens.core.sequence import Sequence, sequences_of
from draftlens.core.stats import Clock, Stats, ViewStats
from draftlens.core.stopping import Emission, StoppingRules
from draftlens.core.timeline import DISCARDED
from draftlens.core.tree import EMPTY, ROOT, Topology
from draftlens.core.verify import match, reject, tolerant
from draftlens.core.view_record import Weighed
from draftlens.decoding.drafter import Drafter, DraftLane, TargetContext, ignore
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prepared, Prompt
from draftlens.models.rope import check_reach
from draftlens.prefill.base import Prefill, PrefillOutput
from draftlens.prefill.reading import Reading
from draftlens.pruning import Choice


@dataclass(frozen=True)
class _Arrival:
    """The rows of one call before the target has read them."""

    sequences: list[Sequence]
    prepared: Prepared
    draft_inputs: Mapping[str, Any]
    references: References


@dataclass(frozen=True)
class _Unread:
    """The rows of one call that the drafter has not read yet."""

    sequences: list[Sequence]
    draft_inputs: Mapping[str, Any]
    prompt: Prompt
    cache: KVCache
    readings: Readings
    references: References


class Session:
    """Everything that changes while a batch is answered.

    Between rounds, and also when a consumer stops early, a running row's cache holds its prompt and
    all tokens it emitted but the last, which is the root of the next tree.

    Args:
        target: the model that decides.
        drafter: guesses.
        prefill: reads prompts with the target.
        clock: receives times.
        acceptance: `"coupled"` or `"rejection"`.
        tolerance: τ of `core.verify.tolerant`, which decides in place of `acceptance` if it is
            below 1.
        readings: readings of the target's prefill besides those that the drafter needs.
        observe: receives every choice of a pruner.
        lane: the part of the drafter that works while the target reads; None if it has none.
        observe_weighed: receives what each token shows about the views of an ensemble.

    Attributes:
        sequences: the rows of the batch. `remove` may change their order.
        prompt_lengths: tokens of each row's prompt, padding not counted.
        cache: the target's keys and values.
        approximate: what of the prefill was not exact for the rows read so far.
        notes: what the user should know about the rows read so far.
    """

    def __init__(
        self,
        target: Backbone,
        drafter: Drafter,
        prefill: Prefill,
        clock: Clock,
        acceptance: str = "coupled",
        readings: ReadingSpec = NO_READINGS,
        observe: Callable[[Choice], None] | None = None,
        lane: DraftLane | None = None,
        observe_weighed: Callable[[Weighed], None] = ignore,
        tolerance: float = 1.0,
    ) -> None:
        prefill.check(target)
        self.target = target
        self.drafter = drafter
        self.prefill = prefill
        self.clock = clock
        self.acceptance = acceptance
        self.tolerance = tolerance
        self.sequences: list[Sequence] = []
        self.prompt_lengths: list[int] = []
        self.cache: KVCache | None = None
        self.approximate: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._readings = drafter.readings | readings
        self._lane = lane
        self._observe = observe
        self._observe_weighed = observe_weighed
        self._arrivals: list[_Arrival] = []
        self._unread: list[_Unread] = []
        self._calls_in_step: dict[StoppingRules, list[Sequence]] = {}
        self._num_added = 0
        self._next_position: Tensor | None = None
        self._base: list[int] = []
        self._num_checked = 0
        self._batch = Batch(())

    @property
    def stats(self) -> Stats:
        """The counters of this batch."""
        return self.clock.stats

    @property
    def cores_of_draft(self) -> int:
        """Cores that a drafter in a lane of its own keeps busy."""
        return self._lane.cores if self._lane is not None else 0

    @property
    def running(self) -> bool:
        """Whether a row that the target has read goes on."""
        return not all(sequence.finished for sequence in self.sequences)

    @property
    def done(self) -> bool:
        """Whether every row has ended and no request waits."""
        return not self._arrivals and not self.running

    def add(
        self,
        prepared: Prepared,
        seeds: Seq[int],
        draft_inputs: Mapping[str, Any] | None = None,
        references: References = NO_REFERENCES,
    ) -> list[Sequence]:
        """Let the rows of a call join; they are read by the next `start`.

        Args:
            prepared: the call, as stock `generate` prepared it.
            seeds: seed of each row's noise.
            draft_inputs: the output of the draft's processor for these rows.
            references: texts that the drafter may guess from, one entry for each of these rows.

        Returns:
            The sequences of these rows, in order. Their tokens depend neither on the other rows of
            the batch nor on the moment at which they join.

        Raises:
            ConfigError: a logits processor cannot be applied to guesses, or tokens are to be drawn
                while guesses are accepted with tolerance.
            InputError: guesses could change the target's rotary positions (`models.rope`).
        """
        check_processors(prepared.processors)
        self.notes = (*self.notes, *prepared.notes)
        if self.tolerance < 1 and prepared.config.do_sample:
            raise ConfigError(
                f"a tolerance of {self.tolerance:g} compares guesses with the likeliest token, and "
                "with do_sample tokens are drawn: use tolerance=1.0, or greedy decoding"
            )
        num_rows, length = prepared.input_ids.shape
        sampling = SamplingRule(
            prepared.processors, bool(prepared.config.do_sample), self.acceptance
        )
        stopping = StoppingRules(prepared.criteria, length, num_rows, prepared.pad_token_id)
        if self.drafter.max_nodes:
            longest = length + stopping.max_new_tokens
            check_reach(self.target.name, self.target.text_config, length, longest)
        sequences = sequences_of(prepared.input_ids, sampling, stopping, seeds)
        for sequence in sequences:
            sequence.number = self._num_added
            self._num_added += 1
        if stopping.in_step:
            self._calls_in_step[stopping] = sequences
        self._arrivals.append(_Arrival(sequences, prepared, draft_inputs or {}, references))
        return sequences

    def remove(self, sequence: Sequence) -> None:
        """Let a row leave between two rounds; the last row takes its place in the batch.

        Raises:
            InputError: the sequence is not in the batch, or `start` has not read it yet.
        """
        if sequence not in self.sequences:
            raise InputError("only a sequence that the session has started can be removed")
        self.begin()
        row = self.sequences.index(sequence)
        sequence.finished = True
        assert self.cache is not None
        assert self._next_position is not None
        self.cache.remove(row)
        self.drafter.remove(row)
        self._next_position = without_row(self._next_position, row)
        replace_by_last(self.sequences, row)
        replace_by_last(self.prompt_lengths, row)
        call = self._calls_in_step.get(sequence.stopping, [])
        if call and not any(other in self.sequences for other in call):
            del self._calls_in_step[sequence.stopping]
        self._refresh()

    def start(self) -> list[Chunk]:
        """Encode and prefill the rows that wait, and take the first token of each."""
        chunks: list[Chunk] = []
        while self._arrivals:
            chunks += self._read_prompt(self._arrivals.pop(0))
        return chunks

    def _read_prompt(self, arrival: _Arrival) -> list[Chunk]:
        sequences = arrival.sequences
        self._announce(arrival)
        with self.clock.phase("vision"):
            prompt = self.target.encode(arrival.prepared)
            cache = self._rows_for(prompt, sequences)
        output, verdict = self._prefill(sequences, prompt, cache)
        self._remark(sequences, output)
        emissions = self._emissions(sequences, verdict)
        chunks = self._emit(sequences, verdict, emissions)
        self.stats.first += sum(emission.count for emission in emissions)
        self._join(sequences, prompt, cache)
        unread = _Unread(
            sequences=sequences,
            draft_inputs=arrival.draft_inputs,
            prompt=prompt,
            cache=cache,
            readings=output.readings,
            references=arrival.references,
        )
        self._unread.append(unread)
        self.stats.draft_forwards = self.drafter.forwards
        self._refresh()
        if self.stats.ttft == 0:
            self.clock.mark_first()
        self.clock.mark_last()
        return chunks

    def _prefill(
        self, sequences: Seq[Sequence], prompt: Prompt, cache: KVCache
    ) -> tuple[PrefillOutput, Verdict]:
        """Read a prompt and choose the first token of each row."""

        def hand_on(readings: Readings) -> None:
            if self._lane is not None:
                self._lane.read(self._context(sequences, prompt, cache, readings))

        with self.clock.phase("target_prefill"):
            output = self.prefill.run(self.target, Reading(prompt, cache, self._readings, hand_on))
            batch = _batch_of(sequences)
            no_tokens = torch.empty(len(batch), 0, dtype=torch.long, device=self.target.device)
            no_tree = DraftTree.uniform(EMPTY, no_tokens)
            verdict = self._judge(sequences, batch, no_tree, output.logits)
        return output, verdict

    def _remark(self, sequences: Seq[Sequence], output: PrefillOutput) -> None:
        """Keep what the user should know about how these rows were read."""
        new = [name for name in output.approximate if name not in self.approximate]
        self.approximate = (*self.approximate, *new)
        for row, note in output.notes.items():
            self.notes = (*self.notes, f"row {sequences[row].number} was {note}")

    def _announce(self, arrival: _Arrival) -> None:
        if self._lane is not None:
            self._lane.announce(
                _batch_of(arrival.sequences),
                arrival.draft_inputs,
                arrival.sequences[0].stopping.max_new_tokens,
                observed=self._observe is not None,
            )

    def _context(
        self,
        sequences: Seq[Sequence],
        prompt: Prompt,
        cache: KVCache,
        readings: Readings,
        references: References = NO_REFERENCES,
    ) -> TargetContext:
        return TargetContext(
            prompt=prompt,
            cache=cache,
            room=sequences[0].stopping.max_new_tokens,
            readings=readings,
            phase=self.clock.phase,
            count_pruned=self._count_pruned,
            observe=self._observe or ignore,
            weighed=self._count_weighed,
            references=references,
            eos=sequences[0].stopping.eos,
            attribute=self._count_reference,
        )

    def _rows_for(self, prompt: Prompt, sequences: Seq[Sequence]) -> KVCache:
        if self.cache is None or not self.sequences:
            room = sequences[0].stopping.max_new_tokens + self.drafter.max_nodes
            return self.prefill.new_cache(self.target, prompt, room)
        return self.cache.new_rows(len(sequences))

    def _join(self, sequences: Seq[Sequence], prompt: Prompt, cache: KVCache) -> None:
        if self.cache is None or self._next_position is None or not self.sequences:
            self.cache = cache
            self._next_position = prompt.next_position
        else:
            self.cache.join(cache)
            self._next_position = torch.cat([self._next_position, prompt.next_position], dim=-2)
        self.sequences += sequences
        self.prompt_lengths += prompt.lengths

    def close(self) -> None:
        """Let a drafter that works beside the target forget the session, which has ended or is
        given up."""
        if self._lane is not None:
            self._lane.close()
            self._lane.record(self.clock)

    def begin(self) -> None:
        """Let the drafter read the prompts of rows that joined."""
        while self._unread:
            unread = self._unread.pop(0)
            with self.clock.phase("draft_prefill"):
                encoded = self.drafter.encode(unread.draft_inputs)
                context = self._context(
                    unread.sequences,
                    unread.prompt,
                    unread.cache,
                    unread.readings,
                    unread.references,
                )
                self.drafter.begin(_batch_of(unread.sequences), encoded, context)

    def propose(self) -> DraftTree:
        """Request guesses, at most as deep as the longest answer that may still come."""
        with self.clock.phase("draft"):
            budget = max(sequence.remaining for sequence in self.sequences) - 1
            tree = self.drafter.propose(self._batch, budget)
            topologies = self._within_answers(tree.topologies)
            # The widest row of a draft that runs ahead may be the one that is cut.
            tokens = tree.tokens[:, : max(map(len, topologies))]
            return DraftTree(topologies, tokens.to(self.target.device), tree.probs)

    def _within_answers(self, topologies: Seq[Topology]) -> tuple[Topology, ...]:
        """The trees of a proposal without the nodes beyond the end of each row's own answer.

        Only rejection sampling needs this: every judged guess uses noise there, so the last tokens
        of a row would depend on how long the answers of the other rows may become.
        """
        if not self._batch.rejects:
            return tuple(topologies)
        cuts = list(topologies)
        for row, sequence in enumerate(self.sequences):
            if sequence.sampling.rejects:
                cuts[row] = trees.cut(topologies[row], max(sequence.remaining - 1, 0))
        return tuple(cuts)

    def check(self, tree: DraftTree) -> Verdict:
        """One target forward over the last token and all guesses, and the verdict on them."""
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
            next_guesses = self._next_guesses(tree)
            verdict = self._judge(self.sequences, self._batch, tree, logits, next_guesses)
        self._count_drafted(tree)
        return verdict

    def _next_guesses(self, tree: DraftTree) -> Seq[NextGuess | None] | None:
        """What a draft that runs ahead guesses in the place of the bonus tokens; None if these are
        chosen by the target alone."""
        if self._lane is None or not self._batch.rejects:
            return None
        return self._lane.next_guesses(tree)

    def accept(self, verdict: Verdict) -> list[Chunk]:
        """Emit the accepted tokens and roll both caches back to them."""
        assert self.cache is not None
        with self.clock.phase("rollback"):
            emissions = self._emissions(self.sequences, verdict)
            chunks = self._emit(self.sequences, verdict, emissions)
            # The root and the accepted nodes stay, as far as the row goes on; its last token is the
            # next root.
            slots = [
                [0, *(node + 1 for node in path)][: emission.count]
                for path, emission in zip(verdict.paths, emissions, strict=True)
            ]
            self.cache.keep(self._base, slots)
            self._refresh()
            self.drafter.update(_emitted_part(verdict, emissions), self._batch)
            self.stats.draft_forwards = self.drafter.forwards
            self._count_accepted(verdict, emissions)
            if self._lane is not None:
                self._lane.record(self.clock)
        self.clock.mark_last()  # behind the phase, which must not be longer than the whole
        return chunks

    def _judge(
        self,
        sequences: Seq[Sequence],
        batch: Batch,
        tree: DraftTree,
        logits: Tensor,
        next_guesses: Seq[NextGuess | None] | None = None,
    ) -> Verdict:
        """Apply the sampling rules to the target's logits ``[B, N+1, V]`` and compare with the
        guesses."""
        nodes = [(ROOT, *range(len(topology))) for topology in tree.topologies]
        scores = batch.process(logits, tree.topologies, tree.tokens, nodes)
        steps = batch.steps(scores.device) + trees.batch_depths(tree.topologies, scores.device)
        if self.tolerance < 1:
            ends = [sequence.stopping.eos for sequence in sequences]
            verdict = tolerant(tree, scores, self.tolerance, ends)
        elif not batch.rejects:
            verdict = match(tree, batch.ranking(scores, steps))
        else:
            generators = [None if row.finished else row.generator for row in sequences]
            by_chance = reject(tree, scores, generators, next_guesses)
            verdict = _mixed(batch, by_chance, match(tree, batch.ranking(scores, steps)))
        if self.drafter.needs_target_scores:
            return replace(verdict, scores=scores)
        return verdict

    def _emissions(self, sequences: Seq[Sequence], verdict: Verdict) -> list[Emission]:
        """How much of the verdict each row emits; nothing in rows that have ended."""
        emissions = [_NOTHING] * len(sequences)
        in_step: set[StoppingRules] = set()
        for row, sequence in enumerate(sequences):
            if sequence.finished:
                continue
            if sequence.stopping.in_step:
                in_step.add(sequence.stopping)
            else:
                tokens = verdict.tokens[row]
                emissions[row] = sequence.stopping.cut(sequence.history, tokens)
        for stopping in in_step:
            self._cut_in_step(stopping, sequences, verdict, emissions)
        return emissions

    def _cut_in_step(
        self,
        stopping: StoppingRules,
        sequences: Seq[Sequence],
        verdict: Verdict,
        emissions: list[Emission],
    ) -> None:
        """Fill in the emissions of the running rows of a call that advances in step."""
        call = self._calls_in_step[stopping]
        row_of = {sequence.number: row for row, sequence in enumerate(sequences)}
        tokens: list[tuple[int, ...]] = []
        for sequence in call:
            row = row_of.get(sequence.number)
            tokens.append(() if row is None else verdict.tokens[row])
        cuts = stopping.cut_in_step([sequence.history for sequence in call], tokens)
        for sequence, emission in zip(call, cuts, strict=True):
            if not sequence.finished:
                emissions[row_of[sequence.number]] = emission

    def _emit(
        self, sequences: Seq[Sequence], verdict: Verdict, emissions: Seq[Emission]
    ) -> list[Chunk]:
        """Append each running row's new tokens, as far as its answer goes."""
        chunks = []
        for row, (sequence, emission) in enumerate(zip(sequences, emissions, strict=True)):
            if sequence.finished:
                continue
            tokens = verdict.tokens[row]
            from_draft = sequence.append(tokens, emission, len(verdict.paths[row]))
            self.stats.emitted += emission.count
            chunks.append(Chunk(tokens[: emission.count], from_draft, row=sequence.number))
        return chunks

    def _count_drafted(self, tree: DraftTree) -> None:
        self.stats.target_forwards += 1
        drafted = 0
        for sequence, topology in zip(self.sequences, tree.topologies, strict=True):
            if not sequence.finished:
                self.stats.passes += 1
                drafted += len(topology)
        self.stats.drafted += drafted
        self._num_checked = drafted
        self.clock.annotate("draft", tokens=drafted)
        self.clock.annotate("verify", tokens=drafted)

    def _count_accepted(self, verdict: Verdict, emissions: Seq[Emission]) -> None:
        total = 0
        for path, emission in zip(verdict.paths, emissions, strict=True):
            if emission.count:
                accepted = min(emission.count, len(path))
                total += accepted
                self.stats.accepted_by_depth[accepted] += 1
        self.stats.accepted += total
        self._count_tolerated(verdict, emissions)
        self.clock.annotate("verify", accepted=total)
        if self._num_checked and not total:
            self.clock.annotate("draft", outcome=DISCARDED)

    def _count_tolerated(self, verdict: Verdict, emissions: Seq[Emission]) -> None:
        for tolerated, emission in zip(verdict.tolerated, emissions, strict=False):
            self.stats.tolerated += sum(tolerated[: emission.count])

    def _count_reference(self, row: int, reference: int) -> None:
        self.stats.accepted_by_reference.setdefault(row, Counter())[reference] += 1

    def _count_pruned(self, visual: int, kept: int) -> None:
        self.stats.visual += visual
        self.stats.kept += kept

    def _count_weighed(self, weighed: Weighed) -> None:
        triples = zip(weighed.views, weighed.weights, weighed.hits, strict=True)
        for name, weight, hit in triples:
            self.stats.views.setdefault(name, ViewStats()).count(weight, hit)
        self._observe_weighed(weighed)

    def _refresh(self) -> None:
        self._batch = _batch_of(self.sequences)


_NOTHING = Emission(0, finished=True)


def _mixed(batch: Batch, by_chance: Verdict, by_match: Verdict) -> Verdict:
    """The verdict of each row by its own acceptance rule."""
    verdicts = [by_chance if h.sampling.rejects else by_match for h in batch.histories]
    return Verdict(
        tuple(verdict.paths[row] for row, verdict in enumerate(verdicts)),
        tuple(verdict.tokens[row] for row, verdict in enumerate(verdicts)),
    )


def _batch_of(sequences: Seq[Sequence]) -> Batch:
    return Batch(tuple(sequence.history for sequence in sequences))


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
