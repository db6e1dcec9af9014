"""The nouns of the house: plain frozen data, passed between layers that do not know each other.

Shape letters, here and everywhere: B rows of a batch, N nodes of a draft tree, P nodes that have children (the root
included), V vocabulary, L prompt length, T tokens of one forward pass, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from draftlens.engine.stats import Stats

ROOT = -1
"""The parent of a draft tree's first level: the last emitted token, which is not itself a node."""


@dataclass(frozen=True)
class Topology:
    """The shape of a draft tree, shared by all rows of a batch.

    Args:
        parents: for each node the index of its parent, `ROOT` for the first level. Nodes stand in level order and
            siblings in the order of the draft's preference, so every level is a contiguous slice.
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
"""No guess at all: one verification pass of this tree is one step of plain decoding."""


@dataclass(frozen=True)
class DraftTree:
    """What a drafter proposes for every row.

    Args:
        topology: the shape, the same for all rows.
        tokens: guessed token ids, int64 ``[B, N]``.
        probs: draft probabilities at `Topology.inner`, float ``[B, P, V]``; only `rejection` needs them.
    """

    topology: Topology
    tokens: Tensor
    probs: Tensor | None = None


@dataclass(frozen=True)
class Verdict:
    """What the target made of a draft tree.

    Args:
        paths: per row the accepted nodes from the first level down; empty if the first guess was wrong.
        tokens: per row the emitted ids: those of the path, then the target's own next token (the bonus token).
    """

    paths: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Chunk:
    """Tokens that one row gained in one round.

    Args:
        tokens: new token ids.
        from_draft: for each of them, whether the draft supplied it (the bonus token is the target's own).
        text: what they add to the row's text; empty where no tokenizer is at hand.
        row: which row of the batch.
    """

    tokens: tuple[int, ...]
    from_draft: tuple[bool, ...]
    text: str = ""
    row: int = 0


@dataclass(frozen=True)
class Result:
    """One finished call.

    Args:
        tokens: per row the new token ids, the ending end-of-sequence id included as `generate` does.
        from_draft: per row and token, whether the draft supplied it.
        stats: counters, times and the metrics derived from them.
        lossless: true only if everything on the target's side was exact.
        approximate: the names of what was not.
        texts: per row the decoded text without special tokens; empty where no tokenizer is at hand.
    """

    tokens: list[list[int]]
    from_draft: list[list[bool]]
    stats: Stats
    lossless: bool
    approximate: tuple[str, ...] = ()
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The first row's text."""
        return self.texts[0] if self.texts else ""
