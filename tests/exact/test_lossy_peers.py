"""Lossy peers against slow twins: masks instead of drops, steps instead of one pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from draftlens_lab.bench.lossy import Dropping, accepted_tokens, answer_lossily
from draftlens_lab.bench.lossy.acceptance import teacher_forced_logits
from draftlens_lab.bench.lossy.answer import decode_step
from draftlens_lab.bench.lossy.dycoke import DyCokeTarget
from draftlens_lab.bench.lossy.fastv import FastV
from draftlens_lab.bench.lossy.pdrop import PDrop
from draftlens_lab.bench.lossy.prefill import decoder_layers, prefill
from draftlens_lab.bench.lossy.recall import RecallingPass
from draftlens_lab.bench.lossy.sparsevlm import SparseVLM
from families import FAMILIES, Family, inputs
from masking import MaskedModel
from stock import answers

from draftlens.core.errors import ConfigError, InputError, UnsupportedModelError
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prepared, Prompt

NEW = 12
NAMES = ("llava_onevision", "qwen2_5_vl", "qwen3_vl")
THREE = [family for family in FAMILIES if family.name in NAMES]

NOTHING = (
    FastV(prune_ratio=0.0),
    PDrop(keep_ratio=1.0),
    SparseVLM(prune_ratio=0.0),
    DyCokeTarget(merge_ratio=0.0, prune_ratio=0.0),
)
"""Peers that drop nothing."""

BEHIND_LAYERS = (
    FastV(layer=1, prune_ratio=0.5),
    FastV(layer=2, prune_ratio=1.0),
    PDrop(),
    PDrop(keep_ratio=0.7, drop_layers=(1, 3)),
    SparseVLM(prune_ratio=0.9),
    SparseVLM(prune_ratio=1.0, drop_layers=(1, 2, 3)),
)
"""Peers that drop after layers."""

DECODING = (
    DyCokeTarget(merge_ratio=0.0, layer=2, prune_ratio=0.5, similarity=0.9),
    DyCokeTarget(merge_ratio=0.5, layer=1, prune_ratio=0.7, similarity=1.0),
    DyCokeTarget(merge_ratio=0.5, layer=3, prune_ratio=0.0, positions="original"),
    DyCokeTarget(merge_ratio=0.0, layer=2, prune_ratio=1.0, similarity=0.0),
)
"""Peers that choose while decoding."""


@cache
def model(family: Family) -> Any:
    """Four layers, so that something lies after each drop."""
    return family.build(num_hidden_layers=4)


@cache
def eager(family: Family) -> Any:
    """The same weights with attention whose weights can be read."""
    twin = family.build(num_hidden_layers=4)
    twin.set_attn_implementation("eager")
    return twin


def kind_of(family: Family) -> str:
    return "video" if family.video and "video" in family.kinds else "image"


def asked(family: Family, **options: Any) -> tuple[Backbone, Prepared, Prompt]:
    """A call of one row, and its prompt."""
    backbone = Backbone(model(family))
    options = {"max_new_tokens": NEW, "do_sample": False, **options}
    prepared = backbone.prepare(inputs(family, kind_of(family), (0,)), **options)
    return backbone, prepared, backbone.encode(prepared)


def stock_tokens(family: Family, **options: Any) -> list[int]:
    given = inputs(family, kind_of(family), (0,))
    options = {"max_new_tokens": NEW, "do_sample": False, **options}
    output = model(family).generate(**given, **options)
    (row,) = answers(model(family), given, output, **options)
    return row


def step_by_step(backbone: Backbone, prompt: Prompt, tokens: list[int]) -> torch.Tensor:
    """Logits in front of each token of an answer, ``[T, V]``, one forward for each."""
    kv_cache = backbone.new_cache(prompt, len(tokens))
    logits = [backbone.prefill(prompt, kv_cache)[0, -1]]
    for index, token in enumerate(tokens[:-1]):
        positions = prompt.positions(torch.tensor([[index]]))
        logits.append(backbone.forward(torch.tensor([[token]]), positions, kv_cache, None)[0, -1])
    return torch.stack(logits)


@pytest.mark.parametrize("dropping", NOTHING, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_with_nothing_dropped_the_tokens_are_those_of_stock(
    family: Family, dropping: Dropping
) -> None:
    backbone, prepared, prompt = asked(family)
    answer = answer_lossily(backbone, prepared, prompt, dropping)
    assert answer.tokens == stock_tokens(family)
    assert answer.kept == answer.visual == 4 * int(prompt.visual.sum())


@pytest.mark.pairwise("dropping")
@pytest.mark.parametrize("dropping", BEHIND_LAYERS, ids=str)
@pytest.mark.parametrize("family", THREE, ids=str)
def test_dropped_tokens_are_as_if_masks_hid_them(family: Family, dropping: Dropping) -> None:
    """The choice, the lengths of the caches, and states of kept tokens in front of every layer.

    The bound is relative to the largest state, since the two kinds of attention round differently.
    """
    backbone, _, prompt = asked(family)
    with recorded_states(backbone) as entering:
        found = prefill(backbone, prompt, dropping)
    twin = MaskedModel(eager(family), prompt, dropping)
    logits = twin.read()
    for layer, kept in enumerate(found.kept):
        assert torch.equal(kept, twin.visible[layer].nonzero()[:, 0])
        assert found.cache.layers[layer].get_seq_length() == len(kept)
        assert difference(entering[layer], twin.states[layer][kept]) < 1e-5
    assert difference(found.logits[0], logits) < 1e-5


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((found - expected).abs().max() / expected.abs().max())


@contextmanager
def recorded_states(backbone: Backbone) -> Iterator[list[torch.Tensor]]:
    """The states ``[T, D]`` that enter each layer while the context lasts."""
    entering: list[torch.Tensor] = []
    handles = [
        layer.input_layernorm.register_forward_pre_hook(
            lambda module, args: entering.append(args[0][0])
        )
        for layer in backbone.decoder.layers
    ]
    yield entering
    for handle in handles:
        handle.remove()


@pytest.mark.pairwise("dropping")
@pytest.mark.parametrize("dropping", BEHIND_LAYERS, ids=str)
@pytest.mark.parametrize("family", THREE, ids=str)
def test_answers_of_dropped_prompts_are_those_of_masks(family: Family, dropping: Dropping) -> None:
    backbone, prepared, prompt = asked(family)
    twin = MaskedModel(eager(family), prompt, dropping)
    _compare_answers(backbone, prepared, prompt, dropping, twin)


@pytest.mark.pairwise("dropping")
@pytest.mark.parametrize("dropping", DECODING, ids=str)
@pytest.mark.parametrize("family", THREE, ids=str)
def test_what_decoding_does_not_read_is_as_if_masks_hid_it(
    family: Family, dropping: Dropping
) -> None:
    backbone, prepared, prompt = asked(family)
    twin = MaskedModel(eager(family), prompt, dropping)
    _compare_answers(backbone, prepared, prompt, dropping, twin)


def _compare_answers(
    backbone: Backbone, prepared: Prepared, prompt: Prompt, dropping: Dropping, twin: MaskedModel
) -> None:
    """The twin reads the answer's own tokens, and each of its choices is the answer's."""
    answer = answer_lossily(backbone, prepared, prompt, dropping)
    assert len(answer.tokens) == NEW
    logits = twin.read()
    for index, token in enumerate(answer.tokens):
        assert int(logits.argmax()) == token
        logits = twin.step(token, index)
    read = sum(int((twin.prompt.visual[0] & visible).sum()) for visible in twin.visible)
    assert answer.kept == read


@pytest.mark.parametrize("family", THREE, ids=str)
def test_dropped_tokens_stay_dropped_and_recalled_ones_come_back(family: Family) -> None:
    """With a bound of 1 every step chooses, with 0 only the first; no key is lost on the way."""
    backbone, _, prompt = asked(family)
    for similarity, chooses_often in ((1.0, True), (0.0, False)):
        dropping = DyCokeTarget(merge_ratio=0.0, layer=2, prune_ratio=0.5, similarity=similarity)
        found = prefill(backbone, prompt, dropping)
        keys = found.cache.layers[3].keys.clone()
        assert dropping.recall is not None
        recaller = RecallingPass(dropping.recall, found)
        twin = MaskedModel(eager(family), prompt, dropping)
        twin.read()
        for index, token in enumerate((5, 9, 30, 44)):
            decode_step(backbone, found, recaller, token, index)
            twin.step(token, index)
            assert recaller.choices == twin.choices
        assert (recaller.choices > 1) == chooses_often
        recaller.split[-1].select(torch.arange(len(recaller.columns)))
        visual = prompt.visual[0]
        length = prompt.lengths[0]
        restored = found.cache.layers[3].keys
        count = int(visual.sum())
        torch.testing.assert_close(restored[:, :, :count], keys[:, :, visual])
        torch.testing.assert_close(restored[:, :, count:length], keys[:, :, ~visual])
        assert restored.shape[2] == length + 4


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_target_accepts_all_of_its_own_answer(family: Family) -> None:
    backbone, prepared, prompt = asked(family)
    assert accepted_tokens(backbone, prepared, prompt, stock_tokens(family)) == [True] * NEW


@pytest.mark.parametrize("family", THREE, ids=str)
def test_acceptance_in_one_pass_is_that_of_steps(family: Family) -> None:
    backbone, prepared, prompt = asked(family)
    rejected = 0
    for dropping in (BEHIND_LAYERS[0], BEHIND_LAYERS[2], DECODING[1]):
        tokens = answer_lossily(backbone, prepared, prompt, dropping).tokens
        expected = step_by_step(backbone, prompt, tokens)
        found = teacher_forced_logits(backbone, prompt, torch.tensor([tokens]))[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
        accepted = accepted_tokens(backbone, prepared, prompt, tokens)
        choices = expected.argmax(-1).tolist()
        assert accepted == [choice == token for choice, token in zip(choices, tokens, strict=True)]
        rejected += accepted.count(False)
    assert rejected > 0


def test_an_empty_answer_has_no_accepted_tokens() -> None:
    assert accepted_tokens(*asked(THREE[0]), []) == []


@pytest.mark.parametrize("family", THREE, ids=str)
def test_processors_and_ends_are_those_of_generate(family: Family) -> None:
    """A penalty that looks at the whole history, and an end in the middle."""
    options: dict[str, Any] = {"repetition_penalty": 3.0, "max_new_tokens": 25}
    endless = stock_tokens(family, **options)
    assert endless != stock_tokens(family, max_new_tokens=25)
    options["eos_token_id"] = endless[20]
    expected = stock_tokens(family, **options)
    backbone, prepared, prompt = asked(family, **options)
    answer = answer_lossily(backbone, prepared, prompt, NOTHING[0])
    assert answer.tokens == expected
    assert len(expected) <= 21
    assert all(accepted_tokens(backbone, prepared, prompt, expected))


def test_a_prompt_without_pixels_loses_nothing() -> None:
    for family in THREE:
        backbone = Backbone(model(family))
        given = inputs(family, "text", (0,))
        prepared = backbone.prepare(given, max_new_tokens=NEW, do_sample=False)
        prompt = backbone.encode(prepared)
        output = model(family).generate(**given, max_new_tokens=NEW, do_sample=False)
        (expected,) = answers(model(family), given, output)
        for dropping in (*BEHIND_LAYERS, *DECODING):
            assert answer_lossily(backbone, prepared, prompt, dropping).tokens == expected


def test_no_hook_is_left_after_a_failure() -> None:
    class Broken(FastV):
        def keep(self, attention: torch.Tensor) -> torch.Tensor:
            raise MemoryError

    backbone, _, prompt = asked(THREE[0])
    with pytest.raises(MemoryError):
        prefill(backbone, prompt, Broken(layer=1))
    assert all(not layer._forward_pre_hooks for layer in backbone.decoder.layers)
    assert backbone.decoder.config._attn_implementation == "sdpa"


def test_what_cannot_be_dropped_is_refused() -> None:
    family = THREE[0]
    backbone, _, prompt = asked(family)
    several = backbone.encode(
        backbone.prepare(inputs(family, "video"), max_new_tokens=NEW, do_sample=False)
    )
    with pytest.raises(InputError, match="answer one row at a time, not 3"):
        prefill(backbone, several, FastV())
    with pytest.raises(ConfigError, match=r"after layers 1 to 3, not after \[4\]"):
        prefill(backbone, prompt, FastV(layer=4))
    found = prefill(backbone, prompt, FastV(layer=1))
    late = DyCokeTarget(layer=4).recall
    assert late is not None
    with pytest.raises(ConfigError, match="no layer follows layer 4 of 4"):
        RecallingPass(late, found)
    unknown = replace(prompt, extra={"depths": torch.zeros(1, prompt.lengths[0])})
    with pytest.raises(UnsupportedModelError, match="gives its decoder depths, which cannot be"):
        prefill(backbone, unknown, FastV(layer=1))
    deep = replace(prompt, extra={"deepstack_visual_embeds": [torch.zeros(1, 1)] * 4})
    with pytest.raises(UnsupportedModelError, match="adds features of pixels after its last"):
        prefill(backbone, deep, FastV(layer=1))


def test_layers_that_take_something_unknown_per_token_are_refused() -> None:
    backbone, _, prompt = asked(THREE[0])

    def add(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "depths": torch.zeros(1, prompt.lengths[0])}

    handle = backbone.decoder.layers[1].register_forward_pre_hook(add, with_kwargs=True)
    try:
        with pytest.raises(UnsupportedModelError, match="gives its layers depths, which cannot be"):
            prefill(backbone, prompt, FastV(layer=1))
    finally:
        handle.remove()


@pytest.mark.parametrize("dropping", [FastV(layer=1), DyCokeTarget()], ids=str)
def test_models_whose_attention_cannot_be_read_are_refused(
    monkeypatch: pytest.MonkeyPatch, dropping: Dropping
) -> None:
    """As if the model passed nothing on to its attention."""
    backbone, _, prompt = asked(THREE[0])
    monkeypatch.setattr("draftlens_lab.bench.lossy.prefill.dispatching", nullcontext)
    with pytest.raises(UnsupportedModelError, match="does not let its attention be read"):
        prefill(backbone, prompt, dropping)


def test_models_that_do_not_list_their_layers_are_refused() -> None:
    backbone: Any = SimpleNamespace(name="Closed", decoder=object())
    with pytest.raises(UnsupportedModelError, match="Closed does not list the layers"):
        decoder_layers(backbone)
