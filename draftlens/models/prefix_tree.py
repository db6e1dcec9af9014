"""A radix tree of prompts: each token's keys and values are stored once, however many prompts begin
with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftlens.models.kv_cache import LayerStates

DIGEST_BYTES = 16


@dataclass(eq=False)
class Segment:
    """Tokens that follow those of `parent` in all prompts of the tree that contain them.

    Args:
        digests: of these tokens, uint8 ``[n, DIGEST_BYTES]``.
        states: by layer.
        used: moment of the last use, as counted by the owner of the tree.
    """

    digests: np.ndarray
    states: Sequence[LayerStates]
    parent: Segment | None = None
    used: int = 0
    children: dict[bytes, Segment] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return self.digests.nbytes + sum(k.nbytes + v.nbytes for k, v in self.states)

    def __len__(self) -> int:
        return len(self.digests)


class PrefixTree:
    """Prompts of one model. Not thread-safe: the owner holds a lock."""

    def __init__(self) -> None:
        self._root = Segment(np.empty((0, DIGEST_BYTES), np.uint8), ())

    def match(self, digests: np.ndarray) -> list[tuple[Segment, int]]:
        """The segments that begin a prompt, with the number of their tokens that it shares; all
        but the last are shared whole."""
        matches = []
        node = self._root
        start = 0
        while start < len(digests):
            child = node.children.get(digests[start].tobytes())
            if child is None:
                break
            shared = _num_shared(child.digests, digests[start:])
            matches.append((child, shared))
            if shared < len(child):
                break
            start += shared
            node = child
        return matches

    def insert(
        self, digests: np.ndarray, states: Callable[[int, int], Sequence[LayerStates]], now: int
    ) -> int:
        """Store a prompt; `states` returns copies of the states of its tokens from one index up to
        another. Returns the bytes that were added."""
        path = self.match(digests)
        node = self._root
        start = 0
        for segment, shared in path:
            start += shared
            node = segment if shared == len(segment) else _split(segment, shared)
            node.used = now
        if start == len(digests):
            return 0
        new = Segment(digests[start:].copy(), states(start, len(digests)), node, now)
        node.children[new.digests[0].tobytes()] = new
        return new.nbytes

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments())

    def segments(self) -> Iterator[Segment]:
        waiting = list(self._root.children.values())
        while waiting:
            segment = waiting.pop()
            waiting += segment.children.values()
            yield segment

    def leaves(self) -> Iterator[Segment]:
        """The segments that no other one follows."""
        return (segment for segment in self.segments() if not segment.children)

    def remove(self, leaf: Segment) -> None:
        assert leaf.parent is not None
        del leaf.parent.children[leaf.digests[0].tobytes()]


def _num_shared(first: np.ndarray, second: np.ndarray) -> int:
    """How many tokens two prompts share from their beginning."""
    length = min(len(first), len(second))
    differs = (first[:length] != second[:length]).any(1)
    return int(differs.argmax()) if differs.any() else length


def _split(segment: Segment, count: int) -> Segment:
    """Divide a segment after its first `count` tokens; returns the part before."""
    assert segment.parent is not None
    # Copies: a view would keep the whole in memory after the other part is removed.
    head = Segment(
        segment.digests[:count].copy(),
        [(k[:, :count].clone(), v[:, :count].clone()) for k, v in segment.states],
        segment.parent,
        segment.used,
    )
    segment.parent.children[head.digests[0].tobytes()] = head
    segment.digests = segment.digests[count:].copy()
    segment.states = [(k[:, count:].clone(), v[:, count:].clone()) for k, v in segment.states]
    segment.parent = head
    head.children[segment.digests[0].tobytes()] = segment
    return head
