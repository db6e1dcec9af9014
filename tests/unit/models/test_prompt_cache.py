"""A prompt cache returns what was stored, within its bound, and drops what was not used longest.
Digests of tokens and media differ where anything differs that the language model reads."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftlens import ConfigError
from draftlens.models.kv_cache import HeldTokens, KVCache
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_cache import (
    DIGEST_BYTES,
    PromptCache,
    answer_digests,
    content_digest,
    num_bytes,
    prompt_digests,
)

LAYERS, HEADS, WIDTH = 2, 1, 2
TOKEN_BYTES = DIGEST_BYTES + LAYERS * 2 * HEADS * WIDTH * 4

Tokens = tuple[int, ...]


class Model:
    """An owner of entries."""


def held(tokens: Sequence[int], namespace: str = "") -> HeldTokens:
    table = np.zeros((len(tokens), DIGEST_BYTES), np.uint8)
    table[:, 0] = tokens
    return HeldTokens(namespace, table)


def row_of(model: Model, namespace: str, tokens: Sequence[int]) -> Tensor:
    """What the keys of a prompt begin with, ``[1, 1, T, WIDTH]``."""
    prefixes = [(id(model), namespace, *tokens[: end + 1]) for end in range(len(tokens))]
    values = [[float(hash(prefix) % 2**20), float(len(prefix))] for prefix in prefixes]
    return torch.tensor(values).view(1, HEADS, -1, WIDTH)


def filled(model: Model, namespace: str, tokens: Sequence[int]) -> KVCache:
    """A cache of two rows, of which the second holds a prompt."""
    cache = KVCache(LAYERS, 2, 32, True)
    keys = row_of(model, namespace, tokens)
    for layer in range(LAYERS):
        both = torch.cat([torch.full_like(keys, -1), keys + layer])
        cache.update(both, -both, layer)
    cache.advance(len(tokens))
    return cache


def restored(
    stored: PromptCache, model: Model, namespace: str, tokens: Sequence[int], most: int
) -> int:
    """How many tokens come back; their states are checked."""
    cache = KVCache(LAYERS, 2, 32, True)
    stored.restore(model, held(tokens, namespace), cache, 1, most)
    count = cache.lengths[1]
    assert cache.lengths[0] == 0
    if count:
        expected = row_of(model, namespace, tokens)[0, :, :count]
        for layer, (keys, values) in enumerate(cache.states(1, 0, count)):
            assert torch.equal(keys, expected + layer)
            assert torch.equal(values, -expected - layer)
    return count


def store(stored: PromptCache, model: Model, namespace: str, tokens: Sequence[int]) -> None:
    stored.store(model, held(tokens, namespace), filled(model, namespace, tokens), 1)


def test_a_thousand_entries_within_a_small_bound() -> None:
    """The bytes that are counted are those of the entries, which are what was stored."""
    rng = random.Random(0)
    bound = 40 * TOKEN_BYTES
    stored = PromptCache(bound)
    models = (Model(), Model())
    hits = drops = 0
    for _ in range(1000):
        model, namespace = rng.choice(models), rng.choice("ab")
        tokens = rng.choices(range(2), k=rng.randint(1, 12))
        shared = stored.shared(model, held(tokens, namespace))
        before = stored.nbytes
        if rng.random() < 0.5:
            store(stored, model, namespace, tokens)
            drops += stored.nbytes < before + (len(tokens) - shared) * TOKEN_BYTES
        elif rng.random() < 0.7:
            most = rng.randint(0, len(tokens))
            assert restored(stored, model, namespace, tokens, most) == min(most, shared)
            hits += shared > 0
        else:
            digest = bytes(tokens[:3])
            stored.store_features(model, digest, (model, digest), 10 * (1 + len(digest)))
            assert stored.find_features(model, digest) == (model, digest)
        assert stored.nbytes == stored.counted() <= bound
    assert hits > 100
    assert drops > 100


def test_namespaces_and_models_share_nothing() -> None:
    stored = PromptCache("1MB")
    one, other = Model(), Model()
    store(stored, one, "a", (1, 2, 3))
    stored.store_features(one, b"picture", "features", 5)
    assert stored.shared(one, held((1, 2, 9), "a")) == 2
    assert stored.shared(one, held((1, 2, 9), "b")) == 0
    assert stored.shared(other, held((1, 2, 9), "a")) == 0
    assert restored(stored, one, "b", (1, 2, 3), 3) == 0
    assert restored(stored, other, "a", (1, 2, 3), 3) == 0
    assert stored.find_features(one, b"picture") == "features"
    assert stored.find_features(other, b"picture") is None
    stored.clear()
    assert stored.nbytes == stored.counted() == 0
    assert restored(stored, one, "a", (1, 2, 3), 3) == 0
    assert stored.find_features(one, b"picture") is None


def test_what_was_not_used_for_the_longest_time_is_dropped_first() -> None:
    """A use is a restored prompt, a prompt that is stored again, or features that are found."""
    stored = PromptCache(4 * 4 * TOKEN_BYTES)
    model = Model()
    for first in (1, 2, 3):
        store(stored, model, "", (first, 0, 0, 0))
    stored.store_features(model, b"", "features", 4 * TOKEN_BYTES)

    def present() -> list[int]:
        return [first for first in range(1, 9) if stored.shared(model, held((first, 0, 0, 0))) == 4]

    restored(stored, model, "", (1, 0), 2)
    store(stored, model, "", (4, 0, 0, 0))
    assert present() == [1, 3, 4]
    store(stored, model, "", (3, 0, 0, 0))
    assert stored.find_features(model, b"") == "features"
    for first, left in ((5, [3, 4, 5]), (6, [3, 5, 6]), (7, [5, 6, 7]), (8, [5, 6, 7, 8])):
        store(stored, model, "", (first, 0, 0, 0))
        assert present() == left
    assert stored.find_features(model, b"") is None


def test_what_is_larger_than_the_bound_is_not_kept() -> None:
    for bound in (0, TOKEN_BYTES - 1):
        stored = PromptCache(bound)
        model = Model()
        store(stored, model, "", (1,))
        stored.store_features(model, b"", "features", TOKEN_BYTES)
        assert stored.nbytes == stored.counted() == 0


@pytest.mark.parametrize(
    ("size", "expected"),
    [(7, 7), ("9", 9), (" 1.5 KiB", 1536), ("4gb", 4 * 10**9), ("256MiB", 2**28), (0, 0)],
)
def test_sizes(size: int | str, expected: int) -> None:
    assert num_bytes(size) == expected
    assert PromptCache(size).max_bytes == expected


@pytest.mark.parametrize("size", [-1, True, 1.5, "4TB", "", "-3", "GB", None])
def test_what_is_no_size_is_refused(size: object) -> None:
    with pytest.raises(ConfigError, match="prompt_cache must be a number of bytes"):
        PromptCache(size)  # type: ignore[arg-type]


LENGTHS = [6, 8]
VISUAL = torch.tensor([[0, 1, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 1, 0, 0]]).bool()


def prompt(axes: int = 3) -> Prompt:
    """Two rows with features between layers, whose padding holds anything."""
    generator = torch.Generator().manual_seed(0)
    features = [torch.randn(int(VISUAL.sum()), 4, generator=generator) for _ in range(2)]
    positions = torch.arange(8).expand(axes, 2, 8).clone()
    return Prompt(
        torch.randn(2, 8, 4, generator=generator),
        positions,
        list(LENGTHS),
        positions[..., -1:] + 1,
        VISUAL,
        {"deepstack_visual_embeds": features, "other": None},
    )


def differing(change: Callable[[Prompt], Any], row: int) -> list[int]:
    """The tokens of a row whose digests differ after a change."""
    before = prompt_digests(prompt(), row)
    changed = prompt()
    change(changed)
    after = prompt_digests(changed, row)
    assert before.shape == after.shape == (LENGTHS[row], 16)
    return (before != after).any(1).nonzero()[0].tolist()  # type: ignore[no-any-return]


def add(table: Tensor, *place: Any) -> None:
    table[place] += 1


CHANGES: Sequence[tuple[Callable[[Prompt], Any], list[int], list[int]]] = [
    (lambda prompt: add(prompt.embeds, 0, 2, 3), [2], []),
    (lambda prompt: add(prompt.embeds, 0, 7), [], []),  # padding
    (lambda prompt: add(prompt.position_ids, 2, 1, 4), [], [4]),
    (lambda prompt: add(prompt.extra["deepstack_visual_embeds"][1], 1), [2], []),
    (lambda prompt: add(prompt.extra["deepstack_visual_embeds"][0], 4, 0), [], [5]),
]


@pytest.mark.parametrize(("change", "first", "second"), CHANGES)
def test_every_token_has_a_digest_of_what_is_read_there(
    change: Callable[[Prompt], Any], first: list[int], second: list[int]
) -> None:
    """The further features of visual tokens are numbered over all rows."""
    assert differing(change, 0) == first
    assert differing(change, 1) == second


def test_a_row_without_visual_tokens_beside_one_that_has_some() -> None:
    read = prompt()
    read.visual[0] = False
    for features in read.extra["deepstack_visual_embeds"]:
        features.resize_(3, 4)
    alone = replace(read, visual=torch.zeros_like(VISUAL), extra={})
    assert (prompt_digests(read, 0) == prompt_digests(alone, 0)).all()
    assert (prompt_digests(read, 1) != prompt_digests(alone, 1)).any()


@pytest.mark.parametrize("axes", [1, 3])
def test_tokens_of_an_answer_have_the_digests_that_they_have_in_a_prompt(axes: int) -> None:
    read = prompt(axes)
    text = slice(6, 8)
    digests = answer_digests(read.embeds[1, text], read.position_ids[:, 1, text])
    assert digests.tolist() == prompt_digests(read, 1)[text].tolist()


def test_contents_differ_by_name_values_type_and_shape() -> None:
    values = torch.arange(6.0)
    contents: list[list[tuple[str, object]]] = [
        [("pixels", values)],
        [("pixels", values + 1)],
        [("other", values)],
        [("pixels", values.view(2, 3))],
        [("pixels", values.view(3, 2))],
        [("pixels", values.view(torch.int32))],
        [("pixels", values), ("size", 3)],
        [("pixels", values), ("size", 4)],
        [],
    ]
    digests = [content_digest(content) for content in contents]
    assert len(set(digests)) == len(contents)
    assert digests == [content_digest(content) for content in contents]
