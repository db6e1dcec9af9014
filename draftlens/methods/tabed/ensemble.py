"""Several views of the prompt, whose guesses are mixed (TABED)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import Any

import torch
from torch import Tensor

from draftlens.core.batch import Batch
from draftlens.core.errors import InputError
from draftlens.core.history import History
from draftlens.core.prefill_readings import NO_READINGS
from draftlens.core.proposal import Verdict
from draftlens.core.rows import replace_by_last
from draftlens.core.tree import ROOT, Topology
from draftlens.decoding.drafter import TargetContext
from draftlens.drafting.draft_prompt import DraftPrompt
from draftlens.drafting.growth import Level, Nodes
from draftlens.drafting.joining_rows import with_ids_of_the_target
from draftlens.methods.tabed.mixture import log_mixture
from draftlens.methods.tabed.packed_views import PackedModel, Present
from draftlens.methods.tabed.prompts import ViewPrompts, present_views
from draftlens.methods.tabed.views import Source, View
from draftlens.methods.tabed.weight_updates import (
    LEAST,
    Asked,
    ViewTallies,
    log_probs_behind,
)
from draftlens.methods.tabed.weights import Weighting
from draftlens.methods.tabed.weights.logs import normalized
from draftlens.models.adapter import Backbone

NEGLIGIBLE = 0.05
"""A view whose weight is below it in all rows is dropped."""
PATIENCE = 4
"""Tokens for which the weight must have been negligible."""


@dataclass(frozen=True)
class _Scored:
    """Nodes of the growing tree with what the views said there.

    Args:
        nodes: M nodes.
        scores: of each view that is awake, ``[B, a, M, V]``.
        log_weights: of each of them, ``[B, a, M]``.
    """

    nodes: list[int]
    scores: Tensor
    log_weights: Tensor


class Ensemble:
    """A draft model that reads each prompt in several views. It is a `Follower`.

    At every node the views' distributions are mixed, q = sum of w_v q_v (TABED, Algorithm 1), and
    the guess goes to all views. The weights follow what the target says (`methods.tabed.weights`).
    Views whose prompts are the same in a row count once there. A view whose weight stays
    negligible is dropped for the rest of the answers; rows that join later have it again.

    Args:
        backbone: the model that drafts.
        vocab_size: ids that the target has; the draft may have more or fewer.
        views: the views, all different.
        weighting: weighs them.
        is_target: whether the target drafts for itself.
        may_rest: whether views may be dropped, if the weighting allows it.
        config: of the model whose processor makes the draft's inputs; None for the draft itself.
    """

    def __init__(
        self,
        backbone: Backbone,
        vocab_size: int,
        views: Sequence[View],
        weighting: Weighting,
        is_target: bool = False,
        may_rest: bool = True,
        config: Any = None,
    ) -> None:
        self.backbone = backbone
        self.device = backbone.device
        self.views = tuple(views)
        self.names = tuple(view.label for view in views)
        self.weighting = weighting
        self.may_rest = may_rest and weighting.can_rest
        self.needs_target_scores = weighting.needs_target_scores
        self.readings = NO_READINGS
        for view in self.views:
            self.readings = self.readings | view.readings
        self.packed: PackedModel | None = None
        self.agreement = (0, 0)
        self._vocab_size = vocab_size
        self._prompts = ViewPrompts(backbone, views, is_target, config)
        self._chosen = tuple(range(len(self.views)))
        self._tallies = ViewTallies(self.names, weighting)
        self._histories: list[History] = []
        self._weights = torch.empty(0)
        self._scored: list[_Scored] = []
        self._negligible: dict[int, int] = {}

    @property
    def forwards(self) -> int:
        """Decode forwards so far."""
        return 0 if self.packed is None else self.packed.forwards

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values of all views."""
        return 0 if self.packed is None else self.packed.nbytes

    @property
    def lengths(self) -> list[int]:
        """Cached tokens of each row, in all views that are awake."""
        return [] if self.packed is None else self.packed.lengths

    @property
    def pending(self) -> list[list[int]]:
        """Per row, emitted tokens that the cache lacks."""
        return [] if self.packed is None else self.packed.pending

    @property
    def widths(self) -> list[int]:
        """New tokens of each forward of this round, all rows and views together."""
        return [] if self.packed is None else self.packed.widths

    @property
    def num_views(self) -> int:
        """Views of each row that a forward reads."""
        return len(self._chosen) if self.packed is None else len(self.packed.awake)

    @property
    def _model(self) -> PackedModel:
        assert self.packed is not None
        return self.packed

    def encode(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Nothing is read before the target's side is known."""
        return inputs

    def join(
        self, encoded: Mapping[str, Any], batch: Batch, context: TargetContext, room: int
    ) -> None:
        """See `Follower.join`.

        Raises:
            InputError: no view is left.
        """
        self._tallies.report = context.observer.on_weights
        drafts = self._read(self._prompts.source(encoded, context))
        present = [present_views(drafts, row) for row in range(len(batch))]
        if self.packed is None:
            drafts, present = self._choose(drafts, present)
            self.packed = PackedModel(self.backbone, self._vocab_size, len(self._chosen))
        read = [draft for draft in drafts if draft is not None]
        logits = self.packed.join([draft or read[0] for draft in drafts], present, batch, room)
        self._tallies.add(len(batch))
        self._histories += batch.histories
        self._observe_first(logits, len(self._histories) - len(batch))

    def _read(self, source: Source) -> list[DraftPrompt | None]:
        """The prompts of the views.

        Raises:
            InputError: none of the views can be read.
        """
        drafts = self._prompts.read(self._chosen, source)
        if any(drafts):
            return drafts
        names = ", ".join(self.names)
        raise InputError(f"none of the views {names} can be read: {self._prompts.causes}")

    def _choose(
        self, drafts: list[DraftPrompt | None], present: list[Present]
    ) -> tuple[list[DraftPrompt | None], list[Present]]:
        """Leave out the views that none of the first rows has. The views of the first rows are
        those of all rows."""
        used = [view for view in range(len(drafts)) if any(row[view] for row in present)]
        self._chosen = tuple(self._chosen[view] for view in used)
        drafts = [drafts[view] for view in used]
        return drafts, [tuple(row[view] for view in used) for row in present]

    def begin_round(self) -> None:
        """See `Follower.begin_round`."""
        self._model.begin_round()
        self._scored = []

    def catch_up(self, steps: Tensor) -> Tensor:
        """Logits of all views that are awake behind each row's last token, ``[B, a, 1, V]``."""
        model = self._model
        logits = model.catch_up(steps)
        self._observe_pending(logits)
        self._weights = self._root_weights()
        if logits.shape[2] == 1:
            return logits
        rows = torch.arange(len(model.pending), device=logits.device)
        last = torch.tensor([len(tokens) - 1 for tokens in model.pending], device=logits.device)
        return logits[rows, :, last][:, :, None]

    def process(self, logits: Tensor, nodes: Nodes) -> Tensor:
        """Scores of the mixture: its log probabilities, or where one view is awake that view's own
        scores.

        Args:
            logits: of the views that are awake, ``[B, a, M, V]``.
            nodes: the M nodes.

        Returns:
            ``[B, M, V]``.
        """
        if logits.shape[1] == 1:
            scores = nodes.process(logits[:, 0])
            self._scored.append(_Scored(nodes.nodes, scores[:, None], self._weights))
            return scores
        scores = _processed(logits, nodes).float().log_softmax(-1)
        self._scored.append(_Scored(nodes.nodes, scores, self._weights))
        return log_mixture(scores, self._weights)

    def expand(self, tokens: Tensor, steps: Tensor, level: Level) -> Tensor:
        """Logits of all views that are awake behind a level's inner nodes, ``[B, a, E, V]``."""
        above = self._scored[-1]
        parents = [level.parents[node] for node in level.expanded]
        weights = above.log_weights
        if len(above.nodes) > 1 or len(parents) > 1:
            weights = weights[:, :, parents]
        if self.weighting.follows_path and weights.shape[1] > 1:
            index = tokens[:, None, :, None].expand(-1, weights.shape[1], -1, -1)
            likelihoods = above.scores[:, :, parents].gather(-1, index)[..., 0]
            weights = (weights + likelihoods.clamp_min(LEAST)).log_softmax(1)
        self._weights = weights
        return self._model.expand(tokens, steps, level)

    def run_on(self, logits: Tensor, steps: Tensor, count: int) -> None:
        """The views are weighed at every level; see `TreeScorer.run_on`."""

    def end_growth(self, topology: Topology, depth: int) -> None:
        """See `Follower.end_growth`."""
        self._model.end_growth(topology, depth)

    def keep(self, verdict: Verdict, batch: Batch) -> None:
        """Keep what was accepted, and weigh the views by it."""
        places = {
            node: (level, slot)
            for level, scored in enumerate(self._scored)
            for slot, node in enumerate(scored.nodes)
        }
        for row, history in enumerate(self._histories):
            if history.finished:
                continue
            if len(self._chosen) == 1:
                self._count_only(row, verdict, places)
            else:
                self._observe_path(row, verdict, places)
        self._model.keep(verdict, batch)
        self._histories = list(batch.histories)
        self._drop(max(map(len, verdict.tokens)))

    def remove(self, row: int) -> None:
        """See `Follower.remove`."""
        self._model.remove(row)
        self._tallies.remove(row)
        replace_by_last(self._histories, row)

    def _root_weights(self) -> Tensor:
        """Log weights of the views that are awake, ``[B, a, 1]``."""
        awake = self._model.awake
        table = []
        for row, has_view in zip(self._tallies.rows, self._model.present, strict=True):
            log_weights = row.tally.log_weights
            known = [log_weights[self._chosen[view]] if has_view[view] else -inf for view in awake]
            if max(known) == -inf:  # fixed weights of 0
                known = [0.0 if has_view[view] else -inf for view in awake]
            table.append(normalized(known))
        return torch.tensor(table, device=self.device)[:, :, None]

    def _observe_first(self, logits: Sequence[Tensor | None], first_row: int) -> None:
        """Weigh the views by the first tokens of rows that joined: each view's prefill has said
        what it expected."""
        present = self._model.present[first_row:]
        asked = tuple(view for view in range(len(logits)) if any(row[view] for row in present))
        known = [logits[view] for view in asked]
        computed = [behind_prompt for behind_prompt in known if behind_prompt is not None]
        if len(computed) < len(known) or len(self._chosen) == 1:
            return
        stacked = with_ids_of_the_target(torch.stack(computed, 1), self._vocab_size)
        for row, views in enumerate(stacked, first_row):
            if self._histories[row].length:
                self._observe_behind(row, 0, views, asked)

    def _observe_pending(self, logits: Tensor) -> None:
        """Weigh the views by the tokens that were emitted behind a pending token: all pending
        tokens of a row but its first.

        Args:
            logits: behind each pending token, ``[B, a, W, V]``.
        """
        hits = misses = 0
        for row, tokens in enumerate(self._model.pending):
            if len(tokens) > 1:
                first = self._histories[row].length - len(tokens) + 1
                views = logits[row, :, : len(tokens) - 1]
                right = self._observe_behind(row, first, views, self._model.awake)
                hits += right
                misses += len(tokens) - 1 - right
        self.agreement = (hits, misses)

    def _observe_behind(self, row: int, first: int, logits: Tensor, asked: Sequence[int]) -> int:
        """Weigh the views by tokens that were not guessed, from the views' logits in front of them.

        Args:
            row: of the batch.
            first: index of the first of the P tokens in its answer.
            logits: of the views that were asked, ``[a, P, V]``.
            asked: these views.

        Returns:
            How many of the tokens the view with the largest weight would have guessed.
        """
        history = self._histories[row]
        log_probs = log_probs_behind(history, first, logits)
        tokens = history.answer[first : first + log_probs.shape[1]]
        views = self._asked(row, asked)
        return self._tallies.observe(row, history, first, log_probs, tokens, views)

    def _count_only(self, row: int, verdict: Verdict, places: Mapping[int, Any]) -> None:
        """Count the tokens of a verdict where there is one view and nothing to weigh: accepted
        guesses are right, and the token behind them was guessed wrongly, or behind a leaf not at
        all."""
        first = self._histories[row].length
        path = verdict.paths[row]
        hits: list[bool | None] = [None] * len(self.names)
        for offset, token in enumerate(verdict.tokens[row]):
            parent = (ROOT, *path)[offset]
            if parent not in places:
                return
            hits[self._chosen[0]] = offset < len(path)
            self._tallies.count(row, first + offset, token, hits)

    def _observe_path(
        self, row: int, verdict: Verdict, places: Mapping[int, tuple[int, int]]
    ) -> None:
        """Weigh the views by those tokens of a verdict that they have guessed, right or wrong: all
        but the one behind a leaf, which no view has read yet."""
        path = (ROOT, *verdict.paths[row])[: len(verdict.tokens[row])]
        nodes = [node for node in path if node in places]
        if not nodes:
            return
        scores = []
        for node in nodes:
            level, slot = places[node]
            scores.append(self._scored[level].scores[row, :, slot])
        log_probs = torch.stack(scores, 1).float()
        if len(self._model.awake) == 1:  # the scores of one view need not be normalized
            log_probs = log_probs.log_softmax(-1)
        log_targets = None
        if self.needs_target_scores:
            assert verdict.scores is not None
            slots = [node + 1 for node in nodes]
            log_targets = verdict.scores[row, slots].to(log_probs).log_softmax(-1)
        history = self._histories[row]
        tokens = verdict.tokens[row][: len(nodes)]
        views = self._asked(row, self._model.awake)
        self._tallies.observe(row, history, history.length, log_probs, tokens, views, log_targets)

    def _asked(self, row: int, asked: Sequence[int]) -> Asked:
        """Views that were asked, by their indices among all views; None for one that a row does not
        have."""
        has_view = self._model.present[row]
        return [self._chosen[view] if has_view[view] else None for view in asked]

    def _largest_weight(self, view: int) -> float:
        """The largest weight of a view in a row that has it and goes on; 0 if there is none."""
        triples = zip(self._tallies.rows, self._histories, self._model.present, strict=True)
        weights = [
            exp(row.tally.log_weights[self._chosen[view]])
            for row, history, has_view in triples
            if has_view[view] and not history.finished
        ]
        return max(weights, default=0.0)

    def _drop(self, num_tokens: int) -> None:
        """Drop views whose weights have been negligible in all rows for a while."""
        model = self._model
        if not self.may_rest or all(history.finished for history in self._histories):
            return
        for view in model.awake:
            count = self._negligible.get(view, 0) + num_tokens
            self._negligible[view] = count if self._largest_weight(view) < NEGLIGIBLE else 0
        for view in model.awake:
            if self._negligible[view] >= PATIENCE and self._is_dispensable(view):
                model.drop(view)
                del self._negligible[view]

    def _is_dispensable(self, view: int) -> bool:
        """Whether every row has another view that is awake."""
        others = [other for other in self._model.awake if other != view]
        return all(any(has_view[other] for other in others) for has_view in self._model.present)


def _processed(logits: Tensor, nodes: Nodes) -> Tensor:
    """Scores of each view after the logits processors, ``[B, a, M, V]``: they are applied to each
    view by itself, since some depend on the sign or the order of logits."""
    if not any(rule.processors for rule in nodes.batch.rules):
        return logits
    return torch.stack([nodes.process(view) for view in logits.unbind(1)], 1)
