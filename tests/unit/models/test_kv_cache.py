"""The cache against a slow twin: a Python list of what each row holds."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from draftlens.models.inspection import no_rollback
from draftlens.models.kv_cache import GROWTH, KVCache

LAYERS, HEADS, KEY_WIDTH, VALUE_WIDTH = 3, 2, 4, 6


class SlowCache:
    """Per layer and row the held (key ``[H, D]``, value) pairs in order."""

    def __init__(self, rows: int) -> None:
        self.held: list[list[list[tuple[Tensor, Tensor]]]] = [
            [[] for _ in range(rows)] for _ in range(LAYERS)
        ]

    def update(self, keys: Tensor, values: Tensor, layer: int) -> None:
        for row, held in enumerate(self.held[layer]):
            held.extend((keys[row, :, t], values[row, :, t]) for t in range(keys.shape[2]))

    def keep(self, base: list[int], slots: list[list[int]]) -> None:
        for rows in self.held:
            for row, (length, kept) in enumerate(zip(base, slots, strict=True)):
                rows[row] = rows[row][:length] + [rows[row][length + slot] for slot in kept]

    def truncate(self, lengths: list[int]) -> None:
        for rows in self.held:
            for row, length in enumerate(lengths):
                rows[row] = rows[row][:length]

    def join(self, rows: SlowCache) -> None:
        for held, more in zip(self.held, rows.held, strict=True):
            held.extend(more)

    def remove(self, row: int) -> None:
        for rows in self.held:
            last = rows.pop()
            if row < len(rows):
                rows[row] = last

    def stacked(self, layer: int, row: int) -> tuple[Tensor, Tensor]:
        keys, values = zip(*self.held[layer][row], strict=True)
        return torch.stack(keys, 1), torch.stack(values, 1)


def states(rows: int, tokens: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, HEADS, tokens, KEY_WIDTH), torch.randn(
        rows, HEADS, tokens, VALUE_WIDTH
    )


def forward(cache: KVCache, twin: SlowCache, tokens: int) -> None:
    """One pass, comparing what each layer reads."""
    rows, before = len(cache.lengths), list(cache.lengths)
    for layer in range(LAYERS):
        keys, values = states(rows, tokens)
        read = cache.update(keys, values, layer)
        twin.update(keys, values, layer)
        assert cache.lengths == before
        assert read[0].shape == (rows, HEADS, max(before) + tokens, KEY_WIDTH)
        for row in range(rows):
            length = before[row] + tokens
            for ours, theirs in zip(read, twin.stacked(layer, row), strict=True):
                assert torch.equal(ours[row, :, :length], theirs)
    cache.advance(tokens)


def check(cache: KVCache, twin: SlowCache) -> None:
    assert cache.lengths == [len(row) for row in twin.held[0]]
    for layer in range(LAYERS):
        for row, length in enumerate(cache.lengths):
            keys, values = twin.stacked(layer, row)
            assert torch.equal(cache.layers[layer].keys[row, :, :length], keys)
            assert torch.equal(cache.layers[layer].values[row, :, :length], values)
    whole = cache.whole_buffers(max(cache.lengths, default=0))
    if whole is not None:
        for layer in range(LAYERS):
            assert whole[0][layer].data_ptr() == cache.layers[layer].keys.data_ptr()
            assert whole[0][layer].shape == cache.layers[layer].keys.shape
            assert whole[1][layer].data_ptr() == cache.layers[layer].values.data_ptr()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("layers_per_block", [1, 2, 8])
def test_rounds_equal_the_slow_twin(rows: int, ragged: bool, layers_per_block: int) -> None:
    rng = random.Random(rows)
    torch.manual_seed(0)
    cache = KVCache(LAYERS, rows, 200, layers_per_block=layers_per_block)
    twin = SlowCache(rows)
    forward(cache, twin, 7)
    if ragged:
        lengths = [7 - row for row in range(rows)]
        cache.truncate(lengths)
        twin.truncate(lengths)
    for _ in range(25):
        base, tokens = list(cache.lengths), rng.randint(1, 6)
        forward(cache, twin, tokens)
        slots = [sorted(rng.sample(range(tokens), rng.randint(0, tokens))) for _ in range(rows)]
        slots = slots if ragged else slots[:1] * rows
        cache.keep(base, slots)
        twin.keep(base, slots)
        check(cache, twin)
        assert cache.get_seq_length() == max(cache.lengths)
        if rng.random() < 0.3:
            lengths = [max(1, length - rng.randint(0, 2)) for length in cache.lengths]
            lengths = lengths if ragged else lengths[:1] * rows
            cache.truncate(lengths)
            twin.truncate(lengths)
            check(cache, twin)
    assert cache.uniform is (not ragged or rows == 1)


def test_rows_may_advance_by_different_counts() -> None:
    cache = KVCache(1, 2, 8)
    cache.update(*states(2, 3), 0)
    cache.advance([3, 1])
    assert cache.lengths == [3, 1]
    with pytest.raises(ValueError, match="zip"):
        cache.advance([1])


@pytest.mark.parametrize("lengths", [[5, 5], [5, 3]])
def test_reads_are_views(lengths: list[int]) -> None:
    cache = KVCache(1, 2, 10)
    cache.update(*states(2, 5), 0)
    cache.truncate(lengths)
    keys, values = cache.update(*states(2, 2), 0)
    layer = cache.layers[0]
    assert keys.data_ptr() == layer.keys.data_ptr()
    assert values.data_ptr() == layer.values.data_ptr()
    assert keys.shape[2] == values.shape[2] == 7


def test_buffers_never_move_and_nbytes_counts_them() -> None:
    cache = KVCache(LAYERS, 2, 12)
    assert cache.nbytes == 0
    cache.update(*states(2, 1), 0)
    one = 4 * 2 * HEADS * 12 * (KEY_WIDTH + VALUE_WIDTH)
    assert cache.nbytes == one
    cache.update(*states(2, 1), 1)
    assert cache.nbytes == 2 * one
    address = cache.layers[0].keys.data_ptr()
    cache.advance(1)
    cache.update(*states(2, 11), 0)
    cache.keep([1, 1], [[0, 4], [3]])
    assert cache.layers[0].keys.data_ptr() == address


@pytest.mark.parametrize("lengths", [[4, 4], [2, 4]])
def test_overflow_is_refused_before_anything_is_written(lengths: list[int]) -> None:
    cache = KVCache(1, 2, 6)
    cache.update(*states(2, 4), 0)
    cache.truncate(lengths)
    before = cache.layers[0].keys.clone()
    with pytest.raises(RuntimeError, match="the cache holds 6 tokens a row; 7 were asked of it"):
        cache.update(*states(2, 3), 0)
    assert torch.equal(cache.layers[0].keys, before)
    cache.update(*states(2, 2), 0)


def test_mask_sizes_are_those_of_the_next_read() -> None:
    cache = KVCache(1, 2, 9)
    cache.update(*states(2, 4), 0)
    cache.truncate([4, 2])
    assert cache.get_mask_sizes(3, 0) == (7, 0)
    assert cache.update(*states(2, 3), 0)[0].shape[2] == 7
    assert cache.layers[0].get_max_length() == 9


WIDTH = LAYERS * HEADS * (KEY_WIDTH + VALUE_WIDTH)
"""Numbers that one token takes in the cache."""


def joined(cache: KVCache, twin: SlowCache, rows: int, tokens: int) -> None:
    """Some rows join: their prefill leaves the present rows alone."""
    part, part_twin = cache.new_rows(rows), SlowCache(rows)
    forward(part, part_twin, tokens)
    lengths = [max(1, tokens - row) for row in range(rows)]
    part.truncate(lengths)
    part_twin.truncate(lengths)
    # Draft tokens that the prefill has checked: the second of the last two is accepted.
    slots = [[1] for _ in range(rows)]
    if tokens > rows + 1:
        base = [length - 2 for length in lengths]
        part.keep(base, slots)
        part_twin.keep(base, slots)
    check(part, part_twin)
    check(cache, twin)
    cache.join(part)
    twin.join(part_twin)
    check(cache, twin)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("capacity", [300, 8])
def test_rows_that_join_and_leave_equal_the_slow_twin(seed: int, capacity: int) -> None:
    """In any order, with passes between them; a small cache grows meanwhile."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    cache, twin = KVCache(LAYERS, 2, capacity, grows=True), SlowCache(2)
    forward(cache, twin, 5)
    for _ in range(30):
        event = rng.random()
        if event < 0.25:
            joined(cache, twin, rng.randint(1, 3), rng.randint(1, 12))
        elif event < 0.5 and len(cache.lengths) > 1:
            row = rng.randrange(len(cache.lengths))
            cache.remove(row)
            twin.remove(row)
        else:
            base, tokens = list(cache.lengths), rng.randint(1, 4)
            forward(cache, twin, tokens)
            slots = [sorted(rng.sample(range(tokens), rng.randint(1, tokens))) for _ in base]
            cache.keep(base, slots)
            twin.keep(base, slots)
        check(cache, twin)


class Copies(TorchDispatchMode):
    """Counts the numbers that are written by copies, and those of new zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.copied = 0
        self.allocated = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.copy_:
            self.copied += args[0].numel()
        if func.overloadpacket is torch.ops.aten.new_zeros:
            self.allocated += result.numel()
        return result


def fill(cache: KVCache, tokens: int) -> None:
    rows = len(cache.lengths)
    for layer in range(LAYERS):
        cache.update(*states(rows, tokens), layer)
    cache.advance(tokens)


def test_a_joining_row_copies_nothing_while_spare_rows_exist() -> None:
    """Its own tokens are all that is written; used-up spare rows are doubled."""
    cache = KVCache(LAYERS, 1, 20)
    fill(cache, 10)
    growing = []
    for num_rows in range(2, 18):
        addresses = [layer.keys.data_ptr() for layer in cache.layers]
        with Copies() as seen:
            part = cache.new_rows(1)
            fill(part, 3)
            cache.join(part)
        moved = [layer.keys.data_ptr() for layer in cache.layers] != addresses
        if moved:
            growing.append(num_rows)
        else:
            assert (seen.copied, seen.allocated) == (3 * WIDTH, 0)
        assert len(cache.lengths) == num_rows
    assert growing == [2, 3, 5, 9, 17]


def test_a_leaving_row_copies_at_most_one_row() -> None:
    cache = KVCache(LAYERS, 4, 20)
    fill(cache, 10)
    cache.truncate([10, 9, 8, 7])
    for row, copied in ((3, 0), (0, 8), (1, 0), (0, 0)):
        with Copies() as seen:
            cache.remove(row)
        assert (seen.copied, seen.allocated) == (copied * WIDTH, 0)
    assert cache.lengths == []


def test_spare_rows_are_used_again() -> None:
    cache = KVCache(LAYERS, 3, 20)
    fill(cache, 4)
    nbytes = cache.nbytes
    for _ in range(5):
        cache.remove(0)
        part = cache.new_rows(1)
        fill(part, 2)
        cache.join(part)
        assert cache.nbytes == nbytes


def test_growing_buffers_keep_their_contents() -> None:
    torch.manual_seed(0)
    cache, twin = KVCache(LAYERS, 2, 6, grows=True), SlowCache(2)
    capacities = [cache.capacity]
    for tokens in (4, 2, 1, 1, 9, 30):
        forward(cache, twin, tokens)
        check(cache, twin)
        capacities.append(cache.capacity)
    assert capacities == [6, 6, 6, 9, 9, 17, 47]
    assert GROWTH == 1.5
    assert cache.layers[0].keys.shape[2] == 47


def test_layers_of_other_shapes_have_buffers_of_their_own() -> None:
    torch.manual_seed(0)
    shapes = [(2, 4, 6), (2, 4, 6), (1, 4, 6), (2, 8, 6), (2, 4, 4), (2, 4, 6)]
    cache = KVCache(len(shapes), 2, 3, grows=True)
    written: list[list[tuple[Tensor, Tensor]]] = [[] for _ in shapes]
    for tokens in (2, 3, 9):
        for layer, (heads, key_width, value_width) in enumerate(shapes):
            keys = torch.randn(2, heads, tokens, key_width)
            values = torch.randn(2, heads, tokens, value_width)
            cache.update(keys, values, layer)
            written[layer].append((keys, values))
        cache.advance(tokens)
    cache.keep([5, 5], [[0, 4], [7]])
    for layer, passes in enumerate(written):
        for part, name in enumerate(("keys", "values")):
            states = torch.cat([states[part] for states in passes], 2)
            held = getattr(cache.layers[layer], name)
            assert torch.equal(held[0, :, :7], states[0][:, [0, 1, 2, 3, 4, 5, 9]])
            assert torch.equal(held[1, :, :6], states[1][:, [0, 1, 2, 3, 4, 12]])
    addresses = {layer.keys.untyped_storage().data_ptr() for layer in cache.layers}
    assert len(addresses) == 4


def test_each_token_is_copied_a_bounded_number_of_times() -> None:
    cache = KVCache(LAYERS, 1, 8, grows=True)
    with Copies() as seen:
        for _ in range(2000):
            fill(cache, 1)
    assert seen.copied < (1 + 1 / (1 - 1 / GROWTH)) * 2000 * WIDTH


def test_a_long_joining_row_enlarges_the_whole_cache() -> None:
    torch.manual_seed(0)
    cache, twin = KVCache(LAYERS, 2, 6, grows=True), SlowCache(2)
    forward(cache, twin, 4)
    joined(cache, twin, 1, 40)
    assert cache.capacity >= 40
    forward(cache, twin, 2)
    check(cache, twin)


SMALL = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.mark.parametrize(
    ("config", "layer"),
    [
        (transformers.FalconH1Config(**SMALL), "LinearAttentionAndFullAttentionLayer"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_caches_that_cannot_roll_back_are_refused_by_kind(config: Any, layer: str) -> None:
    assert no_rollback("Some", config) == (
        f"Some keeps a {layer}, which cannot be rolled back when a draft token is rejected"
    )


@pytest.mark.parametrize("kind", ["LlamaConfig", "Qwen2Config", "Qwen3Config", "MistralConfig"])
def test_full_attention_is_taken(kind: str) -> None:
    options = {"sliding_window": None} if kind == "MistralConfig" else {}
    assert no_rollback("Some", getattr(transformers, kind)(**SMALL, **options)) == ""


def test_whole_buffers_grow_together_and_keep_what_they_hold() -> None:
    """For passes that write the slots themselves."""
    cache = KVCache(2, 1, 4, grows=True)
    assert cache.whole_buffers(3) is None  # nothing has been forwarded yet
    states = torch.arange(6.0).reshape(1, 1, 3, 2)
    for layer in range(2):
        cache.update(states, states, layer)
    cache.advance(3)
    keys, values = _whole(cache, 4)
    assert [buffer.shape[2] for buffer in (*keys, *values)] == [4] * 4
    grown, _ = _whole(cache, 9)
    assert len({buffer.shape[2] for buffer in grown}) == 1
    assert grown[0].shape[2] >= 9
    assert torch.equal(grown[1][:, :, :3], states)
    # A pass that is interrupted has written the first layer only.
    more = states.repeat(1, 1, 10, 1)
    cache.update(more, more, 0)
    both, _ = _whole(cache, 4)
    assert both[0].shape == both[1].shape
    fixed = KVCache(1, 1, 4)
    fixed.update(states, states, 0)
    assert fixed.whole_buffers(5) is None


def _whole(cache: KVCache, end: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    buffers = cache.whole_buffers(end)
    assert buffers is not None
    return buffers


def test_caches_grow_by_steps() -> None:
    """Passes that read whole buffers compute over empty slots, so there are few."""
    cache = KVCache(1, 1, 64, grows=True)
    cache.step = 64
    states = torch.zeros(1, 2, 3, 4)
    cache.update(states, states, 0)
    cache.advance(3)
    for end, capacity in ((64, 64), (65, 128), (129, 192)):
        buffers = cache.whole_buffers(end)
        assert buffers is not None
        assert buffers[0][0].shape[2] == capacity
    rows = cache.new_rows(1)
    assert rows.step == 64
