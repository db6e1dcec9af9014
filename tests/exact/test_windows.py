"""Models with sliding windows answer what stock `generate` answers, with every kind of draft:
windows of 8 tokens, which prompts, draft trees and answers cross."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from conversations import BY_NAME, Conversation, Turn, TurnsCase, check_turns
from families import FAMILIES, Family, inputs
from random_trees import choose_at_random
from sessions import add_row, session_of
from stock import LONG, METHODS, NEW, Noise, draft, noisy, reference, stock, target
from stock_families import WINDOW, WINDOWED, StockFamily, model_of, prompts, unlike
from test_parts import in_parts  # noqa: F401 - a fixture
from transformers import TopKLogitsWarper

import draftlens
from draftlens.core import tree as trees
from draftlens.core.prefill_readings import ATTENTION
from draftlens.core.sampling import row_seeds
from draftlens.core.tree import ROOT, Topology
from draftlens.decoding import decode
from draftlens.models.adapter import Backbone
from draftlens.models.layer_kinds import misfit
from draftlens.models.prompt_subset import gather
from draftlens.models.windowed_cache import WindowedCache
from draftlens.passes.base import attach
from draftlens.prefill.base import FullPrefill, PrefillReading

ANSWER = 24
CHAIN = {"method": "speculative", "num_speculative_tokens": 4}

every_family = pytest.mark.parametrize("family", WINDOWED, ids=str)
every_kind = pytest.mark.parametrize("family", unlike(WINDOWED, type), ids=str)


def windowed(name: str, *kinds: str) -> Family:
    """A family with real processors whose layers of these kinds slide."""
    family = next(family for family in FAMILIES if family.name == name)
    slides = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0}
    kinds_of_layers = {"layer_types": [f"{kind}_attention" for kind in kinds]}
    return replace(
        family, name=f"{name} {kinds}", text={**family.text, **slides, **kinds_of_layers}
    )


MIXED = windowed("qwen2_5_vl", "sliding", "full")
ALL = windowed("llava_onevision", "sliding", "sliding")
both = pytest.mark.parametrize("family", [MIXED, ALL], ids=["mixed", "all"])

EVERY: dict[str, Any] = {
    **METHODS,
    "auto": {"tree": "auto"},
    "specvlm": {"method": "specvlm", "prune_ratio": 0.6, "num_speculative_tokens": 4},
    "specvlm, all layers": {"method": "specvlm", "prune_ratio": 0.6, "tree": "eagle"},
    "gather": {
        "method": "specvlm",
        "draft": "self",
        "prune_ratio": 0.5,
        "num_speculative_tokens": 3,
    },
    "gather, uniform": {
        "method": "specvlm",
        "draft": "self",
        "pruner": "uniform",
        "num_speculative_tokens": 3,
    },
    "tabed": {"method": "tabed", "views": ["multimodal", "pooled", "text"]},
    "lookup": {"method": "lookup", "window": 1},
    "mixed": {
        "method": "mixed",
        "copying": {"name": "lookup", "window": 1},
    },
    "parallel": {"method": "speculative", "schedule": "parallel", "num_speculative_tokens": 3},
}


@cache
def draft_of(family: StockFamily) -> Any:
    return noisy(model_of(family), 0.02 if "Muse" in family.name else 0.05)


@cache
def expected(family: StockFamily, pictures: bool) -> list[list[int]]:
    """A row that is longer than the window beside one that becomes so."""
    given = prompts(family, (19, 5), pictures)
    return stock(model_of(family), given, max_new_tokens=ANSWER)


@every_family
def test_trees_of_every_family(family: StockFamily) -> None:
    check_greedy_answers(family, "eagle")


@every_kind
@pytest.mark.parametrize("name", ["chain", "lookup"])
def test_chains_and_copies(family: StockFamily, name: str) -> None:
    check_greedy_answers(family, name)


def check_greedy_answers(family: StockFamily, name: str) -> None:
    method = {"chain": CHAIN, "eagle": {"tree": "eagle"}, "lookup": {"method": "lookup"}}[name]
    model = model_of(family)
    for pictures in {False, bool(family.tokens)}:
        given = prompts(family, (19, 5), pictures)
        result = draftlens.generate(
            model,
            given,
            draft=None if name == "lookup" else draft_of(family),
            method=method,
            max_new_tokens=ANSWER,
        )
        assert result.tokens == expected(family, pictures)
        assert result.lossless
        if name != "lookup":
            assert 5 < result.stats.accepted < result.stats.drafted


@pytest.mark.pairwise("methods")
@both
@pytest.mark.parametrize("name", EVERY)
def test_every_method(family: Family, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures and clips from the real processors, three rows of different lengths."""
    kind = family.richest
    if name in ("auto", "mixed"):  # whose own choices depend on times
        choose_at_random(monkeypatch, random.Random(1))
    small = None if name.startswith(("gather", "lookup")) else draft(family)
    result = draftlens.generate(
        target(family), inputs(family, kind), draft=small, method=EVERY[name], max_new_tokens=LONG
    )
    assert result.tokens == reference(family, kind, LONG)
    assert result.lossless
    if not name.startswith(("gather", "lookup", "mixed")):
        assert 0 < result.stats.accepted < result.stats.drafted


@both
@pytest.mark.parametrize("ours", [True, False], ids=["target", "draft"])
def test_windows_on_one_side_only(family: Family, ours: bool) -> None:
    """The same weights with and without windows, as a target and as a draft."""
    kind = family.richest
    whole = next(other for other in FAMILIES if family.name.startswith(f"{other.name} "))
    answering, drafting = (family, whole) if ours else (whole, family)
    result = draftlens.generate(
        target(answering),
        inputs(family, kind),
        draft=target(drafting),
        method={"tree": "eagle"},
        max_new_tokens=LONG,
    )
    assert result.tokens == reference(answering, kind, LONG)
    assert 0 < result.stats.accepted < result.stats.drafted


LONG_WINDOW = 64
LONG_PROMPT = 2000


@cache
def long_model() -> Any:
    """Five of six layers slide, as in Gemma 3."""
    family = next(each for each in WINDOWED if str(each) == "Gemma3Text")
    return family.build(
        num_hidden_layers=6,
        sliding_window=LONG_WINDOW,
        layer_types=[*["sliding_attention"] * 5, "full_attention"],
        max_position_embeddings=2 * LONG_PROMPT,
    )


def long_prompt(*lengths: int) -> dict[str, torch.Tensor]:
    """Rows of random ids, padded on the left."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 200, (len(lengths), max(lengths)), generator=generator)
    missing = torch.tensor([max(lengths) - length for length in lengths])[:, None]
    mask = (torch.arange(max(lengths)) >= missing).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


@cache
def long_answer(count: int) -> tuple[list[int], int]:
    """Stock's answer to a long prompt, and the bytes of its cache."""
    output = long_model().generate(
        **long_prompt(LONG_PROMPT),
        max_new_tokens=count,
        do_sample=False,
        return_dict_in_generate=True,
    )
    layers = output.past_key_values.layers
    num_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
    return output.sequences[0, LONG_PROMPT:].tolist(), num_bytes


@pytest.mark.parametrize(("name", "count"), [("plain", 1), ("plain", ANSWER), ("chain", ANSWER)])
def test_bytes_of_a_long_prompt(name: str, count: int) -> None:
    """At most 1.15 times those of stock's cache, at the end of the prompt and of the answer."""
    result = draftlens.generate(
        long_model(),
        long_prompt(LONG_PROMPT),
        draft=noisy(long_model(), 0.05) if name == "chain" else None,
        method=CHAIN if name == "chain" else {"method": "plain"},
        max_new_tokens=count,
    )
    tokens, num_bytes = long_answer(count)
    assert result.tokens == [tokens]
    assert result.stats.target_cache_bytes <= 1.15 * num_bytes
    if name == "chain":
        assert result.stats.draft_cache_bytes <= 1.15 * num_bytes


def test_logits_with_bounded_layers_and_with_all_slots() -> None:
    """Trees after ragged rows, of which some tokens are accepted; rows leave and join."""
    torch.manual_seed(5)
    model, generator = long_model(), random.Random(5)
    backbone = Backbone.of(model)
    prompt = backbone.encode(backbone.prepare_prompt(long_prompt(250, 70, 190)))
    bounded = backbone.new_cache(prompt, 30)
    caches = [bounded, bounded.whole()]
    assert isinstance(bounded, WindowedCache)
    next_position = prompt.next_position
    found = [backbone.prefill(prompt, each) for each in caches]
    assert torch.allclose(*found, atol=1e-5)
    for number in range(40):
        width = 1 if number % 5 == 4 else generator.randint(1, 12)
        tree = Topology(tuple(generator.randint(ROOT, node - 1) for node in range(width - 1)))
        base = list(bounded.lengths)
        mask = trees.attention_mask(base, trees.ancestors(tree, backbone.device))
        steps = torch.tensor(base)[:, None] - torch.tensor(prompt.lengths[: len(base)])[:, None]
        positions = next_position + steps + trees.depths(tree, backbone.device)
        tokens = torch.randint(3, 200, (len(base), width))
        found = [backbone.forward(tokens, positions, each, mask) for each in caches]
        assert torch.allclose(*found, atol=1e-5)
        assert torch.equal(*(logits.argmax(-1) for logits in found))
        path = [0]
        path += [node + 1 for node in trees.path_to(tree, width - 2)] if width > 1 else []
        slots = [path[: generator.randint(1, len(path))] for _ in base]
        for each in caches:
            each.keep(base, slots)
    assert all(first > 0 for first in bounded.firsts)


@every_kind
def test_a_last_part_of_one_token(family: StockFamily) -> None:
    """It has no mask; the model would make one for all slots."""
    backbone = Backbone.of(model_of(family))
    ids = prompts(family, (60,))["input_ids"]
    whole = backbone.text_prompt(ids)
    expected = backbone.prefill(whole, backbone.new_cache(whole, 1))
    cache = backbone.new_cache(whole, 1)
    backbone.prefill(backbone.text_prompt(ids[:, :-1]), cache)
    logits = backbone.read_on(gather(whole, [torch.tensor([59])]), cache)
    assert torch.allclose(logits, expected, atol=1e-4)


@every_kind
def test_sampled_answers(family: StockFamily) -> None:
    """The scale of the logits shows here, where it changes which token is drawn."""
    model, given = model_of(family), prompts(family, (19, 5))
    noise = Noise(given["input_ids"].shape[1], row_seeds(5, 2))
    processors = [TopKLogitsWarper(40), noise]
    expected = stock(model, given, logits_processor=processors, max_new_tokens=ANSWER)
    sampled = {"do_sample": True, "top_k": 40, "max_new_tokens": ANSWER, "seed": 5}
    for drafting in (model, draft_of(family)):
        result = draftlens.generate(model, given, draft=drafting, method=CHAIN, **sampled)
        assert result.tokens == expected
        assert result.stats.accepted > 0


@both
def test_ends_within_accepted_tokens(family: Family) -> None:
    """Two rows end early and late, one of them inside a run of accepted tokens."""
    kind = family.richest
    rows = reference(family, kind, LONG)
    ends = [rows[0][9], rows[1][5]]
    expected = stock(target(family), inputs(family, kind), max_new_tokens=LONG, eos_token_id=ends)
    result = draftlens.generate(
        target(family),
        inputs(family, kind),
        draft=target(family),
        method={"num_speculative_tokens": 5},
        max_new_tokens=LONG,
        eos_token_id=ends,
    )
    assert result.tokens == expected
    assert len({len(row) for row in expected}) > 1


@pytest.mark.pairwise("methods")
@both
@pytest.mark.parametrize("name", ["chain3", "eagle", "specvlm", "tabed", "lookup"])
def test_rows_that_join_and_leave(family: Family, name: str) -> None:
    session = session_of(family, EVERY[name])
    first = add_row(session, family, 0)
    chunks = decode(session)
    list(islice(chunks, 4))
    others = [add_row(session, family, row) for row in (1, 2)]
    list(islice(chunks, 5))
    session.remove(first)
    for _ in chunks:
        pass
    expected = reference(family, family.richest, LONG)
    assert [row.tokens for row in others] == expected[1:]
    assert first.tokens == expected[0][: len(first.tokens)]
    assert len(first.tokens) < LONG


@both
@pytest.mark.parametrize("size", [3, 11])
def test_prompts_in_parts(
    family: Family,
    size: int,
    in_parts: Any,  # noqa: F811
) -> None:
    """Rows go on between the parts of the prompts of others."""
    in_parts(size)
    session = session_of(family, EVERY["specvlm"])
    rows = [add_row(session, family, 1)]
    chunks = decode(session)
    next(chunks)
    rows.append(add_row(session, family, 0))
    for _ in chunks:
        pass
    expected = reference(family, family.richest, LONG)
    assert [row.tokens for row in rows] == [expected[1], expected[0]]


@pytest.mark.pairwise("methods")
@both
@pytest.mark.parametrize("name", ["eagle", "specvlm", "tabed", "lookup", "plain"])
def test_turns_with_a_prompt_cache(
    family: Family, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BY_NAME, family.name, family)
    method = {"method": "plain"} if name == "plain" else {"method": "speculative", **EVERY[name]}
    talks = (
        Conversation((Turn("i"), Turn("", 4), Turn("", 7)), seed=1),
        Conversation((Turn("", 17), Turn("i", 12), Turn("", 3)), seed=2),
    )
    case = TurnsCase(
        family.name, talks, tuple(method.items()), None if name == "plain" else 0.05,
        (9, 11, 9), 1 << 28,
    )  # fmt: skip
    assert check_turns(case) > 0


@pytest.mark.parametrize("name", ["Gemma3n", "Gemma4", "Gemma3"])
def test_turns_of_a_text_model(name: str) -> None:
    """The inputs of tokens for each layer tell prompts apart and are made for those of answers."""
    family = next(each for each in WINDOWED if each.name == name)
    models = Backbone(model_of(family)), Backbone(draft_of(family))
    for model in models:
        model.prompt_cache = draftlens.PromptCache(1 << 28)
    given = prompts(family, (19,))
    for _ in range(3):
        expected = stock(model_of(family), given, max_new_tokens=9)
        result = draftlens.generate(
            models[0], given, draft=models[1], method={"tree": "eagle"}, max_new_tokens=9
        )
        assert result.tokens == expected
        ids = torch.cat([given["input_ids"], torch.tensor(expected), torch.tensor([[7, 8]])], 1)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@both
def test_eager_models(family: Family) -> None:
    """Additive masks, one for each kind of layer; their probed prefill is read by `sdpa`."""
    model = family.build()
    model.set_attn_implementation("eager")
    for method in (METHODS["eagle"], EVERY["gather"], METHODS["chain3"]):
        result = draftlens.generate(
            model, inputs(family, family.richest), draft=draft(family), method=method,
            max_new_tokens=NEW,
        )  # fmt: skip
        assert result.tokens == reference(family, family.richest)


@both
def test_attention_is_read_within_the_window(family: Family) -> None:
    """The scores of pictures are those of eager maps."""
    backbone = Backbone.of(target(family))
    prompt = backbone.encode(backbone.prepare(inputs(family, "image", (0,)), max_new_tokens=1))
    reading = PrefillReading(prompt, backbone.new_cache(prompt, 1), ATTENTION)
    scores = FullPrefill().run(backbone, reading).readings.attention
    eager = family.build()
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        output = eager.get_decoder()(
            inputs_embeds=prompt.embeds,
            attention_mask=torch.ones(1, prompt.embeds.shape[1], dtype=torch.long),
            position_ids=prompt.position_ids,
            use_cache=False,
            output_attentions=True,
        )
    maps = torch.cat(output.attentions).flatten(0, 1)
    readers = (prompt.visual[0].cumsum(0) > 0) & ~prompt.visual[0]
    expected = maps[:, readers].sum((0, 1)) * prompt.visual[0]
    assert torch.allclose(scores[0], expected, atol=1e-5, rtol=1e-5)
    assert bool((expected[prompt.visual[0]] > 0).any())


@pytest.mark.parametrize("name", ["MuseGlimmer", "MuseSpark"])
def test_placeholders_in_an_answer(name: str) -> None:
    """Muse reads a placeholder of media without media as the id 0."""
    family = next(each for each in WINDOWED if each.name == name)
    model = model_of(family)
    ids = torch.tensor([[7, 201, 9, 202, 11, 202, 5]])
    backbone = Backbone.of(model)
    with torch.no_grad():
        expected = model(input_ids=ids).logits[:, 2:]
    prompt = backbone.text_prompt(ids[:, :2])
    cache = backbone.new_cache(prompt, 9)
    backbone.prefill(prompt, cache)
    window = torch.ones(5, 5, dtype=torch.bool).tril()
    mask = trees.attention_mask([2], window)
    logits = backbone.forward(ids[:, 2:], prompt.positions(torch.arange(5)[None]), cache, mask)
    assert torch.allclose(logits, expected, atol=1e-4)
    assert not torch.equal(backbone.embed(ids), model.get_input_embeddings()(ids))


def test_engines_decline(caplog: pytest.LogCaptureFixture) -> None:
    """With one line; the modules run."""
    model = copy.deepcopy(target(MIXED))
    attach([Backbone.of(model)], True)
    (line,) = [record.message for record in caplog.records if "do not run" in record.message]
    assert "sliding windows" in line
    assert not Backbone.of(model).passes.label


@pytest.mark.parametrize("prefill", ["spava", "ring"])
def test_prompts_are_not_divided_among_processes(prefill: str) -> None:
    with pytest.raises(draftlens.UnsupportedModelError, match="sliding windows") as caught:
        draftlens.generate(
            target(MIXED),
            inputs(MIXED, "image"),
            method={"method": "plain", "prefill": prefill},
            max_new_tokens=3,
        )
    assert "\n" not in str(caught.value)


def test_the_check_of_masks() -> None:
    """It finds another window and exchanged kinds of layers."""
    for family in (MIXED, ALL):
        backbone = Backbone(target(family))
        kinds = backbone.kinds
        assert kinds is not None
        assert misfit(backbone) == ""
        for window in (WINDOW - 1, WINDOW + 1):
            backbone.kinds = replace(kinds, window=window)
            assert "other masks" in misfit(backbone)
        backbone.kinds = replace(kinds, slides=(False, True))
        assert misfit(backbone)
