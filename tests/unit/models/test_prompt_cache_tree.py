"""The tree of prompts holds what it was given, each token once, also after splits and removals."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from draftlens.models.kv_cache import LayerStates
from draftlens.models.prompt_cache import DIGEST_BYTES, PrefixTree, Segment

LAYERS, HEADS, WIDTH = 2, 2, 3
TOKEN_BYTES = DIGEST_BYTES + LAYERS * 2 * HEADS * WIDTH * 4

Tokens = tuple[int, ...]


def digests_of(tokens: Sequence[int]) -> np.ndarray:
    """Digests that differ in the last byte alone."""
    table = np.zeros((len(tokens), DIGEST_BYTES), np.uint8)
    table[:, -1] = tokens
    return table


def value_of(tokens: Tokens) -> int:
    """Stands for the states of the last of these tokens, which depend on all."""
    return hash(tokens) % 2**20


def states_of(tokens: Tokens) -> Callable[[int, int], list[LayerStates]]:
    """Makes the states of some tokens of a prompt; keys and values of all layers and heads
    differ."""

    def states(first: int, last: int) -> list[LayerStates]:
        values = torch.tensor([value_of(tokens[: end + 1]) for end in range(first, last)])
        shape = torch.arange(2 * LAYERS * HEADS * WIDTH).view(2 * LAYERS, HEADS, 1, WIDTH)
        table = values[:, None] + shape.float()
        return [(table[2 * layer].clone(), table[2 * layer + 1].clone()) for layer in range(LAYERS)]

    return states


def check_equal(found: Sequence[LayerStates], expected: Sequence[LayerStates]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def held_bytes(tree: PrefixTree) -> int:
    """Bytes of the memory that the tensors and tables of a tree keep."""
    num_bytes = 0
    for segment in tree.segments():
        assert segment.digests.base is None
        num_bytes += segment.digests.nbytes
        for states in segment.states:
            num_bytes += sum(part.untyped_storage().nbytes() for part in states)
    return num_bytes


def tokens_up_to(segment: Segment) -> Tokens:
    """The tokens of a segment and of all before it."""
    own = tuple(segment.digests[:, -1].tolist())
    return own if segment.parent is None else (*tokens_up_to(segment.parent), *own)


class Model:
    """A tree beside the set of all prefixes of the prompts in it."""

    def __init__(self) -> None:
        self.tree = PrefixTree()
        self.held: set[Tokens] = set()

    def insert(self, tokens: Tokens, now: int) -> None:
        before = len(self.held)
        self.held |= {tokens[:end] for end in range(1, len(tokens) + 1)}
        added = self.tree.insert(digests_of(tokens), states_of(tokens), now)
        assert added == (len(self.held) - before) * TOKEN_BYTES

    def remove(self, leaf: Segment) -> None:
        tokens = tokens_up_to(leaf)
        self.tree.remove(leaf)
        self.held -= {tokens[:end] for end in range(len(tokens) - len(leaf) + 1, len(tokens) + 1)}

    def check(self, tokens: Tokens) -> None:
        """What is found of a prompt is its longest prefix that is held, with its states."""
        found = self.tree.match(digests_of(tokens))
        start = 0
        for number, (segment, shared) in enumerate(found):
            assert 0 < shared <= len(segment)
            assert shared == len(segment) or number == len(found) - 1
            part = [(k[:, :shared], v[:, :shared]) for k, v in segment.states]
            check_equal(part, states_of(tokens)(start, start + shared))
            start += shared
        ends = range(1, len(tokens) + 1)
        assert start == max((end for end in ends if tokens[:end] in self.held), default=0)

    def check_bytes(self) -> None:
        assert self.tree.nbytes == len(self.held) * TOKEN_BYTES == held_bytes(self.tree)


@pytest.mark.parametrize("seed", range(3))
def test_random_prompts_beside_the_set_of_their_prefixes(seed: int) -> None:
    rng = random.Random(seed)
    model = Model()
    prompts: list[Tokens] = []

    def prompt() -> Tokens:
        """Begins with a part of an earlier prompt, or ends in it."""
        start = rng.choice(prompts)[: rng.randint(0, 12)] if prompts and rng.random() < 0.8 else ()
        return (*start, *rng.choices(range(3), k=rng.randint(0, 6)))

    for now in range(1, 80):
        prompts.append(prompt())
        model.insert(prompts[-1], now)
        model.check(prompts[-1])
        model.check(prompt())
        if rng.random() < 0.4:
            leaves = list(model.tree.leaves())
            assert all(not leaf.children for leaf in leaves)
            if leaves:
                model.remove(rng.choice(leaves))
        model.check_bytes()
    for tokens in prompts:
        model.check(tokens)


def test_a_prompt_that_leaves_another_splits_it() -> None:
    tree = PrefixTree()
    tree.insert(digests_of((1, 2, 3, 4)), states_of((1, 2, 3, 4)), 1)
    tree.insert(digests_of((1, 2, 5)), states_of((1, 2, 5)), 2)
    [(head, shared)] = tree.match(digests_of((1, 2, 9)))
    assert (len(head), shared) == (2, 2)
    assert sorted(tokens_up_to(leaf) for leaf in tree.leaves()) == [(1, 2, 3, 4), (1, 2, 5)]
    assert all(leaf.parent is head for leaf in tree.leaves())


def test_a_prompt_within_another_adds_nothing_but_counts_as_used() -> None:
    tree = PrefixTree()
    tree.insert(digests_of((1, 2, 3)), states_of((1, 2, 3)), 1)
    tree.insert(digests_of((7,)), states_of((7,)), 2)
    assert tree.insert(digests_of((1, 2)), states_of((1, 2)), 3) == 0
    [(head, _)] = tree.match(digests_of((1, 2)))
    assert head.used == 3
    [(other, _)] = tree.match(digests_of((7,)))
    assert other.used == 2
    assert tree.insert(digests_of(()), states_of(()), 4) == 0
    assert tree.match(digests_of(())) == []
