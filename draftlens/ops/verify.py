"""The rules that decide which guesses stand.

Symbols as in the papers: p the target's distribution, q the draft's, γ the number of guesses, τ the
mean number of tokens that one verification pass emits. Each rule is a pure function ``(tree,
scores, noise) -> Verdict``; scores are the target's processed logits at the root and at every node,
``[B, N+1, V]``, root first.

- `greedy` and `coupled` fix the target's choice at every node beforehand (its argmax; its argmax
  with noise keyed by position) and follow the guesses as long as they equal it. The emitted tokens
  are those of plain decoding by construction: the draft decides only how many of them one pass
  yields.
- `rejection` accepts a guess x with probability min(1, p(x)/q(x)) (Leviathan et al. 2023, Chen et
  al. 2023), for several guesses at one node recursively and without replacement (Jeon et al. 2024).
  Same distribution, other tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftlens.core.proposal import DraftTree, Verdict
from draftlens.core.tree import ROOT, Topology


def match(tree: DraftTree, ranking: Tensor) -> Verdict:
    """`greedy` and `coupled`: walk down while a child carries the token that the target chose.

    Args:
        tree: the guesses.
        ranking: what the target's choice is the argmax of, ``[B, N+1, V]`` (see
            `SamplingRule.ranking`).
    """
    choices = ranking.argmax(-1)
    # One transfer for both: on a GPU this is where the host waits for the pass.
    table = torch.cat([choices, tree.tokens], dim=1).tolist()
    rows = [
        _walk(tree.topology, row[: len(tree.topology) + 1], row[len(tree.topology) + 1 :])
        for row in table
    ]
    return Verdict(tuple(path for path, _ in rows), tuple(tokens for _, tokens in rows))


def _walk(
    topology: Topology, choices: list[int], tokens: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    path: list[int] = []
    emitted: list[int] = []
    node = ROOT
    while True:
        choice = choices[node + 1]
        emitted.append(choice)
        hit = next(
            (child for child in topology.children.get(node, ()) if tokens[child] == choice), None
        )
        if hit is None:
            return tuple(path), tuple(emitted)
        path.append(hit)
        node = hit


def reject(tree: DraftTree, scores: Tensor, generator: torch.Generator) -> Verdict:
    """`rejection`: accept by chance, repair by drawing from what the guesses left of p.

    Siblings must have been drawn from q one after the other without replacement, in the order of
    their indices (`draft.base.draw_children` does so).

    Args:
        tree: the guesses, with `probs` (q).
        scores: the target's processed logits ``[B, N+1, V]``; their softmax is p.
        generator: a CPU generator; it advances.
    """
    p = torch.softmax(scores.double(), -1).cpu()
    q = tree.probs.double().cpu() if tree.probs is not None else None
    rows = [
        _reject_row(tree, row, p[row], q[row] if q is not None else None, generator)
        for row in range(p.shape[0])
    ]
    return Verdict(tuple(path for path, _ in rows), tuple(tokens for _, tokens in rows))


def _reject_row(
    tree: DraftTree, row: int, p: Tensor, q: Tensor | None, generator: torch.Generator
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    tokens = tree.tokens[row].tolist()
    slot = {node: index for index, node in enumerate(tree.topology.inner)}
    path: list[int] = []
    node = ROOT
    while True:
        children = tree.topology.children.get(node, ())
        rest = p[node + 1]
        hit = None
        if children and q is not None:
            hit, rest = _try_children(
                rest, q[slot[node]], [(child, tokens[child]) for child in children], generator
            )
        if hit is None:
            bonus = int(torch.multinomial(rest, 1, generator=generator))
            return tuple(path), (*(tokens[n] for n in path), bonus)
        path.append(hit)
        node = hit


def _try_children(
    p: Tensor, q: Tensor, children: list[tuple[int, int]], generator: torch.Generator
) -> tuple[int | None, Tensor]:
    """The accepted child, or None and the distribution that is left to draw from."""
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
    """q over the target's vocabulary: ids that only one of the two models has carry no draft
    probability."""
    return torch.nn.functional.pad(q, (0, vocab - q.shape[-1]))
