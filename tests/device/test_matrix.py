"""Every way of answering on the devices: the tokens of stock `generate`, no operation over two
devices, no read of another stream's unfinished work, and no memory that is freed too soon."""

from __future__ import annotations

import copy
import queue
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from families import FAMILIES, Family, inputs
from stock import METHODS, Divisible, draft, noisy, reference, stock, target
from stock_families import STOCK_FAMILIES, StockFamily, model_of, prompts

import draftlens
from draftlens.methods.base import Models
from draftlens.methods.parallelvlm.draft_thread import _THREAD
from draftlens.models.adapter import Backbone
from draftlens.request import Request
from draftlens.scheduling import Job, Scheduler, Update
from tests.device import DeviceTensor, Simulation, copied, moved, on_device, simulated
from tests.e2e.conftest import CLIPS

NEW = 7
FAMILY = next(family for family in FAMILIES if family.name == "qwen2_5_vl")
SAMPLED: Mapping[str, Any] = {"do_sample": True, "top_k": 30, "temperature": 0.8}

WAYS: Mapping[str, Any] = {
    "plain": "plain",
    "chain": METHODS["chain3"],
    "odd tree": METHODS["odd"],
    "eagle": METHODS["eagle"],
    "auto": {"tree": "auto"},
    "lookup": {"method": "lookup", "num_speculative_tokens": 4, "window": 1},
    "lookup auto": {"method": "lookup", "window": 1},
    "hsd": {"method": "hsd"},
    "mixed": {"method": "mixed", "copying": {"name": "lookup", "window": 1}},
    "tabed": {"method": "tabed", "views": ["multimodal", "text"]},
    "specvlm": {"method": "specvlm", "prune_ratio": 0.5, "tree": "eagle"},
    "specvlm chain": {"method": "specvlm", "prune_ratio": 0.5, "num_speculative_tokens": 3},
    "gather": {
        "method": "specvlm",
        "draft": "self",
        "prune_ratio": 0.5,
        "num_speculative_tokens": 3,
    },
    "similarity": {
        "method": "specvlm",
        "prune_ratio": 0.5,
        "pruner": "uv",
        "num_speculative_tokens": 3,
    },
    "parallelvlm": {"method": "parallelvlm"},
    "parallel chain": {"schedule": "parallel", "num_speculative_tokens": 3},
}


MAY_REST = ("plain", "auto", "lookup", "lookup auto", "hsd", "mixed")
MAY_REST += ("parallelvlm", "parallel chain")  # whose thread may be late
"""Ways that need not draft in an answer as short as these."""


@pytest.fixture
def device() -> Iterator[Simulation]:
    with simulated() as simulation:
        yield simulation


@pytest.fixture(scope="module", autouse=True)
def _threads_that_draft() -> Iterator[None]:
    yield
    _THREAD.clear()


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """The family's models on the first device."""
    with simulated():
        return copied(target(FAMILY)), copied(draft(FAMILY))


def answer(models: tuple[Any, Any], given: Mapping[str, Any], method: Any, **options: Any) -> Any:
    options = {"max_new_tokens": NEW, **options}
    return draftlens.generate(models[0], given, draft=models[1], method=method, **options)


def on_cpu(given: Mapping[str, Any], method: Any, **options: Any) -> Any:
    return answer((target(FAMILY), draft(FAMILY)), given, method, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [(0,), (0, 1, 2, 1)], ids=["one row", "four rows"])
def test_every_method(
    device: Simulation, pair: tuple[Any, Any], way: str, rows: tuple[int, ...], steady_costs: None
) -> None:
    result = answer(pair, moved(inputs(FAMILY, "mixed", rows)), WAYS[way])
    assert result.tokens == [reference(FAMILY, "mixed", NEW)[row] for row in rows]
    assert result.lossless
    assert result.stats.drafted or way in MAY_REST
    if "parallel" in way:
        thread = _THREAD.get(pair[1])
        assert thread is not None
        assert thread._lost is None


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("way", ["eagle", "tabed", "parallel chain"])
def test_sampling(device: Simulation, pair: tuple[Any, Any], way: str, rule: str) -> None:
    """The noise is that of the CPU, and so are the tokens."""
    given = inputs(FAMILY, "mixed", (0, 1))
    named = {"method": "speculative", **WAYS[way], "sampling_rule": rule}
    options = {**SAMPLED, "seed": 3, "repetition_penalty": 1.1}
    result = answer(pair, moved(given), named, **options)
    assert all(len(row) == NEW for row in result.tokens)
    if rule == "coupled" or way != "parallel chain":  # draft tokens in time change what is drawn
        assert result.tokens == on_cpu(given, named | {"schedule": "serial"}, **options).tokens


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=[str(each) for each in FAMILIES])
def test_every_family(device: Simulation, number: int) -> None:
    """Trees and chains, one row and two, by turns."""
    family: Family = FAMILIES[number]
    way, rows = (("eagle", (0, 1)), ("chain", (2,)))[number % 2]
    models = copied(target(family)), copied(draft(family))
    result = answer(models, moved(inputs(family, family.richest, rows)), WAYS[way])
    expected = reference(family, family.richest, NEW)
    assert result.tokens == [expected[row] for row in rows]


KINDS = ("Gemma3", "Gemma4", "Qwen3_5", "Lfm2Vl", "PaliGemma")


def first(name: str) -> StockFamily:
    return next(family for family in STOCK_FAMILIES if family.name == name)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_cache(device: Simulation, name: str) -> None:
    """Sliding windows, states, prompts that attend both ways."""
    family = first(name)
    model = model_of(family)
    given = prompts(family, (12, 19), bool(family.tokens))
    models = copied(model), copied(noisy(model, 0.02))
    result = answer(models, moved(given), WAYS["chain"])
    assert result.tokens == stock(model, given, max_new_tokens=NEW)


def test_eager_attention(device: Simulation) -> None:
    model, small = (copy.deepcopy(each) for each in (target(FAMILY), draft(FAMILY)))
    for each in (model, small):
        each.set_attn_implementation("eager")
    models = on_device(model), on_device(small)
    result = answer(models, moved(inputs(FAMILY, "mixed", (0, 1))), WAYS["odd tree"])
    assert result.tokens == reference(FAMILY, "mixed", NEW)[:2]


ELSEWHERE = (
    *((way, "cuda:1") for way in ("chain", "eagle", "auto", "tabed", "similarity", "parallelvlm")),
    *((way, "cpu") for way in ("chain", "tabed", "specvlm", "mixed")),
)


@pytest.mark.parametrize(("way", "place"), ELSEWHERE)
def test_a_draft_on_another_device(
    device: Simulation, pair: tuple[Any, Any], way: str, place: str, steady_costs: None
) -> None:
    small = draft(FAMILY) if place == "cpu" else copied(draft(FAMILY), place)
    given = inputs(FAMILY, "mixed", (0, 1))
    result = answer((pair[0], small), moved(given), WAYS[way])
    assert result.tokens == reference(FAMILY, "mixed", NEW)[:2]
    sampled = {**SAMPLED, "seed": 4, "repetition_penalty": 1.1}
    if way in ("chain", "eagle"):
        drawn = answer((pair[0], small), moved(given), WAYS[way], **sampled).tokens
        assert drawn == on_cpu(given, WAYS[way], **sampled).tokens


def test_inputs_on_the_host(device: Simulation, pair: tuple[Any, Any]) -> None:
    """As processors return them."""
    result = answer(pair, inputs(FAMILY, "mixed"), WAYS["chain"])
    assert result.tokens == reference(FAMILY, "mixed", NEW)


@pytest.mark.parametrize("way", ["plain", "chain", "eagle"])
def test_a_target_that_is_spread(device: Simulation, pair: tuple[Any, Any], way: str) -> None:
    model = target(FAMILY)
    places = {name: "cuda:0" for name, _ in model.named_children()}
    places = {
        **{f"model.{name}": "cuda:0" for name, _ in model.model.named_children()},
        "lm_head": "cuda:1",
        "model.language_model.embed_tokens": "cuda:0",
        "model.language_model.norm": "cuda:1",
        "model.language_model.rotary_emb": "cuda:0",
        "model.language_model.layers.0": "cuda:0",
        "model.language_model.layers.1": "cuda:1",
    }
    del places["model.language_model"]
    spread = dispatch_model(copy.deepcopy(model), places, main_device="cuda:0", force_hooks=True)
    result = answer((spread, pair[1]), moved(inputs(FAMILY, "mixed", (0, 1))), WAYS[way])
    assert result.tokens == reference(FAMILY, "mixed", NEW)[:2]


@pytest.mark.parametrize("way", ["chain", "eagle"])
def test_the_callers_generate(device: Simulation, pair: tuple[Any, Any], way: str) -> None:
    given = inputs(FAMILY, "mixed")
    options = {
        "max_new_tokens": NEW,
        "do_sample": False,
        "repetition_penalty": 1.2,
        "logits_processor": [lambda ids, scores: scores.scatter_add(1, ids[:, -1:], -scores)],
        "stopping_criteria": [Divisible(given["input_ids"].shape[1])],
    }
    expected = target(FAMILY).generate(**given, **options)
    ours = draftlens.SpeculativeGenerate(pair[1], moved(given), WAYS[way])
    found = pair[0].generate(**moved(given), **options, custom_generate=ours)
    assert isinstance(found, DeviceTensor)
    assert found.tolist() == expected.tolist()


def test_the_scheduler(device: Simulation, pair: tuple[Any, Any]) -> None:
    """Requests join a running batch on the scheduler's thread."""
    updates: queue.SimpleQueue[tuple[int, Update]] = queue.SimpleQueue()
    scheduler = Scheduler(Models(Backbone.of(pair[0]), Backbone.of(pair[1])))
    try:
        for row in range(3):
            options = {"max_new_tokens": NEW, "do_sample": False}
            request = Request(
                moved(inputs(FAMILY, "mixed", (row,))), method=WAYS["chain"], options=options
            )
            scheduler.submit(Job(request, lambda update, row=row: updates.put((row, update))))
        tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
        running = 3
        while running:
            row, update = updates.get(timeout=60)
            assert update.error is None
            tokens[row] += [token for chunk in update.chunks for token in chunk.tokens]
            running -= update.done
    finally:
        scheduler.close()
    assert list(tokens.values()) == reference(FAMILY, "mixed", NEW)


@pytest.fixture(scope="module")
def engine() -> draftlens.Engine:
    return draftlens.load("embedded", device="cpu", calibrate=False)


@pytest.fixture(scope="module")
def engine_there(engine: draftlens.Engine) -> draftlens.Engine:
    """The embedded pair on the device."""
    assert engine.draft is not None
    with simulated():
        models = [copied(each.backbone.model) for each in (engine.target, engine.draft)]
        return draftlens.Engine(*models, processor=engine.target.processor)


QUESTIONS = ("Describe the video.", "What is the secret word?")


@pytest.mark.parametrize("way", ["eagle", "tabed"])
def test_turns_with_the_prompt_cache(
    device: Simulation,
    engine: draftlens.Engine,
    engine_there: draftlens.Engine,
    way: str,
    steady_costs: None,
) -> None:

    def answers(of: draftlens.Engine, by: Any) -> tuple[list[list[list[int]]], int]:
        chat = of.chat(video=CLIPS / "shapes.mp4")
        results = [chat.ask(each, max_new_tokens=NEW, method=by) for each in QUESTIONS]
        return [each.tokens for each in results], results[-1].stats.cached_tokens

    tokens, cached = answers(engine_there, WAYS[way])
    assert tokens == answers(engine, "plain")[0]
    assert cached > 0


PICTURES: Mapping[str, dict[str, Any]] = {
    "pooled view": {"method": {"method": "tabed", "views": ["multimodal", "pooled", "text"]}},
    "references": {"method": "hsd", "references": ["The video has one shot and no cut."]},
}


@pytest.mark.parametrize("name", PICTURES)
def test_views_and_references(
    device: Simulation, engine: draftlens.Engine, engine_there: draftlens.Engine, name: str
) -> None:
    options = {"video": CLIPS / "shapes.mp4", "max_new_tokens": NEW}
    result = engine_there.generate(QUESTIONS[0], **options, **PICTURES[name])
    assert result.tokens == engine.generate(QUESTIONS[0], **options, method="plain").tokens
    assert result.lossless


def test_a_prompt_in_blocks(
    device: Simulation,
    engine: draftlens.Engine,
    engine_there: draftlens.Engine,
) -> None:
    prefill = {"name": "spava", "blocks": 3}
    options = {"video": CLIPS / "shapes.mp4", "max_new_tokens": NEW, "prefill": prefill}
    result = engine_there.generate(QUESTIONS[0], **options, method=WAYS["chain"])
    assert result.tokens == engine.generate(QUESTIONS[0], **options, method="plain").tokens


def test_loading_to_a_device(engine: draftlens.Engine, steady_costs: None) -> None:
    """Modules of transformers that are imported within `simulated` would remember it."""
    with simulated():
        there = draftlens.load("embedded", device="cuda:1", calibrate=False)
        assert there.target.backbone.device == torch.device("cuda:1")
        result = there.generate(QUESTIONS[1], max_new_tokens=4)
    assert result.tokens == engine.generate(QUESTIONS[1], max_new_tokens=4, method="plain").tokens
