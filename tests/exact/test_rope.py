"""Rotary positions that depend on how far a forward reaches: draft tokens are refused beyond their
limit, and rows, parts and stored prompts have the tokens that they have alone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from queue import Queue
from typing import Any

import pytest
import torch
import transformers as hf
from conversations import (
    BY_NAME,
    Conversation,
    Turn,
    answer,
    answer_of_stock,
    differing,
    inputs_of,
    models_of,
    reply,
)
from families import FAMILIES, Family, inputs
from rotary import LIMIT, ROTARY, lengths_of
from stock import NEW, noisy, stock, target

import draftlens
from draftlens import InputError
from draftlens.core.sequence import Sequence as Row
from draftlens.core.stats import Clock, Stats
from draftlens.decoding import Session, step
from draftlens.decoding.admission import NAMESPACE, PartSize
from draftlens.methods.base import Models, from_dict
from draftlens.models.adapter import Backbone
from draftlens.models.prompt_cache import PromptCache
from draftlens.models.prompt_reading import PromptReading
from draftlens.request import Request
from draftlens.scheduling import Job, Scheduler, Update

FAMILY: Family = next(family for family in FAMILIES if family.name == "internvl")
GIVEN = inputs(FAMILY, "image", rows=(0,))
LENGTH = GIVEN["input_ids"].shape[1]
DRAFTERS = {
    "chain": {"num_speculative_tokens": 5},
    "tree": {"tree": "eagle"},
    "self": {"method": "specvlm", "tree": "eagle"},
}

every_drafter = pytest.mark.parametrize("drafter", DRAFTERS)


def model(kind: str, limit: int) -> Any:
    """A new one for each answer: `dynamic` frequencies stay as long calls left them."""
    rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 1e4}
    if kind == "longrope":
        factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
        rope |= {**factors, "original_max_position_embeddings": limit}
        return FAMILY.build(rope_parameters=rope, max_position_embeddings=2 * limit)
    return FAMILY.build(rope_parameters=rope, max_position_embeddings=limit)


def ask(kind: str, limit: int, drafter: str | None) -> draftlens.Result:
    whole = model(kind, limit)
    drafting = {} if drafter is None else {"draft": None if drafter == "self" else noisy(whole)}
    method = "plain" if drafter is None else DRAFTERS[drafter]
    options: Any = {"method": method, "max_new_tokens": NEW, "allow_long_prompt": True}
    return draftlens.generate(whole, GIVEN, **drafting, **options)


@every_drafter
@pytest.mark.parametrize(
    ("kind", "limit"), [("dynamic", LENGTH + NEW), ("longrope", LENGTH + NEW), ("longrope", 20)]
)
def test_on_one_side_of_the_limit(kind: str, limit: int, drafter: str) -> None:
    """All of it within, or, where two sets of frequencies are all there is, all of it beyond."""
    result = ask(kind, limit, drafter)
    assert result.tokens == stock(model(kind, limit), GIVEN, max_new_tokens=NEW)
    assert 0 < result.stats.accepted < result.stats.drafted


@every_drafter
@pytest.mark.parametrize(
    ("kind", "limit"),
    [("dynamic", LENGTH + NEW - 1), ("dynamic", 20), ("longrope", LENGTH + NEW - 1)],
)
def test_beyond_the_limit(kind: str, limit: int, drafter: str) -> None:
    """A sentence; and plain decoding, which drafts nothing, is exact all the same."""
    with pytest.raises(
        InputError,
        match=f'beyond {limit} a draft token would change the {kind} rotary .* method "plain"',
    ):
        ask(kind, limit, drafter)
    assert ask(kind, limit, None).tokens == stock(model(kind, limit), GIVEN, max_new_tokens=NEW)


every_kind = pytest.mark.parametrize("family", ROTARY, ids=str)
PLAIN = {"method": "plain"}
CHAIN = {"method": "speculative", "num_speculative_tokens": 3}


def question(family: Family, letters: int, seed: int = 0) -> dict[str, Any]:
    """A prompt of about 20 tokens and as many as it has letters, in one row."""
    return inputs_of(family, [Conversation((Turn("", letters),), seed)], [[]], 1)


SHORT, MIDDLE, LONG = 10, 36, 90
"""Letters of prompts within the limit, some tokens before it, and beyond."""


def expected(family: Family, given: Any, new: int) -> list[int]:
    return answer_of_stock(target(family), given, max_new_tokens=new)[0]


@every_kind
def test_these_prompts_lie_on_both_sides(family: Family) -> None:
    short, middle, long = (lengths_of(question(family, n))[0] for n in (SHORT, MIDDLE, LONG))
    assert short + 20 < middle < LIMIT < middle + 12 < long


@every_kind
@pytest.mark.parametrize("seed", range(3))
def test_later_turns_that_exceed_the_limit(family: Family, seed: int) -> None:
    """Turns within it begin with stored keys, turns beyond read the whole."""
    models = models_of(family, None, PromptCache("1GB"))
    talk = Conversation((Turn("", 5), Turn("", 4), Turn("", 7), Turn("", 5)), seed)
    replies: list[str] = []
    cached = {False: 0, True: 0}
    for count in range(1, 5):
        given = inputs_of(family, [talk], [replies], count)
        result = answer(models, given, PLAIN, "", max_new_tokens=9)
        assert differing(models[0].model, given, result.tokens, max_new_tokens=9) is None
        cached[lengths_of(given)[0] > LIMIT] += result.stats.cached_tokens
        replies.append(reply(result.tokens[0]))
    assert cached[False] > 0
    assert cached[True] == 0


@every_kind
@pytest.mark.parametrize("more", [0, 1])
def test_a_prompt_at_the_limit(family: Family, more: int) -> None:
    """One that reaches it is stored and restored; a longer one is not."""
    backbone = models_of(family, None, PromptCache("1GB"))[0]
    [length] = lengths_of(question(family, MIDDLE))
    prompt = backbone.encode(backbone.prepare_prompt(question(family, MIDDLE)))
    further = torch.randint(1, 90, (1, LIMIT - length + more))
    prompt = replace(backbone.followed_by(prompt, further), namespace="")
    cached = []
    for _ in range(2):
        reading = PromptReading(backbone, prompt, backbone.new_cache(prompt, 1))
        reading.read()
        cached += reading.cached
    assert cached == [0, 0 if more else LIMIT - 1]


def session_of(family: Family, method: Any = None) -> Session:
    models = Models(Backbone(target(family)), Backbone(noisy(target(family))))
    models.target.prompt_cache = PromptCache("1GB")
    plan = from_dict(method or PLAIN).plan(models)
    return Session(models.target, plan, Clock(Stats()))


def add(session: Session, given: Any, new: int) -> Row:
    prepared = session.target.prepare(given, max_new_tokens=new, do_sample=False)
    return session.add(prepared, [0], given, {NAMESPACE: ""})[0]


@every_kind
@pytest.mark.parametrize("part", [7, 1000], ids=["in parts", "at once"])
@pytest.mark.parametrize("order", [(SHORT, LONG), (LONG, SHORT), (MIDDLE, SHORT), (LONG, LONG - 9)])
def test_rows_that_join(
    family: Family, order: Sequence[int], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row on the other side of the limit waits for the others, and also for one that crosses."""
    monkeypatch.setattr(PartSize, "within", lambda self, seconds: part)
    session = session_of(family)
    rows = []
    for number, letters in enumerate((*order, order[0])):
        given = question(family, letters, seed=number % 2)
        rows.append((add(session, given, 12), expected(family, given, 12)))
        step(session)
    while not session.done:
        step(session)
    for row, tokens in rows:
        assert row.tokens == tokens


def test_rows_beyond_the_limit_of_longrope_share_passes() -> None:
    family = BY_NAME["longrope"]
    session = session_of(family)
    rows = [add(session, question(family, letters), 12) for letters in (LONG, LONG + 5, SHORT)]
    session.start()
    assert [bool(row.tokens) for row in rows] == [True, True, False]
    assert session.holds_back
    while not session.done:
        step(session)
    assert session.stats.target_forwards == 2 * 11


@every_kind
def test_draft_tokens_end_with_the_answer_of_their_row(family: Family) -> None:
    """Also in a batch with longer answers, for which trees are deeper."""
    session = session_of(family, CHAIN)
    first, second = question(family, MIDDLE), question(family, SHORT)
    room = LIMIT - lengths_of(first)[0]
    rows = [(add(session, first, room), first, room), (add(session, second, 20), second, 20)]
    furthest = []
    forward = session.target.forward

    def watched(tokens: Any, positions: torch.Tensor, *args: Any) -> torch.Tensor:
        furthest.append(int(positions.max()))
        return forward(tokens, positions, *args)

    session.target.forward = watched  # type: ignore[method-assign]
    while not session.done:
        step(session)
    for row, given, new in rows:
        assert row.tokens == expected(family, given, new)
    assert max(furthest) < LIMIT


def questions(family: Family, *letters: int) -> dict[str, Any]:
    talks = [Conversation((Turn("", count),), seed) for seed, count in enumerate(letters)]
    return inputs_of(family, talks, [[] for _ in talks], 1)


def twice(given: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.cat([value, value]) for name, value in given.items()}


ANYWHERE: dict[str, Any] = {**PLAIN, "allow_long_prompt": True}


@every_kind
def test_rows_of_a_call(family: Family) -> None:
    """They are answered if all stay within the limit, are equally long, or, where two sets of
    frequencies are all there is, are all beyond."""
    model = target(family)
    calls = [
        (questions(family, SHORT, MIDDLE), 3),
        (twice(question(family, MIDDLE)), 15),
        (twice(question(family, LONG)), 9),
    ]
    if family.name == "longrope":
        calls.append((questions(family, LONG, LONG - 9), 9))
    for given, new in calls:
        found = draftlens.generate(model, given, **ANYWHERE, max_new_tokens=new)
        assert found.tokens == answer_of_stock(model, given, max_new_tokens=new)


@every_kind
@pytest.mark.parametrize("letters", [(SHORT, MIDDLE), (SHORT, LONG)])
def test_rows_of_a_call_that_would_change_each_other(
    family: Family, letters: Sequence[int]
) -> None:
    given = questions(family, *letters)
    shortest, *_, longest = sorted(lengths_of(given))
    with pytest.raises(
        InputError,
        match=f"have {shortest} to {longest} tokens, and beyond {LIMIT} the {family.name} rotary "
        "positions .* depend on the longest row: ask for each row in a call of its own",
    ):
        draftlens.generate(target(family), given, **ANYWHERE, max_new_tokens=15)


def test_a_call_after_a_longer_one() -> None:
    """Stock `generate` would have the frequencies of the longer one; both have those of a new
    model."""
    family = BY_NAME["dynamic"]
    model = target(family)
    long, longer = question(family, LONG), question(family, 2 * LONG)
    tokens = expected(family, long, 9)
    model.generate(**longer, do_sample=False, max_new_tokens=2)
    for given in (longer, long):
        found = draftlens.generate(model, given, **PLAIN, max_new_tokens=9)
        assert found.tokens == [expected(family, given, 9)]
    draftlens.generate(model, longer, **PLAIN, max_new_tokens=9)
    after = model.generate(**long, do_sample=False, max_new_tokens=9)
    assert after[0, long["input_ids"].shape[1] :].tolist() == tokens


@every_kind
def test_calls_of_two_threads(family: Family) -> None:
    prompts = [question(family, letters) for letters in (LONG, SHORT, 2 * LONG, MIDDLE)]
    tokens = [expected(family, given, 9) for given in prompts]

    def found(given: Any) -> list[int]:
        result = draftlens.generate(
            target(family), given, **PLAIN, max_new_tokens=9, allow_long_prompt=True
        )
        return result.tokens[0]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(found, prompts * 5)) == tokens * 5


@every_kind
def test_requests_of_a_scheduler(family: Family) -> None:
    """One on the other side of the limit has passes of its own meanwhile, each of its samples one
    after the other, and others are admitted."""
    long, short = question(family, MIDDLE), question(family, SHORT)
    tokens = {id(given): expected(family, given, 16) for given in (long, short)}
    scheduler = Scheduler(Models(Backbone(target(family)), None))
    heard: Queue[tuple[Job, Update]] = Queue()
    jobs: list[Job] = []
    ended: list[Job] = []
    try:
        for given, samples in ((short, 1), (long, 3), (short, 1)):
            request = Request(
                given, method=from_dict(PLAIN), options={"max_new_tokens": 16, "do_sample": False}
            )
            job = Job(request, print, samples=samples)
            job.notify = partial(_hear, heard, job)
            jobs.append(job)
            scheduler.submit(job)
        while len(ended) < len(jobs):
            job, update = heard.get(timeout=60)
            assert update.error is None
            if update.done:
                ended.append(job)
    finally:
        scheduler.close()
    assert ended == [jobs[0], jobs[2], jobs[1]]
    for job in jobs:
        for sequence in job.sequences:
            assert sequence.tokens == tokens[id(job.request.inputs)]


def _hear(heard: Queue[tuple[Job, Update]], job: Job, update: Update) -> None:
    heard.put((job, update))


def test_a_model_that_reads_its_prompt_again_beyond_the_limit() -> None:
    """Phi models do where an answer exceeds it."""
    rope = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "rope_theta": 1e4,
        "factor": 2.0,
    }
    config = hf.Phi3Config(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=400,
        original_max_position_embeddings=30,
        rope_parameters=rope,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    model = hf.Phi3ForCausalLM(config).eval()
    ids = torch.randint(1, 100, (1, 35))
    for first in (0, 10):
        part = ids[:, first:]
        given = {"input_ids": part, "attention_mask": torch.ones_like(part)}
        new = 9 if first == 0 else 5  # all of it beyond, or within
        found = draftlens.generate(model, given, **PLAIN, max_new_tokens=new)
        assert found.tokens == stock(model, given, max_new_tokens=new)
    with pytest.raises(InputError, match="beyond 30 Phi3ForCausalLM reads the prompt again"):
        draftlens.generate(model, given, **PLAIN, max_new_tokens=9)
