"""Passes over static buffers: the tokens of stock `generate`, whatever computes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from compiling import attach_static, library_of
from families import FAMILIES, Family, inputs
from stock import METHODS, NEW, draft, reference, target

import draftlens
from draftlens.core import tree as trees
from draftlens.models.adapter import Backbone
from draftlens.passes.inductor.engine import CompiledPasses
from draftlens.passes.inductor.static_pass import ANY

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


@pytest.fixture(autouse=True)
def static_passes() -> Iterator[None]:
    """Nothing is compiled here: what is traced runs as it stands."""
    with patch("draftlens.request.attach_for_call", attach_static):
        yield


@every_family
def test_every_family_answers_by_static_passes(family: Family) -> None:
    """A ragged batch, trees, and rows of the richest kind of input."""
    for method in ("chain5", "eagle"):
        result = draftlens.generate(
            target(family),
            inputs(family, family.richest),
            draft=draft(family),
            method=METHODS[method],
            max_new_tokens=NEW,
            compile=True,
        )
        assert result.tokens == reference(family, family.richest)
    kinds = {(shape.rows, shape.width) for shape in library_of(target(family)).calls}
    assert (ANY, ANY) in kinds


@every_family
def test_logits_move_less_than_a_near_tie(family: Family) -> None:
    """A static pass writes the slots that the modules write, and computes their logits."""
    backbone = Backbone.of(target(family))
    ids = torch.arange(1, 13).reshape(2, 6)
    prompt = backbone.text_prompt(ids[:, :3])
    positions = prompt.positions(torch.arange(3).expand(2, -1))
    expected = _forward(backbone, prompt, ids[:, 3:], positions)
    attach_static([backbone])
    logits = _forward(backbone, prompt, ids[:, 3:], positions)
    for ours, theirs in zip(logits, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def _forward(
    backbone: Backbone, prompt: Any, tokens: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of a pass after rows of 3 and 2 tokens, and the keys and values of the last layer."""
    cache = backbone.new_cache(prompt, room=3)
    backbone.prefill(prompt, cache)
    cache.truncate([3, 2])
    mask = trees.attention_mask([3, 2], torch.ones(3, 3, dtype=torch.bool).tril())
    logits = backbone.forward(tokens, positions, cache, mask)
    layer = cache.layers[-1]
    return logits, layer.keys[1, :, :5].clone(), layer.values[1, :, :5].clone()


@every_family
@pytest.mark.parametrize("rows", [1, 2])
def test_a_chain_is_that_of_single_passes(family: Family, rows: int) -> None:
    """Equal tokens, keys and values; ids beyond the target's are not chosen."""
    backbone = Backbone.of(target(family))
    ids = torch.arange(1, 1 + 4 * rows).reshape(rows, 4)
    prompt = backbone.text_prompt(ids[:, :3])
    positions = prompt.positions(torch.zeros(rows, 1, dtype=torch.long))
    attach_static([backbone])
    vocab_size = backbone.vocab_size // 2
    caches = []
    chains = []
    for at_once in (True, False):
        cache = backbone.new_cache(prompt, room=4)
        backbone.prefill(prompt, cache)
        chain: torch.Tensor | None = None
        if at_once:
            chain = backbone.greedy_chain(ids[:, 3:], positions, cache, 4, vocab_size)
        else:
            chosen = [ids[:, 3:]]
            for step in range(4):
                logits = backbone.forward(chosen[-1], positions + step, cache, None)
                chosen.append(logits[..., :vocab_size].argmax(-1))
            chain = torch.cat(chosen[1:], 1)
        chains.append(chain)
        caches.append(cache)
    assert chains[0] is not None
    assert chains[1] is not None
    assert torch.equal(chains[0], chains[1])
    assert int(chains[0].max()) < vocab_size
    assert caches[0].lengths == caches[1].lengths == [7] * rows
    for layers in zip(caches[0].layers, caches[1].layers, strict=True):
        keys = [layer.keys[:, :, :7] for layer in layers]
        assert torch.equal(keys[0], keys[1])


@pytest.mark.parametrize("end", [1, 3])
def test_a_chain_ends_early(end: int) -> None:
    """Its tokens are the first ones of the whole chain, and the cache holds no others. Whether it
    ends is asked with the logits of each token."""
    backbone = Backbone.of(target(FAMILIES[0]))
    ids = torch.arange(1, 5)[None]
    prompt = backbone.text_prompt(ids[:, :3])
    positions = prompt.positions(torch.zeros(1, 1, dtype=torch.long))
    attach_static([backbone])
    asked: list[tuple[int, int]] = []

    def ends(logits: torch.Tensor, tokens: torch.Tensor) -> bool:
        assert logits.shape == (1, 1, 20)
        asked.append((int(logits.argmax()), int(tokens)))
        return len(asked) == end

    chains = []
    for stop in (None, ends):
        cache = backbone.new_cache(prompt, room=4)
        backbone.prefill(prompt, cache)
        chain = backbone.greedy_chain(ids[:, 3:], positions, cache, 4, 20, stop)
        assert chain is not None
        assert cache.lengths == [3 + chain.shape[1]]
        chains.append(chain[0].tolist())
    assert chains[1] == chains[0][:end]
    assert asked == [(token, token) for token in chains[1]]


def test_chains_run_in_one_go_only_where_they_may() -> None:
    """Greedy rows of one length; not rows of several lengths, nor drawn draft tokens."""
    family = FAMILIES[0]
    asked = []
    run_chain = CompiledPasses.run_chain

    def spy(passes: CompiledPasses, tokens: torch.Tensor, *args: Any) -> torch.Tensor | None:
        asked.append(len(tokens))
        return run_chain(passes, tokens, *args)

    def answer(rows: tuple[int, ...], **options: Any) -> list[list[int]]:
        asked.clear()
        return draftlens.generate(
            target(family),
            inputs(family, "text", rows),
            draft=draft(family),
            method=METHODS["chain5"],
            max_new_tokens=NEW,
            compile=True,
            **options,
        ).tokens

    with patch.object(CompiledPasses, "run_chain", spy):
        assert answer((0,)) == reference(family, "text")[:1]
        assert set(asked) == {1}
        answer((0,), do_sample=True, seed=1)
        assert not asked
        answer((0,), do_sample=False, repetition_penalty=1.3)
        assert not asked
        answer((0, 1, 2))
        assert 3 not in asked  # their prompts have several lengths


def test_no_kind_of_pass_is_made_twice_once_all_are_there() -> None:
    """Mixed lengths, trees, batches, and rows that join and leave: eight kinds of passes."""
    family = FAMILIES[0]
    model = target(family)
    for rows in ((0,), (0, 1), (2, 0, 1)):
        for method in ("chain1", "chain5", "eagle", "odd"):
            draftlens.generate(
                model,
                inputs(family, "text", rows),
                draft=draft(family),
                method=METHODS[method],
                max_new_tokens=NEW,
                compile=True,
            )
    made = set(library_of(model).runners) | set(library_of(draft(family)).runners)
    assert len(made) <= 4
