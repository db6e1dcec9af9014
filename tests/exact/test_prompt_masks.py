"""Prompts whose tokens attend to later ones: the tokens of a picture to each other, or the whole
prompt. Whatever is drafted, the answer is stock `generate`'s."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from conversations import answer, answer_of_stock
from stock import Noise, noisy, stock
from stock_families import FOUR, PICTURE, STOCK_FAMILIES, StockFamily, model_of, prompts
from transformers import TopKLogitsWarper

import draftlens
from draftlens.core.sampling import row_seeds
from draftlens.core.stats import Clock, Stats
from draftlens.decoding import Session, decode, step
from draftlens.decoding.admission import PartSize
from draftlens.methods.base import Models, from_dict
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import TOKEN_INPUTS
from draftlens.models.prompt_blocks import block_ends
from draftlens.models.prompt_cache import PromptCache
from draftlens.models.prompt_reading import PromptReading
from draftlens.prefill.spava import ring

NEW = 20
LENGTHS = (19, 12)
NAMES = ("PaliGemma", "Molmo2", "Gemma3", "Gemma4")
FAMILIES = [family for family in STOCK_FAMILIES if str(family) in NAMES]
BY_NAME = {family.name: family for family in FAMILIES}

METHODS: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain"},
    "chain": {"method": "speculative", "num_speculative_tokens": 3},
    "eagle": {"method": "speculative", "tree": "eagle"},
    "specvlm": {"method": "specvlm", "prune_ratio": 0.5, "num_speculative_tokens": 4},
    "gather": {
        "method": "specvlm",
        "draft": "self",
        "prune_ratio": 0.5,
        "num_speculative_tokens": 3,
    },
    "tabed": {"method": "tabed", "views": ("multimodal", "pooled"), "num_speculative_tokens": 3},
}

SPAVA = {"name": "spava", "blocks": 2, "anchor": 2, "passing": 2, "query_tokens": 3}

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
every_method = pytest.mark.parametrize("name", METHODS)


@cache
def draft_of(family: StockFamily) -> Any:
    return noisy(model_of(family), 0.05)


@cache
def eager(family: StockFamily) -> Any:
    model = deepcopy(model_of(family))
    model.set_attn_implementation("eager")
    return model


def answered(family: StockFamily, given: dict[str, Any], name: str, **options: Any) -> Any:
    draft = None if name in ("plain", "gather") else draft_of(family)
    model = options.pop("model", model_of(family))
    options = {"max_new_tokens": NEW, **options}
    return draftlens.generate(model, given, draft=draft, method=METHODS[name], **options)


@pytest.mark.pairwise("masks")
@every_family
@every_method
@pytest.mark.parametrize("pictures", [0, 1, 2])
def test_the_tokens_of_stock_generate(family: StockFamily, name: str, pictures: int) -> None:
    """Ragged rows. What the tokens see of later ones does change the answer."""
    given = prompts(family, LENGTHS, pictures)
    expected = stock(model_of(family), given, max_new_tokens=NEW)
    assert all(len(set(row)) > 5 for row in expected)
    if pictures:
        assert family.types is not None
        causal = {**given, family.types: torch.full_like(given["input_ids"], 1 - _kind(family))}
        assert answer_of_stock(model_of(family), causal, max_new_tokens=NEW) != expected
    result = answered(family, given, name)
    assert result.tokens == expected
    assert result.lossless
    if name != "plain":
        assert result.stats.accepted > 0
        is_whole = name == "gather" and not pictures  # the model drafts for itself
        assert (result.stats.accepted < result.stats.drafted) is not is_whole


def _kind(family: StockFamily) -> int:
    """The kind of tokens that see each other: a prefix, or pictures."""
    return 0 if family.name == "PaliGemma" else 1


@pytest.mark.pairwise("masks")
@every_family
@pytest.mark.parametrize("name", ["chain", "eagle", "specvlm"])
def test_additive_masks_of_eager_attention(family: StockFamily, name: str) -> None:
    given = prompts(family, LENGTHS, 1)
    model = eager(family)
    expected = stock(model, given, max_new_tokens=NEW)
    assert answered(family, given, name, model=model).tokens == expected


@every_family
def test_without_the_kinds_of_tokens(family: StockFamily) -> None:
    """PaliGemma hides nothing of a prompt without padding then."""
    assert family.types is not None
    for lengths in ((14,), LENGTHS):
        given = prompts(family, lengths, 1)
        del given[family.types]
        expected = stock(model_of(family), given, max_new_tokens=NEW)
        for name in ("chain", "specvlm"):
            assert answered(family, given, name).tokens == expected


@every_family
def test_lookup_in_a_text(family: StockFamily) -> None:
    given = prompts(family, LENGTHS, 1)
    expected = stock(model_of(family), given, max_new_tokens=NEW)
    told = [[[*row[:6], 7, *row[7:]]] for row in expected]
    method = {"method": "lookup", "num_speculative_tokens": 4, "max_branches": 2}
    result = draftlens.generate(
        model_of(family), given, method=method, references=told, max_new_tokens=NEW
    )
    assert result.tokens == expected
    assert 0 < result.stats.accepted < result.stats.drafted


@pytest.mark.pairwise("masks")
@every_family
@pytest.mark.parametrize("name", ["chain", "eagle", "specvlm"])
def test_answers_that_end(family: StockFamily, name: str) -> None:
    """Inside accepted tokens, by one of several ids."""
    given = prompts(family, LENGTHS, 1)
    first, second = stock(model_of(family), given, max_new_tokens=NEW)
    ends = [first[7], second[12]]
    expected = stock(model_of(family), given, max_new_tokens=NEW, eos_token_id=ends)
    assert min(map(len, expected)) < NEW
    assert answered(family, given, name, eos_token_id=ends).tokens == expected


@pytest.mark.pairwise("masks")
@every_family
@pytest.mark.parametrize("name", ["chain", "eagle", "specvlm"])
def test_sampled_answers(family: StockFamily, name: str) -> None:
    given = prompts(family, LENGTHS, 1)
    noise = Noise(given["input_ids"].shape[1], row_seeds(5, 2))
    processors = [TopKLogitsWarper(40), noise]
    expected = stock(model_of(family), given, logits_processor=processors, max_new_tokens=NEW)
    options = {"do_sample": True, "top_k": 40, "seed": 5}
    assert answered(family, given, name, **options).tokens == expected


def session_of(family: StockFamily, name: str) -> Session:
    models = Models(Backbone.of(model_of(family)), Backbone.of(draft_of(family)))
    return Session(models.target, from_dict(METHODS[name]).plan(models), Clock(Stats()))


@pytest.mark.pairwise("masks")
@every_family
@pytest.mark.parametrize("name", ["plain", "chain", "specvlm"])
def test_rows_that_join_and_leave(family: StockFamily, name: str) -> None:
    session = session_of(family, name)
    first, late = prompts(family, LENGTHS, 2), prompts(family, (11,), 1)

    def add(given: dict[str, Any], seeds: list[int]) -> Any:
        return list(session.add(session.target.prepare(given, max_new_tokens=NEW), seeds, given))

    rows = add(first, [0, 1])
    chunks = decode(session)
    list(islice(chunks, 3))
    rows += add(late, [2])
    list(islice(chunks, 2))
    session.remove(rows[0])
    for _ in chunks:
        pass
    expected = [
        *stock(model_of(family), first, max_new_tokens=NEW),
        *stock(model_of(family), late, max_new_tokens=NEW),
    ]
    assert [row.tokens for row in rows[1:]] == expected[1:]
    assert expected[0][: len(rows[0].tokens)] == rows[0].tokens


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the size of parts, however fast this machine reads."""

    def set_size(size: int) -> None:
        monkeypatch.setattr(PartSize, "within", lambda self, seconds: size)

    return set_size


@cache
def early_and_late(family: StockFamily) -> list[list[int]]:
    """What stock answers to a long answer's prompt, and to another one."""
    model = model_of(family)
    (early,) = stock(model, prompts(family, (9,), 1), max_new_tokens=40)
    (late,) = stock(model, prompts(family, (19,), 2), max_new_tokens=NEW)
    return [early, late]


@pytest.mark.pairwise("masks")
@every_family
@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("name", ["plain", "chain", "specvlm"])
def test_prompts_in_parts(
    family: StockFamily, name: str, size: int, in_parts: Callable[[int], None]
) -> None:
    """Beside a row that runs."""
    session = session_of(family, name)
    early, late = prompts(family, (9,), 1), prompts(family, (19,), 2)
    in_parts(1000)
    prepare = session.target.prepare
    (first,) = session.add(prepare(early, max_new_tokens=40), [0], early)
    step(session)
    in_parts(size)
    (second,) = session.add(prepare(late, max_new_tokens=NEW), [0], late)
    step(session)
    # A prompt that is one block is read whole.
    assert bool(second.tokens) is (family.name == "PaliGemma")
    while not session.done:
        step(session)
    assert [first.tokens, second.tokens] == early_and_late(family)


@every_family
@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_parts_end_at_the_ends_of_blocks(family: StockFamily, size: int) -> None:
    backbone = Backbone.of(model_of(family))
    prompt = backbone.encode(backbone.prepare(prompts(family, LENGTHS, 2), max_new_tokens=1))
    expected = backbone.prefill(prompt, backbone.new_cache(prompt, 1))
    cache = backbone.new_cache(prompt, 1)
    reading = PromptReading(backbone, prompt, cache)
    logits = None
    while logits is None:
        logits = reading.read(size)
        for row, length in enumerate(cache.lengths):
            assert length in block_ends(prompt, row)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.pairwise("masks")
@pytest.mark.parametrize(
    ("family", "name"),
    [
        *((BY_NAME["Gemma4"], name) for name in ("plain", "specvlm")),
        *((family, "chain") for family in FAMILIES),
    ],
    ids=str,
)
def test_a_prompt_cache_shares_what_sees_the_same(family: StockFamily, name: str) -> None:
    """Prompts that differ in the last picture, in the words between the pictures, and in those at
    the end."""
    given = prompts(family, (19,), 2)
    pixels = given["pixel_values"].clone()
    pixels[len(pixels) // 2 :] *= -0.5
    words = given["input_ids"].clone()
    words[0, 2 + family.tokens] += 1
    ends = given["input_ids"].clone()
    ends[0, -1] += 1
    cases = [
        {**given, "pixel_values": pixels},
        {**given, "input_ids": words},
        {**given, "input_ids": ends},
    ]
    models = [Backbone(model_of(family)), Backbone(draft_of(family))]
    for backbone in models:
        backbone.prompt_cache = PromptCache(1 << 28)
    pair = (models[0], None if name == "plain" else models[1])
    cached = []
    expected = [stock(model_of(family), case, max_new_tokens=NEW) for case in (given, *cases)]
    for number in (0, 0, 1, 2, 3, 1, 2, 3):
        result = answer(pair, (given, *cases)[number], METHODS[name], max_new_tokens=NEW)
        assert result.tokens == expected[number]
        cached.append(result.stats.cached_tokens)
    whole = given["input_ids"].shape[1] - 1
    if name == "specvlm":  # up to the picture in which the tokens begin that are read again
        whole = 5 + family.tokens
    assert cached[0] == 0
    assert cached[1] == whole
    assert cached[5:] == [whole] * 3
    starts = {"PaliGemma": [0, 0], "Molmo2": [2, 2]}  # all pictures of Molmo2 are one block
    assert cached[2:4] == starts.get(family.name, [5 + family.tokens, 2 + family.tokens])
    assert cached[4] == (0 if family.name == "PaliGemma" else whole)


def chameleon() -> Any:
    """A tiny model whose pictures are ids of its vocabulary."""
    codes = {f"IMGIMG{chr(ord('A') + number)}Z": 160 + number for number in range(8)}
    vision = {
        "embed_dim": 8,
        "num_embeddings": 8,
        "latent_channels": 8,
        "resolution": 16,
        "base_channels": 32,
        "channel_multiplier": [1, 2],
        "num_res_blocks": 1,
    }
    torch.manual_seed(0)
    config = hf.ChameleonConfig(
        **{**FOUR, "eos_token_id": None, "head_dim": None},
        vq_config=vision,
        vocabulary_map={"<image>": PICTURE, **codes},
    )
    model = hf.ChameleonForConditionalGeneration(config).eval()
    model.generation_config.update(pad_token_id=0, eos_token_id=None)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[[0, PICTURE]] = 0
        head[160:168] *= 4  # what it would say if it might
    return model


@pytest.mark.parametrize("pictures", [0, 1])
def test_forbidden_ids_are_named_where_nothing_is_drafted(pictures: int) -> None:
    model = chameleon()
    family = replace(FAMILIES[0], tokens=64, types=None, pixels={"pixel_values": (1, 3, 16, 16)})
    given = prompts(family, LENGTHS, pictures)
    result = draftlens.generate(model, given, max_new_tokens=NEW)
    assert result.tokens == stock(model, given, max_new_tokens=NEW)
    assert "forbids some ids after its output head" in result.notes[0]


@pytest.mark.parametrize("prefill", ["ring", SPAVA])
def test_a_prompt_that_is_read_ahead_is_not_divided(
    prefill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part would lack later tokens that its own attend to. Texts of such a model are divided."""
    family = BY_NAME["Molmo2"]
    monkeypatch.setattr(ring, "hosts_of", lambda backbone: SimpleNamespace(size=2))
    given = prompts(family, (8,), pictures=6)
    with pytest.raises(draftlens.UnsupportedModelError, match="attend to later ones in Molmo2"):
        draftlens.generate(
            model_of(family), given, method="plain", prefill=prefill, max_new_tokens=3
        )


@pytest.mark.parametrize("name", ["Gemma4", "Gemma3n"])
def test_texts_have_inputs_for_each_layer(name: str) -> None:
    """Without them transformers would look for each embedding in the whole table."""
    family = next(each for each in STOCK_FAMILIES if each.name == name)
    backbone = Backbone(model_of(family))
    given = prompts(family, (9, 6))
    prompt = backbone.encode(backbone.prepare(given, max_new_tokens=2))
    made = backbone.token_inputs(given["input_ids"])[TOKEN_INPUTS]
    for row, length in enumerate(prompt.lengths):
        assert torch.equal(prompt.extra[TOKEN_INPUTS][row, :length], made[row, -length:])
