"""The rules that decide which draft tokens are accepted.

Symbols as in the papers: p the target's distribution, q the draft's, γ the number of draft tokens,
τ the mean number of tokens that one verification pass emits. Each rule is a function of a
`DraftTree` and of the target's scores at the root and at every node, ``[B, N+1, V]``, root first,
and returns a `Verdict`:

- `greedy` and `coupled` (`match`) fix the target's choice at every node beforehand (its argmax; its
  argmax with noise keyed by position) and accept draft tokens while they are equal to it. The
  emitted tokens are those of plain decoding by construction.
- `rejection` (`reject`) accepts a draft token x with probability min(1, p(x)/q(x)) (Leviathan et
  al. 2023, Chen et al. 2023), for several children of one node recursively and without replacement
  (Jeon et al. 2024). The distribution is the same, the tokens are not. A draft token after the
  chain (`NextProposal`) is verified in the same way and takes the place of the bonus token.
- `tolerant` also accepts a draft token that the target finds nearly as likely as its own choice
  (HSD, equations 8 to 11). The tokens are not those of plain decoding.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlens.core.tree import ROOT, DraftTree, NextProposal, Topology, Verdict


@dataclass(frozen=True)
class RowVerdict:
    """`Verdict` of a single row."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    tolerated: tuple[bool, ...] = ()


def combine(rows: Sequence[RowVerdict]) -> Verdict:
    return Verdict(
        paths=tuple(row.path for row in rows),
        tokens=tuple(row.tokens for row in rows),
        tolerated=tuple(row.tolerated for row in rows),
    )


def match(tree: DraftTree, ranking: Tensor) -> Verdict:
    """`greedy` and `coupled`: walk down while a child carries the target's choice, the argmax of
    `ranking` ``[B, N+1, V]`` (`SamplingRule.ranking`)."""
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
    likeliest token of all: p(u*) >= p(û)^(1/τ). Where the walk stops, û follows (HSD, equations 8
    to 11). If u* is û, it is always accepted: the ratio is 0/0 where p(û) is 1. An end-of-sequence
    token neither is replaced by another token nor replaces one.

    `scores` ``[B, N+1, V]`` are processed logits; their softmax, in float32, is p. `tolerance` is τ
    in (0, 1]; 1 accepts only û and tokens that are exactly as likely. `eos` are the ids that end
    each row.
    """
    log_p = torch.log_softmax(scores.float(), -1)
    choices = scores.argmax(-1)
    best = log_p.gather(-1, choices[..., None]).squeeze(-1)
    draft_log_p = _log_p_of_draft_tokens(tree, log_p)
    rows = []
    for row, topology in enumerate(tree.topologies):
        walk = _TolerantWalk(
            tokens=tree.tokens[row].tolist(),
            choices=choices[row].tolist(),
            best=best[row].tolist(),
            draft_log_p=draft_log_p[row].tolist(),
            tolerance=tolerance,
            eos=eos[row],
        )
        rows.append(walk.verdict(topology))
    return combine(rows)


def _log_p_of_draft_tokens(tree: DraftTree, log_p: Tensor) -> Tensor:
    """The target's log probabilities, float32 ``[B, N]``; arbitrary for fillers."""
    parents = torch.zeros_like(tree.tokens)
    for row, topology in enumerate(tree.topologies):
        parents[row, : len(topology)] = torch.tensor(topology.parents, dtype=torch.long) + 1
    rows = torch.arange(len(parents), device=parents.device)[:, None]
    return log_p[rows, parents, tree.tokens]


@dataclass(frozen=True)
class _TolerantWalk:
    """One row of `tolerant`: `choices` are û at the root and at each node and `best` log p(û)
    there; `draft_log_p` is log p of each node's draft token, given the path to it."""

    tokens: list[int]
    choices: list[int]
    best: list[float]
    draft_log_p: list[float]
    tolerance: float
    eos: Collection[int]

    def verdict(self, topology: Topology) -> RowVerdict:
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
        likeliest = max(children, key=lambda child: self.draft_log_p[child])
        if self.tokens[likeliest] in self.eos:
            return None
        # Logarithms are negative: the ratio is at least τ if the numerator is at most this.
        is_near = self.best[node + 1] <= self.tolerance * self.draft_log_p[likeliest]
        return likeliest if is_near else None


def reject(
    tree: DraftTree,
    scores: Tensor,
    generators: Sequence[torch.Generator | None],
    next_proposals: Sequence[NextProposal | None] | None = None,
) -> Verdict:
    """`rejection`: accept by chance; where every draft token is rejected, draw from the rest of p.

    Siblings must have been drawn from q one after the other without replacement, in the order of
    their indices (`decoding.plan.draw_children` does so). Draft tokens that were not drawn have
    no q. Then a token is drawn from p, and a child that carries it is accepted: with probability
    p(x), which is min(1, p(x)/q(x)) for a q that is certain of x.

    Args:
        tree: `probs` is q, or None if the draft tokens were not drawn.
        scores: the target's processed logits ``[B, N+1, V]``; their softmax is p.
        generators: on the CPU, one for each row; they advance. None for a row that has ended and
            gets no tokens, because its scores may not be a distribution.
        next_proposals: per row the draft token after its chain, if any. If the whole chain is
            accepted, it is verified in place of drawing the bonus token, because a bonus drawn from
            p alone would differ from it more often than necessary.
    """
    if next_proposals is None:
        next_proposals = [None] * len(tree.topologies)
    tokens = tree.tokens.tolist()
    q = None if tree.probs is None else tree.probs.double().cpu()
    rows = []
    for row, topology in enumerate(tree.topologies):
        generator = generators[row]
        next_proposal = next_proposals[row]
        if generator is None:
            rows.append(RowVerdict((), ()))
        elif q is None and next_proposal is None:
            rows.append(_draw_row(topology, tokens[row], scores[row], generator))
        else:
            p = torch.softmax(scores[row].double(), -1).cpu()
            row_q = None if q is None else q[row]
            rows.append(_reject_row(topology, tokens[row], p, row_q, generator, next_proposal))
    return combine(rows)


def _draw_row(
    topology: Topology, tokens: list[int], scores: Tensor, generator: torch.Generator
) -> RowVerdict:
    """Draw from p ``[N+1, V]`` and go on while the drawn token is a child: each emitted token is
    one draw, so the tokens do not depend on the draft."""
    path: list[int] = []
    emitted: list[int] = []
    node: int | None = ROOT
    while node is not None:
        p = torch.softmax(scores[node + 1].double(), -1).cpu()
        token = _draw(p, generator)
        emitted.append(token)
        children = topology.children.get(node, ())
        node = next((child for child in children if tokens[child] == token), None)
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
    next_proposal: NextProposal | None,
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
            bonus = _bonus(rest, None if children else next_proposal, generator)
            return RowVerdict(tuple(path), (*(tokens[n] for n in path), bonus))
        path.append(accepted)
        node = accepted


def _bonus(p: Tensor, proposal: NextProposal | None, generator: torch.Generator) -> int:
    """The next draft token if it is accepted, else a draw from the rest of p ``[V]``."""
    if proposal is not None:
        accepted, p = _try_children(p, proposal.probs.double(), [(0, proposal.token)], generator)
        if accepted is not None:
            return proposal.token
    return _draw(p, generator)


def _draw(p: Tensor, generator: torch.Generator) -> int:
    """A token of p ``[V]``; the first if p is nan, with all tokens banned after the end."""
    if p.isnan().any():
        return 0
    return int(torch.multinomial(p, 1, generator=generator))


def _try_children(
    p: Tensor, q: Tensor, children: list[tuple[int, int]], generator: torch.Generator
) -> tuple[int | None, Tensor]:
    """The accepted child, or None and the rest of p ``[V]`` to draw from; `children` are pairs of
    node and token in the order in which they were drawn from q ``[V']``."""
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
