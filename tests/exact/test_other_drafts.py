"""Drafts that are no copy of the target: another vocabulary, another size, another family, other
pictures."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from families import FAMILIES, VOCAB, Family, inputs
from stock import METHODS, NEW, draft, noisy, reference, stock, target

import draftlens

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
methods = pytest.mark.parametrize("method", ["chain5", "eagle"])
BY_NAME = {family.name: family for family in FAMILIES}


@cache
def padded(family: Family) -> Any:
    """The family's model with sixteen ids more, which it does say."""
    model = family.build(seed=3, vocab_size=VOCAB + 16)
    with torch.no_grad():
        for weight in (model.lm_head.weight, model.get_input_embeddings().weight):
            weight[VOCAB:] *= 1.3
    return model


def with_vocabulary(family: Family, model: Any, size: int) -> Any:
    """A noisy copy of a model that knows more or fewer ids."""
    copy = family.build(seed=4, vocab_size=size)
    weights = dict(noisy(model).named_parameters())
    with torch.no_grad():
        for name, weight in copy.named_parameters():
            weight[: len(weights[name])] = weights[name][: len(weight)]
    return copy


@pytest.mark.pairwise("drafts")
@every_family
@methods
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_a_draft_that_knows_fewer_ids(family: Family, method: str, penalty: float) -> None:
    """The target says what the draft cannot, and processors read it as history."""
    given, model = inputs(family, family.richest), padded(family)
    expected = stock(model, given, max_new_tokens=NEW, repetition_penalty=penalty)
    assert any(token >= VOCAB for row in expected for token in row)
    result = draftlens.generate(
        model,
        given,
        draft=with_vocabulary(family, model, VOCAB),
        method=METHODS[method],
        max_new_tokens=NEW,
        repetition_penalty=penalty,
    )
    assert result.tokens == expected
    assert 0 < result.stats.accepted < result.stats.drafted


@pytest.mark.pairwise("drafts")
@every_family
@methods
def test_a_draft_that_knows_more_ids(family: Family, method: str) -> None:
    """It is never heard to say them; processors that are bound to the target's ids work for
    both."""
    given, model = inputs(family, family.richest), target(family)
    options = {"bad_words_ids": [[reference(family, family.richest)[0][4]]], "max_new_tokens": NEW}
    expected = stock(model, given, **options)
    more = with_vocabulary(family, model, VOCAB + 16)
    result = draftlens.generate(model, given, draft=more, method=METHODS[method], **options)
    assert result.tokens == expected
    assert 0 < result.stats.accepted < result.stats.drafted


@every_family
def test_sampling_with_another_vocabulary(family: Family) -> None:
    """The noise of an id does not depend on how many there are."""
    given, model = inputs(family, family.richest), padded(family)
    options = {"max_new_tokens": NEW, "do_sample": True, "seed": 5, "top_k": 20}
    expected = draftlens.generate(model, given, **options)
    result = draftlens.generate(
        model,
        given,
        draft=with_vocabulary(family, model, VOCAB),
        method={"num_speculative_tokens": 5},
        **options,
    )
    assert result.tokens == expected.tokens
    assert result.stats.accepted > 0


@pytest.mark.pairwise("drafts")
@every_family
@methods
def test_a_draft_of_another_depth_and_width(family: Family, method: str) -> None:
    """Fewer layers, other heads: its cache has its own shape."""
    small = family.build(
        seed=9,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,
        intermediate_size=32,
    )
    result = draftlens.generate(
        target(family),
        inputs(family, family.richest),
        draft=small,
        method=METHODS[method],
        max_new_tokens=13,
    )
    assert result.tokens == [row[:13] for row in reference(family, family.richest)]


@pytest.mark.pairwise("drafts")
@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.name != "llava"], ids=str
)
@methods
def test_a_draft_that_sees_other_pictures(family: Family, method: str) -> None:
    """Other pictures of other sizes: its rows have other lengths, and still it is right at
    times."""
    kind = "video" if family.video else "images"
    given, others = inputs(family, kind), inputs(family, kind, seed=1)
    lengths, other_lengths = (batch["attention_mask"].sum(1).tolist() for batch in (given, others))
    assert lengths != other_lengths
    result = draftlens.generate(
        target(family),
        given,
        draft=draft(family),
        draft_inputs=others,
        method=METHODS[method],
        max_new_tokens=NEW,
    )
    assert result.tokens == reference(family, kind)
    assert 0 < result.stats.accepted < result.stats.drafted


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("qwen3_vl", "llava_onevision"),
        ("llava_next", "qwen2_5_vl"),
        ("smolvlm", "internvl"),
        ("qwen2_vl", "qwen3_vl"),
    ],
)
@methods
def test_a_draft_of_another_family(ours: str, theirs: str, method: str) -> None:
    """One tokenizer is all that they share."""
    family, other = BY_NAME[ours], BY_NAME[theirs]
    result = draftlens.generate(
        target(family),
        inputs(family, "image"),
        draft=target(other),
        draft_inputs=inputs(other, "image"),
        method=METHODS[method],
        max_new_tokens=13,
    )
    assert result.tokens == [row[:13] for row in reference(family, "image")]


@every_family
def test_a_draft_that_is_told_nothing_else_than_text(family: Family) -> None:
    """What the draft sees is the caller's choice; the answer is the target's."""
    result = draftlens.generate(
        target(family),
        inputs(family, family.richest),
        draft=draft(family),
        draft_inputs=inputs(family, "text"),
        max_new_tokens=13,
    )
    assert result.tokens == [row[:13] for row in reference(family, family.richest)]


def hostile(model: Any) -> Any:
    """A copy of a model whose generation config is unfit in every field."""
    other = deepcopy(model)
    config = other.generation_config
    for name in vars(config):
        if not name.startswith("_") and name != "transformers_version":
            setattr(config, name, "nonsense")
    for name, value in UNFIT.items():
        setattr(config, name, value)
    return other


UNFIT: dict[str, Any] = {
    "num_return_sequences": 2,
    "num_beams": 3,
    "max_length": 1,
    "max_new_tokens": 1,
    "min_length": 50,
    "stop_strings": ["a"],
    "bad_words_ids": [[10**6]],
    "cache_implementation": "paged",
    "use_cache": False,
    "token_healing": True,
    "guidance_scale": 3.0,
    "prompt_lookup_num_tokens": 3,
    "return_dict_in_generate": True,
    "output_attentions": True,
    "eos_token_id": -7,
    "pad_token_id": 3,
}
"""Values that `generate` acts on; all other fields hold nonsense."""


@pytest.mark.pairwise("drafts")
@pytest.mark.parametrize("method", ["speculative", "specvlm", "tabed"])
@every_family
def test_a_draft_whose_generation_config_is_hostile(family: Family, method: str) -> None:
    """It drafts what it drafts with any other config."""
    given = inputs(family, family.richest)
    found = []
    for model in (draft(family), hostile(draft(family))):
        result = draftlens.generate(
            target(family),
            given,
            draft=model,
            method={"method": method, "num_speculative_tokens": 5},
            max_new_tokens=NEW,
        )
        assert result.tokens == reference(family, family.richest)
        found.append(result.stats.accepted_by_depth)
    assert found[0] == found[1]
    assert sum(found[0].values()) > 0


@pytest.mark.parametrize("unfit", UNFIT)
def test_each_unfit_field_alone(unfit: str) -> None:
    family = BY_NAME["llava"]
    model = deepcopy(draft(family))
    setattr(model.generation_config, unfit, UNFIT[unfit])
    before = model.generation_config.to_dict()
    result = draftlens.generate(
        target(family), inputs(family, "images"), draft=model, max_new_tokens=9
    )
    assert result.tokens == [row[:9] for row in reference(family, "images")]
    assert model.generation_config.to_dict() == before


def test_a_draft_reads_what_the_target_reads_without_a_mask() -> None:
    """Stock `generate` finds padding by the target's id for it, whatever id the draft has."""
    family = BY_NAME["llava"]
    given = inputs(family, "images")
    bare = {key: value for key, value in given.items() if key != "attention_mask"}
    expected = stock(target(family), bare, max_new_tokens=NEW)
    counts = []
    for model in (draft(family), hostile(draft(family))):
        result = draftlens.generate(
            target(family), bare, draft=model, method=METHODS["chain5"], max_new_tokens=NEW
        )
        assert result.tokens == expected
        counts.append(result.stats.accepted)
    whole = draftlens.generate(
        target(family), given, draft=draft(family), method=METHODS["chain5"], max_new_tokens=NEW
    )
    assert counts == [whole.stats.accepted] * 2
