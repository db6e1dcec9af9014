"""A drafter that mixes several views of the prompt (TABED)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, nan
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import InputError
from draftlens.core.sampling import gumbel
from draftlens.core.sequence import Batch, History, replace_by_last
from draftlens.core.tree import EMPTY, ROOT, Topology, Verdict, upload
from draftlens.decoding.observer import Weighed, ignore
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.adaptive.history import TreeControllers
from draftlens.drafting.draft_prompt import DraftPrompt
from draftlens.drafting.draft_rows import Level, Nodes, with_ids_of_the_target
from draftlens.drafting.model_drafter import TreeDrafter
from draftlens.methods.tabed.prompts import ViewPrompts, present_views
from draftlens.methods.tabed.view_rows import Present, ViewRows
from draftlens.methods.tabed.weights import (
    Seen,
    Tally,
    Weighting,
    log_mixture,
    log_sum,
    normalized,
)

NEGLIGIBLE = 0.05  # A view with less weight in all rows is dropped.
PATIENCE = 4  # Tokens for which the weight must have been negligible.

# Least log likelihood of a draft token (one in 10,000) where weights are updated along its path: a
# view can recover after top-k or top-p left a token no chance.
MIN_LOG_PROB = -9.21


@dataclass(frozen=True)
class _Scored:
    """Nodes of the growing tree with the scores of the views."""

    nodes: list[int]  # M nodes
    scores: Tensor  # of each view that is awake, ``[B, a, M, V]``
    log_weights: Tensor  # of the same views, ``[B, a, M]``


@dataclass(frozen=True)
class Evidence:
    """P tokens of an answer with the scores of a views before each of them."""

    row: int  # in the batch
    history: History
    first: int  # index of the first token in the row's answer
    tokens: Sequence[int]
    log_probs: Tensor  # log q_v before each token, ``[a, P, V]``
    views: Sequence[int | None]  # indices among all views; None for one that the row does not have
    log_targets: Tensor | None = None  # log p, ``[P, V]``, if needed and known


class Ensemble(TreeDrafter):
    """Drafts with one model that reads each prompt in several views.

    At every node the views' distributions are mixed, q = sum of w_v q_v (TABED, Algorithm 1), and
    the draft token is forwarded in all views. The weights follow the target's tokens
    (`methods.tabed.weights`). Views with the same prompt in a row count once there. A view with
    negligible weights is dropped for the rest of the answers, if `may_rest` and the weighting
    allow it; rows that join later have it again.
    """

    rows: ViewRows

    def __init__(
        self,
        prompts: ViewPrompts,
        topology: Topology,
        vocab_size: int,
        weighting: Weighting,
        controllers: TreeControllers | None = None,
        may_rest: bool = True,
    ) -> None:
        rows = ViewRows(prompts.backbone, vocab_size)
        super().__init__(rows, prompts.readings, topology, controllers)
        self.names = tuple(view.label for view in prompts.views)
        self.weighting = weighting
        self.may_rest = may_rest and weighting.can_rest
        self.needs_target_scores = weighting.needs_target_scores
        self._prompts = prompts
        self._chosen = tuple(range(len(self.names)))
        self._tallies = ViewTallies(self.names, weighting)
        self._histories: list[History] = []
        self._weights = torch.empty(0)
        self._scored: list[_Scored] = []
        self._negligible: dict[int, int] = {}

    def encode(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Nothing is read before the target's side is known."""
        return inputs

    def remove(self, row: int) -> None:
        super().remove(row)
        self._tallies.remove(row)
        replace_by_last(self._histories, row)

    def _join(
        self, batch: Batch, encoded: Mapping[str, Any], context: TargetContext, room: int
    ) -> None:
        self._tallies.report = context.observer.on_weights
        drafts = self._prompts.read(self._chosen, self._prompts.source(encoded, context))
        if not any(drafts):
            names = ", ".join(self.names)
            raise InputError(f"none of the views {names} can be read: {self._prompts.causes}")
        present = [present_views(drafts, row) for row in range(len(batch))]
        if self.rows.cache is None:
            drafts, present = self._choose(drafts, present)
        read = [draft for draft in drafts if draft is not None]
        logits = self.rows.join_views([draft or read[0] for draft in drafts], present, batch, room)
        self._tallies.add(batch)
        self._histories += batch.histories
        self._tallies.observe(list(self._first_tokens(logits, len(self._histories) - len(batch))))

    def _choose(
        self, drafts: list[DraftPrompt | None], present: list[Present]
    ) -> tuple[list[DraftPrompt | None], list[Present]]:
        """Leave out the views that none of the first rows has, for later rows too."""
        used = [view for view in range(len(drafts)) if any(row[view] for row in present)]
        self._chosen = tuple(self._chosen[view] for view in used)
        drafts = [drafts[view] for view in used]
        return drafts, [tuple(row[view] for view in used) for row in present]

    def _catch_up(self, batch: Batch) -> Tensor:
        """Logits of all views that are awake after each row's last token, ``[B, a, 1, V]``."""
        logits = self.rows.catch_up(batch.steps(self.rows.device))
        evidence = list(self._pending_tokens(logits))
        hits = self._tallies.observe(evidence)
        self._agreement = (hits, sum(len(each.tokens) for each in evidence) - hits)
        self._weights = self._root_weights()
        return self.rows.last(logits)

    def _process(self, logits: Tensor, nodes: Nodes) -> Tensor:
        """Scores ``[B, M, V]`` from the logits of the views that are awake, ``[B, a, M, V]``: the
        log probabilities of the mixture, or a single view's own scores."""
        if logits.shape[1] == 1:
            scores = nodes.process(logits[:, 0])
            self._scored.append(_Scored(nodes.nodes, scores[:, None], self._weights))
            return scores
        scores = _processed(logits, nodes).float().log_softmax(-1)
        self._scored.append(_Scored(nodes.nodes, scores, self._weights))
        return log_mixture(scores, self._weights)

    def _expand(self, tokens: Tensor, steps: Tensor, level: Level) -> Tensor:
        """Logits of all views that are awake after a level's inner nodes, ``[B, a, E, V]``."""
        above = self._scored[-1]
        parents = [level.parents[node] for node in level.expanded]
        weights = above.log_weights
        if len(above.nodes) > 1 or len(parents) > 1:
            weights = weights[:, :, parents]
        if self.weighting.follows_path and weights.shape[1] > 1:
            index = tokens[:, None, :, None].expand(-1, weights.shape[1], -1, -1)
            scores = above.scores
            if len(above.nodes) > 1 or len(parents) > 1:
                scores = scores[:, :, parents]
            likelihoods = scores.gather(-1, index)[..., 0]
            weights = (weights + likelihoods.clamp_min(MIN_LOG_PROB)).log_softmax(1)
        self._weights = weights
        return self.rows.expand(tokens, steps, level)

    def _keep(self, verdict: Verdict, batch: Batch) -> None:
        places = {
            node: (level, slot)
            for level, scored in enumerate(self._scored)
            for slot, node in enumerate(scored.nodes)
        }
        evidence = []
        for row, history in enumerate(self._histories):
            if history.finished:
                continue
            if len(self._chosen) == 1:
                self._count_only(row, verdict, places)
            elif ROOT in places:
                evidence.append(self._path_tokens(row, verdict, places))
        self._tallies.observe(evidence)
        self._scored = []
        self.rows.keep(verdict, batch)
        self._histories = list(batch.histories)
        self._drop(max(map(len, verdict.tokens)))

    def _root_weights(self) -> Tensor:
        """Log weights of the views that are awake, ``[B, a, 1]``."""
        awake = self.rows.awake
        table = []
        for tally, has_view in zip(self._tallies.rows, self.rows.present, strict=True):
            log_weights = tally.log_weights
            weights = [
                log_weights[self._chosen[view]] if has_view[view] else -inf for view in awake
            ]
            if max(weights) == -inf:  # fixed weights of 0
                weights = [0.0 if has_view[view] else -inf for view in awake]
            table.append(normalized(weights))
        log_weights_of_rows = torch.tensor(table).to(self.rows.device, non_blocking=True)
        return log_weights_of_rows[:, :, None]

    def _first_tokens(self, logits: Sequence[Tensor | None], first_row: int) -> Iterator[Evidence]:
        """The first tokens of rows that joined; logits of each prefill."""
        present = self.rows.present[first_row:]
        view_numbers = tuple(
            view for view in range(len(logits)) if any(row[view] for row in present)
        )
        view_logits = [logits[view] for view in view_numbers]
        computed = [after_prompt for after_prompt in view_logits if after_prompt is not None]
        if len(computed) < len(view_logits) or len(self._chosen) == 1:
            return
        stacked = with_ids_of_the_target(torch.stack(computed, 1), self.rows.vocab_size)
        for row, before in enumerate(stacked, first_row):
            if self._histories[row].length:
                yield self._late_tokens(row, 0, before, view_numbers)

    def _pending_tokens(self, logits: Tensor) -> Iterator[Evidence]:
        """Each row's pending tokens but the first; logits ``[B, a, W, V]``."""
        for row, tokens in enumerate(self.rows.pending):
            if len(tokens) > 1:
                first = self._histories[row].length - len(tokens) + 1
                before = logits[row, :, : len(tokens) - 1]
                yield self._late_tokens(row, first, before, self.rows.awake)

    def _late_tokens(
        self, row: int, first: int, logits: Tensor, view_numbers: Sequence[int]
    ) -> Evidence:
        """P tokens, from index `first` on, that the draft has not proposed; `logits` are those
        before each of them, ``[a, P, V]``."""
        history = self._histories[row]
        log_probs = log_probs_before(history, first, logits)
        tokens = history.answer[first : first + log_probs.shape[1]]
        views = self._asked(row, view_numbers)
        return Evidence(row, history, first, tokens, log_probs, views)

    def _count_only(self, row: int, verdict: Verdict, places: Mapping[int, Any]) -> None:
        """Count a verdict's tokens where there is one view: accepted draft tokens are hits; the
        bonus token is a miss, except after a leaf, which has no scores."""
        first = self._histories[row].length
        path = verdict.paths[row]
        hits: list[bool | None] = [None] * len(self.names)
        for offset, token in enumerate(verdict.tokens[row]):
            parent = (ROOT, *path)[offset]
            if parent not in places:
                return
            hits[self._chosen[0]] = offset < len(path)
            self._tallies.count(row, first + offset, token, hits)

    def _path_tokens(
        self, row: int, verdict: Verdict, places: Mapping[int, tuple[int, int]]
    ) -> Evidence:
        """A verdict's tokens at scored nodes: all but the one after a leaf."""
        path = (ROOT, *verdict.paths[row])[: len(verdict.tokens[row])]
        nodes = [node for node in path if node in places]
        scores = []
        for node in nodes:
            level, slot = places[node]
            scores.append(self._scored[level].scores[row, :, slot])
        log_probs = torch.stack(scores, 1).float()
        if len(self.rows.awake) == 1:  # the scores of one view need not be normalized
            log_probs = log_probs.log_softmax(-1)
        log_targets = None
        if self.needs_target_scores:
            assert verdict.scores is not None
            slots = [node + 1 for node in nodes]
            log_targets = verdict.scores[row, slots].to(log_probs).log_softmax(-1)
        history = self._histories[row]
        tokens = verdict.tokens[row][: len(nodes)]
        views = self._asked(row, self.rows.awake)
        return Evidence(row, history, history.length, tokens, log_probs, views, log_targets)

    def _asked(self, row: int, view_numbers: Sequence[int]) -> Sequence[int | None]:
        """Indices in `self.names`; None for a view that the row does not have."""
        has_view = self.rows.present[row]
        return [self._chosen[view] if has_view[view] else None for view in view_numbers]

    def _largest_weight(self, view: int) -> float:
        """The largest weight of a view in the running rows that have it; 0 if there is none."""
        triples = zip(self._tallies.rows, self._histories, self.rows.present, strict=True)
        weights = [
            exp(tally.log_weights[self._chosen[view]])
            for tally, history, has_view in triples
            if has_view[view] and not history.finished
        ]
        return max(weights, default=0.0)

    def _drop(self, num_tokens: int) -> None:
        """Drop views with negligible weights in all rows for `PATIENCE` tokens."""
        if not self.may_rest or all(history.finished for history in self._histories):
            return
        for view in self.rows.awake:
            count = self._negligible.get(view, 0) + num_tokens
            self._negligible[view] = count if self._largest_weight(view) < NEGLIGIBLE else 0
        for view in self.rows.awake:
            if self._negligible[view] >= PATIENCE and self._is_dispensable(view):
                self.rows.drop(view)
                del self._negligible[view]

    def _is_dispensable(self, view: int) -> bool:
        """Whether every row has another view that is awake."""
        rest = [other_view for other_view in self.rows.awake if other_view != view]
        return all(
            any(has_view[other_view] for other_view in rest) for has_view in self.rows.present
        )


def _processed(logits: Tensor, nodes: Nodes) -> Tensor:
    """Scores of each view, ``[B, a, M, V]``. Logits processors are applied to each view, as some
    depend on the sign or the order of logits."""
    if not any(rule.processors for rule in nodes.batch.rules):
        return logits
    return torch.stack([nodes.process(view) for view in logits.unbind(1)], 1)


class ViewTallies:
    """Weighs the views of each row by its tokens, and reports every token once."""

    def __init__(self, names: Sequence[str], weighting: Weighting) -> None:
        self.names = tuple(names)
        self.weighting = weighting
        self.rows: list[Tally] = []  # the tally of each row of the batch
        self.report: Callable[[Weighed], None] = ignore  # receives what each token shows
        self._rows_of_calls: list[int] = []  # the row in its call of each row of the batch

    def add(self, batch: Batch) -> None:
        self.rows += [self.weighting.tally(self.names) for _ in range(len(batch))]
        self._rows_of_calls += [history.row for history in batch.histories]

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        replace_by_last(self.rows, row)
        replace_by_last(self._rows_of_calls, row)

    def observe(self, evidence: Sequence[Evidence]) -> int:
        """Weigh the views by some tokens of each row. Returns how many of them the view with the
        largest weight would have proposed."""
        if not evidence:
            return 0
        noises = [_noise(each.history, each.first, each.log_probs) for each in evidence]
        measured = [_measured(*pair) for pair in zip(evidence, noises, strict=True)]
        sizes = [table.numel() for table in measured]
        # One copy for all rows, for which the host waits.
        tables = torch.cat([table.flatten() for table in measured]).cpu().split_with_sizes(sizes)
        return sum(
            self._observe(each, noise, *table.view(2, len(each.views), -1).tolist())
            for each, noise, table in zip(evidence, noises, tables, strict=True)
        )

    def _observe(
        self,
        evidence: Evidence,
        noise: Tensor | None,
        likelihoods: list[list[float]],
        is_right: list[list[float]],
    ) -> int:
        """`observe` for a single row."""
        row, log_probs = evidence.row, evidence.log_probs
        views = [(slot, view) for slot, view in enumerate(evidence.views) if view is not None]
        right = 0
        for place, token in enumerate(evidence.tokens):
            values = [nan] * len(self.names)
            hits: list[bool | None] = [None] * len(self.names)
            for slot, view in views:
                values[view] = likelihoods[slot][place]
                hits[view] = bool(is_right[slot][place])
            right += self.count(row, evidence.first + place, token, hits)
            if evidence.log_targets is None and self.weighting.needs_target_scores:
                continue
            seen = Seen(token, values, rejects=evidence.history.sampling.rejects)
            if evidence.log_targets is not None:
                seen = replace(
                    seen,
                    log_probs=self._by_view(log_probs[:, place], views),
                    log_target=evidence.log_targets[place],
                    noise=None if noise is None else noise[place],
                )
            self.rows[row].observe(seen)
        return right

    def count(self, row: int, index: int, token: int, hits: Sequence[bool | None]) -> bool:
        """Count a token at an index of a row's answer, and report it.

        `hits` are, for each view, whether it would have proposed the token; None without scores.
        Returns whether the view with the largest weight, of those with scores, would have done so.
        """
        log_weights = self.rows[row].log_weights
        scored_views = [view for view, hit in enumerate(hits) if hit is not None]
        total = log_sum([log_weights[view] for view in scored_views])
        weights = [0.0] * len(hits)
        for view in scored_views:
            weights[view] = (
                exp(log_weights[view] - total) if total > -inf else 1 / len(scored_views)
            )
        row_of_call = self._rows_of_calls[row]
        self.report(Weighed(row_of_call, index, token, self.names, tuple(weights), tuple(hits)))
        best = max(scored_views, key=weights.__getitem__)
        return bool(hits[best])

    def _by_view(self, log_probs: Tensor, views: Sequence[tuple[int, int]]) -> Tensor:
        """log q_v of all views, ``[m, V]``, with NaN for views without scores. `views` are pairs of
        a row of `log_probs` ``[a, V]`` and its view."""
        table = log_probs.new_full((len(self.names), log_probs.shape[-1]), nan)
        for slot, view in views:
            table[view] = log_probs[slot]
        return table


def log_probs_before(history: History, first: int, logits: Tensor) -> Tensor:
    """Log probabilities ``[a, P, V]``, after the logits processors, of P tokens of an answer from
    index `first` on, from the logits before each of them."""
    if history.sampling.processors:
        places = range(first, first + logits.shape[1])
        earlier = Batch(tuple(replace(history, length=place) for place in places))
        nodes = Nodes(earlier, EMPTY, torch.empty(len(places), 0, dtype=torch.long), [ROOT])
        views = [nodes.process(view[:, None])[:, 0] for view in logits]
        logits = torch.stack(views)
    return logits.float().log_softmax(-1)


def _measured(evidence: Evidence, noise: Tensor | None) -> Tensor:
    """The log likelihood of each token in each view, and 1 where the view would have proposed it:
    float32 ``[2, a, P]``."""
    log_probs = evidence.log_probs
    index = upload(evidence.tokens, log_probs.device)
    likelihoods = log_probs.gather(-1, index.expand(len(evidence.views), -1)[..., None])[..., 0]
    ranking = log_probs if noise is None else log_probs + noise
    return torch.stack([likelihoods, (ranking.argmax(-1) == index).to(likelihoods)])


def _noise(history: History, first: int, log_probs: Tensor) -> Tensor | None:
    """What the draft adds to log probabilities ``[a, P, V]`` to choose its tokens, ``[P, V]``; None
    where it takes the likeliest, or draws with noise of its own."""
    if not history.sampling.do_sample or history.sampling.rejects:
        return None
    num_tokens, vocab_size = log_probs.shape[1:]
    steps = torch.arange(first, first + num_tokens)
    noise = gumbel(torch.tensor([history.seed]), steps, vocab_size)
    return noise.to(log_probs.device)
