"""Updates the weights of views by the tokens of the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, inf, nan

import torch
from torch import Tensor

from draftlens.core.batch import Batch
from draftlens.core.history import History
from draftlens.core.rows import replace_by_last
from draftlens.core.sampling import gumbel
from draftlens.core.tree import EMPTY, ROOT
from draftlens.core.view_record import Weighed
from draftlens.decoding.observer import ignore
from draftlens.drafting.growth import Nodes
from draftlens.methods.tabed.weights import Seen, Tally, Weighting, log_sum

LEAST = -9.21
"""The log likelihood of a draft token counts as no smaller than this (one in 10,000) where weights
are updated along its path: a view can recover after top-k or top-p left a token no chance."""

Asked = Sequence[int | None]
"""For each view that a forward has scored, its index among all views; None if a row does not have
it."""


class ViewTallies:
    """Weighs the views of each row by its tokens, and reports every token once.

    Args:
        names: of all views.
        weighting: the rule.

    Attributes:
        rows: the tally of each row of the batch.
        report: receives what each token shows.
    """

    def __init__(self, names: Sequence[str], weighting: Weighting) -> None:
        self.names = tuple(names)
        self.weighting = weighting
        self.rows: list[Tally] = []
        self.report: Callable[[Weighed], None] = ignore

    def add(self, count: int) -> None:
        """Begin with further rows."""
        self.rows += [self.weighting.tally(self.names) for _ in range(count)]

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        replace_by_last(self.rows, row)

    def observe(
        self,
        row: int,
        history: History,
        first: int,
        log_probs: Tensor,
        tokens: Sequence[int],
        asked: Asked,
        log_targets: Tensor | None = None,
    ) -> int:
        """Weigh the views by some tokens.

        Args:
            row: of the batch.
            history: of this row.
            first: index of the first of the P tokens in its answer.
            log_probs: log q_v of the views in `asked` before each token, ``[a, P, V]``.
            tokens: P tokens.
            asked: these views.
            log_targets: log p there, ``[P, V]``, if the weighting needs it and it is known.

        Returns:
            How many of the tokens the view with the largest weight would have proposed.
        """
        index = torch.tensor(tokens, device=log_probs.device)
        likelihoods = log_probs.gather(-1, index.expand(len(asked), -1)[..., None])[..., 0].tolist()
        noise = _noise(history, first, log_probs)
        ranking = log_probs if noise is None else log_probs + noise
        is_right = (ranking.argmax(-1) == index).tolist()
        views = [(slot, view) for slot, view in enumerate(asked) if view is not None]
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
            seen = Seen(token, values, rejects=history.sampling.rejects)
            if log_targets is not None:
                seen = replace(
                    seen,
                    log_probs=self._by_view(log_probs[:, place], views),
                    log_target=log_targets[place],
                    noise=None if noise is None else noise[place],
                )
            self.rows[row].observe(seen)
        return right

    def count(self, row: int, index: int, token: int, hits: Sequence[bool | None]) -> bool:
        """Count a token, and report it.

        Args:
            row: of the batch.
            index: of the token in its answer.
            token: the target's.
            hits: of each view whether it would have proposed it; None if it has no scores there.

        Returns:
            Whether the view with the largest weight, of those with scores, would have proposed it.
        """
        log_weights = self.rows[row].log_weights
        asked = [view for view, hit in enumerate(hits) if hit is not None]
        total = log_sum([log_weights[view] for view in asked])
        weights = [0.0] * len(hits)
        for view in asked:
            weights[view] = exp(log_weights[view] - total) if total > -inf else 1 / len(asked)
        self.report(Weighed(row, index, token, self.names, tuple(weights), tuple(hits)))
        best = max(asked, key=weights.__getitem__)
        return bool(hits[best])

    def _by_view(self, log_probs: Tensor, views: Sequence[tuple[int, int]]) -> Tensor:
        """log q_v of all views, ``[m, V]``, with NaN for views without scores.

        Args:
            log_probs: of the views with scores, ``[a, V]``.
            views: pairs of a row of these and the view that it belongs to.
        """
        table = log_probs.new_full((len(self.names), log_probs.shape[-1]), nan)
        for slot, view in views:
            table[view] = log_probs[slot]
        return table


def log_probs_before(history: History, first: int, logits: Tensor) -> Tensor:
    """Log probabilities of tokens of an answer, after the logits processors of its row.

    Args:
        history: holds at least the tokens before each of them.
        first: index of the first of the P tokens.
        logits: before each of them, of some views, ``[a, P, V]``.

    Returns:
        ``[a, P, V]``.
    """
    if history.sampling.processors:
        places = range(first, first + logits.shape[1])
        earlier = Batch(tuple(replace(history, length=place) for place in places))
        nodes = Nodes(earlier, EMPTY, torch.empty(len(places), 0, dtype=torch.long), [ROOT])
        views = [nodes.process(view[:, None])[:, 0] for view in logits]
        logits = torch.stack(views)
    return logits.float().log_softmax(-1)


def _noise(history: History, first: int, log_probs: Tensor) -> Tensor | None:
    """What the draft adds to log probabilities ``[a, P, V]`` to choose its tokens, ``[P, V]``;
    None where it takes the likeliest, or draws with noise of its own."""
    if not history.sampling.do_sample or history.sampling.rejects:
        return None
    num_tokens, vocab_size = log_probs.shape[1:]
    steps = torch.arange(first, first + num_tokens)
    noise = gumbel(torch.tensor([history.seed]), steps, vocab_size)
    return noise.to(log_probs.device)
