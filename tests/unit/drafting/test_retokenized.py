"""Rows of a draft with another tokenizer, round by round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from batches import batch_of, sequences
from torch import Tensor

from draftlens.decoding.plan import TargetContext
from draftlens.drafting.draft_prompt import DraftPromptBuilder
from draftlens.drafting.retokenized import RetokenizedDrafter
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.models.retokenizer import Retokenizer

END = 9
"""The draft's end of a text; the target's is 99."""


class Words:
    """The target has pairs of letters where it can, ids 10 * first + second, the draft letters. The
    letters are digits 1 to 8."""

    def __init__(self, pairs: bool) -> None:
        self.pairs, self.eos_token_id = pairs, 99 if pairs else END

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(str(token) for token in ids if token != self.eos_token_id)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        size = 2 if self.pairs else 1
        return [int(text[start : start + size]) for start in range(0, len(text), size)]


class Counting:
    """A draft that counts: 1, 2, ... 8, end. It remembers tokens and their positions."""

    device, vocab_size, prompt_cache, name = torch.device("cpu"), 10, None, "Counting"

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], list[int]]] = []

    def prepare_prompt(self, inputs: Any) -> Any:
        return inputs

    def encode(self, prepared: Any) -> Prompt:
        ids = prepared["input_ids"]
        rows, length = ids.shape
        positions = torch.arange(length).expand(rows, -1)
        return Prompt(ids, positions, [length] * rows, torch.full((rows, 1), length), ids < 0, {})

    def new_cache(self, prompt: Prompt, room: int) -> KVCache:
        return KVCache(1, len(prompt.lengths), max(prompt.lengths) + room)

    def prefill(self, prompt: Prompt, cache: KVCache, attention: None = None) -> Tensor:
        return self.forward(prompt.embeds, prompt.position_ids, cache, None)

    def forward(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor:
        cache.update(tokens[:, None, :, None], tokens[:, None, :, None], 0)
        cache.advance(tokens.shape[1])
        self.seen.append((tokens[0].tolist(), position_ids[0].tolist()))
        return torch.nn.functional.one_hot((tokens + 1) % 10, 10).float()


def begun(
    answers: list[list[int]], vocab_size: int = 100
) -> tuple[RetokenizedDrafter, Counting, list[Any]]:
    """A drafter of chains of 4 whose rows have these answers after prompts of two tokens."""
    ids = torch.tensor([[1, 2]] * len(answers))
    rows = sequences(ids, answers)
    model: Any = Counting()
    retokenizer = Retokenizer(Words(True), Words(False))
    drafter = RetokenizedDrafter(DraftPromptBuilder(model), retokenizer, 4, vocab_size)
    encoded = drafter.encode({"input_ids": ids})
    prompt: Any = SimpleNamespace(namespace=None)
    context = TargetContext(prompt, KVCache(1, 2, 3), room=20, eos=frozenset({99}))
    drafter.begin(batch_of(rows), encoded, context)
    model.seen.clear()
    return drafter, model, rows


def proposed(drafter: RetokenizedDrafter, rows: list[Any], budget: int = 9) -> list[list[int]]:
    tree = drafter.propose(batch_of(rows), budget)
    return [
        row[: len(topology)].tolist()
        for row, topology in zip(tree.tokens, tree.topologies, strict=True)
    ]


def held(drafter: RetokenizedDrafter, row: int) -> list[int]:
    cache: Any = drafter.rows.cache
    return cache.layers[0].keys[row, 0, : cache.lengths[row], 0].tolist()  # type: ignore[no-any-return]


def test_text_goes_to_the_draft_and_back() -> None:
    drafter, model, rows = begun([[12]])
    assert proposed(drafter, rows) == [[34, 56]]
    assert model.seen == [([1, 2], [2, 3]), ([3], [4]), ([4], [5]), ([5], [6])]
    assert held(drafter, 0) == [1, 2, 1, 2, 3, 4, 5]


def test_a_rejection_rolls_back_to_the_text_that_both_have() -> None:
    drafter, model, rows = begun([[12]])
    proposed(drafter, rows)
    for token in (37, 1):
        rows[0].tokens.append(token)
    model.seen.clear()
    assert proposed(drafter, rows, budget=2) == [[23, 45]]
    assert model.seen[0] == ([7, 1], [5, 6])
    assert held(drafter, 0) == [1, 2, 1, 2, 3, 7, 1, 2, 3, 4]


def test_the_end_of_the_drafts_text_is_that_of_the_answer() -> None:
    drafter, _, rows = begun([[67]])
    assert proposed(drafter, rows) == [[8, 99]]
    assert proposed(drafter, rows, budget=1) == [[8]]
    assert drafter.forwards == 4


@pytest.mark.parametrize(("vocab_size", "chain"), [(99, [[8]]), (8, [[]])])
def test_tokens_that_the_target_does_not_have_end_the_chain(
    vocab_size: int, chain: list[list[int]]
) -> None:
    """Its generation config may name an end beyond its vocabulary."""
    drafter, _, rows = begun([[67]], vocab_size)
    assert proposed(drafter, rows) == chain


def test_rows_of_other_lengths_that_leave() -> None:
    drafter, _, rows = begun([[12], [34], [56, 78]])
    assert proposed(drafter, rows) == [[34, 56], [56, 78], [99]]
    assert proposed(drafter, rows) == [[34, 56], [56, 78], [99]]
    drafter.remove(0)
    rows = [rows[2], rows[1]]
    rows[1].tokens.append(11)
    assert proposed(drafter, rows) == [[99], [23, 45]]
    assert held(drafter, 1) == [1, 2, 3, 4, 1, 1, 2, 3, 4]


def test_nothing_is_written_without_room_or_text() -> None:
    drafter, model, rows = begun([[99], [12]])
    assert proposed(drafter, rows, budget=0) == [[], []]
    assert not model.seen
    assert proposed(drafter, rows) == [[], [34, 56]]
