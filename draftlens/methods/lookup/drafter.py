"""Draft tokens copied from the prompt, the answer so far and the references of a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from draftlens.core.forms import FormProcessor
from draftlens.core.prefill_readings import NO_FEATURES
from draftlens.core.references import NO_REFERENCES
from draftlens.core.sequence import Batch, History, replace_by_last
from draftlens.core.tree import ROOT, DraftTree, Verdict
from draftlens.decoding.observer import ignore
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.adaptive.costs import NOTHING_COPIED, CopiedRun, Expectation, Proposal
from draftlens.methods.lookup.acceptance import DraftBudget, MatchRates, likeliest_length
from draftlens.methods.lookup.candidates import NO_CANDIDATES, Candidate, Matcher, PrefixTree
from draftlens.methods.lookup.ngram_index import Reference, TokenIndex, TokenSource, Vocabulary
from draftlens.methods.lookup.text import all_ids

REFERENCES = "references"  # The name of references among the extras of a call.


@dataclass(eq=False)
class LookupRow:
    """State of one row."""

    matcher: Matcher
    num_read: int = 0  # tokens of the answer that the matcher has
    tree: PrefixTree = NO_CANDIDATES  # candidates of this round, merged
    candidates: Sequence[Candidate] = ()  # indexed by `tree.origins`
    verified: PrefixTree = NO_CANDIDATES  # the part of the tree that the target verifies
    chances: Sequence[float] = ()  # that a node of `verified` is accepted, if there is a budget
    # receives the index of the reference of each accepted draft token
    attribute: Callable[[int], None] = ignore

    def set_tree(self, tree: PrefixTree, candidates: Sequence[Candidate]) -> None:
        self.tree = self.verified = tree
        self.candidates = candidates
        self.chances = ()

    def compare(self, emitted: Sequence[int]) -> tuple[float, int]:
        """How many of the emitted tokens `verified` was expected to have, each given that it had
        those before, and how many it had."""
        if not self.chances:
            return 0.0, 0
        path = self.verified.path(emitted)
        expected = 0.0
        for node in [ROOT, *path][: len(emitted)]:
            children = self.verified.topology.children.get(node, ())
            reached = 1.0 if node == ROOT else self.chances[node]
            chance = sum(self.chances[child] for child in children)
            expected += chance / reached if reached else 0.0
        return expected, len(path)

    def count_references(self, accepted: Sequence[int]) -> None:
        """Attribute the accepted draft tokens, without the bonus token, to their references."""
        for depth, node in enumerate(self.verified.path(accepted)):
            candidate = self.candidates[self.verified.origins[node]]
            self.attribute(self.matcher.number_of(candidate.reference_at(depth)))


class LookupDrafter:
    """Finds the last tokens of each row in its prompt, its answer and its references, and proposes
    what followed there. The cursor of a reference starts at its beginning.

    Args:
        length: most tokens of a candidate.
        branches: most candidates of a row.
        max_nodes: most draft tokens of a row.
        budget: chooses how many draft tokens are verified; None for all.
    """

    readings = NO_FEATURES
    needs_target_scores = False
    forwards: int = 0
    cache_bytes: int = 0

    def __init__(
        self,
        vocabulary: Vocabulary,
        length: int,
        branches: int,
        max_nodes: int,
        window: int = 3,
        budget: DraftBudget | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.length = length
        self.branches = branches
        self.max_nodes = max_nodes
        self.window = window
        self.budget = budget
        self.rates = MatchRates()
        self._rows: list[LookupRow] = []
        self._width = 0
        self._context = 0
        self._proposed_at = 0.0

    def encode(self, inputs: Mapping[str, Any]) -> None:
        """No draft model reads inputs."""

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        for number, history in enumerate(batch.histories):
            row = self._new_row(history, context, number)
            self._extend(row, history)
            self._rows.append(row)

    def _new_row(self, history: History, context: TargetContext, number: int) -> LookupRow:
        ids: list[int] = history.prompt_ids.tolist()
        length = context.prompt.lengths[number]
        prompt = self.vocabulary.with_breaks(ids[len(ids) - length :])
        attribute = partial(context.observer.on_reference, history.row)
        return LookupRow(self._matcher(prompt, context, number), attribute=attribute)

    def _matcher(self, prompt: Sequence[int], context: TargetContext, row: int) -> Matcher:
        """`prompt` has `BREAK` for tokens not to be proposed; `row` counts the joining rows."""
        references: list[TokenSource] = []
        for text in all_ids(context.extras.get(REFERENCES, NO_REFERENCES), row):
            index = TokenIndex(self.window, self.vocabulary.with_breaks(text))
            references.append(Reference(index, cursor=0))
        own = Reference(TokenIndex(self.window, prompt))
        return Matcher([own], self.window, context=prompt, given=references)

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        return self.proposal(batch, budget).tree

    def proposal(self, batch: Batch, budget: int) -> Proposal:
        """The tree of each row's candidates; empty where nothing matches. Rounds may have passed
        without `read`."""
        length = min(self._max_depth(), budget)
        for row, history in zip(self._rows, batch.histories, strict=True):
            if row.num_read < history.length:
                self._extend(row, history)
            row.set_tree(NO_CANDIDATES, ())
            if not history.finished and length > 0:
                forced = forced_tokens(history)
                row.set_tree(*row.matcher.tree(self.branches, length, self.max_nodes, forced))
        self._context = longest_context(batch)
        expected = self._select_nodes(batch)
        trees = [row.verified for row in self._rows]
        self._width = max(map(len, trees), default=0)
        self._proposed_at = time.perf_counter()
        tree = padded(trees, [history.last_token for history in batch.histories])
        return Proposal(tree, expected)

    def _max_depth(self) -> int:
        return self.length

    def _record_depth(self, tokens: int) -> None:
        """Receive the largest number of accepted tokens of a row in this round."""

    def _select_nodes(self, batch: Batch) -> Expectation | None:
        if self.budget is None:
            return None
        chances = [self.rates.node_chances(row.tree, row.candidates) for row in self._rows]
        running = [
            values
            for values, history in zip(chances, batch.histories, strict=True)
            if not history.finished
        ]
        width, expected = self.budget.best(running, len(batch), longest_context(batch))
        for row, values in zip(self._rows, chances, strict=True):
            nodes = likeliest_length(values, width)
            row.verified = row.tree.kept(nodes)
            row.chances = [values[node] for node in sorted(nodes)]
        return expected if width else None

    def update(self, verdict: Verdict, batch: Batch) -> None:
        self.record(batch)
        self.read(batch)

    def record(self, batch: Batch) -> None:
        """Record the time of a round in which the latest proposal was verified, and the references
        of its accepted tokens."""
        if self.budget is not None:
            seconds = time.perf_counter() - self._proposed_at
            self.budget.record(self._width, len(batch), self._context, seconds)
        for row, history in zip(self._rows, batch.histories, strict=True):
            emitted = history.answer[row.num_read : history.length]
            num_accepted = sum(history.from_draft[row.num_read : history.length])
            row.count_references(emitted[:num_accepted])

    def read(self, batch: Batch) -> tuple[float, int]:
        """Receive the tokens of a round, in which another drafter may have proposed. Returns how
        many of them the latest proposal was expected to have, and how many it had."""
        deepest = 0
        compared = [(0.0, 0)]
        for row, history in zip(self._rows, batch.histories, strict=True):
            emitted = history.answer[row.num_read : history.length]
            compared.append(row.compare(emitted))
            deepest = max(deepest, self.rates.count(row.tree, row.candidates, emitted))
            self._extend(row, history)
        expected, matched = zip(*compared, strict=True)
        self._record_depth(deepest)
        return sum(expected), sum(matched)

    def _extend(self, row: LookupRow, history: History) -> None:
        emitted = history.answer[row.num_read : history.length]
        row.matcher.extend(self.vocabulary.with_breaks(emitted))
        row.num_read = history.length

    def runs_after(
        self, batch: Batch, drafted: Sequence[Sequence[int]], length: int
    ) -> list[CopiedRun]:
        """What may be copied in each row after draft tokens of another drafter, at most `length`
        tokens."""
        runs = []
        for row, history, tokens in zip(self._rows, batch.histories, drafted, strict=True):
            candidate = None
            if not history.finished and length > 0:
                breaks = self.vocabulary.with_breaks(tokens)
                candidate = row.matcher.candidate_after(
                    breaks, length, forced_tokens(history, tokens)
                )
            runs.append(NOTHING_COPIED if candidate is None else self._run_of(row, candidate))
        return runs

    def _run_of(self, row: LookupRow, candidate: Candidate) -> CopiedRun:
        number = row.matcher.number_of(candidate.reference)
        return CopiedRun(candidate.tokens, tuple(self.rates.chances(candidate)), number)

    def attribute(self, runs: Sequence[CopiedRun], accepted: Sequence[int]) -> None:
        """Count the accepted tokens of each row's run, `accepted` in number, by reference."""
        for row, run, count in zip(self._rows, runs, accepted, strict=True):
            for _ in range(count):
                row.attribute(run.reference)

    def remove(self, row: int) -> None:
        replace_by_last(self._rows, row)


def forced_tokens(history: History, further: Sequence[int] = ()) -> list[int]:
    """The tokens that the form of a row's answer demands after it and further tokens."""
    for processor in history.sampling.processors:
        if isinstance(processor, FormProcessor):
            return processor.forced(history.row, [*history.tokens, *further])
    return []


def longest_context(batch: Batch) -> int:
    """Tokens of the longest row, prompt and padding included."""
    return max(len(history.prompt_ids) + history.length for history in batch.histories)


def padded(trees: Sequence[PrefixTree], fillers: Sequence[int]) -> DraftTree:
    """The trees of all rows; `fillers[row]` pads the tokens of a row to the widest tree."""
    width = max(map(len, trees), default=0)
    tokens = torch.empty(len(trees), width, dtype=torch.long)
    for row, (tree, filler) in enumerate(zip(trees, fillers, strict=True)):
        tokens[row] = filler
        tokens[row, : len(tree)] = torch.tensor(tree.tokens, dtype=torch.long)
    return DraftTree(tuple(tree.topology for tree in trees), tokens)
