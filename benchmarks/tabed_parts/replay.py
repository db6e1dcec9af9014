"""What a chain drafted by a mixture of views would have done: exact, and without forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, nan

import torch
from draftlens_lab.plugins.target_weights import total_variation
from torch import Tensor

from draftlens.methods.tabed.ensemble import MIN_LOG_PROB
from draftlens.methods.tabed.weights import Seen, Tally, Weighting, log_mixture, normalized
from tabed_parts.taught import Taught

GAMMA = 5


@dataclass(frozen=True)
class Replayed:
    """Counts of one answer.

    Args:
        emitted: tokens after the first one.
        passes: verification passes.
        chances: sum over these tokens of the chance that rejection sampling would have accepted a
            draft token in their place, 1 - TV(p, q_w).
        log_loss: summed -log q_w(token), in nats.
        contested: of these tokens, those that some views would have proposed and others not.
        trusted: sum over these of the weights of the views that were right.
    """

    emitted: int
    passes: int
    chances: float
    log_loss: float
    contested: int
    trusted: float


class Replay:
    """Replays answers with one rule.

    Args:
        names: of all views that the answers were taught with.
        chosen: the views that are mixed, by name.
        weighting: weighs them.
    """

    def __init__(self, names: Sequence[str], chosen: Sequence[str], weighting: Weighting) -> None:
        self.names = tuple(chosen)
        self.indices = [list(names).index(name) for name in chosen]
        self.weighting = weighting

    def run(self, taught: Taught, gamma: int = GAMMA) -> Replayed:
        """Replay one answer."""
        tally = self.weighting.tally(self.names)
        present = self._present(taught)
        self._observe(tally, taught, present, 0, is_drafted=False)
        number = len(taught.tokens)
        position = 1
        passes = 0
        blocks = []
        while position < number:
            depth = min(gamma, taught.longest - position - 1)
            weights = _masked(tally.log_weights, present)
            block = self._block(taught, weights, position, depth)
            end = min(position + block.right + 1, number)
            for place in range(position, end):
                self._observe(tally, taught, present, place, place < position + depth)
            blocks.append(block)
            passes += 1
            position += block.right + 1
        return Replayed(
            number - 1,
            passes,
            sum(block.chances for block in blocks),
            sum(block.log_loss for block in blocks),
            sum(block.contested for block in blocks),
            sum(block.trusted for block in blocks),
        )

    def _present(self, taught: Taught) -> list[bool]:
        """Which of the mixed views are no repetition of an earlier one."""
        firsts = [taught.same[index] for index in self.indices]
        return [first not in firsts[:slot] for slot, first in enumerate(firsts)]

    def _observe(
        self, tally: Tally, taught: Taught, present: list[bool], place: int, is_drafted: bool
    ) -> None:
        """As the engine does: a token that was not drafted counts for rules that need no p."""
        if self.weighting.needs_target_scores and not is_drafted:
            return
        token = taught.tokens[place]
        log_probs = taught.log_q[self.indices, place].clone()
        log_probs[[not has for has in present]] = nan
        seen = Seen(token, log_probs[:, token].tolist())
        if self.weighting.needs_target_scores:
            noise = None if taught.noise is None else taught.noise[place]
            seen = replace(seen, log_probs=log_probs, log_target=taught.log_p[place], noise=noise)
        tally.observe(seen)

    def _block(self, taught: Taught, weights: list[float], position: int, depth: int) -> _Block:
        """One pass: a chain of `depth` draft tokens, and the token after the last right one."""
        log_weights = torch.tensor(weights)
        chances = log_loss = trusted = 0.0
        contested = 0
        right = 0
        for offset in range(depth + 1):
            place = position + offset
            if place == len(taught.tokens):
                break
            log_probs = taught.log_q[self.indices, place]
            token = taught.tokens[place]
            mixed = log_mixture(log_probs[None, :, None], log_weights[None, :, None])[0, 0]
            chances += 1 - float(total_variation(taught.log_p[place], mixed))
            log_loss -= float(mixed[token])
            hits = [proposal(view, taught, place) == token for view in log_probs]
            if any(hits) and not all(hits):
                contested += 1
                trusted += float(log_weights.exp()[hits].sum())
            right = offset
            if offset == depth or proposal(mixed, taught, place) != token:
                break
            right = offset + 1
            if self.weighting.follows_path:
                likelihoods = log_probs[:, token].clamp_min(MIN_LOG_PROB)
                log_weights = (log_weights + likelihoods).log_softmax(-1)
        return _Block(right, chances, log_loss, contested, trusted)


@dataclass(frozen=True)
class _Block:
    right: int
    chances: float
    log_loss: float
    contested: int
    trusted: float


def proposal(log_q: Tensor, taught: Taught, place: int) -> int:
    """The token that a draft with these log probabilities ``[V]`` proposes at a place."""
    ranking = log_q if taught.noise is None else log_q + taught.noise[place]
    return int(ranking.argmax())


def replay_hits(hits: Sequence[bool], longest: int, gamma: int = GAMMA) -> tuple[int, int]:
    """Tokens after the first one, and passes, of chains whose draft token at each place is right or
    not whatever came before: for bounds in hindsight.

    Args:
        hits: for each token of the answer.
        longest: `max_new_tokens`.
        gamma: length of a chain.
    """
    position = 1
    passes = 0
    while position < len(hits):
        depth = min(gamma, longest - position - 1)
        right = 0
        while right < depth and position + right < len(hits) and hits[position + right]:
            right += 1
        position += right + 1
        passes += 1
    return len(hits) - 1, passes


def _masked(log_weights: Sequence[float], present: Sequence[bool]) -> list[float]:
    """Log weights of the views that a prompt has."""
    pairs = zip(log_weights, present, strict=True)
    known = [weight if has else -inf for weight, has in pairs]
    if max(known) == -inf:
        known = [0.0 if has else -inf for has in present]
    return normalized(known)
