"""The rules that decide which guesses are accepted.

Symbols as in the papers: p the target's distribution, q the draft's, γ the number of guesses, τ the
mean number of tokens that one verification pass emits. Each rule is a pure function
``(tree, scores, noise) -> Verdict``; scores are the target's processed logits at the root and at
every node, ``[B, N+1, V]``, root first.

- `greedy` and `coupled` fix the target's choice at every node beforehand (its argmax; its argmax
  with noise keyed by position) and follow the guesses while they are equal to it. The emitted
  tokens are those of plain decoding by construction: the draft decides only how many of them one
  pass yields.
- `rejection` accepts a guess x with probability min(1, p(x)/q(x)) (Leviathan et al. 2023, Chen et
  al. 2023), for several guesses at one node recursively and without replacement (Jeon et al. 2024).
  The distribution is the same, the tokens are not. Where the draft runs ahead of the target, its
  next guess (`NextGuess`) is judged in the same way and takes the place of the bonus token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlens.core.proposal import DraftTree, NextGuess, Verdict
from draftlens.core.tree import ROOT, Topology


@dataclass(frozen=True)
class RowVerdict:
    """The verdict on one row's tree; the fields are those of `Verdict` for one row."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]


def combine(rows: Sequence[RowVerdict]) -> Verdict:
    """The verdict of a batch from those of its rows."""
    return Verdict(tuple(row.path for row in rows), tuple(row.tokens for row in rows))


def match(tree: DraftTree, ranking: Tensor) -> Verdict:
    """`greedy` and `coupled`: walk down while a child carries the token that the target chose.

    Args:
        tree: the guesses.
        ranking: the quantity whose argmax is the target's choice, ``[B, N+1, V]`` (see
            `SamplingRule.ranking`).
    """
    choices = ranking.argmax(-1)
    # One transfer for both: on a GPU the host waits for the pass here.
    table = torch.cat([choices, tree.tokens], dim=1).tolist()
    width = tree.num_nodes + 1
    rows = [
        _walk(topology, values[:width], values[width:])
        for topology, values in zip(tree.topologies, table, strict=True)
    ]
    return combine(rows)


def _walk(topology: Topology, choices: list[int], tokens: list[int]) -> RowVerdict:
    path: list[int] = []
    emitted: list[int] = []
    node: int | None = ROOT
    while node is not None:
        choice = choices[node + 1]
        emitted.append(choice)
        children = topology.children.get(node, ())
        node = next((child for child in children if tokens[child] == choice), None)
        if node is not None:
            path.append(node)
    return RowVerdict(tuple(path), tuple(emitted))


def reject(
    tree: DraftTree,
    scores: Tensor,
    generators: Sequence[torch.Generator | None],
    next_guesses: Sequence[NextGuess | None] | None = None,
) -> Verdict:
    """`rejection`: accept by chance, and draw from the rest of p where every guess is rejected.

    Siblings must have been drawn from q one after the other without replacement, in the order of
    their indices (`draft.base.draw_children` does so). Guesses that were not drawn have no q. Then
    a token is drawn from p, and it is accepted as a guess if a child carries it: such a guess is
    right with probability p(x), which is min(1, p(x)/q(x)) for a q that is certain of it.

    Args:
        tree: the guesses; `probs` is q, or None if they were not drawn.
        scores: the target's processed logits ``[B, N+1, V]``; their softmax is p.
        generators: a CPU generator for each row; they advance. None for a row that is not judged
            and gets no tokens: one that has ended, whose scores may be those of no distribution.
        next_guesses: per row the guess behind its chain of guesses, None where there is none. If
            all guesses of the chain are accepted, it decides the bonus token: a bonus that is drawn
            from p alone and compared with it would be another token more often than need be.
    """
    if next_guesses is None:
        next_guesses = [None] * len(tree.topologies)
    tokens = tree.tokens.tolist()
    q = None if tree.probs is None else tree.probs.double().cpu()
    rows = []
    for row, topology in enumerate(tree.topologies):
        generator = generators[row]
        next_guess = next_guesses[row]
        if generator is None:
            rows.append(RowVerdict((), ()))
        elif q is None and next_guess is None:
            rows.append(_draw_row(topology, tokens[row], scores[row], generator))
        else:
            p = torch.softmax(scores[row].double(), -1).cpu()
            row_q = None if q is None else q[row]
            rows.append(_reject_row(topology, tokens[row], p, row_q, generator, next_guess))
    return combine(rows)


def _draw_row(
    topology: Topology, tokens: list[int], scores: Tensor, generator: torch.Generator
) -> RowVerdict:
    """Draw from p, and go on while the drawn token is a child.

    Each emitted token is one draw, so the tokens do not depend on the guesses.

    Args:
        topology: of the tree.
        tokens: of its nodes.
        scores: of the row, ``[N+1, V]``. Only those of visited nodes are read.
        generator: advances.
    """
    path: list[int] = []
    emitted: list[int] = []
    node: int | None = ROOT
    while node is not None:
        p = torch.softmax(scores[node + 1].double(), -1).cpu()
        drawn = _draw(p, generator)
        emitted.append(drawn)
        children = topology.children.get(node, ())
        node = next((child for child in children if tokens[child] == drawn), None)
        if node is not None:
            path.append(node)
    accepted = tuple(path)
    return RowVerdict(accepted, tuple(emitted))


def _reject_row(
    topology: Topology,
    tokens: list[int],
    p: Tensor,
    q: Tensor | None,
    generator: torch.Generator,
    next_guess: NextGuess | None,
) -> RowVerdict:
    slot = {node: index for index, node in enumerate(topology.inner)}
    path: list[int] = []
    node = ROOT
    while True:
        children = topology.children.get(node, ())
        rest = p[node + 1]
        accepted = None
        if children and q is not None:
            candidates = [(child, tokens[child]) for child in children]
            accepted, rest = _try_children(rest, q[slot[node]], candidates, generator)
        if accepted is None:
            bonus = _bonus(rest, None if children else next_guess, generator)
            return RowVerdict(tuple(path), (*(tokens[n] for n in path), bonus))
        path.append(accepted)
        node = accepted


def _bonus(p: Tensor, guess: NextGuess | None, generator: torch.Generator) -> int:
    """The token behind the accepted guesses: the next guess if it is accepted, else drawn from what
    is left of p ``[V]``."""
    if guess is not None:
        accepted, p = _try_children(p, guess.probs.double(), [(0, guess.token)], generator)
        if accepted is not None:
            return guess.token
    return _draw(p, generator)


def _draw(p: Tensor, generator: torch.Generator) -> int:
    """A token of p ``[V]``.

    Where the processors ban every token, as they may behind the end of an answer, p is nan. Then it
    is the first token, as with the other rules.
    """
    if p.isnan().any():
        return 0
    return int(torch.multinomial(p, 1, generator=generator))


def _try_children(
    p: Tensor, q: Tensor, children: list[tuple[int, int]], generator: torch.Generator
) -> tuple[int | None, Tensor]:
    """The accepted child, or None and the distribution that is left to draw from.

    Args:
        p: the target's distribution ``[V]``.
        q: the draft's distribution ``[V']``.
        children: pairs of node and token, in the order in which they were drawn.
        generator: advances.
    """
    q = _padded(q, p.shape[-1])
    for child, token in children:
        if q[token] <= 0:  # more children than q has tokens: this one was not drawn from it
            continue
        if torch.rand((), generator=generator, dtype=p.dtype) * q[token] < p[token]:
            return child, p
        rest = (p - q).clamp_min(0)
        if rest.sum() <= 0:  # p = q up to rounding: nothing is left to draw instead
            return child, p
        p = rest / rest.sum()
        q = q.clone()
        q[token] = 0
        q = q / q.sum().clamp_min(torch.finfo(q.dtype).tiny)
    return None, p


def _padded(q: Tensor, vocab: int) -> Tensor:
    """q over the target's vocabulary; ids that only one model has carry no draft probability."""
    return torch.nn.functional.pad(q, (0, vocab - q.shape[-1]))
