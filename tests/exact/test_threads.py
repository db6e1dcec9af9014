"""Several threads on one model: their passes take turns, and each answer is its own."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from threading import Thread, get_ident
from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from stock import LONG, draft, reference, target

import draftlens

METHODS: list[dict[str, Any]] = [
    {"method": "specvlm", "prune_ratio": 0.5},
    {"method": "specvlm", "prune_ratio": 0.5, "pruner": "uv"},
    {"method": "specvlm", "prune_ratio": 0.5, "pruner": "uv", "draft": "self"},
    {"method": "specvlm", "prune_ratio": 0.5, "draft": "self", "tree": "auto"},
    {"method": "speculative", "tree": "auto"},
    {"method": "plain"},
]


@pytest.mark.parametrize("name", ["qwen3_vl", "llava_onevision"])
def test_answers_made_side_by_side(name: str) -> None:
    """Prefills with the probe or with hooks among decode steps without; the model is as it was."""
    family: Family = next(family for family in FAMILIES if family.name == name)
    given, model, small = (
        inputs(family, family.richest),
        copy.deepcopy(target(family)),
        copy.deepcopy(draft(family)),
    )

    def answer(number: int) -> list[list[int]]:
        method = METHODS[number % len(METHODS)]
        return draftlens.generate(
            model, given, draft=small, method=method, max_new_tokens=LONG
        ).tokens

    with ThreadPoolExecutor(3) as pool:
        for tokens in pool.map(answer, range(24)):
            assert tokens == reference(family, family.richest, LONG)
    for used in (model, small):
        assert used.get_decoder().config._attn_implementation == "sdpa"
        assert not used.get_decoder()._forward_pre_hooks
        assert not any(layer._forward_pre_hooks for layer in used.get_decoder().layers)


@pytest.mark.parametrize("name", ["qwen3_vl", "llava_onevision"])
def test_the_callers_own_generate_while_a_prompt_is_read(name: str) -> None:
    """The hook that ends the forward of one thread leaves those of other threads alone."""
    family: Family = next(family for family in FAMILIES if family.name == name)
    given, model = inputs(family, family.richest), copy.deepcopy(target(family))
    draftlens.generate(model, given, max_new_tokens=1)  # which checks the model once
    stock_tokens = list[list[int]]()

    def generate_by_stock() -> None:
        ids = model.generate(**given, do_sample=False, max_new_tokens=LONG)
        stock_tokens.extend(ids[:, given["input_ids"].shape[1] :].tolist())

    def before_forward(*_: Any) -> None:
        if get_ident() == main and not stock_tokens:
            thread = Thread(target=generate_by_stock)
            thread.start()
            thread.join()

    main = get_ident()
    with model.register_forward_pre_hook(before_forward):
        tokens = draftlens.generate(model, given, max_new_tokens=LONG).tokens
    assert tokens == reference(family, family.richest, LONG)
    assert stock_tokens == tokens
