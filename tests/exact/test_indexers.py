"""Models with indexers, whose layers attend to the tokens that these select: they answer as stock
`generate` does, also where prompts have many times the tokens that are selected."""

from __future__ import annotations

import copy
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from conversations import answer as answer_of
from families import settings
from stock import Noise, noisy, stock
from stock_families import PICTURE, PIXELS, WINDOW, StockFamily, model_of, prompts
from test_plain_families import alone
from transformers import TopKLogitsWarper

import draftlens
from draftlens.core.sampling import row_seeds
from draftlens.core.stats import Clock, Stats
from draftlens.decoding import Session, decode
from draftlens.decoding.admission import PartSize
from draftlens.methods.base import Models, from_dict
from draftlens.models.adapter import Backbone
from draftlens.models.indexed_cache import _IndexedLayer
from draftlens.models.prompt_cache import PromptCache

NEW = 24
LENGTHS = (61, 37)
SELECTED = 8
"""Tokens that a layer attends to."""

# Of 16 heads, some give each token a score above 0: tokens with equal scores are selected in an
# order that depends on the shapes of the pass, also in stock.
LATENT = settings(
    num_key_value_heads=4,
    moe_intermediate_size=16,
    n_routed_experts=4,
    num_experts_per_tok=2,
    kv_lora_rank=16,
    qk_rope_head_dim=16,
    qk_nope_head_dim=16,
    v_head_dim=16,
    index_topk=SELECTED,
    index_head_dim=32,
    index_n_heads=16,
)
TOWER = settings(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    patch_size=4,
)
IDS = settings(image_token_id=PICTURE, video_token_id=202)
GRID = settings(image_grid_thw=torch.tensor([[1, 4, 4]]))

LARGE4 = StockFamily(
    "MistralLarge4",
    "",
    # The second layer has keys for its indexer only, the third reads what the second selects.
    text={
        **LATENT,
        "kv_source_layers": [0, 0, 0, 3],
        "indexer_types": ["full", "full", "shared", "full"],
    },
    config=settings(
        vision_config={**TOWER, "model_type": "pixtral", "image_size": 16},
        image_token_index=PICTURE,
    ),
    tokens=4,
    pixels=PIXELS,
    fixed=settings(image_sizes=torch.tensor([[16, 16]])),
)
HYV4 = StockFamily(
    "HYV4VL",
    "",
    text={
        **LATENT,
        "q_lora_rank": 32,
        "rope_parameters": settings(
            rope_type="default", rope_theta=10000.0, mrope_section=[4, 2, 2]
        ),
    },
    config=settings(
        vision_config={**TOWER, "out_hidden_size": 64, "max_image_size": 16},
        **IDS,
        vision_start_token_id=203,
        vision_end_token_id=204,
    ),
    tokens=6,
    pixels=settings(pixel_values=(16, 3 * 4 * 4)),
    fixed=GRID,
    types="mm_token_type_ids",
)
MINIMAX = StockFamily(
    "MiniMaxM3Sparse",
    "",
    text=settings(
        intermediate_size=16,
        dense_intermediate_size=96,
        shared_intermediate_size=16,
        rotary_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        index_n_heads=2,
        index_head_dim=16,
        index_block_size=4,
        index_topk_blocks=SELECTED // 4,
        layer_types=["full_attention", *["minimax_m3_sparse"] * 3],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
    ),
    config=settings(
        vision_config={**TOWER, "image_size": 16, "temporal_patch_size": 2},
        image_token_index=PICTURE,
        video_token_index=202,
        projector_hidden_size=32,
    ),
    tokens=4,
    pixels=settings(pixel_values=(16, 3 * 2 * 4 * 4)),
    fixed=GRID,
)
DOTS3 = StockFamily(
    "Dots3Note",
    "",
    # A window of other heads and widths than in the layers with an indexer.
    text={
        **LATENT,
        "head_dim": 32,
        "q_lora_rank": 32,
        "shared_experts_intermediate_size": 16,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "indexed_attention"] * 2,
        "swa_num_attention_heads": 2,
        "swa_num_key_value_heads": 2,
        "swa_q_lora_rank": 32,
        "swa_kv_lora_rank": 24,
        "swa_head_dim": 24,
        "swa_qk_nope_head_dim": 16,
        "swa_v_head_dim": 16,
    },
    kind="ForCausalLM",
)
FAMILIES = (LARGE4, HYV4, MINIMAX, DOTS3)
BATCHES = (LARGE4, HYV4, DOTS3)
"""Those that stock answers in padded batches as it does alone."""

CHAIN: dict[str, Any] = {"num_speculative_tokens": 4}
EAGLE: dict[str, Any] = {"tree": "eagle"}
every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
every_input = pytest.mark.parametrize("pictures", [False, True], ids=["text", "picture"])


@cache
def draft_of(family: StockFamily) -> Any:
    return noisy(model_of(family), 0.03)


@cache
def expected(family: StockFamily, pictures: bool = False) -> list[list[int]]:
    """What stock answers to each row of `LENGTHS` alone."""
    given = prompts(family, LENGTHS, pictures and bool(family.tokens))
    return [stock(model_of(family), row, max_new_tokens=NEW)[0] for row in alone(family, given)]


@every_family
@every_input
def test_chains(family: StockFamily, pictures: bool) -> None:
    given, results = prompts(family, LENGTHS, pictures), []
    for row in [given] if family in BATCHES else alone(family, given):
        results.append(
            draftlens.generate(
                model_of(family), row, draft=draft_of(family), method=CHAIN, max_new_tokens=NEW
            )
        )
    assert [tokens for result in results for tokens in result.tokens] == expected(family, pictures)
    check_drafts(results)


@pytest.mark.parametrize("family", BATCHES, ids=str)
@every_input
def test_trees(family: StockFamily, pictures: bool) -> None:
    given = prompts(family, LENGTHS, pictures)
    result = draftlens.generate(
        model_of(family), given, draft=draft_of(family), method=EAGLE, max_new_tokens=NEW
    )
    assert result.tokens == expected(family, pictures)
    assert result.tokens == stock(model_of(family), given, max_new_tokens=NEW)
    check_drafts([result])


def check_drafts(results: list[draftlens.Result]) -> None:
    accepted = sum(result.stats.accepted for result in results)
    rejected = sum(result.stats.drafted - result.stats.accepted for result in results)
    assert accepted > 4
    assert rejected > 4


@every_family
def test_the_selection_matters(family: StockFamily) -> None:
    """An answer is another where a layer attends to all tokens."""
    model, (row, _) = model_of(family), alone(family, prompts(family, LENGTHS))
    modules = [module for module in model.modules() if type(module).__name__.endswith("Indexer")]
    name = "index_topk" if hasattr(modules[0], "index_topk") else "topk_blocks"
    answer = expected(family)[0]
    for module in modules:
        setattr(module, name, 1000)
    try:
        assert stock(model, row, max_new_tokens=NEW)[0] != answer
    finally:
        for module in modules:
            setattr(module, name, SELECTED // getattr(module, "block_size", 1))


@every_family
def test_lookup(family: StockFamily) -> None:
    """The prompt holds its own answer, which is another after it."""
    (row, _) = alone(family, prompts(family, LENGTHS))
    given = followed_by(row, expected(family)[0][:-4] + row["input_ids"][0, :40].tolist())
    result = draftlens.generate(model_of(family), given, method="lookup", max_new_tokens=NEW)
    assert result.tokens == stock(model_of(family), given, max_new_tokens=NEW)
    assert result.stats.drafted > 0


@every_family
def test_several_ends_within_accepted_tokens(family: StockFamily) -> None:
    model, given = model_of(family), prompts(family, LENGTHS)
    for row, tokens in zip(alone(family, given), expected(family), strict=True):
        ends = [tokens[7], tokens[16]]
        result = draftlens.generate(
            model, row, draft=model, method=CHAIN, max_new_tokens=NEW, eos_token_id=ends
        )
        assert result.tokens == stock(model, row, max_new_tokens=NEW, eos_token_id=ends)
        assert len(result.tokens[0]) < NEW


@cache
def drawn(family: StockFamily) -> list[list[int]]:
    """What stock draws after the first row with pictures, by the noise of seed 5."""
    (row, _) = alone(family, prompts(family, LENGTHS, True))
    processors = [TopKLogitsWarper(40), Noise(row["input_ids"].shape[1], row_seeds(5, 1))]
    return stock(model_of(family), row, logits_processor=processors, max_new_tokens=NEW)


@every_family
@pytest.mark.parametrize("method", [CHAIN, EAGLE], ids=["chain", "eagle"])
def test_sampled_answers(family: StockFamily, method: dict[str, Any]) -> None:
    if family not in BATCHES and method is EAGLE:
        pytest.skip("its drafts are chains")
    model = model_of(family)
    (row, _) = alone(family, prompts(family, LENGTHS, True))
    sampled = {"do_sample": True, "top_k": 40, "max_new_tokens": NEW, "seed": 5}
    result = draftlens.generate(model, row, draft=draft_of(family), method=method, **sampled)
    assert result.tokens == drawn(family)
    check_drafts([result])


@cache
def joining(family: StockFamily) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Rows of other lengths, and what stock answers to each alone."""
    rows = [
        alone(family, prompts(family, (length,), pictures))[0]
        for length, pictures in ((37, True), (61, False), (20, False), (44, True))
    ]
    return rows, [stock(model_of(family), row, max_new_tokens=NEW)[0] for row in rows]


@every_family
@pytest.mark.parametrize("method", [CHAIN, EAGLE], ids=["chain", "eagle"])
def test_rows_that_join_and_leave(family: StockFamily, method: dict[str, Any]) -> None:
    """Prompts of other lengths, of which the longest is read in parts beside running rows."""
    if family not in BATCHES and method is EAGLE:
        pytest.skip("its drafts are chains")
    models = Models(Backbone.of(model_of(family)), Backbone.of(draft_of(family)))
    session = Session(models.target, from_dict(method).plan(models), Clock(Stats()))
    rows, answers = joining(family)
    chunks = decode(session)

    def add(row: dict[str, Any]) -> Any:
        prepared = session.target.prepare(row, max_new_tokens=NEW, do_sample=False)
        return session.add(prepared, [0], row)[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartSize, "within", lambda self, seconds: 16)
        sequences = [add(rows[0])]
        list(islice(chunks, 1))
        sequences += [add(rows[1]), add(rows[2])]
        list(islice(chunks, 4))
        session.remove(sequences[0])
        sequences.append(add(rows[3]))
        for _ in chunks:
            pass
    assert [sequence.tokens for sequence in sequences[1:]] == answers[1:]
    count = len(sequences[0].tokens)
    assert 0 < count < NEW
    assert sequences[0].tokens == answers[0][:count]


@every_family
def test_a_second_turn_reads_what_is_new(family: StockFamily) -> None:
    """Also the keys of the indexers are those that the first turn has stored."""
    stored = PromptCache(1 << 28)
    models = Backbone(model_of(family)), Backbone(draft_of(family))
    for model in models:
        model.prompt_cache = stored
    (first, _) = alone(family, prompts(family, LENGTHS, True))
    result = answer_of(models, first, from_dict(CHAIN), max_new_tokens=NEW)
    assert result.tokens == expected(family, True)[:1]
    assert stored.nbytes == stored.counted() > 0
    second = followed_by(first, [*result.tokens[0], 7, 8, 9, 10, 11])
    again = answer_of(models, second, from_dict(CHAIN), max_new_tokens=NEW)
    assert again.tokens == stock(model_of(family), second, max_new_tokens=NEW)
    assert again.stats.cached_tokens > LENGTHS[0]


def followed_by(row: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
    """Inputs with text after them."""
    shape, ids = row["input_ids"].shape, torch.tensor([tokens])
    longer = dict(row)
    for name, value in row.items():
        if value.shape == shape:
            more = ids if name == "input_ids" else torch.full_like(ids, name == "attention_mask")
            longer[name] = torch.cat([value, more], 1)
    return longer


OTHERS = r"selects|whole prompts|not divided"


@every_family
def test_an_attention_of_others_is_refused(family: StockFamily) -> None:
    """It would attend to all tokens."""
    model, (row, _) = model_of(family), alone(family, prompts(family, LENGTHS, True))
    pruned = {"method": "specvlm", "prune_ratio": 0.5, "draft": "self"}
    for options in ({"method": pruned}, {"method": "lookup", "prefill": "spava"}):
        with pytest.raises(draftlens.UnsupportedModelError, match=OTHERS):
            draftlens.generate(model, row, max_new_tokens=4, **options)


def test_a_padded_batch_of_blocks_is_refused() -> None:
    """MiniMax-M3 of transformers reads other blocks of a padded row than of the row alone."""
    model, given = model_of(MINIMAX), prompts(MINIMAX, LENGTHS)
    assert stock(model, given, max_new_tokens=NEW) != expected(MINIMAX)
    with pytest.raises(draftlens.InputError, match="in a call of its own"):
        draftlens.generate(model, given, draft=draft_of(MINIMAX), method=CHAIN, max_new_tokens=NEW)


def test_blocks_of_slots_take_no_trees() -> None:
    backbone = Backbone.of(model_of(MINIMAX))
    assert "blocks of slots" in backbone.chains_only
    assert not any(Backbone.of(model_of(family)).chains_only for family in BATCHES)


def test_pools_of_slots_are_refused() -> None:
    """The indexer of GLM-5 gets no mask: a tree, and a row beside a longer one, would be wrong."""
    vision = settings(depth=1, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=4)
    text = {**LATENT, "qk_rope_head_dim": 0, "index_kpool": 4, "q_lora_rank": 32}
    text["layer_types"] = ["linear_attention", "indexed_attention"] * 2
    family = StockFamily("Glm5Next", "", text, settings(vision_config=vision))
    model, given = model_of(family), prompts(family, (19, 12))
    result = draftlens.generate(model, given, max_new_tokens=NEW)
    assert result.tokens == stock(model, given, max_new_tokens=NEW)
    assert "by their slots" in result.notes[0]
    with pytest.raises(draftlens.UnsupportedModelError, match="by their slots"):
        draftlens.generate(model, given, method="lookup", max_new_tokens=NEW)


@every_family
def test_a_wrong_selection_is_noticed(family: StockFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of four tokens does not show it: all of it is selected."""
    assert not Backbone(copy.deepcopy(model_of(family))).plain_only
    update = _IndexedLayer.update_index

    def shifted(self: Any, keys: torch.Tensor) -> torch.Tensor:
        found = update(self, keys)
        return found.roll(1, 2) if found.shape[2] > keys.shape[2] else found

    monkeypatch.setattr(_IndexedLayer, "update_index", shifted)
    assert "selects other tokens" in Backbone(copy.deepcopy(model_of(family))).plain_only
