"""Bounded sliding layers against a cache of all slots: every token attends to the same keys."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.models.kv_cache import HeldTokens, KVCache
from draftlens.models.layer_kinds import SLIDING, LayerKinds
from draftlens.models.prompt_cache import DIGEST_BYTES, PromptCache
from draftlens.models.windowed_cache import SPARE, WindowedCache

CPU = torch.device("cpu")
HEADS, WIDTH = 1, 2
WINDOW = 16  # of most tests
KEPT = WINDOW + SPARE // 2  # tokens of a long prompt that stay


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As the passes that write buffers."""
    with torch.inference_mode():
        yield


class Pair:
    """A bounded cache beside its slow twin, which holds all slots."""

    def __init__(self, kinds: LayerKinds, cache: KVCache, twin: KVCache) -> None:
        self.kinds = kinds
        self.cache: Any = cache
        self.twin = twin

    @classmethod
    def empty(cls, window: int, rows: int, mixed: bool = True, capacity: int = 4) -> Pair:
        slides = (True, False, True) if mixed else (True, True)
        kinds = LayerKinds(window, slides, len(slides))
        cache = kinds.bounded(KVCache(len(slides), rows, capacity, grows=True), 2)
        assert isinstance(cache, WindowedCache)
        return cls(kinds, cache, cache.whole())

    @property
    def lengths(self) -> list[int]:
        assert self.cache.lengths == self.twin.lengths
        return list(self.twin.lengths)

    def run(self, width: int, mask: Tensor | None, counts: Sequence[int] | None = None) -> None:
        """One pass; of the `counts` first tokens of each row, each layer reads the same keys."""
        rows = len(self.lengths)
        self.cache.begin_pass(width, counts)
        masks = [self.masks(self.cache, mask, False), self.masks(self.twin, mask, True)]
        for layer, slides in enumerate(self.kinds.slides):
            new = torch.randn(rows, HEADS, width, WIDTH), torch.randn(rows, HEADS, width, WIDTH)
            ours = self.cache.update(*new, layer)
            theirs = self.twin.update(*new, layer)
            for row, count in enumerate(counts or [width] * rows):
                for token in range(count):
                    for each, other in zip(ours, theirs, strict=True):
                        seen = visible(each, masks[0][slides], row, token)
                        assert torch.equal(seen, visible(other, masks[1][slides], row, token))
        for cache in (self.cache, self.twin):
            cache.advance(width if counts is None else counts)

    def masks(self, cache: KVCache, mask: Tensor | None, whole: bool) -> dict[bool, Tensor | None]:
        """The masks of full and sliding layers."""
        made = self.kinds.masks(mask, cache, CPU, whole)
        return {False: mask, True: made[SLIDING] if self.kinds.are_mixed else made}

    def read(self, counts: Sequence[int]) -> None:
        """A prompt or a part of one."""
        width = max(counts)
        window = torch.ones(width, width, dtype=torch.bool).tril()
        self.run(width, trees.attention_mask(self.lengths, window), counts)

    def answer(self, widths: Sequence[int]) -> list[int]:
        """Passes over levels of a tree; returns the lengths before them."""
        base, total = self.lengths, 0
        for width in widths:
            total += width
            seen = torch.rand(width, total) < 0.5
            seen[torch.arange(width), torch.arange(total - width, total)] = True
            for token in range(width):
                seen[token, total - width + token + 1 :] = False
            self.run(width, trees.attention_mask(base, seen))
        return base

    def keep(self, base: list[int], most: int, rng: random.Random) -> None:
        slots = [sorted(rng.sample(range(most), rng.randint(1, most))) for _ in base]
        for cache in (self.cache, self.twin):
            cache.keep(base, slots)

    def new_rows(self, count: int) -> Pair:
        return Pair(self.kinds, self.cache.new_rows(count), self.twin.new_rows(count))

    def join(self, rows: Pair) -> None:
        self.cache.join(rows.cache)
        self.twin.join(rows.twin)


def visible(keys: Tensor, mask: Tensor | None, row: int, token: int) -> Tensor:
    if mask is None:
        return keys[row]
    assert mask.shape[-1] == keys.shape[2]
    return keys[row][:, mask[row, 0, token]]


def filled(window: int, counts: Sequence[int], mixed: bool = True) -> Pair:
    torch.manual_seed(len(counts))
    pair = Pair.empty(window, len(counts), mixed, max(counts) + 5)
    pair.read(counts)
    return pair


@pytest.mark.parametrize("seed", range(12))
def test_random_rounds_equal_the_twin(seed: int) -> None:
    """Trees in levels, rows that join and leave, parts of prompts, rows that are rolled back."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    window = rng.choice([3, 8, 40])
    mixed = rng.random() < 0.8
    pair = Pair.empty(window, 2, mixed, rng.choice([4, 200]))
    pair.read([rng.randint(1, 3 * window), rng.randint(1, 3 * window)])
    for _ in range(30):
        event = rng.random()
        if event < 0.15:
            joined(pair, rng)
        elif event < 0.25 and len(pair.lengths) > 1:
            row = rng.randrange(len(pair.lengths))
            for cache in (pair.cache, pair.twin):
                cache.remove(row)
        elif event < 0.35:
            run_ahead(pair, rng)
        else:
            widths = [rng.randint(1, 6) for _ in range(rng.choice([1, 1, 1, 3]))]
            base = pair.answer(widths)
            if rng.random() < 0.3:  # a draft catches up and begins its tree
                for cache in (pair.cache, pair.twin):
                    cache.truncate([length + 1 for length in base])
                base = pair.answer(widths)
            pair.keep(base, sum(widths), rng)


def joined(pair: Pair, rng: random.Random) -> None:
    """Rows that join the buffers, or that were read apart and are copied."""
    counts = [rng.randint(1, 60) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.5:
        rows = pair.new_rows(len(counts))
        rows.read(counts)
    else:
        apart = Pair.empty(pair.cache._window, len(counts), pair.kinds.are_mixed)
        for _ in range(rng.randint(1, 3)):
            apart.read(counts)
        rows = Pair(pair.kinds, pair.cache.copied(apart.cache), pair.twin.copied(apart.twin))
    if rng.random() < 0.5:  # before they join
        rows.keep(rows.answer([2]), 2, rng)
    pair.join(rows)


def run_ahead(pair: Pair, rng: random.Random) -> None:
    """Draft tokens that are settled one after the other, or dropped."""
    settled = pair.lengths
    for _ in range(rng.randint(1, 30)):
        pair.answer([1])
        for row, length in enumerate(pair.lengths):
            if rng.random() < 0.2:
                settled[row] = rng.randint(settled[row], length)
                reached = pair.cache.reach(row, rng.randint(settled[row], length), settled[row])
                pair.cache.lengths[row] = pair.twin.lengths[row] = reached


@pytest.mark.parametrize("mixed", [True, False])
def test_a_long_prompt_and_a_long_answer(mixed: bool) -> None:
    """Buffers of sliding layers are bounded from the beginning; a shift comes at every place of a
    round, also between a pass and the choice of its tokens."""
    rng = random.Random(1)
    window = 16
    pair = filled(window, [300, 290], mixed)
    bounded = pair.cache.layers[0].buffers.capacity
    assert bounded <= window + SPARE
    for number in range(60):
        base = pair.answer([1 + number % 5])
        pair.keep(base, 1 + number % 5, rng)
    assert pair.cache.layers[0].buffers.capacity <= window + SPARE + 5
    if mixed:
        assert pair.cache.layers[1].buffers.capacity >= max(pair.lengths)


def test_rows_that_advance_together_are_written_by_slices() -> None:
    """A pass of one token has no mask, and reads no more than the window."""
    rng = random.Random(2)
    pair = filled(16, [100, 100])
    for _ in range(40):
        base = pair.answer([1])
        assert len(set(pair.cache.firsts)) == 1
        assert pair.masks(pair.cache, None, False)[True] is None
        assert pair.cache.first_seen == pair.cache.starts[0] + 1 - 16
        pair.keep(base, 1, rng)
    late = pair.new_rows(1)
    late.read([60])
    pair.join(late)
    shifts = set()
    for _ in range(20):
        pair.keep(pair.answer([1]), 1, rng)
        shifts.add(len(set(pair.cache.starts)))
    assert 1 in shifts  # the first shift makes all rows begin alike


@pytest.mark.parametrize("size", [1, 7])
def test_small_parts_of_a_prompt(size: int) -> None:
    """A part of one token has no mask."""
    pair = filled(8, [3])
    for _ in range(60):
        pair.read([size])


@pytest.mark.parametrize("counts", [[70, 20], [20, 70], [200, 199]])
def test_prompts_in_parts(counts: list[int]) -> None:
    rng = random.Random(3)
    pair = Pair.empty(8, 2)
    for part in (*[counts] * 4, [1, 1], [3, 1]):
        pair.read(part)
    # A row that is read whole reads its last token again, to a slot that is dropped.
    lengths = pair.lengths
    pair.read([1, 30])
    for cache in (pair.cache, pair.twin):
        cache.truncate([lengths[0], lengths[1] + 30])
    pair.keep(pair.answer([4, 2]), 6, rng)
    pair.answer([1])


def test_a_row_that_is_rolled_back_too_far_is_noticed() -> None:
    pair = filled(8, [100])
    pair.cache.truncate([50])
    with pytest.raises(RuntimeError, match="row 0 was rolled back to 50 tokens"):
        pair.cache.begin_pass(1)


def test_an_empty_cache_is_read_again_after_a_pass_that_was_cut_short() -> None:
    pair = filled(8, [100])
    for lengths, is_refused in (([100], True), ([0], False)):
        pair.cache.begin_pass(50, [50])
        pair.cache.update(torch.ones(1, 1, 50, WIDTH), torch.ones(1, 1, 50, WIDTH), 0)
        pair.cache.lengths = list(lengths)
        if is_refused:
            with pytest.raises(RuntimeError, match="cut short"):
                pair.cache.begin_pass(1)
            pair.cache.next_firsts = None
    pair.cache.lengths = pair.twin.lengths = [0]
    pair.read([40])
    pair.answer([3])


def test_slots_that_are_gone_are_not_given() -> None:
    pair = filled(8, [100])
    everything = [[torch.arange(100)]] * 3
    with pytest.raises(RuntimeError, match="have dropped slots"):
        list(pair.cache.taken(everything))
    last = [[torch.arange(95, 100)]] * 3
    for ours, theirs in zip(pair.cache.taken(last), pair.twin.taken(last), strict=True):
        assert torch.equal(ours[0], theirs[0])
    assert pair.cache.whole_buffers(101) is None
    with pytest.raises(RuntimeError, match="have dropped"):
        pair.twin.put(0, 0, pair.cache.states(0, 0, 100), 100)
    backbone: Any = None
    with pytest.raises(RuntimeError, match="have dropped slots"):
        pair.kinds.arguments(backbone, pair.cache, None, None, whole=True)


class Stored:
    """Prompts in a prompt cache, and what passes read after their beginnings."""

    def __init__(self) -> None:
        self.cache = PromptCache(1 << 20)
        self.model = torch.nn.Identity()

    def store(self, tokens: Sequence[int], cache: KVCache) -> None:
        self.cache.store(self.model, HeldTokens("", digests(tokens)), cache, 0)
        assert self.cache.nbytes == self.cache.counted()

    def restored(self, tokens: Sequence[int], cache: KVCache) -> int:
        self.cache.restore(self.model, HeldTokens("", digests(tokens)), cache, 0, len(tokens))
        return cache.lengths[0]

    def check(self, tokens: Sequence[int], twin: KVCache) -> Pair:
        """After a beginning from here, passes read what they read after the twin's."""
        again = Pair.empty(WINDOW, 1)
        assert self.restored([*tokens, 9999], again.cache) == len(tokens)
        again.twin.put(0, 0, twin.states(0, 0, len(tokens)), len(tokens))
        again.twin.lengths = [len(tokens)]
        again.read([30])
        again.answer([2, 1])
        return again


@pytest.mark.parametrize("length", [KEPT, 200])
def test_beginnings_of_stored_prompts(length: int) -> None:
    """A beginning is found again if its last window is stored."""
    stored, pair, tokens = Stored(), filled(WINDOW, [length]), list(range(length))
    stored.store(tokens, pair.cache)
    for end in (1, 5, 17, length - 10, length - 9, length - 8, length - 1, length):
        if length == KEPT or end >= length - (KEPT - WINDOW) - 1:
            stored.check(tokens[:end], pair.twin)
        else:
            empty = Pair.empty(WINDOW, 1)
            assert stored.restored(tokens[:end], empty.cache) == 0


def test_all_of_a_prompt_is_stored_while_it_is_collected() -> None:
    """In parts, beside a row that is read whole before the other."""
    stored = Stored()
    torch.manual_seed(2)
    pair = Pair.empty(WINDOW, 2)
    pair.cache.collect(True)
    for counts in ([90, 40], [30, 1], [30, 1]):
        pair.read(counts)
        for cache in (pair.cache, pair.twin):
            cache.truncate([cache.lengths[0], 40])
    assert pair.cache.states(1, 0, 40)[0][0].shape[1] == 40
    for first, last in ((0, 150), (100, 130), (3, 9), (149, 150)):
        states = zip(
            pair.cache.states(0, first, last), pair.twin.states(0, first, last), strict=True
        )
        assert all(torch.equal(*pairs) for each in states for pairs in zip(*each, strict=True))
    stored.store(range(150), pair.cache)
    pair.cache.collect(False)
    for end in (1, 40, 100, 150):
        stored.check(range(end), pair.twin)
    assert pair.cache.states(0, 0, 150)[0][0].shape[1] < 2 * WINDOW + SPARE


def test_answers_and_other_prompts_follow_stored_ones() -> None:
    """Entries that others divide keep the states of their last tokens."""
    stored, pair, tokens = Stored(), filled(WINDOW, [200]), list(range(200))
    rng = random.Random(4)
    stored.store(tokens, pair.cache)
    for _ in range(3):
        pair.keep(pair.answer([20]), 20, rng)
    tokens += range(600, 400 + pair.lengths[0])
    stored.store(tokens, pair.cache)
    for end in (len(tokens), len(tokens) - 3, 197, 200):
        again = stored.check(tokens[:end], pair.twin)
        again.keep([end + 30], 1, rng)
        stored.store([*tokens[:end], *range(700, 731)], again.cache)
        stored.check([*tokens[:end], *range(700, 731)], again.twin)


def test_caches_of_all_slots_take_whole_entries_only() -> None:
    for length, taken in ((200, 0), (KEPT, KEPT)):
        stored, pair = Stored(), filled(WINDOW, [length])
        stored.store(range(length), pair.cache)
        assert stored.restored(range(length), pair.twin.new_rows(1)) == taken
        assert stored.restored(range(length), pair.cache.new_rows(1)) == length


def digests(tokens: Sequence[int]) -> np.ndarray:
    table = np.zeros((len(tokens), DIGEST_BYTES), np.uint8)
    table[:, :4] = np.array(tokens, "<u4").view(np.uint8).reshape(-1, 4)
    return table
