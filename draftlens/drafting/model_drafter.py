"""A warning where hardly any draft token is accepted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.prefill_readings import FeatureSpec
from draftlens.core.sequence import Batch, replace_by_last
from draftlens.core.tree import EMPTY, ROOT, DraftTree, Topology, Verdict
from draftlens.decoding.plan import TargetContext, draw_children
from draftlens.drafting.adaptive.controller import RoundState, TreeController
from draftlens.drafting.adaptive.costs import Expectation
from draftlens.drafting.adaptive.history import TreeControllers
from draftlens.drafting.draft_prompt import PromptBuilder
from draftlens.drafting.draft_rows import DraftRows, Level, Nodes, levels
from draftlens.models.adapter import wait_for
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import remembering

MIN_TRIALS = 24  # First draft tokens of a round after which a draft can be called useless.
USELESS = 0.05  # Share of accepted ones below which it is.

_log = logging.getLogger("draftlens")


class Disagreement:
    """Counts the first draft token of every round and warns if nearly all are rejected."""

    def __init__(self, draft: str) -> None:
        self.draft = draft
        self.trials = 0
        self.hits = 0

    def count(self, hits: int, misses: int) -> None:
        self.trials += hits + misses
        self.hits += hits
        if self.trials >= MIN_TRIALS and self.hits <= USELESS * self.trials:
            _warn(self.draft)


@cache
def _warn(draft: str) -> None:  # the cache makes it one warning for each draft
    _log.warning(
        "Hardly any token of the draft %s is accepted, so drafting gains nothing: it may have "
        "another tokenizer, not know the language or the task, or not see what the target sees.",
        draft,
    )


MOST_EVENTS = 64


@dataclass(frozen=True)
class Arrivals:
    """Rows that have joined, and the output of the draft's processor for them.

    Args:
        context: without the target's keys and values, which move when rows leave.
        lengths: tokens of each row that the model will read.
    """

    batch: Batch
    inputs: Mapping[str, Any]
    context: TargetContext
    lengths: Sequence[int]


class JoinedRows:
    """How the rows of a batch have joined and left, so that their prompts can be read in a later
    round, or again.

    Attributes:
        events: what leads to these rows in this order: rows that join, or the row that leaves.
    """

    def __init__(self) -> None:
        self._rows: list[Arrivals] = []  # with which each row has joined
        self.events: list[Arrivals | int] = []

    @property
    def may_wait(self) -> bool:
        """Whether the prompts are read only if that pays: explanations draw what is read, and the
        list of events must not grow for ever."""
        is_explained = any(each.context.observer.wants_choices for each in self._rows)
        return len(self.events) < MOST_EVENTS and not is_explained

    @property
    def belong_to_chats(self) -> bool:
        """Whether later turns may begin with what is read of some row."""
        return any(each.context.prompt.namespace is not None for each in self._rows)

    def read_in(self, at: RoundState) -> RoundState:
        """A round that begins with the reading of all prompts."""
        length = max(max(each.lengths) for each in self._rows)
        return replace(at, rows=len(self._rows), draft_context=length, pending=length)

    def add(self, arrivals: Arrivals) -> None:
        self._rows += [arrivals] * len(arrivals.batch)
        self.events.append(arrivals)

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        replace_by_last(self._rows, row)
        self.events.append(row)
        if all(len(each.batch) == 1 for each in self._rows):
            self.events = list(self._rows)  # without rows that have left


# Whether a tree grows below the level that was just grown, from the draft's probability of its
# first choice there, one for each row.
GoesOn = Callable[[list[float]], bool]


class TreeDrafter:
    """A `Drafter` that grows the same tree in every row. Subclasses define how rows join.

    Args:
        readings: of the target's prefill that `_join` needs.
        controllers: maps a kind of prompt to the controller that chooses the tree of each round,
            none of them larger than `topology`; None for always `topology`.
        disagreement: counts the first draft tokens that are rejected; None for no warning.
    """

    needs_target_scores = False

    def __init__(
        self,
        rows: DraftRows,
        readings: FeatureSpec,
        topology: Topology,
        controllers: TreeControllers | None = None,
        disagreement: Disagreement | None = None,
    ) -> None:
        self.rows = rows
        self.readings = readings
        self.topology = topology
        self.controllers = controllers
        self.disagreement = disagreement
        self.max_nodes = len(topology)
        self.controller: TreeController | None = None
        # How many of the tokens that were pending in the last round the model would have proposed,
        # and how many not.
        self._agreement = (0, 0)
        self._proposed = EMPTY
        self._proposed_at = 0.0
        self._num_further = 0  # tokens that are verified after the proposed tree, in each row

    @property
    def forwards(self) -> int:
        return self.rows.forwards

    @property
    def cache_bytes(self) -> int:
        return self.rows.nbytes

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        self._join(batch, encoded, context, context.room + len(self.topology.inner) + 1)
        if self.controllers is not None and self.controller is None:
            self.controller = self.controllers(context.prompt.kind)

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        """Grow the tree level by level; a budget below its depth cuts it."""
        self.rows.begin_round()
        self._num_further = 0
        if self.controller is not None:
            return self._propose_controlled(self.controller, batch, budget)
        topology = trees.cut(self.topology, budget)
        self._proposed = topology
        if not topology:
            return self._no_tree(batch)
        return self._grow(topology, batch, self._catch_up(batch))

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """Keep the accepted path; what the cache lacks is forwarded first in the next round."""
        self._keep(verdict, batch)  # first, since its time belongs to this round
        if self.controller is not None:
            self._record_verdict(self.controller, verdict, batch)
        if self.disagreement is not None and self._proposed:
            both = zip(verdict.paths, batch.histories, strict=True)
            hits = [bool(path) for path, history in both if not history.finished]
            self.disagreement.count(sum(hits), len(hits) - sum(hits))

    def remove(self, row: int) -> None:
        self.rows.remove(row)

    def expected(self, batch: Batch, budget: int) -> Expectation:
        """The expected result of a round in which this drafter proposes; needs controllers."""
        assert self.controller is not None
        return self.controller.expected(self._situation(batch, budget))

    def further(self, chances: Sequence[Sequence[float]]) -> tuple[int, float]:
        """How many tokens of another drafter are verified after the first choices of the tree that
        was just proposed, and the seconds that they save (`TreeController.further`); needs
        controllers."""
        assert self.controller is not None
        self._num_further, saved = self.controller.further(chances)
        self._proposed_at = time.perf_counter()
        return self._num_further, saved

    def pause(self) -> None:
        """In place of `propose`: another drafter proposes in this round."""
        self.rows.begin_round()
        self._proposed = EMPTY

    def follow(self, verdict: Verdict, batch: Batch) -> None:
        """In place of `update`, after `pause`."""
        if self.controller is not None:
            self.controller.passed([len(row) for row in verdict.tokens if row])
            if all(history.finished for history in batch.histories):
                self.controller.ended()
        self._keep(verdict, batch)

    def _join(self, batch: Batch, encoded: Any, context: TargetContext, room: int) -> None:
        """Read the prompts of rows that join; `room` is for the further tokens of each row."""
        raise NotImplementedError

    def _catch_up(self, batch: Batch) -> Tensor:
        """Logits after each row's last token, ``[B, 1, V]``."""
        logits = self.rows.catch_up(batch.steps(self.rows.device))
        if self.controller is not None:  # which waits for a GPU
            self._agreement = _agreement(logits, self.rows.pending)
        return self.rows.last(logits)

    def _process(self, logits: Tensor, nodes: Nodes) -> Tensor:
        """Scores of the draft tokens at some nodes ``[B, M, V]``, from the logits there."""
        return nodes.process(logits)

    def _expand(self, tokens: Tensor, steps: Tensor, level: Level) -> Tensor:
        return self.rows.expand(tokens, steps, level)

    def _keep(self, verdict: Verdict, batch: Batch) -> None:
        self.rows.keep(verdict, batch)

    def _grow(
        self, topology: Topology, batch: Batch, logits: Tensor, goes_on: GoesOn | None = None
    ) -> DraftTree:
        """Grow a non-empty tree, by one forward for each level that has children, or a whole chain
        of likeliest tokens at once.

        `logits` come from `_catch_up`; `goes_on` may end the growth above the last level. The tree
        has probabilities if a row uses rejection sampling.
        """
        if batch.is_greedy and topology.depth == len(topology):
            ends = None if goes_on is None else partial(_ends, goes_on)
            chain = self.rows.run_on(logits, batch.steps(logits.device), topology.depth, ends)
            if chain is not None:
                return DraftTree.uniform(trees.cut(topology, chain.shape[1]), chain)
        return self._grow_levels(topology, batch, logits, goes_on)

    def _grow_levels(
        self, topology: Topology, batch: Batch, logits: Tensor, goes_on: GoesOn | None
    ) -> DraftTree:
        device = logits.device
        steps = batch.steps(device) + trees.depths(trees.chain(topology.depth), device)
        tokens = torch.empty(len(batch), len(topology), dtype=torch.long, device=device)
        probs: list[Tensor] = []
        parents = [ROOT]
        for depth, level in enumerate(levels(topology, device)):
            scores = self._process(logits, Nodes(batch, topology, tokens, parents))
            if batch.rejects:
                probs.append(torch.softmax(scores.double(), -1))
            step = steps[:, depth : depth + 1]
            children = draw_children(batch, scores, level.most_siblings, step)
            tokens[:, level.nodes] = level.tokens(children)
            if goes_on is not None and not goes_on(_probabilities(scores[:, 0], children[:, 0])):
                topology = trees.cut(topology, depth + 1)
                tokens = tokens[:, : len(topology)]
                break
            if level.expanded:
                parents = [level.nodes.start + node for node in level.expanded]
                logits = self._expand(level.expanded_tokens(tokens), step, level)
        return DraftTree.uniform(topology, tokens, torch.cat(probs, 1) if probs else None)

    def _propose_controlled(
        self, controller: TreeController, batch: Batch, budget: int
    ) -> DraftTree:
        began = time.perf_counter()
        tree = self._grow_controlled(controller, batch, budget)
        self._proposed_at = time.perf_counter()
        controller.drafted(self.rows.widths, self._proposed_at - began)
        self._proposed = tree.topologies[0]
        return tree

    def _grow_controlled(self, controller: TreeController, batch: Batch, budget: int) -> DraftTree:
        topology = trees.cut(controller.tree(self._situation(batch, budget)), budget)
        if not topology:
            return self._no_tree(batch)
        logits = self._catch_up(batch)
        hits, misses = self._agreement if batch.is_greedy else (0, 0)
        if self.disagreement is not None:
            self.disagreement.count(hits, misses)
        topology = trees.cut(controller.caught_up(hits, misses), budget)
        if not topology:
            return self._no_tree(batch)
        running = [row for row, history in enumerate(batch.histories) if not history.finished]

        def goes_on(confidences: list[float]) -> bool:
            return controller.grown([confidences[row] for row in running])

        tree = self._grow(topology, batch, logits, goes_on)
        kept_tree = trees.cut(topology, controller.kept_depth)
        return DraftTree.uniform(kept_tree, tree.tokens[:, : len(kept_tree)])

    def _situation(self, batch: Batch, budget: int) -> RoundState:
        return RoundState(
            rows=len(batch),
            views=self.rows.num_views,
            context=max(len(h.prompt_ids) + h.length for h in batch.histories),
            draft_context=max(self.rows.lengths, default=0),
            pending=max(map(len, self.rows.pending), default=0),
            remaining=budget + 1,
        )

    def _record_verdict(self, controller: TreeController, verdict: Verdict, batch: Batch) -> None:
        seconds = time.perf_counter() - self._proposed_at
        rows = [row for row, history in enumerate(batch.histories) if not history.finished]
        if not rows:
            controller.ended()
            return
        paths = [verdict.paths[row] for row in rows]
        controller.judged(self._proposed, paths, seconds, self._num_further)

    def _no_tree(self, batch: Batch) -> DraftTree:
        tokens = torch.empty(len(batch), 0, dtype=torch.long, device=self.rows.device)
        return DraftTree.uniform(EMPTY, tokens)


class ModelDrafter(TreeDrafter):
    """Drafts with one model, which reads one prompt for each row: where a controller chooses the
    trees, not before the prompt's own cost can pay within the answer, and no longer when so many
    rows have joined that it does not."""

    def __init__(
        self,
        prompts: PromptBuilder,
        topology: Topology,
        vocab_size: int,
        controllers: TreeControllers | None = None,
        disagreement: Disagreement | None = None,
    ) -> None:
        rows = DraftRows(prompts.backbone, vocab_size)
        super().__init__(rows, prompts.readings, topology, controllers, disagreement)
        self.prompts = prompts
        self._may_wait = controllers is not None and prompts.may_wait
        self._joined = JoinedRows()  # stays empty where prompts may not wait

    @property
    def _is_unread(self) -> bool:
        """Whether the prompts of the rows wait."""
        return self._may_wait and not self.rows.lengths

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        return inputs if self._may_wait else self.prompts.encode(inputs)

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        if not self._may_wait:
            super().begin(batch, encoded, context)
            return
        assert self.controllers is not None
        self.controller = self.controller or self.controllers(context.prompt.kind)
        lengths = self.prompts.lengths(context.prompt)
        arrivals = Arrivals(batch, encoded, replace(context, cache=KVCache(0, 0, 0)), lengths)
        self._joined.add(arrivals)
        if self.rows.lengths and not self._waits(batch, context.room):
            del self._joined.events[MOST_EVENTS:]  # enough to show that there were too many
            self._read(arrivals)
        else:
            self.rows.clear()  # also what was read of the rows that these have joined

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        if self._is_unread:
            if self._waits(batch, budget):
                self._proposed, self._proposed_at = EMPTY, time.perf_counter()
                return self._no_tree(batch)
            for event in self._joined.events:
                if isinstance(event, Arrivals):
                    self._read(event)
                else:
                    self.rows.remove(event)
            # What the rows have gained since they joined.
            self.rows.pending = [list(history.tokens) for history in batch.histories]
        return super().propose(batch, budget)

    def remove(self, row: int) -> None:
        if self.rows.lengths:
            super().remove(row)
        if self._may_wait:
            self._joined.remove(row)

    def pause(self) -> None:
        if not self._is_unread:
            super().pause()

    def _waits(self, batch: Batch, budget: int) -> bool:
        """Whether drafting cannot make up for reading the prompts of all rows, `batch` among
        them."""
        assert self.controller is not None
        at = self._joined.read_in(super()._situation(batch, budget))
        is_kept = self._joined.belong_to_chats
        return self._joined.may_wait and not self.controller.may_read(at, is_kept)

    def _situation(self, batch: Batch, budget: int) -> RoundState:
        at = super()._situation(batch, budget)
        return self._joined.read_in(at) if self._is_unread else at

    def _read(self, arrivals: Arrivals) -> None:
        assert self.controller is not None
        began = time.perf_counter()
        context = arrivals.context
        room = context.room + len(self.topology.inner) + 1
        with context.observer.phase("draft_prefill"), remembering(context.prompt.namespace):
            encoded = self.prompts.encode(arrivals.inputs)
            self._join(arrivals.batch, encoded, context, room)
        wait_for(self.rows.device)
        self.controller.has_read(sum(arrivals.lengths), time.perf_counter() - began)

    def _join(self, batch: Batch, encoded: Any, context: TargetContext, room: int) -> None:
        self.rows.join(self.prompts.read(encoded, context), batch, room)

    def _keep(self, verdict: Verdict, batch: Batch) -> None:
        if not self._is_unread:
            super()._keep(verdict, batch)


def _agreement(logits: Tensor, tokens: list[list[int]]) -> tuple[int, int]:
    """How many tokens of a forward its own logits ``[B, T, V]`` choose, and how many not. A row's
    tokens may be followed by fillers."""
    agree = [
        choice == token
        for choices, row in zip(logits[:, :-1].argmax(-1).tolist(), tokens, strict=True)
        for choice, token in zip(choices, row[1:], strict=False)
    ]
    return sum(agree), len(agree) - sum(agree)


def _ends(goes_on: GoesOn, logits: Tensor, tokens: Tensor) -> bool:
    """Whether a chain ends with the tokens ``[B, 1]`` chosen from logits ``[B, 1, V]``."""
    return not goes_on(_probabilities(logits[:, 0], tokens))


def _probabilities(scores: Tensor, children: Tensor) -> list[float]:
    """The probability of each row's first child ``[B, most]``, from scores ``[B, V]``."""
    child_scores = scores.gather(-1, children[:, :1])[:, 0]
    values: list[float] = (child_scores - scores.logsumexp(-1)).exp().tolist()
    return values
