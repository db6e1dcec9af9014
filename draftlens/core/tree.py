"""Draft trees as shapes: chains, static trees of the literature, and masks to verify them.

Shape letters, here and everywhere: B rows of a batch, N nodes of a draft tree, P nodes that have
children (the root included), V vocabulary, L prompt length, T tokens of one forward pass, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.result import TokenLogprob

ROOT = -1
"""The parent of a draft tree's first level: the last emitted token, which is not itself a node."""


@dataclass(frozen=True)
class Topology:
    """The shape of a draft tree: for each node the index of its parent, `ROOT` for the first level.

    Nodes are in level order and siblings in the order of the draft's preference, so every level is
    a contiguous slice.
    """

    parents: tuple[int, ...]

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> dict[int, tuple[int, ...]]:
        """Node (or `ROOT`) to its children, most preferred first; leaves are absent."""
        children: dict[int, tuple[int, ...]] = {}
        for node, parent in enumerate(self.parents):
            children[parent] = (*children.get(parent, ()), node)
        return children

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """Everything that has children, `ROOT` first, in level order (length P)."""
        return tuple(sorted(self.children))

    @property
    def depth(self) -> int:
        """Length of the longest path; 0 for the empty tree."""
        return self.depths[-1] if self.parents else 0

    def __len__(self) -> int:
        return len(self.parents)


EMPTY = Topology(())
"""No draft tokens: a verification pass of this tree is one step of plain decoding."""


EAGLE_PATHS: tuple[tuple[int, ...], ...] = (
    *((0,), (1,), (2,), (3,)),
    *((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)),
    *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0)),
    *((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2)),
    *((0, 0, 0, 0, 0), (0, 0, 0, 0, 1)),
)
"""EAGLE's static tree (Li et al. 2024): 25 nodes, 4/8/8/3/2 by depth."""


@lru_cache
def chain(num_tokens: int) -> Topology:
    return Topology(tuple(range(-1, num_tokens - 1)))


def from_paths(paths: Sequence[Sequence[int]]) -> Topology:
    """A tree as the list of its nodes, each named by the ranks that lead to it from the root.

    ``[[0], [1], [0, 0]]`` is the two likeliest next tokens and one continuation of the likeliest.
    Raises ConfigError if a node's parent or better-ranked sibling is missing, or it is named twice.
    """
    if not isinstance(paths, (list, tuple)) or not all(map(_is_path, paths)):
        raise ConfigError(
            f"a tree is a list of non-empty paths of ranks >= 0, such as [[0], [1], [0, 0]], "
            f"not {paths}"
        )
    nodes = sorted(map(tuple, paths), key=lambda path: (len(path), path))
    index: dict[tuple[int, ...], int] = {(): ROOT}
    for node, path in enumerate(nodes):
        if path in index:
            raise ConfigError(f"the tree names the path {list(path)} twice")
        for needed in (path[:-1], (*path[:-1], path[-1] - 1)):
            if needed not in index and needed[-1:] != (-1,):
                raise ConfigError(
                    f"the tree's path {list(path)} needs {list(needed)}, which is missing"
                )
        index[path] = node
    return Topology(tuple(index[path[:-1]] for path in nodes))


def _is_path(path: object) -> bool:
    return (
        isinstance(path, (list, tuple))
        and len(path) > 0
        and all(type(r) is int and r >= 0 for r in path)
    )


@lru_cache
def cut(topology: Topology, depth: int) -> Topology:
    if depth >= topology.depth:
        return topology
    return (
        Topology(topology.parents[: sum(d <= depth for d in topology.depths)])
        if depth > 0
        else EMPTY
    )


def upload(values: Any, device: torch.device) -> Tensor:
    """Whole numbers of the host as int64 on a device; the host does not wait for their copy."""
    return torch.tensor(values, dtype=torch.long).to(device, non_blocking=True)


# Tables that are kept are copied while the host waits, so that any stream may read them later.
@lru_cache
def ancestors(topology: Topology, device: torch.device | None = None) -> Tensor:
    """True for a token itself and for its ancestors: bool ``[N+1, N+1]``, root first."""
    # numpy: operations on single rows take a quarter of torch's time.
    visible = np.eye(len(topology) + 1, dtype=np.bool_)
    for node, parent in enumerate(topology.parents):
        visible[node + 1] |= visible[parent + 1]
    return torch.from_numpy(visible).to(device)


@lru_cache
def depths(topology: Topology, device: torch.device | None = None) -> Tensor:
    """Depth of the root (0) and of each node: int64 ``[N+1]``."""
    return torch.tensor((0, *topology.depths), device=device)


def batch_ancestors(topologies: Sequence[Topology], device: torch.device) -> Tensor:
    """`ancestors` of a batch: bool ``[N+1, N+1]`` if all trees are equal, else ``[B, N+1, N+1]``;
    fillers attend to themselves alone."""
    if _all_equal(topologies):
        return ancestors(topologies[0], device)
    width = max(map(len, topologies)) + 1
    visible = torch.eye(width, dtype=torch.bool).repeat(len(topologies), 1, 1)
    for row, topology in enumerate(topologies):
        size = len(topology) + 1
        visible[row, :size, :size] = ancestors(topology)
    return visible.to(device, non_blocking=True)


def batch_depths(topologies: Sequence[Topology], device: torch.device) -> Tensor:
    """`depths` of a batch: int64 ``[N+1]`` if all trees are equal, else ``[B, N+1]``, 0-padded."""
    if _all_equal(topologies):
        return depths(topologies[0], device)
    width = max(map(len, topologies))
    return upload([(0, *t.depths, *[0] * (width - len(t))) for t in topologies], device)


def _all_equal(topologies: Sequence[Topology]) -> bool:
    first = topologies[0]
    return all(topology is first or topology == first for topology in topologies)


def attention_mask(prefix: Sequence[int], window: Tensor) -> Tensor | None:
    """Mask of T new tokens after `prefix` tokens per row: bool ``[B, 1, T, max(prefix) + W]``.

    `window` is bool ``[T, W]``, or ``[B, T, W]`` if it differs by row: the slots after the prefix
    that each new token attends to. None where every token attends to everything, for which
    attention kernels have a faster path.
    """
    num_rows, longest = len(prefix), max(prefix)
    num_tokens, width = window.shape[-2:]
    windows = window if window.ndim == 2 else window[:, None]
    if min(prefix) == longest:
        if num_tokens == width == 1:
            return None
        mask = window.new_ones((num_rows, 1, num_tokens, longest + width))
        mask[..., longest:] = windows
        return mask
    starts = upload(prefix, window.device)[:, None, None, None]
    slots = torch.arange(longest + width, device=window.device)
    mask = (slots < starts).repeat(1, 1, num_tokens, 1)
    shape = (num_rows, 1, num_tokens, width)
    return mask.scatter_(3, (starts + slots[:width]).expand(shape), windows.expand(shape))


def path_to(topology: Topology, node: int) -> list[int]:
    """The nodes from the first level down to `node`; empty for `ROOT`."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = topology.parents[node]
    return path[::-1]


@dataclass(frozen=True)
class DraftTree:
    """Draft tokens, one tree per row: int64 ``[B, N]``, N of the largest tree.

    Smaller trees are padded with filler ids, which are forwarded but never verified and never
    counted. `probs` are draft probabilities at `Topology.inner` of each row, float ``[B, P, V]``,
    for rejection sampling only.
    """

    topologies: tuple[Topology, ...]
    tokens: Tensor
    probs: Tensor | None = None

    @classmethod
    def uniform(cls, topology: Topology, tokens: Tensor, probs: Tensor | None = None) -> DraftTree:
        """The same topology in every row of `tokens` ``[B, N]``."""
        return cls((topology,) * len(tokens), tokens, probs)

    @property
    def num_nodes(self) -> int:
        return self.tokens.shape[1]


@dataclass(frozen=True, eq=False)
class NextProposal:
    """A draft token after a row's chain, verified in the place of the bonus token without a
    forward; `probs` are the probabilities it was drawn from, float ``[V]``."""

    token: int
    probs: Tensor


@dataclass(frozen=True)
class Verdict:
    """The target's decision about a draft tree.

    Args:
        paths: per row the accepted nodes from the first level down; may be empty.
        tokens: per row the emitted ids: those of the path, then the bonus token.
        scores: the target's processed scores at the root and at every node, ``[B, N+1, V]``; None
            unless the drafter requests them (`Drafter.needs_target_scores`).
        tolerated: per row and accepted node, whether it differs from the target's own choice; empty
            without a tolerant rule.
        logprobs: per row the log probability of each of `tokens`; empty for rows that record none.
    """

    paths: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    scores: Tensor | None = None
    tolerated: tuple[tuple[bool, ...], ...] = ()
    logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
