"""A cache whose layers keep states, against a slow twin: the states of each row, made anew from its
first token on."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from stock_families import STOCK_FAMILIES, model_of
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache

from draftlens.core import tree as trees
from draftlens.core.tree import chain
from draftlens.models import recurrent
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import HeldTokens, KVCache
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_reading import PromptReading
from draftlens.models.recurrent import MOST_PASSES, RecurrentCache

NAMES = ("Qwen3_5", "Lfm2Vl")
every_model = pytest.mark.parametrize("name", NAMES)
HIGHEST = 150


@cache
def backbone_of(name: str) -> Backbone:
    return Backbone.of(model_of(next(each for each in STOCK_FAMILIES if each.name == name)))


class Rows:
    """A cache, and the tokens of its rows."""

    def __init__(self, name: str, lengths: list[int], seed: int = 0) -> None:
        self.backbone = backbone_of(name)
        self.rng = random.Random(seed)
        self.ids: list[list[int]] = [self.words(length) for length in lengths]
        prompt = self.prompt(self.ids)
        self.cache: Any = self.backbone.new_cache(prompt, room=64)
        self.backbone.prefill(prompt, self.cache)

    def words(self, count: int) -> list[int]:
        return [self.rng.randint(5, HIGHEST) for _ in range(count)]

    def prompt(self, rows: list[list[int]]) -> Prompt:
        width = max(map(len, rows))
        padded = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        inputs = {"input_ids": padded, "attention_mask": (padded != 0).long()}
        return self.backbone.encode(self.backbone.prepare_prompt(inputs))

    def read(self, width: int) -> list[list[int]]:
        """A pass over some tokens of each row, which are returned."""
        read = [self.words(width) for _ in self.ids]
        window = trees.ancestors(chain(width - 1))
        mask = trees.attention_mask(self.cache.lengths, window)
        start = torch.tensor(self.cache.lengths)[:, None]
        positions = (start + torch.arange(width)).expand(4, -1, -1)
        if "Lfm" in self.backbone.name:
            positions = positions[0]
        self.backbone.forward(torch.tensor(read), positions, self.cache, mask)
        return read

    def keep(self, read: list[list[int]], counts: list[int]) -> None:
        """Keep the first tokens of a pass."""
        base = list(map(len, self.ids))
        self.cache.keep(base, [list(range(count)) for count in counts])
        for row, tokens, count in zip(self.ids, read, counts, strict=True):
            row += tokens[:count]

    def check(self) -> None:
        """The states are those of the rows, made anew; what is wrong differs by more than 0.01, and
        chunks of tokens from single ones by 0.00004."""
        assert self.cache.lengths == list(map(len, self.ids))
        self.cache._settle(self.cache.lengths)
        for row, ids in enumerate(self.ids):
            for index, meant in states_of(self.backbone, ids).items():
                for got, states in zip(self.cache.layers[index].values, meant, strict=True):
                    assert (got is None) == (states is None)
                    if states is not None:
                        torch.testing.assert_close(got[row], states[0], atol=5e-4, rtol=1e-3)


@torch.no_grad()
def states_of(backbone: Backbone, ids: list[int]) -> dict[int, list[Tensor | None]]:
    """The states of each layer after some tokens, by transformers' own cache."""
    stock = DynamicCache(config=backbone.text_config)
    backbone.decoder(input_ids=torch.tensor([ids]), cache=stock, use_cache=True)
    return {
        index: [
            *stock.layers[index].conv_states.values(),
            *stock.layers[index].recurrent_states.values(),
        ]
        for index in backbone.states.num_states
    }


@every_model
@pytest.mark.parametrize("seed", range(6))
def test_any_rounds(name: str, seed: int) -> None:
    """Passes over one token and over several, of which rows keep any number, while rows join and
    leave."""
    rows = Rows(name, [7, 3, 12], seed)
    rng = random.Random(seed)
    rows.check()
    for step in range(14):
        width = rng.choice((1, 1, 2, 4, 7))
        read = rows.read(width)
        rows.keep(read, [rng.randint(0, width) for _ in rows.ids])
        if rng.random() < 0.5:
            rows.check()
        if rng.random() < 0.2 and len(rows.ids) > 1:
            row = rng.randrange(len(rows.ids))
            rows.cache.remove(row)
            rows.ids[row] = rows.ids[-1]
            rows.ids.pop()
        if rng.random() < 0.25:
            join(rows, [rows.words(rng.randint(1, 9)) for _ in range(2)], copies=bool(step % 2))
    rows.check()


def join(rows: Rows, new: list[list[int]], copies: bool) -> None:
    prompt = rows.prompt(new)
    further = rows.backbone.new_cache(prompt, 64) if copies else rows.cache.new_rows(len(new))
    rows.backbone.prefill(prompt, further)
    assert further.shares(rows.cache) != copies
    rows.cache.join(rows.cache.copied(further) if copies else further)
    rows.ids += new


@every_model
def test_draft_rounds(name: str) -> None:
    """Tokens that lag behind are read at once, then single ones; then some of all stay."""
    rows = Rows(name, [6, 9], seed=1)
    rng = random.Random(1)
    for _ in range(8):
        lagging = rows.read(3)
        counts = [rng.randint(1, 3) for _ in rows.ids]
        base = [len(ids) + count for ids, count in zip(rows.ids, counts, strict=True)]
        rows.cache.truncate(base)
        singles = [rows.read(1) for _ in range(4)]
        for row, count in enumerate(counts):
            rows.ids[row] += lagging[row][:count]
        accepted = [rng.randint(0, 4) for _ in rows.ids]
        rows.cache.keep(base, [list(range(count)) for count in accepted])
        for row, count in enumerate(accepted):
            rows.ids[row] += [single[row][0] for single in singles[:count]]
        rows.check()
    assert len(rows.cache._passes) <= 6


@every_model
def test_parts_of_prompts(name: str) -> None:
    """Also of rows that are read whole and read their last token again, which is dropped."""
    rows = Rows(name, [4, 5])
    whole = [rows.words(11), rows.words(5)]
    prompt = rows.prompt(whole)
    rows.cache = rows.backbone.new_cache(prompt, 64)
    reading = PromptReading(rows.backbone, prompt, rows.cache)
    rows.ids = whole
    while reading.read(2) is None:
        pass
    rows.check()
    rows.keep(rows.read(3), [1, 2])
    rows.check()


@every_model
def test_states_of_a_cut_row(name: str) -> None:
    """Without a floor the states of some lengths are dropped, never those of the prompt; with one
    those after it stay, and those before it go."""
    rows = Rows(name, [5, 8])
    prompts = [list(ids) for ids in rows.ids]
    single = [rows.read(1) for _ in range(MOST_PASSES + 9)]
    answers = [[tokens[row][0] for tokens in single] for row in (0, 1)]
    held: RecurrentCache = rows.cache
    assert held.reach(0, 5 + MOST_PASSES) == 5 + MOST_PASSES
    assert len(held._passes) == MOST_PASSES
    assert 5 <= held.reach(0, 6) <= 6
    held.lengths = [held.reach(0, 6), held.reach(1, 8 + MOST_PASSES + 8)]
    for row in (0, 1):
        rows.ids[row] = [*prompts[row], *answers[row]][: held.lengths[row]]
    rows.check()
    assert held.lengths == [5, 8 + MOST_PASSES + 8]
    rows = Rows(name, [5, 8])
    for _ in range(30):
        rows.read(1)
    assert rows.cache.reach(0, 34, floor=30) == 34
    assert rows.cache.reach(1, 37, floor=33) == 37
    rows.read(1)
    assert len(rows.cache._passes) < 8
    assert rows.cache.reach(0, 30) == 30


@every_model
def test_what_is_not_kept_is_an_error(name: str) -> None:
    rows = Rows(name, [5])
    rows.keep(rows.read(2), [2])
    rows.read(1)
    rows.cache.truncate([6])
    with pytest.raises(RuntimeError, match="row 0 was rolled back to 6 tokens"):
        rows.read(1)
    with pytest.raises(RuntimeError, match="chains of tokens"):
        rows.cache.keep([7], [[0, 2]])


@every_model
def test_a_pass_that_is_cut_short(name: str) -> None:
    """Its layers have the states of before, and the next pass is right."""
    rows = Rows(name, [5, 3])
    last = list(rows.backbone.decoder.layers)[-1]

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    for width in (1, 3):
        with rows.backbone.stopping_at(last, stop), pytest.raises(KeyboardInterrupt):
            rows.read(width)
        rows.check()
        rows.keep(rows.read(3), [2, 3])
        rows.check()


@every_model
def test_states_count_as_bytes_and_engines_get_no_buffers(name: str) -> None:
    rows = Rows(name, [5])
    keys = KVCache.nbytes.fget(rows.cache)  # type: ignore[attr-defined]
    assert rows.cache.nbytes > keys > 0
    assert rows.cache.whole_buffers(6) is None


@every_model
def test_a_single_token_is_read_without_further_copies(name: str) -> None:
    """Plain decoding keeps the states before the latest pass, and no inputs."""
    rows = Rows(name, [5])
    for _ in range(4):
        rows.keep(rows.read(1), [1])
    [step] = rows.cache._passes
    assert not step.inputs


@every_model
def test_a_copy_is_known_to_the_prompt_cache(name: str) -> None:
    """Rows whose prompt was read in parts join as copies, and what they hold is stored as well."""
    rows = Rows(name, [4, 5])
    prompt = rows.prompt([rows.words(6)])
    further = rows.backbone.new_cache(prompt, 64)
    rows.backbone.prefill(prompt, further)
    held = HeldTokens("of a key", np.zeros((6, 16), np.uint8))
    further.held = [held]
    copy = rows.cache.copied(further)
    assert copy.held == [held]
    assert copy.held is not further.held


class Matrices(TorchFunctionMode):
    """Notes the matrices of products."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is linear:
            self.used.append(id(args[1]))
        return func(*args, **(kwargs or {}))


@every_model
@pytest.mark.parametrize("kept", [1, 2, 4])
def test_accepted_tokens_are_read_again_without_the_matrices(name: str, kept: int) -> None:
    """Their products are those of the pass before. They are read when they are accepted, since the
    time of this belongs to the round, and not in the next pass."""
    rows = Rows(name, [4, 6], seed=2)
    tokens = rows.read(5)
    with Matrices() as matrices:
        rows.keep(tokens, [kept, 5])
    assert matrices.used == []
    assert rows.cache._read == rows.cache.lengths
    rows.check()


def test_a_matrix_that_is_used_twice_is_multiplied_again() -> None:
    products: dict[int, Tensor | None] = {}
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(recurrent._keep(products))
    layer(torch.ones(1, 1, 2))
    assert products[id(layer.weight)] is not None
    layer(torch.zeros(1, 1, 2))
    assert products[id(layer.weight)] is None
