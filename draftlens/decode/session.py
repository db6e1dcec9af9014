"""One batch's mutable state: target, cache, rows, drafter. Each method is one step of a request's
life."""

from __future__ import annotations

import torch
from torch import Tensor

from draftlens.attention import Probe
from draftlens.core import tree as trees
from draftlens.core.proposal import DraftTree, Verdict
from draftlens.core.result import Chunk
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import EMPTY, ROOT
from draftlens.draft.base import Drafter, Seen
from draftlens.models.backbone import Backbone
from draftlens.models.prompt import Prepared
from draftlens.models.rope import check_reach
from draftlens.ops.sampling import SamplingRule, generator_of
from draftlens.ops.verify import match, reject
from draftlens.sequences.rows import Rows
from draftlens.sequences.stopping import Stopper


class Session:
    """Everything that changes while one batch is answered.

    Between rounds, and also when a consumer stops early, a running row's cache holds its prompt and
    all tokens it emitted but the last, which is the root of the next tree.

    Args:
        target: the model that decides.
        prepared: the call, as stock `generate` prepared it.
        drafter: who guesses.
        rule: how tokens are chosen.
        clock: where times go.

    Raises:
        InputError: guesses could change the target's rotary positions (`models.rope`).
    """

    def __init__(
        self,
        target: Backbone,
        prepared: Prepared,
        drafter: Drafter,
        rule: SamplingRule,
        clock: Clock,
    ) -> None:
        self.target, self.prepared, self.drafter, self.clock = target, prepared, drafter, clock
        self.rows = Rows(prepared.input_ids, rule)
        length = prepared.input_ids.shape[1]
        self.stopper = Stopper(prepared.criteria, length)
        if len(drafter.topology):
            check_reach(
                target.name, target.text_config, length, length + self.stopper.max_new_tokens
            )
        self.generator = generator_of(rule.seed + 1)
        self.numbers = self.rows.numbers(target.device)

    @property
    def stats(self) -> Stats:
        """The counters of this batch."""
        return self.clock.stats

    @property
    def done(self) -> bool:
        """Whether every row has ended."""
        return all(self.rows.finished)

    def start(self) -> list[Chunk]:
        """Encode, prefill and take the first token."""
        with self.clock.phase("vision"):
            self.prompt = self.target.encode(self.prepared)
        with self.clock.phase("target_prefill"):
            self.cache = self.target.new_cache(
                self.prompt, self.stopper.max_new_tokens + len(self.drafter.topology)
            )
            probe = (
                Probe(self.prompt.visual, self.prompt.lengths)
                if self.drafter.needs_scores
                else None
            )
            logits = self.target.prefill(self.prompt, self.cache, probe)
            self.probe = probe
            nothing = DraftTree(EMPTY, logits.new_empty(len(self.rows), 0, dtype=torch.long))
            verdict = self._judge(nothing, logits)
        self.base = self.cache.lengths
        chunks = self._emit(verdict)
        self.stats.first = self.stats.emitted
        self.stats.accepted_by_depth.clear()
        self.clock.mark_first()
        self.clock.mark_last()
        return chunks

    def begin(self) -> None:
        """Let the drafter read the prompt, if there is anything left to draft."""
        if not self.done:
            with self.clock.phase("draft_prefill"):
                probe, phase = self.probe, self.clock.phase
                scores, layers = (probe.result(), tuple(probe.by_layer)) if probe else (None, ())
                seen = Seen(self.prompt, self.cache, scores, phase, self._count_pruned, layers)
                self.drafter.begin(self.rows, self.stopper.max_new_tokens, seen)

    def propose(self) -> DraftTree:
        """Ask the drafter for guesses, at most as deep as the longest answer that may still
        come."""
        with self.clock.phase("draft"):
            tree = self.drafter.propose(self.rows, self.stopper.room(self.rows) - 1)
            return DraftTree(tree.topology, tree.tokens.to(self.target.device), tree.probs)

    def check(self, tree: DraftTree) -> Verdict:
        """One target forward over the last token and all guesses, and the verdict on them."""
        with self.clock.phase("verify"):
            device = self.target.device
            roots = torch.tensor([tokens[-1:] for tokens in self.rows.tokens], device=device)
            steps = self.rows.steps(device) - 1 + trees.depths(tree.topology, device)
            mask = trees.attention_mask(self.cache.lengths, trees.ancestors(tree.topology, device))
            self.base = self.cache.lengths
            logits = self.target.forward(
                torch.cat([roots, tree.tokens], 1), self.prompt.positions(steps), self.cache, mask
            )
            verdict = self._judge(tree, logits)
        running = self.rows.finished.count(False)
        self.stats.target_forwards += 1
        self.stats.passes += running
        self.stats.drafted += running * len(tree.topology)
        return verdict

    def accept(self, verdict: Verdict) -> list[Chunk]:
        """Emit what stands, roll both caches back to it."""
        with self.clock.phase("rollback"):
            held = [len(tokens) for tokens in self.rows.tokens]
            chunks = self._emit(verdict)
            gained = [
                len(tokens) - before for tokens, before in zip(self.rows.tokens, held, strict=True)
            ]
            # The root and the accepted nodes stay, as far as the row went on; its last token is the
            # next root.
            slots = [[0, *(node + 1 for node in path)] for path in verdict.paths]
            self.cache.keep(
                self.base, [row[:count] for row, count in zip(slots, gained, strict=True)]
            )
            if not self.done:
                self.drafter.update(verdict, self.rows)
            self.stats.draft_forwards = self.drafter.forwards
        self.clock.mark_last()  # behind the phase, which must not be longer than the whole
        return chunks

    def _count_pruned(self, visual: int, kept: int) -> None:
        self.stats.visual, self.stats.kept = visual, kept

    def _judge(self, tree: DraftTree, logits: Tensor) -> Verdict:
        """Apply the sampling rule to the target's logits ``[B, N+1, V]`` and compare with the
        guesses."""
        rule, rows = self.rows.rule, self.rows
        nodes = (ROOT, *range(len(tree.topology)))
        scores = rule.process(logits, lambda: rows.histories(tree.topology, tree.tokens, nodes))
        if rule.rejects:
            return reject(tree, scores, self.generator)
        steps = rows.steps(scores.device) + trees.depths(tree.topology, scores.device)
        return match(tree, rule.ranking(scores, self.numbers, steps))

    def _emit(self, verdict: Verdict) -> list[Chunk]:
        """Append each running row's new tokens, cut where its answer ends."""
        chunks = []
        for row, (path, tokens) in enumerate(zip(verdict.paths, verdict.tokens, strict=True)):
            if self.rows.finished[row]:
                continue
            count, self.rows.finished[row] = self.stopper.cut(self.rows, row, tokens)
            accepted = min(count, len(path))
            from_draft = (*[True] * accepted, *[False] * (count - accepted))
            self.rows.tokens[row].extend(tokens[:count])
            self.rows.from_draft[row].extend(from_draft)
            self.stats.emitted += count
            self.stats.accepted += accepted
            self.stats.accepted_by_depth[accepted] += 1
            chunks.append(Chunk(tuple(tokens[:count]), from_draft, row=row))
        return chunks
