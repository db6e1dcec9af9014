"""Method `plain` answers what stock `generate` answers, also for models that nothing can be drafted
for."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from stock import stock
from stock_families import STOCK_FAMILIES, StockFamily, model_of, prompts
from torch import Tensor
from transformers import LogitsProcessor, TopKLogitsWarper

import draftlens
from draftlens.core.sampling import gumbel, row_seeds
from draftlens.core.stats import Clock, Stats
from draftlens.decoding import Session, decode
from draftlens.methods.base import Models, from_dict
from draftlens.models.adapter import Backbone
from draftlens.serve.options import ServeOptions
from draftlens.verify import run_stock
from tests.e2e.conftest import CLIPS
from tests.e2e.serve.running import serving
from tests.e2e.test_families import save_pair

NEW = 20
SAMPLED = {"do_sample": True, "top_k": 40, "max_new_tokens": NEW}
every_family = pytest.mark.parametrize("family", STOCK_FAMILIES, ids=str)
every_input = pytest.mark.parametrize(
    ("family", "pictures"),
    [(family, seen) for family in STOCK_FAMILIES for seen in {False, bool(family.tokens)}],
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


class Noise(LogitsProcessor):
    """Makes greedy decoding draw as the coupled rule does."""

    def __init__(self, length: int, seeds: list[int]) -> None:
        self.length, self.seeds = length, torch.tensor(seeds)[:, None]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        steps = torch.tensor(input_ids.shape[1] - self.length)
        return scores + gumbel(self.seeds, steps, scores.shape[1])[:, 0]


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with sliding windows in one of two layers, and its processor."""
    family = next(family for family in FAMILIES if family.name == "llava_onevision")
    folder = tmp_path_factory.mktemp("sliding")
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    return Path(save_pair(family, folder, **windows)[0])


@pytest.fixture(scope="module")
def engine(folder: Path) -> draftlens.Engine:
    return draftlens.load(str(folder), device="cpu")


def test_load_takes_plain_decoding_with_a_notice(folder: Path, engine: draftlens.Engine) -> None:
    assert engine.method == draftlens.PlainDecoding()
    assert "SlidingWindowLayer" in engine.notice
    assert "'plain'" in engine.notice
    for options in ({"method": "lookup"}, {"prefill": "ring"}):
        with pytest.raises(draftlens.UnsupportedModelError, match="SlidingWindowLayer"):
            draftlens.load(str(folder), device="cpu", **options)
    with pytest.raises(draftlens.UnsupportedModelError, match="it cannot draft"):
        draftlens.load(str(folder), str(folder), device="cpu")


def test_answers_of_one_engine_at_once(engine: draftlens.Engine) -> None:
    """The second joins while the first runs."""
    asked: list[dict[str, Any]] = [{}, {"images": CLIPS / "shapes.png"}]

    async def ask() -> list[draftlens.Result]:
        answers = (engine.agenerate("what is it", max_new_tokens=NEW, **media) for media in asked)
        return list(await asyncio.gather(*answers))

    for media, result in zip(asked, asyncio.run(ask()), strict=True):
        inputs = engine.read("what is it", **media).target
        expected = run_stock(engine.target.backbone, inputs, max_new_tokens=NEW).tokens
        assert result.tokens == expected
        assert "SlidingWindowLayer" in result.notes[0]


def test_the_second_turn_of_a_chat(engine: draftlens.Engine) -> None:
    chat = engine.chat(images=CLIPS / "shapes.png")
    chat.ask("what is it", max_new_tokens=9)
    result = chat.ask("and now", max_new_tokens=NEW)
    words = [(turn["role"], turn["content"][-1]["text"]) for turn in chat.messages[:3]]
    messages: list[Any] = [
        {"role": role, "content": [{"type": "text", "text": said}]} for role, said in words
    ]
    messages[0]["content"].insert(0, {"type": "image", "image": CLIPS / "shapes.png"})
    inputs = engine.read(messages=messages).target
    assert result.tokens == run_stock(engine.target.backbone, inputs, max_new_tokens=NEW).tokens
    assert result.stats.cached_tokens == 0  # nothing of such a model is stored


def test_the_server(engine: draftlens.Engine) -> None:
    """Two samples of one request do not share a cache."""
    inputs = engine.read("what is it").target
    expected = run_stock(engine.target.backbone, inputs, max_new_tokens=NEW).tokens[0]
    text = engine.target.processor.tokenizer.decode(expected, skip_special_tokens=True)
    with serving(engine, ServeOptions()) as server:
        answer = server.client().chat.completions.create(
            model="auto",
            messages=[{"role": "user", "content": "what is it"}],
            max_tokens=NEW,
            temperature=0,
            n=2,
        )
    assert [choice.message.content for choice in answer.choices] == [text, text]


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
