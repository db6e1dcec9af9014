"""Guesses from texts: the prompt of a row, and what it has answered so far. No model drafts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from draftlens.core.batch import Batch
from draftlens.core.history import History
from draftlens.core.prefill_readings import NO_READINGS
from draftlens.core.proposal import DraftTree, Verdict
from draftlens.core.references import NO_REFERENCES
from draftlens.core.rows import replace_by_last
from draftlens.decoding.drafter import TargetContext
from draftlens.decoding.observer import ignore
from draftlens.methods.lookup.acceptance import GuessBudget, MatchRates, Trust, likeliest
from draftlens.methods.lookup.candidates import Candidate, Matcher
from draftlens.methods.lookup.ngram_index import Reference, Source, TokenIndex, Vocabulary
from draftlens.methods.lookup.prefix_tree import NO_GUESSES, PrefixTree
from draftlens.methods.lookup.text_tokens import all_ids

REFERENCES = "references"
"""The name of references among the extras of a call."""


@dataclass(eq=False)
class Row:
    """One row while its answer grows.

    Args:
        matcher: finds its guesses.
        known: tokens of the answer that the matcher has.
        guesses: of this round, before the least likely ones were dropped.
        candidates: that they come from.
        checked: those of them that the target checks.
        attribute: receives the index of its reference for each accepted guess.
    """

    matcher: Matcher
    known: int = 0
    guesses: PrefixTree = NO_GUESSES
    candidates: Sequence[Candidate] = ()
    checked: PrefixTree = NO_GUESSES
    attribute: Callable[[int], None] = ignore

    @property
    def trusts(self) -> list[Trust]:
        """Of the candidates."""
        return [candidate.trust for candidate in self.candidates]

    def take(self, guesses: PrefixTree, candidates: Sequence[Candidate]) -> None:
        """Keep the guesses of this round, and the candidates that they come from."""
        self.guesses = guesses
        self.candidates = candidates
        self.checked = guesses

    def count_references(self, accepted: Sequence[int]) -> None:
        """Say for each accepted guess which reference it comes from.

        Args:
            accepted: the guesses of this round that the answer gained. The bonus token is none,
                although a tree that was cut at the end of the answer may have held it.
        """
        for depth, node in enumerate(self.checked.path(accepted)):
            candidate = self.candidates[self.checked.origins[node]]
            self.attribute(self.matcher.number_of(candidate.reference_at(depth)))


class LookupDrafter:
    """Looks up the last tokens of each row in its prompt, its answer and its references, and
    guesses what followed there. An answer is expected to follow each reference from its beginning.

    Args:
        vocabulary: what may be guessed.
        length: tokens of a candidate.
        branches: most candidates of a row.
        max_nodes: most guesses of a row.
        window: tokens of the longest window that is looked up.
        budget: decides how many of the guesses are checked; None for all of them.
    """

    readings = NO_READINGS
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
        budget: GuessBudget | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.length = length
        self.branches = branches
        self.max_nodes = max_nodes
        self.window = window
        self.budget = budget
        self.rates = MatchRates()
        self._rows: list[Row] = []
        self._width = 0
        self._context = 0
        self._proposed_at = 0.0

    def encode(self, inputs: Mapping[str, Any]) -> None:
        """There is no draft that reads inputs."""

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        """Index the text of the prompts and of the references."""
        for number, history in enumerate(batch.histories):
            row = self._new_row(history, context, number)
            self._follow(row, history)
            self._rows.append(row)

    def _new_row(self, history: History, context: TargetContext, number: int) -> Row:
        """A row that joins, before its answer is followed."""
        ids: list[int] = history.prompt_ids.tolist()
        length = context.prompt.lengths[number]
        prompt = self.vocabulary.guessable(ids[len(ids) - length :])
        attribute = partial(context.observer.on_reference, history.row)
        return Row(self._matcher(prompt, context, number), attribute=attribute)

    def _matcher(self, prompt: Sequence[int], context: TargetContext, row: int) -> Matcher:
        """What finds the guesses of a row that joins.

        Args:
            prompt: its tokens, with `BREAK` for those that must not be guessed.
            context: the target's side of the rows that join.
            row: among these rows.
        """
        references: list[Source] = [Reference(TokenIndex(self.window, prompt))]
        for text in all_ids(context.extras.get(REFERENCES, NO_REFERENCES), row):
            index = TokenIndex(self.window, self.vocabulary.guessable(text))
            references.append(Reference(index, cursor=0))
        return Matcher(references, self.window, context=prompt)

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        """The tree of each row's candidates; the empty one where nothing matches."""
        length = min(self._longest(), budget)
        for row, history in zip(self._rows, batch.histories, strict=True):
            row.take(NO_GUESSES, ())
            if not history.finished and length > 0:
                row.take(*row.matcher.tree(self.branches, length, self.max_nodes))
        self._context = longest_context(batch)
        self._cut(batch)
        trees = [row.checked for row in self._rows]
        self._width = max(map(len, trees), default=0)
        self._proposed_at = time.perf_counter()
        return padded(trees, [history.last_token for history in batch.histories])

    def _longest(self) -> int:
        """Most tokens of a candidate in this round."""
        return self.length

    def _reached(self, tokens: int) -> None:
        """Learn how many tokens in a row were guessed in the row where most were."""

    def _cut(self, batch: Batch) -> None:
        """Let the target check those guesses of each row that are expected to save time."""
        if self.budget is None:
            return
        chances = [self.rates.node_chances(row.guesses, row.trusts) for row in self._rows]
        running = [
            values
            for values, history in zip(chances, batch.histories, strict=True)
            if not history.finished
        ]
        width = self.budget.width(running, len(batch), longest_context(batch))
        for row, values in zip(self._rows, chances, strict=True):
            row.checked = row.guesses.kept(likeliest(values, width))

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """Index the emitted tokens, and learn how far the guesses were right."""
        if self.budget is not None:
            seconds = time.perf_counter() - self._proposed_at
            self.budget.record(self._width, len(batch), self._context, seconds)
        reached = 0
        for row, history in zip(self._rows, batch.histories, strict=True):
            emitted = history.answer[row.known : history.length]
            reached = max(reached, self.rates.count(row.guesses, row.trusts, emitted))
            num_accepted = sum(history.from_draft[row.known : history.length])
            row.count_references(emitted[:num_accepted])
            self._follow(row, history)
        self._reached(reached)

    def _follow(self, row: Row, history: History) -> None:
        emitted = history.answer[row.known : history.length]
        row.matcher.extend(self.vocabulary.guessable(emitted))
        row.known = history.length

    def remove(self, row: int) -> None:
        """See `Drafter.remove`."""
        replace_by_last(self._rows, row)


def longest_context(batch: Batch) -> int:
    """Tokens of the longest row, prompt and padding included."""
    return max(len(history.prompt_ids) + history.length for history in batch.histories)


def padded(trees: Sequence[PrefixTree], fillers: Sequence[int]) -> DraftTree:
    """A proposal of different trees.

    Args:
        trees: of the rows.
        fillers: for each row, the id that stands for what its tree lacks.
    """
    width = max(map(len, trees), default=0)
    tokens = torch.empty(len(trees), width, dtype=torch.long)
    for row, (tree, filler) in enumerate(zip(trees, fillers, strict=True)):
        tokens[row] = filler
        tokens[row, : len(tree)] = torch.tensor(tree.tokens, dtype=torch.long)
    return DraftTree(tuple(tree.topology for tree in trees), tokens)
