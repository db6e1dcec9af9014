"""Method `tabed`: whatever a draft reads and however its views are weighed, the answer is that of
stock `generate`, and under rejection sampling its distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs, tokenizer
from language_models import language_model
from PIL import Image
from stock import LONG, METHODS, NEW, draft, reference, staggered, stock, target
from tables import (
    DRAFTS,
    LENGTH,
    LIKELY,
    PROMPT,
    TARGET,
    VOCAB,
    WARPERS,
    TableModel,
    TableSession,
    answers,
    fit,
)
from test_joining import GREEDY, SAMPLED, add, alone, finish, rounds
from test_processors import MOST, NAMES, options
from test_rules import TOPOLOGIES
from torch import Tensor
from transformers.generation.stopping_criteria import MaxLengthCriteria

import draftlens
from draftlens.core.prefill_readings import NO_FEATURES
from draftlens.core.sampling import SamplingRule, row_seeds
from draftlens.core.sequence import StoppingRules, sequences_of
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import Topology
from draftlens.decoding import Plan
from draftlens.decoding.loop import decode
from draftlens.decoding.observer import Observer, Weighed
from draftlens.decoding.plan import Acceptance, NoDraft
from draftlens.decoding.session import Session
from draftlens.drafting.draft_prompt import DraftPrompt, prefilled
from draftlens.methods.base import Models
from draftlens.methods.tabed import ensemble
from draftlens.methods.tabed import prompts as view_prompts
from draftlens.methods.tabed.ensemble import Ensemble
from draftlens.methods.tabed.prompts import ViewPrompts
from draftlens.methods.tabed.views import Source
from draftlens.methods.tabed.weights import make_weighting
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prepared, Prompt

BY_NAME = {family.name: family for family in FAMILIES}
RED = Image.new("RGB", (32, 32), (255, 0, 0))

# --- families ------------------------------------------------------------------------------------

SETS: tuple[tuple[Any, ...], ...] = (
    ("multimodal", "text"),
    ("multimodal", "pooled", {"pruner": "uniform", "ratio": 0.5}),
    ({"pruner": "specvlm", "ratio": 0.7}, {"pruner": "random", "ratio": 0.5}, "text"),
    ("caption", "multimodal"),
    (
        {"name": "pooled", "size": 3},
        {"pruner": "attention", "ratio": 0.6},
        {"pruner": "window", "ratio": 0.8},
        "multimodal",
    ),
)
SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"tree": "eagle"},
    {"tree": METHODS["odd"]["tree"]},
    {"tree": "auto"},
)
WEIGHTS: tuple[Any, ...] = ("bayes", "grid", "uniform", "kld", "tvd")
PER_FAMILY = 3


def sample() -> list[Any]:
    """Some of all combinations: neighbours differ in everything."""
    cases = []
    for number, family in enumerate(FAMILIES):
        for index in range(PER_FAMILY):
            place = PER_FAMILY * number + index
            kind = family.kinds[(index + number) % len(family.kinds)]
            views = SETS[place % len(SETS)]
            shape = SHAPES[(place + place // 4) % len(SHAPES)]
            weights = WEIGHTS[(place + place // 6) % len(WEIGHTS)]
            drafts = "self" if index == 1 else "model"
            case = (family, kind, views, shape, weights, drafts)
            name = f"{family}-{kind}-{place % len(SETS)}-{shape}-{weights}-{drafts}"
            cases.append(pytest.param(*case, id=name))
    return cases


@pytest.mark.parametrize(("family", "kind", "views", "shape", "weights", "drafts"), sample())
def test_a_ragged_batch(
    family: Family, kind: str, views: tuple[Any, ...], shape: Any, weights: str, drafts: str
) -> None:
    """Three rows of different lengths, which read different numbers of views."""
    given = inputs(family, kind)
    method = {
        "method": "tabed",
        "views": list(views),
        "weights": weights,
        "draft": drafts,
        **shape,
    }
    captions = {"views": {"caption": inputs(family, "text")}} if "caption" in views else {}
    result = draftlens.generate(
        target(family),
        given,
        draft=draft(family) if drafts == "model" else None,
        draft_inputs={**given, **captions},
        method=method,
        max_new_tokens=NEW,
    )
    assert result.tokens == reference(family, kind)
    assert result.lossless
    stats = result.stats
    assert stats.accepted == sum(map(sum, result.from_draft))
    if shape.get("tree") != "auto":
        assert stats.accepted > 0
        assert stats.views
        assert stats.draft_cache_bytes > 0


def test_the_sample_has_everything() -> None:
    values = [case.values for case in sample()]
    assert {case[1] for case in values} == {"image", "images", "video", "mixed", "text"}
    for index, expected in ((2, SETS), (3, SHAPES), (4, WEIGHTS), (5, ("model", "self"))):
        assert all(sum(case[index] == value for case in values) >= 3 for value in expected)


@pytest.mark.parametrize("tree", ["eagle", None])
def test_rows_that_end_in_an_accepted_run(tree: Any) -> None:
    family = BY_NAME["qwen2_vl"]
    rows = reference(family, "mixed", LONG)
    ends = staggered(rows)
    shape = {"tree": tree} if tree else {}
    options = {"max_new_tokens": LONG, "eos_token_id": ends}
    expected = stock(target(family), inputs(family, "mixed"), **options)
    assert len({len(row) for row in expected}) == 3
    result = draftlens.generate(
        target(family),
        inputs(family, "mixed"),
        draft=draft(family),
        method={"method": "tabed", "views": ["multimodal", "text", "pooled"], **shape},
        **options,
    )
    assert result.tokens == expected


@pytest.mark.parametrize("limit", [1, 2, 8])
def test_answers_of_any_length(limit: int) -> None:
    family = BY_NAME["llava"]
    result = draftlens.generate(
        target(family),
        inputs(family, "images"),
        draft=draft(family),
        method="tabed",
        max_new_tokens=limit,
    )
    assert result.tokens == [row[:limit] for row in reference(family, "images")]


def test_a_stop_string_across_draft_tokens() -> None:
    family = BY_NAME["llava"]
    row = reference(family, "images", LONG)[0]
    stop = tokenizer().decode(row[9:11])
    chosen = {"stop_strings": [stop], "tokenizer": tokenizer(), "max_new_tokens": LONG}
    given = inputs(family, "images", (0,))
    expected = stock(target(family), given, **chosen)
    assert 3 < len(expected[0]) < LONG
    result = draftlens.generate(
        target(family), given, draft=draft(family), method="tabed", **chosen
    )
    assert result.tokens == expected


@pytest.mark.parametrize("tree", [None, "eagle"])
def test_coupled_sampling_draws_the_same_tokens(tree: Any) -> None:
    """Noise belongs to the answer's row, whatever the views."""
    family = BY_NAME["llava"]
    given = inputs(family, "images")
    drawing = {"do_sample": True, "seed": 5, "top_k": 30, "repetition_penalty": 1.3}
    expected = draftlens.generate(target(family), given, max_new_tokens=LONG, **drawing)
    method = {"method": "tabed", "views": ["multimodal", "pooled", "text"]}
    result = draftlens.generate(
        target(family),
        given,
        draft=draft(family),
        method=method | ({"tree": tree} if tree else {}),
        max_new_tokens=LONG,
        **drawing,
    )
    assert result.tokens == expected.tokens
    assert result.stats.accepted > 20  # as it is only with the noise of the row


@pytest.mark.pairwise
@pytest.mark.parametrize("name", ["llava", "qwen3_vl"])
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
def test_rows_that_join_after_views_were_dropped(
    name: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views are dropped at the least sign of weakness, and later rows have them again."""
    for limit, value in (("NEGLIGIBLE", 0.4), ("PATIENCE", 1)):
        monkeypatch.setattr(ensemble, limit, value)
    family = BY_NAME[name]
    models = Models(Backbone.of(target(family)), Backbone.of(draft(family)))
    plan = draftlens.TABED(views=["multimodal", "text", "pooled"]).plan(models)
    seen: list[Weighed] = []
    session = Session(models.target, plan, Clock(Stats()), Observer(on_weights=seen.append))
    drafter: Any = plan.drafter
    rows = []
    for row in (0, 1, 2):
        rows.append(add(session, family, row, options))
        rounds(session, 3)
    session.remove(rows[0])
    finish(session)
    for sequence, row in zip(rows[1:], (1, 2), strict=True):
        assert sequence.tokens == alone(family, row, "plain", options)
    assert rows[0].tokens == alone(family, 0, "plain", options)[: len(rows[0].tokens)]
    assert len({tuple(hit is None for hit in entry.hits) for entry in seen}) > 1
    assert drafter.rows.num_views in (1, 2, 3)


# --- the target's own distributions --------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_that_is_the_target_is_always_right(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With equal views that are kept apart on purpose, under every processor."""
    monkeypatch.setattr(view_prompts, "_are_equal", lambda *_: False)
    family = FAMILIES[NAMES.index(name) % len(FAMILIES)]
    given = inputs(family, family.richest, (0, 1, 2))
    chosen = options(name, reference(family, family.richest, LONG))
    limit = {} if name == "generation_config" else {"max_new_tokens": MOST}
    views = ["multimodal", {"pruner": "none", "ratio": 0.5}]
    found = []
    for method in (
        {"method": "tabed", "views": views, "weights": [0.3, 0.7]},
        {"method": "speculative", "num_speculative_tokens": 5},
    ):
        fresh = options(name, reference(family, family.richest, LONG)) if found else chosen
        found.append(
            draftlens.generate(
                target(family), given, draft=target(family), method=method, **limit, **fresh
            )
        )
    ours, alone = found
    assert ours.tokens == alone.tokens
    assert ours.stats.accepted_by_depth == alone.stats.accepted_by_depth
    assert ours.stats.views.keys() == {"multimodal", "none(0.5)"}
    if "eos" not in "".join(chosen):
        assert ours.stats.accepted_by_depth.keys() == {5}


# --- how it is called ----------------------------------------------------------------------------


def test_the_callers_own_generate() -> None:
    family = BY_NAME["qwen2_vl"]
    given = inputs(family, "images", (0,))
    text = inputs(family, "text", (0,))
    custom = draftlens.SpeculativeGenerate(
        draft(family), {**given, "views": {"text": text}}, {"method": "tabed"}
    )
    output = target(family).generate(
        **given, max_new_tokens=NEW, do_sample=False, custom_generate=custom
    )
    found = output[0, given["input_ids"].shape[1] :].tolist()
    assert found == reference(family, "images")[0]


def test_the_inputs_of_a_view_are_taken_as_they_are_given() -> None:
    """Other words lead to other draft tokens, and to the same answer."""
    family = BY_NAME["qwen2_vl"]
    given = inputs(family, "images", (0,))
    hits = []
    for views in ({}, {"text": inputs(family, "text", (1,))}):
        result = draftlens.generate(
            target(family),
            given,
            draft=draft(family),
            draft_inputs={**given, "views": views},
            method={"method": "tabed", "weights": [0, 1], "rest": False},
            max_new_tokens=NEW,
        )
        assert result.tokens == reference(family, "images")[:1]
        hits.append(result.stats.accepted_by_depth)
    assert hits[0] != hits[1]


@pytest.fixture(scope="module")
def engine() -> draftlens.Engine:
    return draftlens.load(device="cpu", calibrate=False)


@pytest.mark.parametrize("drafts", ["model", "self"])
def test_messages(engine: draftlens.Engine, drafts: str) -> None:
    """Two pictures in one row, none in the other; captions as strings."""
    question = {"type": "text", "text": "What is this?"}
    chats = [
        [
            {"role": "user", "content": [{"type": "image", "image": RED}, question]},
            {"role": "assistant", "content": "A square."},
            {"role": "user", "content": [{"type": "image", "image": RED}, question]},
        ],
        [{"role": "user", "content": "Hello"}],
    ]
    views = [
        "multimodal",
        "text",
        {"name": "caption", "captioner": ["a red square", "a red ball"]},
    ]
    inputs_of_both = engine.read(messages=chats)
    method = {"method": "tabed", "views": views, "draft": drafts, "rest": False}
    expected = engine.answer(inputs_of_both, method="plain", max_new_tokens=12).run()
    result = engine.answer(inputs_of_both, method=method, max_new_tokens=12).run()
    assert result.tokens == expected.tokens
    stats = result.stats.views
    assert stats.keys() == {"multimodal", "text", "caption"}
    assert 0 < stats["caption"].asked == stats["text"].asked < stats["multimodal"].asked


def test_the_draft_writes_captions(engine: draftlens.Engine) -> None:
    inputs_of_one = engine.read("What is this?", images=RED)
    expected = engine.answer(inputs_of_one, method="plain", max_new_tokens=12).run()
    view = {"name": "caption", "max_tokens": 20}
    method = {"method": "tabed", "views": [view, "text"], "rest": False}
    result = engine.answer(inputs_of_one, method=method, max_new_tokens=12).run()
    assert result.tokens == expected.tokens
    assert result.stats.views["caption"].asked > 0


def test_a_draft_that_reads_words_only(engine: draftlens.Engine) -> None:
    chat = engine.read("What is this?", images=RED)
    words = engine.read("\nWhat is this?").target
    expected = engine.answer(chat, method="plain", max_new_tokens=8).run()
    result = draftlens.generate(
        engine.target.backbone,
        chat.target,
        draft=language_model(),
        draft_inputs=words,
        method="tabed",
        max_new_tokens=8,
    )
    assert result.tokens == expected.tokens
    assert result.stats.views["text"].asked > 0
    assert "multimodal" not in result.stats.views


# --- tables --------------------------------------------------------------------------------------

APART = 100
"""The positions of each view's table lie so far apart."""


class Tables(TableModel):
    """A model that answers from another table in each view: its positions tell which."""

    def __init__(self, tables: Sequence[Tensor]) -> None:
        super().__init__(tables[0])
        self.tables = tables

    def forward(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor:
        before = list(cache.lengths)
        scores = []
        for part in self.tables:
            cache.truncate(before)
            self.table = part
            scores.append(super().forward(tokens, position_ids % APART, cache, mask))
        view = position_ids // APART
        stacked = torch.stack(scores)
        rows = torch.arange(len(tokens))[:, None]
        return stacked[view, rows, torch.arange(tokens.shape[1])]


@dataclass(frozen=True)
class TableView:
    """The same words at positions of the view's own."""

    number: int

    same_without_media = False
    rewriting = None
    needs_vision = False
    readings = NO_FEATURES

    @property
    def label(self) -> str:
        return f"table {self.number}"

    def read(self, source: Source) -> DraftPrompt:
        whole = source.whole
        shift = APART * self.number
        prompt = Prompt(
            whole.embeds,
            whole.position_ids + shift,
            whole.lengths,
            whole.next_position + shift,
            whole.visual,
            {},
        )
        return prefilled(source.backbone, prompt)


def speak(
    topology: Topology,
    tables: Sequence[Tensor],
    weights: Any,
    rule: SamplingRule,
    rows: int,
    seen: list[Weighed] | None = None,
) -> TableSession:
    """A finished session of a draft with one view for each table; plain decoding without a
    topology."""
    criteria = (MaxLengthCriteria(PROMPT.shape[1] + LENGTH),)
    stopping = StoppingRules(list(criteria), PROMPT.shape[1], rows)
    config = sequences_of(PROMPT[:rows], rule, stopping, row_seeds(11, rows))[0].sampling
    prepared = Prepared(PROMPT[:rows], rule.processors, criteria, config, {})
    backbone: Any = Tables(tables)
    views: Any = [TableView(number) for number in range(len(tables))]
    prompts = ViewPrompts(backbone, views)
    mixed = Ensemble(prompts, topology, VOCAB, make_weighting(weights))
    drafter = mixed if topology else NoDraft()
    model: Any = TableModel(TARGET)
    observe = [] if seen is None else seen
    plan = Plan(drafter, acceptance=Acceptance(rule.acceptance))
    session = TableSession(model, plan, Observer(on_weights=observe.append))
    session.add(prepared, row_seeds(11, rows), {"input_ids": PROMPT[:rows]})
    for _ in decode(session):
        pass
    return session


MIXED = (DRAFTS["near"], DRAFTS["far"], DRAFTS["narrow"])
CHI_SQUARE = [
    ("chain", "bayes", "warped"),
    ("tree", "bayes", "plain"),
    ("chain", {"name": "grid", "steps": 4}, "plain"),
    ("tree", "tvd", "warped"),
]


@pytest.mark.parametrize(("shape", "weights", "scores"), CHI_SQUARE, ids=str)
def test_rejection_keeps_the_target_distribution(shape: str, weights: Any, scores: str) -> None:
    """The joint of three tokens, while the weights follow what was said."""
    rule = SamplingRule(WARPERS if scores == "warped" else (), True, "rejection")
    seen: list[Weighed] = []
    session = speak(TOPOLOGIES[shape], MIXED, weights, rule, 500, seen)
    assert fit(session) > LIKELY
    assert session.stats.accepted > 0
    found = {entry.row: entry.weights for entry in seen}
    assert len(found) == 500
    assert len(set(found.values())) > 2  # the weights of the rows went different ways


@pytest.mark.parametrize("shape", TOPOLOGIES)
def test_equal_tables_are_always_right(shape: str) -> None:
    for rule in (
        SamplingRule(WARPERS, True, "rejection"),
        SamplingRule(WARPERS, True, "coupled"),
        SamplingRule(),
    ):
        seen: list[Weighed] = []
        session = speak(TOPOLOGIES[shape], (TARGET, TARGET), "bayes", rule, 40, seen)
        assert session.stats.accepted == 40 * TOPOLOGIES[shape].depth
        if not rule.rejects:  # each view would have drafted every token
            assert all(entry.hits == (True, True) for entry in seen)
            assert len(seen) >= 40 * TOPOLOGIES[shape].depth


def test_coupled_and_greedy_are_token_identical_to_plain_decoding() -> None:
    for rule in (SamplingRule(WARPERS, True, "coupled"), SamplingRule()):
        plain = speak(Topology(()), MIXED, "bayes", rule, rows=60)
        for topology in TOPOLOGIES.values():
            for weights in ("bayes", "grid"):
                session = speak(topology, MIXED, weights, rule, rows=60)
                assert answers(session) == answers(plain)
                assert session.stats.accepted > 0
