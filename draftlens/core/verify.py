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
- `tolerant` also accepts a guess that the target finds nearly as likely as its own choice (HSD,
  equations 8 to 11). The tokens are not those of plain decoding.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
    tolerated: tuple[bool, ...] = ()


def combine(rows: Sequence[RowVerdict]) -> Verdict:
    """The verdict of a batch from those of its rows."""
    return Verdict(
        paths=tuple(row.path for row in rows),
        tokens=tuple(row.tokens for row in rows),
        tolerated=tuple(row.tolerated for row in rows),
    )


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


def tolerant(
    tree: DraftTree, scores: Tensor, tolerance: float, eos: Sequence[Collection[int]]
) -> Verdict:
    """`tolerant`: walk down while the likeliest child is nearly as likely as the target's choice.

    Of a node's children the likeliest, u*, is accepted if log p(û) / log p(u*) >= τ, where û is the
    target's own choice: the likeliest token of all. In other words p(u*) >= p(û)^(1/τ). Where the
    walk stops, û follows (HSD, equations 8 to 11). If u* is û, it is accepted whatever the ratio,
    which is 0/0 where p(û) is 1. An end-of-sequence token is neither passed over nor put in place
    of another token.

    Args:
        tree: the guesses.
        scores: the target's processed logits ``[B, N+1, V]``; their softmax, in float32, is p.
        tolerance: τ in (0, 1]; 1 accepts no token but û, or one that is exactly as likely.
        eos: of each row, the ids that end its answer.
    """
    log_p = torch.log_softmax(scores.float(), -1)
    choices = scores.argmax(-1)
    best = log_p.gather(-1, choices[..., None]).squeeze(-1)
    guessed = _log_p_of_guesses(tree, log_p)
    rows = []
    for row, topology in enumerate(tree.topologies):
        walk = _TolerantWalk(
            tokens=tree.tokens[row].tolist(),
            choices=choices[row].tolist(),
            best=best[row].tolist(),
            guessed=guessed[row].tolist(),
            tolerance=tolerance,
            eos=eos[row],
        )
        rows.append(walk.verdict(topology))
    return combine(rows)


def _log_p_of_guesses(tree: DraftTree, log_p: Tensor) -> Tensor:
    """The logarithm of the target's probability of each guess, float32 ``[B, N]``; anything for
    fillers."""
    parents = torch.zeros_like(tree.tokens)
    for row, topology in enumerate(tree.topologies):
        parents[row, : len(topology)] = torch.tensor(topology.parents, dtype=torch.long) + 1
    rows = torch.arange(len(parents), device=parents.device)[:, None]
    return log_p[rows, parents, tree.tokens]


@dataclass(frozen=True)
class _TolerantWalk:
    """What `tolerant` knows about one row.

    Args:
        tokens: the guess of each node.
        choices: û at the root and at each node.
        best: log p(û) there.
        guessed: log p of the guess of each node, given the path to it.
        tolerance: τ.
        eos: ids that end the answer.
    """

    tokens: list[int]
    choices: list[int]
    best: list[float]
    guessed: list[float]
    tolerance: float
    eos: Collection[int]

    def verdict(self, topology: Topology) -> RowVerdict:
        """Walk down the row's tree."""
        path: list[int] = []
        tolerated: list[bool] = []
        node = ROOT
        while True:
            child = self._accepted(node, topology.children.get(node, ()))
            if child is None:
                break
            path.append(child)
            tolerated.append(self.tokens[child] != self.choices[node + 1])
            node = child
        emitted = [*(self.tokens[child] for child in path), self.choices[node + 1]]
        return RowVerdict(tuple(path), tuple(emitted), tuple(tolerated))

    def _accepted(self, node: int, children: Sequence[int]) -> int | None:
        choice = self.choices[node + 1]
        for child in children:
            if self.tokens[child] == choice:
                return child
        if not children or self.tolerance >= 1 or choice in self.eos:
            return None
        likeliest = max(children, key=lambda child: self.guessed[child])
        if self.tokens[likeliest] in self.eos:
            return None
        # Logarithms are negative: the ratio is at least τ if the numerator is at most this.
        is_near = self.best[node + 1] <= self.tolerance * self.guessed[likeliest]
        return likeliest if is_near else None


def reject(
    tree: DraftTree,
    scores: Tensor,
    generators: Sequence[torch.Generator | None],
    next_guesses: Sequence[NextGuess | None] | None = None,
) -> Verdict:
    """`rejection`: accept by chance, and draw from the rest of p where every guess is rejected.

    Siblings must have been drawn from q one after the other without replacement, in the order of
    their indices (`decoding.drafter.draw_children` does so). Guesses that were not drawn have no
    q. Then a token is drawn from p, and it is accepted as a guess if a child carries it: such a
    guess is right with probability p(x), which is min(1, p(x)/q(x)) for a q that is certain of it.

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
