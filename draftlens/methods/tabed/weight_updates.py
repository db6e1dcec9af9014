"""Updates the weights of views by the tokens of the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, inf, nan

import torch
from torch import Tensor

from draftlens.core.sampling import gumbel
from draftlens.core.sequence import Batch, History, replace_by_last
from draftlens.core.tree import EMPTY, ROOT
from draftlens.decoding.observer import Weighed, ignore
from draftlens.drafting.draft_rows import Nodes
from draftlens.methods.tabed.weights import Seen, Tally, Weighting, log_sum

# Least log likelihood of a draft token (one in 10,000) where weights are updated along its path: a
# view can recover after top-k or top-p left a token no chance.
MIN_LOG_PROB = -9.21

# For each scored view its index among all views; None if a row does not have it.
RowViews = Sequence[int | None]


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

    def observe(
        self,
        row: int,
        history: History,
        first: int,
        log_probs: Tensor,
        tokens: Sequence[int],
        row_views: RowViews,
        log_targets: Tensor | None = None,
    ) -> int:
        """Weigh the views by some tokens.

        Args:
            first: index of the first of the P tokens in the row's answer.
            log_probs: log q_v before each token, ``[a, P, V]``.
            row_views: the view of each of the a rows of `log_probs`.
            log_targets: log p there, ``[P, V]``, if the weighting needs it and it is known.

        Returns:
            How many of the tokens the view with the largest weight would have proposed.
        """
        index = torch.tensor(tokens, device=log_probs.device)
        indices = index.expand(len(row_views), -1)[..., None]
        likelihoods = log_probs.gather(-1, indices)[..., 0].tolist()
        noise = _noise(history, first, log_probs)
        ranking = log_probs if noise is None else log_probs + noise
        is_right = (ranking.argmax(-1) == index).tolist()
        views = [(slot, view) for slot, view in enumerate(row_views) if view is not None]
        right = 0
        for place, token in enumerate(tokens):
            values = [nan] * len(self.names)
            hits: list[bool | None] = [None] * len(self.names)
            for slot, view in views:
                values[view] = likelihoods[slot][place]
                hits[view] = is_right[slot][place]
            right += self.count(row, first + place, token, hits)
            if log_targets is None and self.weighting.needs_target_scores:
                continue
            evidence = Seen(token, values, rejects=history.sampling.rejects)
            if log_targets is not None:
                evidence = replace(
                    evidence,
                    log_probs=self._by_view(log_probs[:, place], views),
                    log_target=log_targets[place],
                    noise=None if noise is None else noise[place],
                )
            self.rows[row].observe(evidence)
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


def _noise(history: History, first: int, log_probs: Tensor) -> Tensor | None:
    """What the draft adds to log probabilities ``[a, P, V]`` to choose its tokens, ``[P, V]``; None
    where it takes the likeliest, or draws with noise of its own."""
    if not history.sampling.do_sample or history.sampling.rejects:
        return None
    num_tokens, vocab_size = log_probs.shape[1:]
    steps = torch.arange(first, first + num_tokens)
    noise = gumbel(torch.tensor([history.seed]), steps, vocab_size)
    return noise.to(log_probs.device)
