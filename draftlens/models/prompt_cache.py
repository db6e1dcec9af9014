"""What models have read before, bounded in bytes: features of media, and keys and values of prompts
with their answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from threading import RLock
from typing import Any

from draftlens.core.checks import wrong
from draftlens.models.held_tokens import HeldTokens
from draftlens.models.kv_cache import KVCache, LayerStates
from draftlens.models.model_state import Slot
from draftlens.models.prefix_tree import PrefixTree, Segment

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

    def restore(self, model: Any, held: HeldTokens, cache: KVCache, row: int, most: int) -> None:
        """Copy the states of a prompt's first tokens, at most `most`, into an empty row."""
        with self._lock:
            tree = self._trees.get((_number(model), held.namespace))
            start = 0
            for segment, shared in [] if tree is None else tree.match(held.digests[:most]):
                segment.used = self._tick()
                cache.put(row, start, segment.states, shared)
                start += shared
            cache.lengths[row] = start

    def store(self, model: Any, held: HeldTokens, cache: KVCache, row: int) -> None:
        """Store the states of a row's first tokens."""

        def states(first: int, last: int) -> Sequence[LayerStates]:
            return cache.states(row, first, last)

        with self._lock:
            tree = self._trees.setdefault((_number(model), held.namespace), PrefixTree())
            self.nbytes += tree.insert(held.digests, states, self._tick())
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
