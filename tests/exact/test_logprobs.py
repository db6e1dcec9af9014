"""Log probabilities are those of stock `generate`: `output_logits` of every token, and
`output_scores` where they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs, tokenizer
from forcing import check_row, stock_logits
from fuzzing import scripted_workers
from pass_engines import copied
from rotary import renewed
from stock import LONG, METHODS, NEW, Divisible, answers, draft, reference, staggered, target
from stock_families import PLAIN, StockFamily, model_of, prompts
from test_hsd import tolerated
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper

import draftlens
from draftlens.core import logprobs as measuring
from draftlens.decoding import plan as acceptance
from draftlens.methods.base import METHODS as NAMES

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
ONEVISION = next(family for family in FAMILIES if family.name == "llava_onevision")
PROCESSED: Mapping[str, Any] = {
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 2,
    "suppress_tokens": [5, 6, 7],
}
TOP = 5


def check(result: draftlens.Result, logits: Tensor, top: int = TOP) -> None:
    for entries, tokens, scores in zip(result.logprobs, result.tokens, logits, strict=True):
        check_row(entries, tokens, scores, top)


@cache
def stock_outputs(family: Family) -> tuple[list[list[int]], Tensor, Tensor]:
    """The answers of stock `generate` to a ragged batch with processors, and its logits and scores
    ``[B, T, V]``."""
    given = inputs(family, family.richest)
    output = renewed(target(family)).generate(
        **given,
        **PROCESSED,
        max_new_tokens=NEW,
        do_sample=False,
        output_logits=True,
        output_scores=True,
        return_dict_in_generate=True,
    )
    rows = answers(target(family), given, output.sequences)
    return rows, torch.stack(output.logits, 1), torch.stack(output.scores, 1)


@pytest.mark.pairwise
@every_family
@pytest.mark.parametrize("method", ["chain5", "eagle", "odd"])
@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_ragged_batches(family: Family, method: str, kind: str) -> None:
    """Three rows, and a draft that agrees in part."""
    rows, logits, scores = stock_outputs(family)
    result = draftlens.generate(
        target(family),
        inputs(family, family.richest),
        draft=draft(family),
        method=METHODS[method],
        max_new_tokens=NEW,
        logprobs=True if kind == "raw" else kind,
        top_logprobs=TOP,
        **PROCESSED,
    )
    assert result.tokens == rows
    assert 0 < result.stats.accepted < result.stats.drafted
    check(result, logits if kind == "raw" else scores)


@pytest.mark.pairwise
@every_family
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_drawn_tokens(family: Family, rule: str, kind: str) -> None:
    """Raw log probabilities are those before the temperature."""
    given = inputs(family, family.richest)
    result = draftlens.generate(
        target(family),
        given,
        draft=draft(family),
        method={"num_speculative_tokens": 4, "sampling_rule": rule},
        max_new_tokens=NEW,
        do_sample=True,
        seed=9,
        temperature=0.7,
        top_k=9,
        logprobs=kind,
        top_logprobs=TOP,
    )
    assert result.stats.accepted > 0
    logits = stock_logits(target(family), given, result.tokens)
    if kind == "processed":
        shape = logits.shape
        flat = TemperatureLogitsWarper(0.7)(None, logits.flatten(0, 1))
        logits = TopKLogitsWarper(9)(None, flat).view(shape)
    check(result, logits)


@every_family
def test_answers_that_end_within_an_accepted_run(family: Family) -> None:
    """Two rows end early. Each chunk has an entry for each of its tokens, none after an end."""
    given, kind = inputs(family, family.richest), family.richest
    ends = staggered(reference(family, kind, LONG))
    stream = draftlens.stream(
        target(family),
        given,
        draft=target(family),
        method=METHODS["chain5"],
        max_new_tokens=LONG,
        eos_token_id=ends,
        logprobs=True,
        top_logprobs=TOP,
    )
    gained: list[list[Any]] = [[], [], []]
    for chunk in stream:
        assert [entry.token for entry in chunk.logprobs] == list(chunk.tokens)
        gained[chunk.row] += chunk.logprobs
    result = stream.result
    assert result.logprobs == gained
    assert sorted(map(len, result.tokens))[-1] == LONG
    assert result.stats.passes < result.stats.emitted / 3
    check(result, stock_logits(target(family), given, result.tokens))


def test_rows_in_step() -> None:
    """Tokens of a verdict that a row does not emit yet have no entries."""
    given = inputs(ONEVISION, ONEVISION.richest)
    result = draftlens.generate(
        target(ONEVISION),
        given,
        draft=draft(ONEVISION),
        max_new_tokens=NEW,
        stopping_criteria=[Divisible(given["input_ids"].shape[1])],
        logprobs=True,
    )
    check(result, stock_logits(target(ONEVISION), given, result.tokens), top=0)


OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in NAMES},
    "specvlm, self": {"method": "specvlm", "draft": "self"},
    "speculative, parallel": {"method": "speculative", "schedule": "parallel"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_method(name: str) -> None:
    given = inputs(ONEVISION, ONEVISION.richest)
    call: dict[str, Any] = {"max_new_tokens": NEW, "logprobs": True, "top_logprobs": TOP}
    if name == "hsd":
        call["references"] = [[row] for row in reference(ONEVISION, ONEVISION.richest)]
        call["tokenizer"] = tokenizer()
    with scripted_workers(1):
        result = draftlens.generate(
            target(ONEVISION), given, draft=draft(ONEVISION), method=OPTIONS[name], **call
        )
    check(result, stock_logits(target(ONEVISION), given, result.tokens))


def test_tolerated_tokens_have_their_own() -> None:
    """Such a token is not the likeliest in its place."""
    family = FAMILIES[0]
    result = tolerated(family, 0.3, logprobs=True, top_logprobs=TOP)
    given = inputs(family, family.richest)
    check(result, stock_logits(target(family), given, result.tokens))
    others = [e for row in result.logprobs for e in row if e.token != e.top[0].token]
    assert len(others) == result.stats.tolerated > 0


@pytest.mark.parametrize("prefill", ["ring", "spava"])
def test_prompts_that_are_read_otherwise(prefill: str) -> None:
    """The first token has its entry, too."""
    given = inputs(ONEVISION, "video")
    options: dict[str, Any] = {"prefill": prefill, "max_new_tokens": NEW, "logprobs": True}
    plain = draftlens.generate(target(ONEVISION), given, method="plain", **options)
    result = draftlens.generate(target(ONEVISION), given, draft=draft(ONEVISION), **options)
    assert result.tokens == plain.tokens
    for row, others in zip(result.logprobs, plain.logprobs, strict=True):
        ours = [entry.logprob for entry in row]
        assert ours == pytest.approx([entry.logprob for entry in others], abs=1e-4)
    if prefill == "ring":
        check(result, stock_logits(target(ONEVISION), given, result.tokens), top=0)


@pytest.mark.parametrize("family", [PLAIN[0], PLAIN[-1]], ids=str)
def test_models_that_are_decoded_by_stock(family: StockFamily) -> None:
    model, given = model_of(family), prompts(family, (19, 12), bool(family.tokens))
    result = draftlens.generate(model, given, max_new_tokens=NEW, logprobs=True, top_logprobs=TOP)
    check(result, stock_logits(model, given, result.tokens))


def test_passes_by_openvino() -> None:
    pytest.importorskip("openvino")
    given = inputs(ONEVISION, ONEVISION.richest)
    result = draftlens.generate(
        copied(target(ONEVISION)),  # later calls keep what ran once
        given,
        draft=copied(draft(ONEVISION)),
        method=METHODS["eagle"],
        compile="openvino",
        max_new_tokens=NEW,
        logprobs=True,
        top_logprobs=TOP,
    )
    check(result, stock_logits(target(ONEVISION), given, result.tokens))


def test_only_the_choices_of_verdicts_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those at other nodes of a tree, and nothing where nothing is asked for."""
    places: list[int] = []
    measure = measuring._measure

    def counted(scores: Tensor, at: Any, top: int) -> Any:
        places.append(len(at))
        return measure(scores, at, top)

    monkeypatch.setattr(measuring, "_measure", counted)
    call = {"draft": draft(ONEVISION), "method": METHODS["eagle"], "max_new_tokens": NEW}
    given = inputs(ONEVISION, ONEVISION.richest)
    result = draftlens.generate(target(ONEVISION), given, logprobs=True, **call)
    assert len(places) == result.stats.target_forwards + 1
    behind_the_ends = sum(places) - result.stats.emitted
    assert 0 <= behind_the_ends <= 3 * 6

    def refused(*arguments: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(acceptance, "logprobs_of", refused)
    silent = draftlens.generate(target(ONEVISION), given, **call)
    assert silent.tokens == result.tokens
    assert silent.logprobs == []


def test_few_likely_tokens_are_the_first_of_many() -> None:
    """No number of them, and false, are the defaults."""
    given = inputs(ONEVISION, "text")
    call: dict[str, Any] = {"method": "plain", "max_new_tokens": 4}
    rows = [
        draftlens.generate(
            target(ONEVISION), given, logprobs=True, top_logprobs=top, **call
        ).logprobs[1]
        for top in (None, 0, 3, 20)
    ]
    for fewer, more in pairwise(rows):
        for one, other in zip(fewer, more, strict=True):
            assert one.logprob == other.logprob
            assert one.top == other.top[: len(one.top)]
    assert [len(row[0].top) for row in rows] == [0, 0, 3, 20]
    for off in (None, False):
        result = draftlens.generate(target(ONEVISION), given, logprobs=off, **call)
        assert result.logprobs == []


def test_likely_tokens_need_log_probabilities() -> None:
    for options in ({"top_logprobs": 1}, {"top_logprobs": 1, "logprobs": False}):
        with pytest.raises(draftlens.ConfigError, match="top_logprobs need logprobs=True"):
            draftlens.generate(target(ONEVISION), inputs(ONEVISION, "text"), **options)


def test_texts_of_tokens() -> None:
    given = inputs(ONEVISION, "text")
    options: dict[str, Any] = {"max_new_tokens": 4, "logprobs": True, "top_logprobs": 2}
    silent = draftlens.generate(target(ONEVISION), given, **options)
    assert not any(entry.text for row in silent.logprobs for entry in row)
    stream = draftlens.stream(target(ONEVISION), given, tokenizer=tokenizer(), **options)
    chunks = list(stream)
    for row, text in enumerate(stream.result.texts):
        entries = stream.result.logprobs[row]
        assert "".join(entry.text for entry in entries) == text
        assert all(other.text for entry in entries for other in entry.top)
        assert entries == [e for chunk in chunks if chunk.row == row for e in chunk.logprobs]
