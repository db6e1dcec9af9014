"""Later turns of a conversation, which read only what is new, have the tokens that stock `generate`
gives on the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from inspect import signature
from typing import Any
from unittest.mock import patch

import pytest
import torch
from conversations import (
    BY_NAME,
    Conversation,
    Turn,
    TurnsCase,
    answer,
    check_turns,
    inputs_of,
    models_of,
)
from families import FAMILIES, Family
from forming import FormText, forms
from fuzzing import CAPPED, MADE_NAMES, blocks, thawed
from hypothesis import event
from hypothesis import given as drawn
from hypothesis import strategies as st
from made_families import takes_trees
from rotary import NAMES as ROTARY_NAMES
from stock import stock, target
from test_fuzz import share

from draftlens.core.stats import Clock, Stats
from draftlens.decoding import Session, step
from draftlens.decoding.admission import NAMESPACE, PartSize
from draftlens.methods.base import Models, from_dict
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.prompt_cache import PromptCache
from draftlens.models.prompt_reading import READERS, PromptReading

PLENTY = 1 << 28
NAMES = sorted(family.name for family in FAMILIES)

METHODS: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain"},
    "chain": {"method": "speculative", "num_speculative_tokens": 3},
    "eagle": {"method": "speculative", "tree": "eagle"},
    "specvlm": {"method": "specvlm", "prune_ratio": 0.6, "num_speculative_tokens": 4},
    "uv": {
        "method": "specvlm",
        "pruner": {"name": "uv", "layer": 1},
        "prune_ratio": 0.6,
        "num_speculative_tokens": 4,
    },
    "lookup": {"method": "lookup", "num_speculative_tokens": 4, "window": 1},
    "mixed": {"method": "mixed", "copying": {"name": "lookup", "window": 1}},
    "tabed": {"method": "tabed", "views": ("multimodal", "pooled"), "num_speculative_tokens": 3},
}

DRAWN = METHODS | {"uv-sampled": {**METHODS["uv"], "pruner": {"name": "uv-sampled", "layer": 1}}}
"""Methods of random conversations."""

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


def media_of(family: Family) -> str:
    """The richest media that a family takes in one turn."""
    return "iv" if "mixed" in family.kinds else "ii"


def pairs(name: str) -> tuple[tuple[str, Any], ...]:
    return tuple(DRAWN[name].items())


@every_family
@pytest.mark.parametrize("name", METHODS)
def test_three_turns_with_media_in_the_first_and_the_last(family: Family, name: str) -> None:
    talks = (
        Conversation((Turn(media_of(family)), Turn("", 4), Turn("i", 7)), seed=1),
        Conversation((Turn("i", 17), Turn("", 12), Turn("", 3)), seed=2),
    )
    case = TurnsCase(family.name, talks, pairs(name), 0.05, (9, 11, 9), PLENTY)
    assert check_turns(case) > 0


@every_family
def test_a_row_without_media_beside_one_with_a_picture(family: Family) -> None:
    talks = (
        Conversation((Turn("i"), Turn("", 4)), seed=1),
        Conversation((Turn("", 9), Turn("", 5)), seed=2),
    )
    case = TurnsCase(family.name, talks, pairs("chain"), 0.05, (5, 5), PLENTY)
    assert check_turns(case) > 0


@every_family
def test_a_question_in_front_of_the_same_picture_reads_its_own_words(family: Family) -> None:
    """Only the words after the picture are read, and the features are not encoded again."""
    cache = PromptCache(PLENTY)
    models = models_of(family, None, cache)
    first, second = (Conversation((Turn("i", letters),), seed=5) for letters in (8, 8))
    given = inputs_of(family, [first], [[]], 1)
    answer(models, given, "plain", max_new_tokens=3)
    tower = models[0].model.base_model
    with patch.object(tower, "get_image_features", wraps=tower.get_image_features) as encoder:
        encoder.__signature__ = signature(tower.__class__.get_image_features)
        again = inputs_of(family, [second], [[]], 1)
        result = answer(models, again, "plain", max_new_tokens=3)
    assert result.stats.cached_tokens == again["input_ids"].shape[1] - 1
    assert not encoder.called


@every_family
def test_a_prompt_read_in_parts_of_any_size(family: Family) -> None:
    """Logits, keys, values and attention scores are those of one pass."""
    backbone = Backbone(target(family))
    talks = [Conversation((Turn(media_of(family), 5),)), Conversation((Turn("i", 21),), seed=3)]
    given = inputs_of(family, talks, [[], []], 1)
    prompt = backbone.encode(backbone.prepare_prompt(given))
    whole = backbone.new_cache(prompt, 8)
    probe = AttentionProbe(prompt.visual, prompt.lengths)
    logits = backbone.prefill(prompt, whole, probe)
    for size in (1, 2, 7, 30, max(prompt.lengths) - 1, max(prompt.lengths)):
        cache = backbone.new_cache(prompt, 8)
        parts = AttentionProbe(prompt.visual, prompt.lengths)
        reading = PromptReading(backbone, prompt, cache, parts)
        found = None
        while found is None:
            found = reading.read(size)
        assert cache.lengths == prompt.lengths
        torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(parts.result(), probe.result(), rtol=1e-4, atol=1e-4)
        for row, length in enumerate(prompt.lengths):
            for one, other in zip(
                cache.states(row, 0, length), whole.states(row, 0, length), strict=True
            ):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "llava_onevision"])
def test_a_prefix_may_end_at_every_place_outside_of_media(name: str) -> None:
    """A prompt that shares n tokens with a stored one begins after them, or before the medium that
    they would divide, and its logits are those of the whole."""
    family = BY_NAME[name]
    cache = PromptCache(PLENTY)
    backbone = models_of(family, None, cache)[0]
    given = inputs_of(family, [Conversation((Turn(media_of(family), 11),))], [[]], 1)
    prompt = backbone.encode(backbone.prepare_prompt(given))
    stored = backbone.new_cache(prompt, 8)
    expected = PromptReading(backbone, named(prompt, ""), stored).read()
    assert expected is not None
    held = stored.held[0]
    assert held is not None
    visual = prompt.visual[0].tolist()
    for count in range(1, prompt.lengths[0]):
        space = str(count)
        part = type(held)(space, held.digests[:count])
        cache.store(backbone.model, part, stored, 0)
        rows = backbone.new_cache(prompt, 8)
        reading = PromptReading(backbone, named(prompt, space), rows, stores=False)
        kept = reading.cached[0]
        assert kept == 0 or not (visual[kept] and visual[kept - 1])
        assert kept == count or visual[count]
        found = reading.read()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def named(prompt: Any, namespace: str) -> Any:
    return replace(prompt, namespace=namespace)


@pytest.mark.parametrize("part", [20, 1000], ids=["in parts", "at once"])
def test_rows_that_end_one_after_the_other_are_stored_with_their_own_tokens(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows join when others run, and move when others have ended."""
    monkeypatch.setattr(PartSize, "within", lambda self, seconds: part)
    family = BY_NAME["llava_onevision"]
    target_model, drafting = models_of(family, 0.05, PromptCache(PLENTY))
    plan = from_dict(METHODS["chain"]).plan(Models(target_model, drafting))
    session = Session(target_model, plan, Clock(Stats()))
    rows: list[tuple[dict[str, Any], Any]] = []
    for seed, new in enumerate((6, 25, 11, 17)):
        given = inputs_of(family, [Conversation((Turn("i", 5),), seed=seed)], [[]], 1)
        prepared = target_model.prepare(given, max_new_tokens=new)
        rows += [(given, *session.add(prepared, [0], given, {NAMESPACE: ""}))]
        step(session)
    while not session.done:
        step(session)
    assert len(session.sequences) == 1  # the one that ended last
    for given, sequence in rows:
        for backbone in (target_model, drafting):
            prompt = backbone.encode(backbone.prepare_prompt(given))
            whole = backbone.followed_by(prompt, torch.tensor([[*sequence.tokens, 5]]))
            fresh = PromptReading(backbone, whole, backbone.new_cache(whole, 8))
            again = PromptReading(
                backbone, named(whole, ""), backbone.new_cache(whole, 8), stores=False
            )
            held = again.cached[0] - prompt.lengths[0]
            assert held == len(sequence.tokens) - 1 or (backbone is drafting and held > 0)
            torch.testing.assert_close(again.read(), fresh.read(), rtol=1e-4, atol=1e-4)


def test_tokens_whose_attention_guides_a_pruner_are_read_again() -> None:
    """The last ones of a prompt, also where all of it is stored."""
    family = BY_NAME["llava_onevision"]
    backbone = models_of(family, None, PromptCache(PLENTY))[0]
    given = inputs_of(family, [Conversation((Turn("i", 40),))], [[]], 1)
    prompt = named(backbone.encode(backbone.prepare_prompt(given)), "")
    expected = AttentionProbe(prompt.visual, prompt.lengths)
    [length] = prompt.lengths
    expected.readers = [torch.arange(length - READERS, length)]
    backbone.prefill(prompt, backbone.new_cache(prompt, 8), expected)
    PromptReading(backbone, prompt, backbone.new_cache(prompt, 8)).read()
    probe = AttentionProbe(prompt.visual, prompt.lengths)
    reading = PromptReading(backbone, prompt, backbone.new_cache(prompt, 8), probe)
    reading.read()
    assert reading.cached == [length - READERS]
    torch.testing.assert_close(probe.result(), expected.result(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["chain", "eagle"])
def test_answers_with_ids_that_the_draft_lacks(method: str) -> None:
    """They are stored as the draft reads them, and found again in the next turn."""
    family, new = BY_NAME["llava"], 25
    drafting = Backbone(family.build(seed=7, vocab_size=200))
    models = models_of(family, None, PromptCache(PLENTY))[0], drafting
    drafting.prompt_cache = models[0].prompt_cache
    given = inputs_of(family, [Conversation((Turn("i", 5),))], [[]], 1)
    options: dict[str, Any] = {"suppress_tokens": list(range(190)), "max_new_tokens": new}
    result = answer(models, given, METHODS[method], **options)
    assert result.tokens == stock(target(family), given, **options)
    tokens = result.tokens[0]
    assert any(token >= drafting.vocab_size for token in tokens[:-5])
    rest = torch.tensor([[*tokens, 5, 6]])
    longer = dict(given)
    longer["input_ids"] = torch.cat([given["input_ids"], rest], 1)
    longer["attention_mask"] = torch.cat([given["attention_mask"], torch.ones_like(rest)], 1)
    prompt = named(drafting.encode(drafting.prepare_prompt(longer)), "")
    reading = PromptReading(drafting, prompt, drafting.new_cache(prompt, 1))
    assert reading.cached[0] > given["input_ids"].shape[1] + new - 6
    result = answer(models, longer, METHODS[method], **options)
    assert result.tokens == stock(target(family), longer, **options)


def test_namespaces_share_nothing() -> None:
    cache = PromptCache(PLENTY)
    models = models_of(FAMILIES[0], None, cache)
    given = inputs_of(FAMILIES[0], [Conversation((Turn("i"),))], [[]], 1)
    cached = [
        answer(models, given, "plain", space, max_new_tokens=2).stats.cached_tokens
        for space in ("a", "b", None, "a", None, "b")
    ]
    length = given["input_ids"].shape[1]
    assert cached == [0, 0, 0, length - 1, 0, length - 1]


@pytest.mark.parametrize("draft", [None, 0.05])
def test_namespaces_share_no_features(draft: float | None) -> None:
    """Neither of the target nor of the draft: each namespace encodes a picture once."""
    family = BY_NAME["llava_onevision"]
    models = models_of(family, draft, PromptCache(PLENTY))
    given = inputs_of(family, [Conversation((Turn("i"),))], [[]], 1)
    calls = []
    with ExitStack() as stack:
        for backbone in filter(None, models):
            tower = backbone.model.base_model
            encoder = patch.object(tower, "get_image_features", wraps=tower.get_image_features)
            calls.append(stack.enter_context(encoder))
            calls[-1].__signature__ = signature(tower.__class__.get_image_features)
        counts = []
        for space in ("a", "b", None, "a", "b", None):
            answer(models, given, METHODS["chain"] if draft else "plain", space, max_new_tokens=2)
            counts.append([call.call_count for call in calls])
    assert counts == [[number] * len(calls) for number in (1, 2, 3, 3, 3, 4)]


def test_draws_do_not_depend_on_the_cache() -> None:
    options = {"max_new_tokens": 20, "do_sample": True, "temperature": 0.9, "seed": 7}
    family = FAMILIES[2]
    given = inputs_of(family, [Conversation((Turn("i"),))], [[]], 1)
    drawn = []
    for space in (None, "", ""):
        if space is None:
            models = models_of(family, 0.05, PromptCache(PLENTY))
        drawn.append(answer(models, given, METHODS["chain"], space, **options).tokens)
    assert drawn[0] == drawn[1] == drawn[2]


def test_a_bound_holds_and_counts_what_is_held() -> None:
    family = BY_NAME["llava_onevision"]
    cache = PromptCache(600_000)
    models = models_of(family, None, cache)
    for seed in range(12):
        given = inputs_of(family, [Conversation((Turn("i", 30),), seed=seed)], [[]], 1)
        answer(models, given, "plain", max_new_tokens=4)
        assert 0 < cache.nbytes <= 600_000
        assert cache.nbytes == cache.counted()


@st.composite
def cases(draw: st.DrawFn, families: Sequence[str] = NAMES) -> TurnsCase:
    family = BY_NAME[draw(st.sampled_from(families))]
    kinds = ["", "", "i", "ii"] if "image" in family.kinds else [""]
    kinds += ["v", "iv"] if "mixed" in family.kinds else []
    count = draw(st.integers(2, 5))
    turn = st.builds(Turn, st.sampled_from(kinds), st.integers(1, 24))
    turns = st.lists(turn, min_size=count, max_size=count).map(tuple)
    talks = draw(
        st.lists(st.builds(Conversation, turns, st.integers(0, 3)), min_size=1, max_size=3)
    )
    return TurnsCase(
        family.name,
        tuple(talks),
        pairs(draw(st.sampled_from(sorted(DRAWN)))),
        draw(st.sampled_from([0.0, 0.05, 0.3])),
        tuple(draw(st.lists(st.integers(1, 12), min_size=count, max_size=count))),
        draw(st.sampled_from([PLENTY, 400_000, 60_000, 0])),
        draw(st.sampled_from([("",), ("", "a"), (None, "")])),
        draw(st.booleans()),
        tuple(draw(st.lists(st.integers(0, 4), max_size=2))),
    )


@st.composite
def made_cases(draw: st.DrawFn) -> TurnsCase:
    """Of methods that the family takes."""
    case = draw(cases(MADE_NAMES))
    names = ["plain", "chain", "chain", "specvlm", "uv", "uv-sampled", "lookup", "mixed"]
    family = BY_NAME[case.family]
    if takes_trees(family):
        names += ["eagle", "tabed"] if "image" in family.kinds else ["eagle"]
    if case.family == CAPPED:
        names = ["plain", "chain", "eagle", "lookup"]
    return replace(case, method=pairs(draw(st.sampled_from(names))))


@st.composite
def cases_in_blocks(draw: st.DrawFn) -> TurnsCase:
    """Of prefill `spava`, which keeps prompts of one row. What a cache drops may change answers, so
    it drops nothing."""
    case = draw(cases())
    talks = draw(st.sampled_from((case.talks[:1], case.talks[:1], case.talks)))
    prefill = thawed(draw(blocks()))
    method = (*case.method, ("prefill", prefill))
    return replace(case, talks=talks, method=method, max_bytes=PLENTY)


@pytest.mark.slow
@share(0.2)
@drawn(cases())
def test_random_conversations(case: TurnsCase) -> None:
    check_turns(case)


@pytest.mark.slow
@share(0.05)
@drawn(cases(), st.lists(st.one_of(st.none(), forms, forms), min_size=1, max_size=3))
def test_random_conversations_of_forms(case: TurnsCase, chosen: list[FormText | None]) -> None:
    """Some answers have a form, and later prompts, with a form or without, begin with them."""
    check_turns(replace(case, forms=tuple(chosen)))


@pytest.mark.slow
@share(0.05)
@drawn(cases_in_blocks())
def test_random_conversations_in_blocks(case: TurnsCase) -> None:
    """The answers are those of plain decoding in the same turns."""
    if check_turns(case):
        event("tokens of earlier turns are not read again")


@pytest.mark.slow
@share(0.1)
@drawn(made_cases())
def test_random_conversations_of_other_layers(case: TurnsCase) -> None:
    check_turns(case)


@share(0.2)
@drawn(cases(ROTARY_NAMES))
def test_random_conversations_of_rotary_frequencies_that_change(case: TurnsCase) -> None:
    check_turns(case)
