"""Method `plain` answers what stock `generate` answers, also for models that nothing can be drafted
for."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
import transformers as hf
from families import VOCAB, settings
from stock import Noise, stock
from stock_families import PLAIN, StockFamily, model_of, prompts
from transformers import TopKLogitsWarper

import draftlens
from draftlens.core.sampling import row_seeds
from draftlens.core.stats import Clock, Stats
from draftlens.decoding import Session, decode
from draftlens.methods.base import Models, from_dict
from draftlens.models.adapter import Backbone

NEW = 20
SAMPLED = {"do_sample": True, "top_k": 40, "max_new_tokens": NEW}
every_family = pytest.mark.parametrize("family", PLAIN, ids=str)
every_input = pytest.mark.parametrize(
    ("family", "pictures"),
    [(family, seen) for family in PLAIN for seen in {False, bool(family.tokens)}],
    ids=str,
)


@every_input
def test_greedy_answers(family: StockFamily, pictures: bool) -> None:
    """Rows of different lengths, as stock answers them together and one by one."""
    model, lengths = model_of(family), (19, 12)
    given = prompts(family, lengths, pictures)
    result = draftlens.generate(model, given, max_new_tokens=NEW)
    assert result.tokens == stock(model, given, max_new_tokens=NEW)
    assert result.tokens == [
        stock(model, row, max_new_tokens=NEW)[0] for row in alone(family, given)
    ]
    assert result.lossless
    assert family.cause in result.notes[0]
    assert result.stats.target_cache_bytes > 0


def test_padded_texts_are_read_row_by_row() -> None:
    """Kosmos-2.5 counts each id but its own padding's as a position, so that stock's batch with
    other padding is not what the rows are alone."""
    text = settings(
        vocab_size=VOCAB, embed_dim=32, layers=2, ffn_dim=64, attention_heads=2, init_std=0.3,
        max_position_embeddings=64,
    )  # fmt: skip
    vision = settings(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, d_ff=16,
        d_kv=16, head_dim=16, patch_embed_hidden_size=48,
    )  # fmt: skip
    torch.manual_seed(0)
    config = hf.Kosmos2_5Config(text_config=text, vision_config=vision)
    model = hf.Kosmos2_5ForConditionalGeneration(config).eval()
    model.generation_config.update(pad_token_id=0, eos_token_id=None)
    family = PLAIN[-1]
    given = prompts(family, (19, 12))
    expected = [stock(model, row, max_new_tokens=NEW)[0] for row in alone(family, given)]
    assert model.generate(**given, max_new_tokens=NEW)[1, 19:].tolist() != expected[1]
    assert draftlens.generate(model, given, max_new_tokens=NEW).tokens == expected


@every_family
def test_sampled_answers(family: StockFamily) -> None:
    model, given = model_of(family), prompts(family, (19, 12), bool(family.tokens))
    noise = Noise(given["input_ids"].shape[1], row_seeds(5, 2))
    processors = [TopKLogitsWarper(40), noise]
    expected = stock(model, given, logits_processor=processors, max_new_tokens=NEW)
    assert draftlens.generate(model, given, seed=5, **SAMPLED).tokens == expected


@every_family
def test_rows_that_join_and_leave(family: StockFamily) -> None:
    """A second call joins the first, of which a row ends before the other."""
    model = model_of(family)
    models = Models(Backbone.of(model))
    session = Session(models.target, from_dict({"method": "plain"}).plan(models), Clock(Stats()))
    first, late = prompts(family, (19, 12), bool(family.tokens)), prompts(family, (11,))
    rows = session.add(session.target.prepare(first, max_new_tokens=NEW), [0, 1])
    chunks = decode(session)
    list(islice(chunks, 6))
    rows += session.add(session.target.prepare(late, max_new_tokens=NEW), [2])
    list(islice(chunks, 5))
    session.remove(rows[0])
    for _ in chunks:
        pass
    expected = [*stock(model, first, max_new_tokens=NEW), *stock(model, late, max_new_tokens=NEW)]
    assert [row.tokens for row in rows[1:]] == expected[1:]
    assert 3 < len(rows[0].tokens) < NEW
    assert expected[0][: len(rows[0].tokens)] == rows[0].tokens


@every_family
def test_streams_and_the_callers_own_generate(family: StockFamily) -> None:
    model, given = model_of(family), prompts(family, (19,), bool(family.tokens))
    (expected,) = stock(model, given, max_new_tokens=NEW)
    chunks = list(draftlens.stream(model, given, max_new_tokens=NEW))
    assert [chunk.tokens for chunk in chunks] == [(token,) for token in expected]
    custom = draftlens.SpeculativeGenerate()
    ids = model.generate(**given, max_new_tokens=NEW, do_sample=False, custom_generate=custom)
    assert ids[0, given["input_ids"].shape[1] :].tolist() == expected
    assert custom.last is not None
    assert family.cause in custom.last.notes[0]


@every_family
def test_drafting_is_refused_with_the_cause(family: StockFamily) -> None:
    """As a target, as a draft, and for a prefill by several processes."""
    model, given = model_of(family), prompts(family, (9,))
    for options in ({"method": "lookup"}, {"draft": model}, {"prefill": "ring"}):
        with pytest.raises(draftlens.UnsupportedModelError, match=family.cause) as caught:
            draftlens.generate(model, given, max_new_tokens=3, **options)
        assert "\n" not in str(caught.value)


def alone(family: StockFamily, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Each row without its padding, with its own picture."""
    shape, rows = given["input_ids"].shape, []
    for row, length in enumerate(given["attention_mask"].sum(1).tolist()):
        own = {}
        for name, value in given.items():
            size = len(value) // shape[0]
            is_tokens = value.shape == shape
            own[name] = value[row * size : (row + 1) * size]
            own[name] = own[name][:, -length:] if is_tokens else own[name]
        rows.append(own)
    return rows
