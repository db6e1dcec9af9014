"""A radix tree of prompts: each token's keys and values are stored once, however many prompts begin
with it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftlens.core.options import wrong
from draftlens.models.kv_cache import HeldTokens, KVCache, LayerStates
from draftlens.models.model_state import Slot
from draftlens.models.prompt import TOKEN_INPUTS, Prompt

DIGEST_BYTES = 16

EndStates = Sequence[Sequence[Tensor | None]]
"""The states of one row by layer, of models whose layers keep states."""


@dataclass(eq=False)
class Segment:
    """Tokens that follow those of `parent` in all prompts of the tree that contain them.

    Args:
        digests: of these tokens, uint8 ``[n, DIGEST_BYTES]``.
        states: by layer; those of sliding layers may be of the last tokens only.
        used: moment of the last use, as counted by the owner of the tree.
        end: the states after the last of these tokens, where they are kept.
    """

    digests: np.ndarray
    states: Sequence[LayerStates]
    parent: Segment | None = None
    used: int = 0
    children: dict[bytes, Segment] = field(default_factory=dict)
    end: EndStates = ()

    @property
    def nbytes(self) -> int:
        tensors = [tensor for values in (*self.states, *self.end) for tensor in values]
        return self.digests.nbytes + sum(each.nbytes for each in tensors if each is not None)

    @property
    def num_missing(self) -> int:
        """How many tokens at the beginning have no states in sliding layers."""
        return len(self) - min((keys.shape[1] for keys, _ in self.states), default=len(self))

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
        self,
        digests: np.ndarray,
        states: Callable[[int, int], Sequence[LayerStates]],
        now: int,
        end: EndStates = (),
    ) -> int:
        """Store a prompt; `states` returns copies of the states of its tokens from one index up to
        another, and `end` has those after the last one. Returns the bytes that were added."""
        path = self.match(digests)
        node = self._root
        start = 0
        for segment, shared in path:
            start += shared
            node = segment if shared == len(segment) else _split(segment, shared)
            node.used = now
        before = node.nbytes
        if start < len(digests):
            before, parent = 0, node
            node = Segment(digests[start:].copy(), states(start, len(digests)), parent, now)
            parent.children[node.digests[0].tobytes()] = node
        node.end = node.end or end
        return node.nbytes - before

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
        _copied(_part(segment, 0, count)),
        segment.parent,
        segment.used,
    )
    segment.parent.children[head.digests[0].tobytes()] = head
    segment.states = _copied(_part(segment, count, len(segment)))
    segment.digests = segment.digests[count:].copy()
    segment.parent = head
    head.children[segment.digests[0].tobytes()] = segment
    return head


def _part(segment: Segment, first: int, last: int) -> list[LayerStates]:
    """Views of the states of some tokens of a segment."""
    part = []
    for keys, values in segment.states:
        missing = len(segment) - keys.shape[1]
        places = slice(max(first - missing, 0), max(last - missing, 0))
        part.append((keys[:, places], values[:, places]))
    return part


def _copied(states: Sequence[LayerStates]) -> list[LayerStates]:
    return [(keys.clone(), values.clone()) for keys, values in states]


def prompt_digests(prompt: Prompt, row: int) -> np.ndarray:
    """Digests of a row's tokens, uint8 ``[length, DIGEST_BYTES]``: of their embeddings (which are
    the vision features of visual tokens), positions and further features."""
    length = prompt.lengths[row]
    visual = prompt.visual[row, :length]
    further = prompt.extra.get(TOKEN_INPUTS)
    tokens = _tokens(
        prompt.embeds[row, :length],
        prompt.position_ids[..., row, :length],
        None if further is None else further[row, :length],
    )
    features = [_bytes(value) for value in _visual_features(prompt, row)]
    digests = []
    place = 0  # among the visual tokens of the row
    for token, is_visual in zip(tokens, visual.tolist(), strict=True):
        digest = blake2b(token.tobytes(), digest_size=DIGEST_BYTES)
        if is_visual:
            for value in features:
                digest.update(value[place].tobytes())
            place += 1
        digests.append(digest.digest())
    if prompt.ahead is not None:
        from draftlens.models.prompt_blocks import with_blocks

        digests = with_blocks(prompt, row, digests)
    return _table(digests)


def answer_digests(embeds: Tensor, positions: Tensor, further: Tensor | None = None) -> np.ndarray:
    """Digests of text tokens with embeddings ``[T, D]``, positions ``[..., T]`` and their inputs
    for each layer, if any, ``[T, layers, D']``."""
    tokens = _tokens(embeds, positions, further)
    return _table(blake2b(token.tobytes(), digest_size=DIGEST_BYTES).digest() for token in tokens)


def content_digest(values: Iterable[tuple[str, object]]) -> bytes:
    """A digest of named tensors and plain values."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for name, value in values:
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(_bytes(value.reshape(1, -1)).tobytes())
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.digest()


def _visual_features(prompt: Prompt, row: int) -> list[Tensor]:
    """Further features of a row's visual tokens (deepstack), each ``[n, D]``."""
    before = int(prompt.visual[:row].sum())
    row_slice = slice(before, before + int(prompt.visual[row].sum()))
    features: list[Tensor] = []
    for value in prompt.extra.values():
        value = list(value.values()) if isinstance(value, dict) else value
        if isinstance(value, (list, tuple)):
            features += [part[row_slice] for part in value if isinstance(part, Tensor)]
    return features


def _tokens(embeds: Tensor, positions: Tensor, further: Tensor | None = None) -> np.ndarray:
    """Embeddings ``[T, D]``, positions ``[..., T]`` and inputs for layers as bytes of each
    token."""
    places = positions.reshape(-1, positions.shape[-1]).T
    values = [embeds, places] if further is None else [embeds, places, further]
    return np.concatenate([_bytes(value) for value in values], 1)


def _bytes(values: Tensor) -> np.ndarray:
    """Values ``[T, ...]`` as uint8 ``[T, W]``."""
    flat = values.detach().cpu().reshape(-1).contiguous()
    width = math.prod(values.shape[1:]) * values.element_size()
    return flat.view(torch.uint8).reshape(len(values), width).numpy()


def _table(digests: Iterable[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)


UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
"""Bytes of the units of `PromptCache.max_bytes`."""

_NUMBERS = count()
_NUMBER = Slot[int]("number in prompt caches")


@dataclass
class _Features:
    value: Any
    nbytes: int
    used: int


class PromptCache:
    """Features of media by their content, and the keys and values of prompts by their beginnings.

    What was not used for the longest time is dropped first. The cache may serve several models,
    engines and threads. After a change of a model's weights, call `clear`.

    Args:
        max_bytes: bound on all entries together, a number or a text such as `"4GB"`.

    Raises:
        ConfigError: `max_bytes` is no size.

    Example:

        >>> import draftlens
        >>> draftlens.PromptCache("256MB").max_bytes
        256000000
    """

    def __init__(self, max_bytes: int | str) -> None:
        self.max_bytes = num_bytes(max_bytes)
        self.nbytes = 0
        self._now = 0
        self._lock = RLock()
        self._trees: dict[tuple[Any, ...], PrefixTree] = {}
        self._features: dict[tuple[int, bytes], _Features] = {}

    @classmethod
    def of(cls, value: PromptCache | int | str | None) -> PromptCache | None:
        """A cache, or a new one of a given size; None for none."""
        return value if value is None or isinstance(value, PromptCache) else cls(value)

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._trees.clear()
            self._features.clear()
            self.nbytes = 0

    def counted(self) -> int:
        """Bytes of all entries, counted anew; `nbytes` is the same sum, kept."""
        with self._lock:
            features = sum(entry.nbytes for entry in self._features.values())
            return features + sum(tree.nbytes for tree in self._trees.values())

    def find_features(self, model: Any, digest: bytes) -> Any:
        """The value that was stored under this digest; None if there is none."""
        with self._lock:
            entry = self._features.get((_number(model), digest))
            if entry is None:
                return None
            entry.used = self._tick()
            return entry.value

    def store_features(self, model: Any, digest: bytes, value: Any, nbytes: int) -> None:
        """Keep a value of this size in bytes under a digest."""
        with self._lock:
            key = (_number(model), digest)
            if key not in self._features:
                self._features[key] = _Features(value, nbytes, self._tick())
                self.nbytes += nbytes
                self._evict()

    def shared(self, model: Any, held: HeldTokens) -> int:
        """How many of a prompt's first tokens are stored."""
        with self._lock:
            tree = self._trees.get((_number(model), held.namespace))
            return 0 if tree is None else sum(shared for _, shared in tree.match(held.digests))

    def namespaces(self, model: Any) -> list[str]:
        """Those that have prompts of a model."""
        with self._lock:
            return [namespace for number, namespace in self._trees if number == _number(model)]

    def restore(
        self,
        model: Any,
        held: HeldTokens,
        cache: KVCache,
        row: int,
        most: int,
        at_end: bool = False,
    ) -> EndStates:
        """Copy the states of a prompt's first tokens, at most `most`, into an empty row. With
        `at_end` only those up to the last end, whose states are returned."""
        with self._lock:
            tree = self._trees.get((_number(model), held.namespace))
            start = 0
            matches = [] if tree is None else tree.match(held.digests[:most])
            while at_end and matches and not _is_at_end(*matches[-1]):
                matches.pop()
            while not _holds_windows(matches, cache):
                matches.pop()
            for segment, shared in matches:
                segment.used = self._tick()
                cache.put(row, start, _part(segment, 0, shared), shared)
                start += shared
            cache.lengths[row] = start
            return matches[-1][0].end if matches else ()

    def store(
        self, model: Any, held: HeldTokens, cache: KVCache, row: int, end: EndStates = ()
    ) -> None:
        """Store the states of a row's first tokens; `end` as for `PrefixTree.insert`."""

        def states(first: int, last: int) -> Sequence[LayerStates]:
            return cache.states(row, first, last)

        with self._lock:
            tree = self._trees.setdefault((_number(model), held.namespace), PrefixTree())
            self.nbytes += tree.insert(held.digests, states, self._tick(), end)
            self._evict()

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _evict(self) -> None:
        """Drop entries, least recently used first, until the rest is within the bound."""
        while self.nbytes > self.max_bytes:
            leaves = [(leaf, tree) for tree in self._trees.values() for leaf in tree.leaves()]
            oldest = min(leaves, key=lambda entry: entry[0].used, default=None)
            features = min(self._features, key=lambda key: self._features[key].used, default=None)
            if features is not None and _is_older(self._features[features], oldest):
                self.nbytes -= self._features.pop(features).nbytes
            elif oldest is not None:
                leaf, tree = oldest
                tree.remove(leaf)
                self.nbytes -= leaf.nbytes
        self._trees = {key: tree for key, tree in self._trees.items() if any(tree.leaves())}


def _holds_windows(matches: Sequence[tuple[Segment, int]], cache: KVCache) -> bool:
    """Whether the states that passes after these tokens read are all stored."""
    length = start = sum(shared for _, shared in matches)
    needed = cache.first_needed(length)
    for segment, shared in reversed(matches):
        start -= shared
        if segment.num_missing:
            return start + min(segment.num_missing, shared) <= needed
        if start <= needed:
            return True
    return True


def _is_at_end(segment: Segment, shared: int) -> bool:
    return shared == len(segment) and bool(segment.end)


def _is_older(features: _Features, leaf: tuple[Segment, PrefixTree] | None) -> bool:
    return leaf is None or features.used < leaf[0].used


def _number(model: Any) -> int:
    return _NUMBER.get_or_make(model, lambda: next(_NUMBERS))


def num_bytes(size: int | str) -> int:
    """A size in bytes. Raises ConfigError for what is none."""
    allowed = "a number of bytes, or a text such as '4GB' or '256MiB'"
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise wrong("prompt_cache", size, allowed)
    if isinstance(size, int):
        if size < 0:
            raise wrong("prompt_cache", size, allowed)
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?b)?\s*", size.lower())
    if match is None:
        raise wrong("prompt_cache", size, allowed)
    return int(float(match[1]) * UNITS[match[2] or ""])
