"""Random calls of the library, and what each of them must return.

A case is made of plain values alone, so that its `repr` is the code that makes it again. What
depends on an answer of stock `generate`, such as an end-of-sequence id, is named by a place in it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from queue import Queue
from typing import Any
from unittest.mock import patch

import pytest
import torch
from compiling import attach_static
from conversations import answer_of_stock, recorded_leads
from families import FAMILIES, PLANS, SPECIAL, VOCAB, inputs, tokenizer
from forcing import check_row, stock_logits
from forming import FormText, StockForm, form_of_text, processor_of
from hypothesis import event
from hypothesis import strategies as st
from language_models import language_part
from links import ScriptedLink
from made_families import MADE, has_own_keys, is_static, takes_trees
from retokenizing import KINDS as RETOKENIZED
from retokenizing import other_inputs, retokenized
from rotary import NAMES as ROTARY_NAMES
from rotary import ROTARY, is_refused, lengths_of, renewed
from stock import LONG, NEAR_TIE, Divisible, answers, noisy, target
from transformers import StoppingCriteria, StopStringCriteria

import draftlens
from draftlens.core.errors import DraftlensError, InputError
from draftlens.core.logprobs import record_logprobs
from draftlens.core.result import Result, TokenLogprob
from draftlens.core.sampling import row_seeds
from draftlens.core.sequence import Sequence
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import EAGLE_PATHS, DraftTree
from draftlens.decoding.admission import NAMESPACE, PartSize
from draftlens.decoding.plan import ExtraSource, Plan
from draftlens.decoding.session import Session
from draftlens.documents.reading.formats.notation import WITH_MARKDOWN
from draftlens.drafting.adaptive.controller import TreeController
from draftlens.drafting.draft_rows import DraftRows
from draftlens.drafting.retokenized import RetokenizedDrafter
from draftlens.methods.base import METHODS, Models, from_dict, resolve, to_dict, with_prefill
from draftlens.methods.mixed.drafter import LookAllowance, MixedDrafter
from draftlens.methods.tabed.weights import WEIGHTS
from draftlens.models.adapter import Backbone
from draftlens.models.prompt_cache import PromptCache
from draftlens.pruning import PRUNERS
from draftlens.request import Request, read_extras
from draftlens.scheduling import Job, Scheduler, Update

BY_NAME = {family.name: family for family in (*FAMILIES, *ROTARY, *MADE)}
ALL = tuple(family.name for family in FAMILIES)
MADE_NAMES = tuple(family.name for family in MADE)
STATIC = 7
"""Of so many scripts one lets the models run static passes (`compiling`)."""
LOGGED = 3
"""Of so many scripts one asks for log probabilities."""
NEVER = VOCAB
"""An end-of-sequence id that no model says; with it stock `generate` pads rows that have ended."""

Pairs = tuple[tuple[str, Any], ...]
"""A mapping that can be a key."""
Place = tuple[int, int]
"""A row of a plan and a step of its answer."""


class FirstRow(StoppingCriteria):
    """Reads row 0 alone: ends all rows, or that row alone, at its first token that 5 divides."""

    def __init__(self, prompt_length: int, ends_all: bool) -> None:
        self.prompt_length = prompt_length
        self.ends_all = ends_all

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """One truth per row."""
        ends = bool(input_ids[0, -1] % 5 == 0) and input_ids.shape[1] > self.prompt_length + 2
        met = torch.zeros(len(input_ids), dtype=torch.bool)
        met[: len(met) if self.ends_all else 1] = ends
        return met


CRITERIA = {
    "rows": Divisible,
    "scalar": lambda length: Divisible(length, as_bool=True),
    "first row": lambda length: FirstRow(length, ends_all=False),
    "all by the first row": lambda length: FirstRow(length, ends_all=True),
}


@dataclass(frozen=True)
class Prompts:
    """A batch of prompts.

    Attributes:
        family, kind: of `families`.
        rows: rows of the plan.
        side: where the inputs are padded.
    """

    family: str
    kind: str
    rows: tuple[int, ...]
    side: str = "left"

    @property
    def target(self) -> Any:
        """The model that answers."""
        return target(BY_NAME[self.family])

    @property
    def inputs(self) -> dict[str, Any]:
        """The processor's output."""
        return cached_inputs(self.family, self.kind, self.rows, self.side)

    def is_refused(self, method: Mapping[str, Any] | None, new: int) -> bool:
        """Whether rows, or draft tokens of a method, would change each other's frequencies."""
        drafts = method is None or method.get("method") != "plain"
        return is_refused(self.family, lengths_of(self.inputs), new, drafts)

    @property
    def length(self) -> int:
        """Tokens of the longest prompt."""
        return int(self.inputs["input_ids"].shape[1])

    def token(self, place: Place) -> int:
        """A token of the answer that stock `generate` gives without options."""
        row, step = place
        return answers_of_plan(self.family, self.kind)[row][step]


@cache
def cached_inputs(family: str, kind: str, rows: tuple[int, ...], side: str) -> dict[str, Any]:
    """The output of the family's processor."""
    return inputs(BY_NAME[family], kind, rows, side)


@dataclass(frozen=True)
class Options:
    """Options of `generate`.

    Attributes:
        new: most new tokens.
        as_length: whether they are given as `max_length`.
        eos: places of end-of-sequence tokens; with `NO_PLACE` the id that no model says.
        repetition_penalty, no_repeat_ngram_size, min_new_tokens: as in `generate`.
        bad_words, suppressed: places of tokens; a bad word goes on to the next token if it can.
        stop: place where a stop string lies across two tokens.
        criterion: a name of `CRITERIA`.
        nones: options that are given as None.
        temperature, top_k, top_p: of sampling; greedy if there is no temperature.
        form: what the answers look like; they end with the tokenizer's end of a sequence, too.
    """

    new: int
    as_length: bool = False
    eos: tuple[Place, ...] = ()
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    min_new_tokens: int | None = None
    bad_words: tuple[Place, ...] = ()
    suppressed: tuple[Place, ...] = ()
    stop: Place | None = None
    criterion: str | None = None
    nones: tuple[str, ...] = ()
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    form: FormText | None = None

    def of_generate(self, prompts: Prompts, form: str = "stock") -> dict[str, Any]:
        """Keyword arguments of `generate`, with criteria of their own. The form is an `option` of
        the library, its `processor`, or that of the tests for `stock`."""
        options: dict[str, Any] = dict.fromkeys(self.nones)
        if self.as_length:
            options["max_length"] = prompts.length + self.new
        else:
            options["max_new_tokens"] = self.new
        for name in PASSED_ON:
            if getattr(self, name) is not None:
                options[name] = getattr(self, name)
        options["do_sample"] = self.temperature is not None
        ends = [NEVER if place == NO_PLACE else prompts.token(place) for place in self.eos]
        if self.form is not None:
            ends = [end for end in ends if end != NEVER] + [tokenizer().eos_token_id]
        if self.form is not None and form == "option":
            options |= {"form": form_of_text(self.form), "tokenizer": tokenizer()}
        elif self.form is not None:
            stock = StockForm(form_of_text(self.form).grammar, prompts.length, ends)
            options["logits_processor"] = [stock if form == "stock" else processor_of(self.form)]
        if ends:
            options["eos_token_id"] = ends[0] if len(ends) == 1 else ends
        if self.suppressed:
            options["suppress_tokens"] = [prompts.token(place) for place in self.suppressed]
        if self.bad_words:
            options["bad_words_ids"] = [bad_word(prompts, place) for place in self.bad_words]
        criteria = []
        if self.criterion is not None:
            criteria.append(CRITERIA[self.criterion](prompts.length))
        if self.stop is not None:
            criteria.append(StopStringCriteria(tokenizer(), stop_string(prompts, self.stop)))
        if criteria:
            options["stopping_criteria"] = criteria
        return options


PASSED_ON = (
    *("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens"),
    *("temperature", "top_k", "top_p"),
)
NO_PLACE = (-1, -1)


@cache
def answers_of_plan(family: str, kind: str) -> list[list[int]]:
    """What stock `generate` answers to all rows of a plan, near-ties included."""
    given = cached_inputs(family, kind, tuple(range(len(PLANS[kind]))), "left")
    return answer_of_stock(target(BY_NAME[family]), given, max_new_tokens=LONG)


def bad_word(prompts: Prompts, place: Place) -> list[int]:
    """Two tokens that follow each other in an answer, or one at an odd step."""
    row, step = place
    if step % 2 or step + 1 == LONG:
        return [prompts.token(place)]
    return [prompts.token(place), prompts.token((row, step + 1))]


def stop_string(prompts: Prompts, place: Place) -> str:
    """The last character of a token and the first of the next, or less where a token has none."""
    row, step = place
    before, behind = (
        tokenizer().decode([prompts.token((row, at))]) for at in (max(step - 1, 0), step)
    )
    return (before[-1:] + behind[:1]) or "a"


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        prompts: the batch.
        draft: `self`, `random`, `words` (the target's language model, with noise), `shuffled` or
            `letters` (the same with another tokenizer: `retokenizing`), another family, the amount
            of noise on the target's weights, or None.
        draft_side: where the draft's inputs are padded; None gives it none of its own.
        method: its options, as pairs.
        options: of `generate`.
        entry: `generate`, `stream` or `custom_generate`.
        seeds: of the rows, if tokens are drawn.
        script: seed of who moves when, with a draft in a worker of its own. One in `STATIC` lets
            forwards run as the static passes that are compiled elsewhere, and one in `LOGGED` asks
            for log probabilities.
        references: a name of `REFERENCES`, or None for none. Other methods than those that draft
            from texts get none.
        prefill: how the target reads the prompts, as pairs; None for the method's own way.
    """

    prompts: Prompts
    draft: str | float | None
    draft_side: str | None
    method: Pairs | None
    options: Options
    entry: str = "generate"
    seeds: tuple[int, ...] | None = None
    script: int = 0
    references: str | None = None
    prefill: Pairs | None = None

    @property
    def plain(self) -> Case:
        """The same by plain decoding on the same prefill."""
        return replace(
            self,
            draft=None,
            draft_side=None,
            method=(("method", "plain"),),
            entry="generate",
            script=0,
            references=None,
        )

    @property
    def top_logprobs(self) -> int | None:
        """How many of the likeliest tokens are asked for; None if no log probabilities are."""
        asks = self.entry != "custom_generate" and self.script % LOGGED == 1
        return self.script % 5 if asks else None

    @property
    def answering(self) -> Mapping[str, Any]:
        """The method and its options, by name where the call leaves the choice to the models."""
        if self.method_options is not None:
            return self.method_options
        if self.draft is None:
            return {"method": "plain" if self.prompts.family in ROTARY_NAMES else "lookup"}
        return {"method": "speculative" if self.draft in RETOKENIZED else "mixed"}

    @property
    def method_options(self) -> dict[str, Any] | None:
        """The method as a caller gives it."""
        return None if self.method is None else thawed(self.method)

    @property
    def draft_model(self) -> Any:
        """The draft that a caller gives."""
        return draft_of(self.prompts.family, self.draft)

    @property
    def draft_inputs(self) -> dict[str, Any] | None:
        """The draft's own inputs, with those of views that the caller makes."""
        if self.draft in RETOKENIZED:
            side = self.draft_side or self.prompts.side
            return other_inputs(
                BY_NAME[self.prompts.family], replace(self.prompts, side=side).inputs
            )
        if self.draft in BY_NAME:
            return inputs_by(str(self.draft), self.prompts)
        if self.draft_side is None and not reads_captions(self.method_options):
            return None
        side = self.draft_side or self.prompts.side
        return with_captions(replace(self.prompts, side=side), self.method_options)

    def run(self) -> Result:
        """One call of the library."""
        static = patch("draftlens.request.attach_for_call", attach_static)
        with scripted_workers(self.script), scripted_turns(self.script), static:
            return self._run()

    def _run(self) -> Result:
        given = self.prompts.inputs
        form = "processor" if self.entry == "custom_generate" else "option"
        options = self.options.of_generate(self.prompts, form)
        draft_inputs = self.draft_inputs
        call: dict[str, Any] = {
            "method": self.method_options,
            "seed": self.seeds,
            "prefill": None if self.prefill is None else thawed(self.prefill),
            "compile": self.script % STATIC == STATIC - 1
            and self.prompts.family not in ROTARY_NAMES
            and is_static(BY_NAME[self.prompts.family])
            and (self.draft not in BY_NAME or is_static(BY_NAME[str(self.draft)])),
        }
        if self.references is not None and takes_references(self.answering):
            call["references"] = references_of(self.prompts, self.references)
            call["tokenizer"] = tokenizer()
        if self.entry == "custom_generate":
            if draft_inputs is None and self.prompts.kind != "text" and self.draft != "words":
                draft_inputs = given  # the draft cannot read what `generate` has encoded
            custom = draftlens.SpeculativeGenerate(self.draft_model, draft_inputs, **call)
            ids = self.prompts.target.generate(**given, **options, custom_generate=custom)
            assert custom.last is not None
            self._check_tensor(ids, custom.last)
            return custom.last
        if self.top_logprobs is not None:
            options |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        call = {**call, "draft": self.draft_model, "draft_inputs": draft_inputs, **options}
        if self.entry == "generate":
            return draftlens.generate(self.prompts.target, given, **call)
        stream = draftlens.stream(self.prompts.target, given, **call)
        watch_depth(stream.session)
        rows: list[list[int]] = [[] for _ in self.prompts.rows]
        logprobs: list[list[TokenLogprob]] = [[] for _ in self.prompts.rows]
        for chunk in stream:
            rows[chunk.row] += chunk.tokens
            logprobs[chunk.row] += chunk.logprobs
            check_caches(stream.session)
        assert rows == stream.result.tokens
        assert stream.result.logprobs == ([] if self.top_logprobs is None else logprobs)
        return stream.result

    def _check_tensor(self, ids: torch.Tensor, result: Result) -> None:
        """The returned tensor holds the prompt and the rows of the result, padded behind."""
        assert torch.equal(ids[:, : self.prompts.length], self.prompts.inputs["input_ids"])
        pad = tokenizer().pad_token_id
        longest = max(map(len, result.tokens))
        padded = [row + [pad] * (longest - len(row)) for row in result.tokens]
        assert ids[:, self.prompts.length :].tolist() == padded


def drafts_from_texts(method: Mapping[str, Any] | None) -> bool:
    """Whether a method looks answers up in texts."""
    return method is not None and method.get("method") in ("lookup", "hsd")


def takes_references(method: Mapping[str, Any] | None) -> bool:
    """Whether a call with a method may have references."""
    return drafts_from_texts(method) or is_mixed(method)


def is_mixed(method: Mapping[str, Any] | None) -> bool:
    """Whether two drafters take turns."""
    return method is not None and method.get("method") == "mixed"


@contextmanager
def scripted_turns(script: int) -> Iterator[None]:
    """A context in which the drafters of method `mixed` take turns, follow each other and look for
    copies at random."""
    rng = random.Random(script)

    def copies(self: MixedDrafter, expected: Any, batch: Any, budget: int) -> bool:
        return expected is not None and rng.random() < 0.5

    def further(self: TreeController, chances: Any) -> tuple[int, float]:
        return rng.randint(0, max(map(len, chances), default=0)), 0.0

    with (
        patch.object(MixedDrafter, "_copying_is_faster", copies),
        patch.object(TreeController, "further", further),
        patch.object(LookAllowance, "is_left", property(lambda self: rng.random() < 0.8)),
    ):
        yield


def reads_captions(method: Mapping[str, Any] | None) -> bool:
    """Whether a view of a method is made of captions."""
    return method is not None and "caption" in method.get("views", ())


def with_captions(prompts: Prompts, method: Mapping[str, Any] | None) -> dict[str, Any]:
    """The inputs of a draft, with words for its view of captions if it has one."""
    if not reads_captions(method):
        return prompts.inputs
    words = cached_inputs(prompts.family, "text", prompts.rows, prompts.side)
    return {**prompts.inputs, "views": {"caption": words}}


def inputs_by(family: str, prompts: Prompts) -> dict[str, Any]:
    """The inputs of a draft of another family: of the same kind, or words if it has none."""
    kind = prompts.kind if prompts.kind in BY_NAME[family].kinds else "text"
    return cached_inputs(family, kind, prompts.rows, prompts.side)


def is_exact(prefill: Pairs | None) -> bool:
    """Whether a prompt that is read so has the tokens of stock `generate`."""
    options = dict(prefill or ())
    passes_all = options.get("passing") == "n/1"
    return options.get("name", "full") in ("full", "ring") or passes_all


def references_of(prompts: Prompts, kind: str) -> list[list[Any]]:
    """The references of each row, made of the answers that stock `generate` gives without
    options."""
    whole = answers_of_plan(prompts.family, prompts.kind)
    return [REFERENCES[kind](whole, row) for row in prompts.rows]


def edited(tokens: list[int], every: int) -> list[int]:
    """Tokens of which some are wrong, are missing or stand there twice."""
    text: list[int] = []
    for place, token in enumerate(tokens, 1):
        choices = ([(token + place) % 90], [], [token, token])
        text += [token] if place % every else choices[place // every % 3]
    return text


def in_pieces(tokens: list[int]) -> list[Any]:
    """Texts and ids in another order."""
    parts = [tokens[start : start + 7] for start in range(0, len(tokens), 7)]
    return [tokenizer().decode(part) if len(part) % 2 else part for part in reversed(parts)]


def in_cells(tokens: list[int]) -> list[str]:
    """A table in two notations; its rows have different lengths."""
    cells = [tokenizer().decode(tokens[start : start + 4]) for start in range(0, len(tokens), 4)]
    return WITH_MARKDOWN.tables([cells[:3], cells[3:4], cells[4:] or [""]])


def of_earlier_pages(rows: list[list[int]], row: int) -> list[Any]:
    """A text of the page itself, and answers that it repeats in part."""
    return [tokenizer().decode(rows[row][:9]), *(edited(other, 4) for other in rows)]


REFERENCES: Mapping[str, Any] = {
    "right": lambda rows, row: [rows[row]],
    "right text": lambda rows, row: [tokenizer().decode(rows[row])],
    "edited": lambda rows, row: [edited(rows[row], 5), edited(rows[row], 8)],
    "edited text": lambda rows, row: [tokenizer().decode(edited(rows[row], 6))],
    "in pieces": lambda rows, row: in_pieces(rows[row]),
    "of another row": lambda rows, row: [rows[row - 1]],
    "of some rows": lambda rows, row: [rows[row]] if row % 2 else [],
    "table": lambda rows, row: in_cells(rows[row]),
    "formula": lambda rows, row: WITH_MARKDOWN.formulas(tokenizer().decode(rows[row][2:])),
    "earlier pages": of_earlier_pages,
    "nonsense": lambda rows, row: ["", [VOCAB, -1, 10**6], "".join(SPECIAL), rows[row][3:]],
}
"""References of a row by their kind."""


def scripted_workers(script: int) -> AbstractContextManager[Any]:
    """Draft workers run in the same thread; a script says who moves
    when."""

    def link_of(drafting: Backbone) -> ScriptedLink:
        return ScriptedLink(drafting, script)

    return patch("draftlens.methods.parallelvlm.drafters.link_of", link_of)


def thawed(value: Any) -> Any:
    """Pairs as a mapping and other tuples as lists, all the way down."""
    if not isinstance(value, tuple):
        return value
    if value and all(is_pair(part) for part in value):
        return {key: thawed(part) for key, part in value}
    return [thawed(part) for part in value]


def is_pair(value: Any) -> bool:
    """Whether it is the name of an option and its value."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


@cache
def draft_of(family: str, draft: str | float | None) -> Any:
    """A draft model of the family."""
    if draft is None:
        return None
    if draft == "random":
        return BY_NAME[family].build(seed=7)
    if draft in BY_NAME:
        return target(BY_NAME[str(draft)])
    model = target(BY_NAME[family])
    if draft == "words":
        return language_part(noisy(model, 0.02))
    if draft in RETOKENIZED:
        return retokenized(BY_NAME[family], str(draft))
    return model if draft == "self" else noisy(model, float(draft))


@dataclass(frozen=True)
class Expected:
    """What stock `generate` returns.

    Attributes:
        sequences: the whole tensor.
        rows: new tokens of each row.
        gaps: how far the best score lies above the second best, ``[B, T]``.
    """

    sequences: torch.Tensor
    rows: list[list[int]]
    gaps: torch.Tensor


@cache
def expected(prompts: Prompts, options: Options) -> Expected:
    """The answer of stock `generate`, which needs its padding on the left."""
    model = renewed(prompts.target)
    given = replace(prompts, side="left").inputs
    of_generate = options.of_generate(prompts)
    output = model.generate(
        **given, **of_generate, return_dict_in_generate=True, output_scores=True
    )
    best = torch.stack(output.scores, 1).topk(2).values
    rows = answers(model, given, output.sequences, **of_generate)
    return Expected(output.sequences, rows, best[..., 0] - best[..., 1])


def first_difference(ours: list[list[int]], others: list[list[int]]) -> Place | None:
    """Row and step of the first token that only one of two answers has; the earliest step counts,
    since rows can depend on each other."""
    places = []
    for row, (one, other) in enumerate(zip(ours, others, strict=True)):
        if one != other:
            same = (a == b for a, b in zip(one, other, strict=False))
            places.append((next((i for i, equal in enumerate(same) if not equal), None), row))
    lengths = [min(len(one), len(other)) for one, other in zip(ours, others, strict=True)]
    steps = [(lengths[row] if step is None else step, row) for step, row in places]
    return None if not steps else (min(steps)[1], min(steps)[0])


def is_near_tie(ours: list[list[int]], stock: Expected) -> bool:
    """Whether the first difference lies where stock's two best scores are almost equal."""
    place = first_difference(ours, stock.rows)
    if place is None:
        return False
    row, step = place
    return step < stock.gaps.shape[1] and bool(stock.gaps[row, step] < NEAR_TIE)


def expected_of(case: Case) -> Expected:
    """The answer of stock `generate`, or of plain decoding where the prompt is read by
    approximation."""
    if is_exact(case.prefill):
        return expected(replace(case.prompts, side="left"), case.options)
    plain = drawn(case.plain)
    sequences = torch.tensor(rebuilt(case, plain.tokens))
    return Expected(sequences, plain.tokens, torch.tensor(plain.gaps).T)


def check_approximations(case: Case, result: Result) -> None:
    """A result names what is approximate, and speculation adds nothing to it."""
    assert result.lossless is not bool(result.approximate)
    if dict(case.prefill or ()).get("name", "full") in ("full", "ring"):
        assert not result.approximate
    else:
        assert result.approximate == drawn(case.plain).approximate
    if result.lossless and not is_exact(case.prefill) and case.options.temperature is None:
        stock = expected(replace(case.prompts, side="left"), case.options)
        assert result.tokens == stock.rows or is_near_tie(result.tokens, stock)


def check_greedy(case: Case) -> None:
    """The tokens of stock `generate`, and counters that agree with them."""
    if must_refuse(case):
        return
    stock = expected_of(case)
    result = case.run()
    check_logprobs(case, result)
    if is_near_tie(result.tokens, stock):
        event("near tie")
        return
    assert result.tokens == stock.rows
    if case.entry == "custom_generate":
        assert rebuilt(case, result.tokens) == stock.sequences.tolist()
    check_approximations(case, result)
    check_counters(case, result)
    length = min(stock.gaps.shape[1], max(map(len, stock.rows)))
    if result.stats.accepted:
        event("draft tokens are accepted")
    certain = is_always_right(case) and not is_automatic(case) and not runs_ahead(case)
    if result.stats.accepted and drafts_from_texts(case.answering):
        event("draft tokens from texts are accepted")
    if certain and bool(stock.gaps[:, :length].min() > NEAR_TIE):
        check_passes(case, result)


def check_logprobs(case: Case, result: Result) -> None:
    """Log probabilities are those of stock `generate`, for any tokens that were said."""
    if case.top_logprobs is None or not is_exact(case.prefill):
        assert bool(result.logprobs) is (case.top_logprobs is not None)
        return
    check_entries(case.prompts, result.tokens, result.logprobs, case.top_logprobs)


def check_entries(
    prompts: Prompts,
    tokens: list[list[int]],
    logprobs: list[list[TokenLogprob]],
    top: int,
) -> None:
    event("log probabilities")
    logits = stock_logits(prompts.target, replace(prompts, side="left").inputs, tokens)
    for entries, row, scores in zip(logprobs, tokens, logits, strict=True):
        check_row(entries, row, scores, top)


def must_refuse(case: Case) -> bool:
    """Whether the call is one of rotary frequencies that may not be answered; then it is not."""
    method = case.answering
    if not case.prompts.is_refused(method, case.options.new):
        return False
    event("refused")
    with pytest.raises(InputError, match="rotary positions"):
        case.run()
    return True


def rebuilt(case: Case, tokens: list[list[int]]) -> list[list[int]]:
    """The tensor of `generate`, from the rows of a result."""
    longest = max(map(len, tokens))
    pad = tokenizer().pad_token_id
    prompts = case.prompts.inputs["input_ids"].tolist()
    return [
        prompt + row + [pad] * (longest - len(row))
        for prompt, row in zip(prompts, tokens, strict=True)
    ]


def check_counters(case: Case, result: Result) -> None:
    """The statistics fit the tokens and each other."""
    stats = result.stats
    num_rows = len(result.tokens)
    assert stats.emitted == sum(map(len, result.tokens))
    assert stats.first == num_rows
    assert [len(row) for row in result.from_draft] == [len(row) for row in result.tokens]
    assert stats.accepted == sum(map(sum, result.from_draft))
    assert stats.accepted <= stats.drafted
    assert sum(stats.accepted_by_depth.values()) == stats.passes
    depths = stats.accepted_by_depth.items()
    assert sum(depth * count for depth, count in depths) == stats.accepted
    without_bonus = stats.first + stats.passes + stats.accepted - stats.emitted
    in_step = case.options.criterion is not None or case.options.stop is not None
    assert 0 <= without_bonus <= (stats.passes if in_step else num_rows)
    if num_rows == 1 and len(result.tokens[0]) == case.options.new and not in_step:
        at_end = bool(
            case.options.eos or case.options.form
        )  # which may be the last token by chance
        assert without_bonus <= at_end  # no draft token was deeper than the answer is long
    plain_forwards = max(map(len, result.tokens)) - 1
    assert stats.target_forwards <= plain_forwards
    assert stats.kept <= stats.visual
    if drafts_from_texts(case.answering):
        assert stats.draft_forwards == 0
    elif is_mixed(case.answering):
        pass  # what is drafted depends on the turns
    elif best_depth(case) == 0:
        assert stats.drafted == stats.draft_forwards == 0
        assert stats.target_forwards == plain_forwards
    elif plain_forwards > 1 and not is_automatic(case) and not runs_ahead(case):
        assert stats.drafted > 0 or case.draft in RETOKENIZED  # special tokens are no text


def is_automatic(case: Case) -> bool:
    """Whether the case's method may choose not to draft."""
    method = resolve(case.answering)
    return is_mixed(case.answering) or to_dict(method).get("tree") == "auto"


def runs_ahead(case: Case) -> bool:
    """Whether the draft has a worker of its own, so that the script says what is drafted in
    time."""
    method = resolve(case.answering)
    return to_dict(method).get("schedule", "serial") != "serial"


def best_depth(case: Case) -> int:
    """How deep the tree of the method's likeliest draft tokens is; 0 if nothing is drafted."""
    method = resolve(case.answering)
    topology = getattr(method, "topology", None)
    if topology is None:
        return 0
    depth = 0
    node = -1
    while topology.children.get(node):
        node = topology.children[node][0]
        depth += 1
    return depth


def is_always_right(case: Case) -> bool:
    """Whether the draft's first choice is always the target's: the same weights read the same."""
    method = resolve(case.answering)
    if takes_references(case.answering):
        return False
    if not is_exact(case.prefill):
        return False  # the draft reads its prompt as a whole
    own_weights = case.draft == "self"
    views = getattr(method, "views", None)
    if views is not None and [view.label for view in views] != ["multimodal"]:
        return False
    if not hasattr(method, "draft"):
        return own_weights
    drafts_for_itself = method.draft == "self" or (method.draft == "auto" and case.draft is None)
    if views is not None:
        return own_weights or drafts_for_itself
    reads_all = method.prune_ratio == 0 and PRUNERS.name_of(type(method.pruner)) != "all"
    return reads_all and (own_weights or drafts_for_itself)


def check_passes(case: Case, result: Result) -> None:
    """A draft that is always right fills every pass but the last."""
    per_pass = best_depth(case) + 1
    passes = sum(-(-(len(row) - 1) // per_pass) for row in result.tokens)
    assert result.stats.passes == passes


def watch_depth(session: Session) -> None:
    """Let a session check that no tree is deeper than the longest answer that may still come."""
    propose = session.propose

    def checked() -> DraftTree:
        tree = propose()
        longest = max(sequence.remaining for sequence in session.sequences)
        assert all(topology.depth < longest for topology in tree.topologies)
        return tree

    session.propose = checked  # type: ignore[method-assign]


def check_caches(session: Session) -> None:
    """Between chunks the caches hold each running row's prompt and all its tokens but the last."""
    if session.cache is None:
        return
    model = getattr(session.drafter, "rows", None)
    own_tokens = isinstance(session.drafter, RetokenizedDrafter)
    if type(model) is not DraftRows or own_tokens:  # with one view of each prompt
        model = None
    for row, sequence in enumerate(session.sequences):
        if sequence.finished:
            continue
        num_tokens = len(sequence.tokens)
        assert session.cache.lengths[row] == session.prompt_lengths[row] + num_tokens - 1
        if model is None or row >= len(model.pending):  # the draft has not read the row yet
            continue
        pending = model.pending[row]
        assert 0 < len(pending) <= num_tokens
        assert sequence.tokens[-len(pending) :] == list(pending)
        read = num_tokens - len(pending)
        assert model.cache.lengths[row] == model.prompt_lengths[row] + read


def check_sampled(case: Case) -> None:
    """Draft tokens do not change what is drawn, and neither do the other rows of the batch."""
    if must_refuse(case):
        return
    result = case.run()
    check_logprobs(case, result)
    method = resolve(case.answering)
    check_counters(case, result)
    check_approximations(case, result)
    if getattr(method, "sampling_rule", "coupled") == "rejection":
        for row, (seed, tokens) in enumerate(zip(case.seeds or (), result.tokens, strict=True)):
            prompts = replace(case.prompts, rows=(case.prompts.rows[row],))
            assert replace(case, prompts=prompts, seeds=(seed,)).run().tokens == [tokens]
        return
    plain = case.plain
    assert case.seeds is not None
    check_equal_draws(case, result.tokens, plain)
    by_plain = drawn(plain)
    certain = is_always_right(case) and not is_automatic(case) and not runs_ahead(case)
    clear = min(map(min, by_plain.gaps)) > NEAR_TIE
    if certain and clear and result.tokens == by_plain.tokens:
        check_passes(case, result)
    for row, seed in enumerate(case.seeds):
        prompts = replace(case.prompts, rows=(case.prompts.rows[row],))
        alone = replace(plain, prompts=prompts, seeds=(seed,))
        check_equal_draws(case, [result.tokens[row]], alone)


def check_equal_draws(case: Case, tokens: list[list[int]], plain: Case) -> None:
    """The tokens are those of plain decoding, but for near-ties."""
    by_plain = drawn(plain)
    if tokens == by_plain.tokens:
        return
    place = first_difference(tokens, by_plain.tokens)
    assert place is not None
    least = NEAR_TIE / min(1.0, case.options.temperature or 1.0)
    if by_plain.gaps[place[1]][place[0]] < least:
        event("near tie")
        return
    assert tokens == by_plain.tokens


@dataclass(frozen=True)
class Drawn:
    """What plain decoding returns.

    Attributes:
        gaps: by how much the best token led, for each step and row of the call.
        tokens, approximate: of the result.
    """

    gaps: list[list[float]]
    tokens: list[list[int]]
    approximate: tuple[str, ...]


@cache
def drawn(plain: Case) -> Drawn:
    """The answer of plain decoding."""
    with recorded_leads() as gaps:
        result = plain.run()
    return Drawn(gaps, result.tokens, result.approximate)


@dataclass(frozen=True)
class Visit:
    """A request that joins a session.

    Attributes:
        prompts, options, seeds: of the request.
        joins: chunks before it joins.
        leaves: for some rows, how many chunks after that they are removed.
    """

    prompts: Prompts
    options: Options
    seeds: tuple[int, ...]
    joins: int
    leaves: tuple[tuple[int, int], ...] = ()

    @property
    def top_logprobs(self) -> int | None:
        """How many of the likeliest tokens are asked for; None if no log probabilities are."""
        return self.joins % 6 if self.joins % 2 else None

    @property
    def logprob_options(self) -> dict[str, Any]:
        """Options of the library for log probabilities."""
        if self.top_logprobs is None:
            return {}
        return {"logprobs": True, "top_logprobs": self.top_logprobs}

    def answer(self, prefill: Pairs | None) -> list[list[int]]:
        """The answer to the request alone."""
        plain = self._plain(prefill)
        if self.options.temperature is None:
            return expected_of(plain).rows
        return drawn(plain).tokens

    def _plain(self, prefill: Pairs | None) -> Case:
        method = (("method", "plain"),)
        case = Case(self.prompts, None, None, method, self.options, prefill=prefill)
        return case if self.options.temperature is None else replace(case, seeds=self.seeds)

    def is_near_tie(self, tokens: list[list[int]], prefill: Pairs | None) -> bool:
        """Whether the first difference from the answer alone lies at a near-tie."""
        plain = self._plain(prefill)
        if self.options.temperature is None:
            return is_near_tie(tokens, expected_of(plain))
        alone = drawn(plain)
        row, step = first_difference(tokens, alone.tokens) or (0, 0)
        least = NEAR_TIE / min(1, self.options.temperature)
        return step < len(alone.gaps) and alone.gaps[step][row] < least


@dataclass(frozen=True)
class Visits:
    """A session whose rows come and go.

    Attributes:
        family: of all requests.
        draft, method, script, references, prefill: as in `Case`.
        visits: in order of arrival.
        part: tokens of the parts in which prompts are read beside running rows; None for as many as
            are read in time.
        caches: whether the requests share a prompt cache.
    """

    family: str
    draft: str | float | None
    method: Pairs
    visits: tuple[Visit, ...]
    script: int = 0
    references: str | None = None
    prefill: Pairs | None = None
    part: int | None = None
    caches: bool = False

    @property
    def answered(self) -> Visits:
        """The same without the requests that are refused."""
        method = thawed(self.method)
        visits = [
            visit
            for visit in self.visits
            if not visit.prompts.is_refused(method, visit.options.new)
        ]
        return replace(self, visits=tuple(visits))

    def plan(self, models: Models) -> Plan:
        """The plan of the method."""
        prefill = None if self.prefill is None else thawed(self.prefill)
        with scripted_workers(self.script), scripted_turns(self.script):
            return with_prefill(from_dict(thawed(self.method)), prefill).plan(models)


def check_visits(case: Visits) -> None:
    """Every row has the tokens that it has alone; a row that leaves has the first of them."""
    case = case.answered
    if not case.visits:
        event("all are refused")
        return
    with sized_parts(case.part):
        _check_visits(case)


def sized_parts(size: int | None) -> AbstractContextManager[Any]:
    """A context in which prompts are read beside running rows in parts of this size."""
    if size is None:
        return nullcontext()
    return patch.object(PartSize, "within", lambda self, seconds: size)


def models_of(case: Visits) -> Models:
    """Target and draft of a session."""
    draft = draft_of(case.family, case.draft)
    models = Models(
        Backbone.of(target(BY_NAME[case.family])), None if draft is None else Backbone.of(draft)
    )
    if case.caches:
        models.target.prompt_cache = PromptCache("1GB")
        if models.draft is not None:
            models.draft.prompt_cache = models.target.prompt_cache
    return models


def _check_visits(case: Visits) -> None:
    models = models_of(case)
    plan = case.plan(models)
    session = session_of(plan, models)
    watch_depth(session)
    sequences: list[list[Sequence]] = []
    removed: set[int] = set()
    chunks: Iterator[Any] = iter(())
    streamed: dict[int, list[int]] = {}
    count = 0
    while True:
        act(case, plan, session, sequences, removed, count)
        check_caches(session)
        chunk = next(chunks, None)
        if chunk is None:
            if session.done:
                if len(sequences) == len(case.visits):
                    break
                count = case.visits[len(sequences)].joins
                continue
            chunks = plan.schedule(session)
            continue
        streamed.setdefault(chunk.row, []).extend(chunk.tokens)
        count += 1
    for visit, rows in zip(case.visits, sequences, strict=True):
        check_visit(visit, case.prefill, rows, removed)
        assert [streamed[sequence.number] for sequence in rows] == [s.tokens for s in rows]
    stats = session.stats
    assert stats.emitted == sum(len(s.tokens) for rows in sequences for s in rows)
    assert stats.accepted <= stats.drafted
    assert sum(stats.accepted_by_depth.values()) == stats.passes


def check_jobs(case: Visits) -> None:
    """Every request has, from a scheduler, the tokens that it has alone."""
    models = models_of(case)
    method = from_dict(thawed(case.method))
    refused = [
        visit.prompts.is_refused(thawed(case.method), visit.options.new) for visit in case.visits
    ]
    heard: Queue[tuple[int, Update]] = Queue()
    # Before the scheduler has the models, since stock `generate` runs them for the options.
    submitted = [
        Job(request_of(case, visit, method), partial(_hear, heard, number))
        for number, visit in enumerate(case.visits)
    ]
    rows: list[list[list[int]]] = [[[] for _ in visit.prompts.rows] for visit in case.visits]
    logprobs: list[list[list[TokenLogprob]]] = [[[] for _ in each] for each in rows]
    scheduler = Scheduler(models)
    try:
        with sized_parts(case.part), scripted_workers(case.script):
            for job in submitted:
                scheduler.submit(job)
            waiting = set(range(len(submitted)))
            while waiting:
                number, update = heard.get(timeout=60)
                assert (update.error is not None) is refused[number], update.error
                for chunk in update.chunks:
                    rows[number][chunk.row] += chunk.tokens
                    logprobs[number][chunk.row] += chunk.logprobs
                if update.done or refused[number]:
                    waiting.remove(number)
    finally:
        scheduler.close()
    answers = zip(case.visits, rows, logprobs, refused, strict=True)
    for visit, tokens, entries, was_refused in answers:
        if was_refused:
            event("a job is refused")
            continue
        assert tokens == visit.answer(None) or visit.is_near_tie(tokens, None)
        if visit.top_logprobs is not None:
            check_entries(visit.prompts, tokens, entries, visit.top_logprobs)
        else:
            assert not any(entries)


def request_of(case: Visits, visit: Visit, method: Any) -> Request:
    """A request as a scheduler takes it."""
    return Request(
        visit.prompts.inputs,
        method=method,
        seed=[row_seeds(seed, 1)[0] for seed in visit.seeds],
        options={
            **visit.options.of_generate(visit.prompts, "option"),
            **visit.logprob_options,
        },
        extras={NAMESPACE: "" if case.caches else None},
    )


def _hear(heard: Queue[tuple[int, Update]], number: int, update: Update) -> None:
    heard.put((number, update))


def check_visit(
    visit: Visit, prefill: Pairs | None, rows: list[Sequence], removed: set[int]
) -> None:
    """One request's tokens are those of its answer alone."""
    whole = visit.answer(prefill)
    tokens = [
        s.tokens + row[len(s.tokens) :] if s.number in removed else s.tokens
        for s, row in zip(rows, whole, strict=True)
    ]
    if tokens != whole and visit.is_near_tie(tokens, prefill):
        event("near tie")
        return
    assert tokens == whole
    for sequence, row in zip(rows, whole, strict=True):
        assert len(sequence.tokens) <= len(row)
    if visit.top_logprobs is not None and is_exact(prefill):
        said = [sequence.tokens for sequence in rows]
        records = [s.logprobs.tokens for s in rows if s.logprobs is not None]
        check_entries(visit.prompts, said, records, visit.top_logprobs)


def session_of(plan: Plan, models: Models) -> Session:
    """A session without rows."""
    return Session(models.target, plan, Clock(Stats()))


def act(
    case: Visits,
    plan: Plan,
    session: Session,
    sequences: list[list[Sequence]],
    removed: set[int],
    count: int,
) -> None:
    """Let rows join and leave that do so after `count` chunks."""
    for visit, rows in zip(case.visits, sequences, strict=False):
        for row, chunks in visit.leaves:
            sequence = rows[row % len(rows)]
            due = visit.joins + 1 + chunks <= count
            if due and sequence in session.sequences and sequence.tokens:
                event("a finished row leaves" if sequence.finished else "a running row leaves")
                session.remove(sequence)
                removed.add(sequence.number)
    while len(sequences) < len(case.visits) and case.visits[len(sequences)].joins <= count:
        visit = case.visits[len(sequences)]
        if session.running:
            event("a request joins running rows")
        given = visit.prompts.inputs
        options = visit.options.of_generate(visit.prompts, "processor")
        prepared = session.target.prepare(given, **options)
        seeds = [row_seeds(seed, 1)[0] for seed in visit.seeds]
        extras: dict[str, Any] = {}
        if case.references is not None and takes_references(thawed(case.method)):
            extras["references"] = references_of(visit.prompts, case.references)
        draft_inputs = dict(with_captions(visit.prompts, thawed(case.method)))
        if case.draft in RETOKENIZED:
            draft_inputs = other_inputs(BY_NAME[case.family], visit.prompts.inputs)
        if case.draft in BY_NAME:
            draft_inputs = dict(inputs_by(str(case.draft), visit.prompts))
        extras["views"] = draft_inputs.pop("views", None)
        extras = read_extras(plan, extras, ExtraSource(len(seeds), tokenizer()))
        extras[NAMESPACE] = "" if case.caches else None
        rows = session.add(prepared, seeds, draft_inputs, extras)
        if visit.logprob_options:
            record_logprobs(rows, visit.logprob_options)
        sequences.append(rows)


# --- strategies

NOISE = (0.01, 0.03, 0.05, 0.1, 0.2)
CAPPED = "Gemma2Text"
"""Its attention, whose scores are soft-capped, is not read for pruners."""
LITTLE = (0.003, 0.01, 0.02)
"""For models of four layers."""
RATIOS = (0, 0.5, 0.9, 1)
NULLABLE = (
    *("eos_token_id", "repetition_penalty", "no_repeat_ngram_size", "min_new_tokens"),
    *("bad_words_ids", "suppress_tokens", "stopping_criteria", "logits_processor"),
    *("temperature", "top_k", "top_p", "stop_strings"),
)
PRUNER_OPTIONS: Mapping[str, st.SearchStrategy[Any]] = {
    "specvlm": st.tuples(st.just("attention_mass"), st.sampled_from((0.0, 0.2, 0.4, 1.0))),
    "attention-sampled": st.tuples(st.just("share"), st.sampled_from((0.0, 0.5, 1.0))),
    "uv-sampled": st.tuples(st.just("share"), st.sampled_from((0.0, 0.5, 1.0))),
    "random": st.tuples(st.just("seed"), st.integers(0, 9)),
    "window": st.tuples(st.just("window"), st.sampled_from(("front", "middle", "end"))),
    "dycoke": st.tuples(st.just("group"), st.integers(1, 5)),
}
BY_EVIDENCE = tuple(name for name in WEIGHTS if name != "fixed")
any_seed = st.one_of(st.integers(0, 9), st.integers(0, 2**70))


@st.composite
def batches_of_prompts(draw: st.DrawFn, family: str, side: str | None = None) -> Prompts:
    """One to three rows of a plan, in any order, the same row twice included."""
    kind = draw(st.sampled_from(BY_NAME[family].kinds))
    indices = st.integers(0, len(PLANS[kind]) - 1)
    rows = draw(st.lists(indices, min_size=1, max_size=3))
    chosen_side = side or draw(st.sampled_from(("left", "right")))
    return Prompts(family, kind, tuple(rows), chosen_side)


@st.composite
def trees(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    """Paths of a small tree: every new node is the next child of a node that is there."""
    paths: list[tuple[int, ...]] = [(0,)]
    for _ in range(draw(st.integers(0, 7))):
        parent = draw(st.sampled_from([(), *paths]))
        num_children = sum(path[:-1] == parent for path in paths)
        if len(parent) < 5:
            paths.append((*parent, num_children))
    return tuple(sorted(paths))


scripts = st.integers(0, 99)
kinds_of_references = st.sampled_from((None, *REFERENCES))


@st.composite
def shapes(draw: st.DrawFn, trees_too: bool = True) -> Pairs:
    """The draft tokens of a drafting method: a chain or a tree."""
    shape = draw(st.sampled_from(("chain", "chain", "eagle", "paths")))
    if not trees_too and shape != "chain":
        return (("tree", tuple((0,) * depth for depth in range(1, draw(st.integers(2, 8))))),)
    if shape == "chain":
        return (("tree", None), ("num_speculative_tokens", draw(st.integers(1, 7))))
    if shape == "eagle":
        return (("tree", "eagle" if draw(st.booleans()) else EAGLE_PATHS),)
    return (("tree", draw(trees())),)


@st.composite
def schedules(draw: st.DrawFn) -> Pairs:
    """The draft tokens of a draft worker, which may be as many as it likes."""
    length = draw(rarely(st.none(), draw(st.integers(1, 7))))
    return (("schedule", "parallel"), ("num_speculative_tokens", length))


@st.composite
def pruned(draw: st.DrawFn, has_draft: bool, ahead: bool, family: str) -> Pairs:
    """Method `specvlm`, or `parallelvlm` with a draft that runs ahead."""
    trees_too, sparse = takes_trees(BY_NAME[family]), has_own_keys(BY_NAME[family])
    name = draw(st.sampled_from(list(PRUNERS)))
    pruner: Any = name
    if name in PRUNER_OPTIONS and draw(st.booleans()):
        pruner = (("name", name), draw(PRUNER_OPTIONS[name]))
    waits = ahead and draw(st.booleans())
    options = [
        ("pruner", pruner),
        ("prune_ratio", draw(st.sampled_from(RATIOS))),
        *draw(schedules() if ahead else shapes(trees_too)),
    ]
    name = "parallelvlm" if waits else "specvlm"
    if has_draft and draw(st.booleans()):
        return (("method", name), *options, ("draft", "model"))
    sources = ("prefill", "gather", "sparse") if sparse else ("prefill", "gather")
    kv = "gather" if ahead else draw(st.sampled_from(sources))
    if kv != "gather":
        return (("method", "self-sd"), *options, ("kv", kv))
    return (("method", name), *options, ("draft", "self"))


@st.composite
def from_texts(draw: st.DrawFn) -> Pairs:
    """Methods `lookup` and `hsd`."""
    length = draw(rarely(st.integers(1, 9), draw(st.integers(1, 9))))
    window = draw(st.integers(1, 4))
    options: Pairs = (
        ("num_speculative_tokens", draw(st.sampled_from((length, length, length, None)))),
        ("window", window),
        ("max_branches", draw(st.integers(1, 5))),
    )
    if draw(st.booleans()):
        return (("method", "lookup"), *options)
    return (
        ("method", "hsd"),
        *options,
        ("max_nodes", draw(st.sampled_from((1, 5, 40, 256)))),
        ("max_depth", draw(st.sampled_from((None, 3, 30)))),
        ("matching", draw(st.sampled_from(("text", "text", "tokens")))),
        ("variants", draw(st.booleans())),
        ("recovery", draw(st.booleans())),
        ("heads", draw(st.booleans())),
    )


@st.composite
def views(draw: st.DrawFn) -> Any:
    """A way to read the prompt."""
    plain = st.sampled_from(("multimodal", "text", "pooled", "caption"))
    kind = draw(st.sampled_from(("plain", "plain", "pooled", "pruned")))
    if kind == "plain":
        return draw(plain)
    if kind == "pooled":
        return (("name", "pooled"), ("size", 3))
    return (
        ("pruner", draw(st.sampled_from(list(PRUNERS)))),
        ("ratio", draw(st.sampled_from((0.5, 0.8)))),
    )


@st.composite
def ensembles(draw: st.DrawFn, has_draft: bool, family: str) -> Pairs:
    """Method `tabed`. A draft that takes no trees has one view."""
    trees_too = takes_trees(BY_NAME[family])
    most = 3 if trees_too else 1
    chosen = tuple(draw(st.lists(views(), min_size=1, max_size=most, unique=True)))
    if family in MADE_NAMES:  # their ids do not show which words belong to a picture
        chosen = tuple(dict.fromkeys("multimodal" if each == "text" else each for each in chosen))
    if set(chosen) <= {"text", "caption"}:  # no family has words alone of every prompt
        chosen = (*chosen, "multimodal") if trees_too else ("multimodal",)
    shares = tuple(float(number) for number in range(1, len(chosen) + 1))
    uses = ("auto", "self", "model") if has_draft else ("auto", "self")
    return (
        ("method", "tabed"),
        ("views", chosen),
        ("weights", draw(st.sampled_from((*BY_EVIDENCE, "bayes", shares)))),
        ("rest", draw(st.booleans())),
        ("draft", draw(st.sampled_from(uses))),
        *draw(rarely(st.just((("tree", "auto"),)), draw(shapes(trees_too)))),
    )


@st.composite
def blocks(draw: st.DrawFn) -> Pairs:
    """Prefill `spava`, for short prompts."""
    return (
        ("name", "spava"),
        ("anchor", draw(st.sampled_from((0, 1, 2, 5, "n/8")))),
        ("passing", draw(st.sampled_from((0, 1, 3, "n/4", "n/1")))),
        ("blocks", draw(st.integers(1, 7))),
        ("query_tokens", draw(st.sampled_from((None, 1, 3)))),
        ("select", draw(st.sampled_from(("query", "sampled")))),
        ("zigzag", draw(st.booleans())),
    )


@st.composite
def prefills(draw: st.DrawFn, family: str) -> Pairs | None:
    """How a prompt is read, in most calls as always."""
    if family in MADE_NAMES:
        return None
    name = draw(st.sampled_from((None, None, None, "ring", "spava", "spava", "star")))
    if name is None:
        return None
    if name == "spava":
        return draw(blocks())
    if name == "ring":
        return (("name", "ring"), ("decode", draw(st.sampled_from(("auto", "sharded")))))
    return (("name", "star"), ("blocks", draw(st.integers(2, 6))))


@st.composite
def mixtures(draw: st.DrawFn, has_draft: bool) -> Pairs:
    """Method `mixed`."""
    prune_ratio = ("prune_ratio", draw(st.sampled_from(RATIOS)))
    pruned: Pairs = (("name", "specvlm"), prune_ratio, ("draft", "self"))
    model: Any = "speculative" if has_draft and draw(st.booleans()) else pruned
    window = ("window", draw(st.integers(1, 3)))
    copying = (("name", draw(st.sampled_from(("lookup", "hsd")))), window)
    return (("method", "mixed"), ("model", model), ("copying", copying))


@st.composite
def methods(draw: st.DrawFn, draft: str | float | None, family: str = ALL[0]) -> Pairs:
    """Options of any method that takes the draft."""
    has_draft = draft is not None
    trees_too = takes_trees(BY_NAME[family])
    if draft in BY_NAME:
        return draw(of_another_family(trees_too and takes_trees(BY_NAME[str(draft)])))
    if draft in RETOKENIZED:
        length = ("num_speculative_tokens", draw(st.integers(1, 7)))
        return (("method", "speculative"), ("tree", None), length)
    if draft == "words":
        name = st.just((("method", "speculative"),))
        shape = st.one_of(shapes(), schedules())
        return draw(st.one_of(from_texts(), *3 * [st.builds(tuple.__add__, name, shape)]))
    kind = draw(st.sampled_from((0, 6)) if family == CAPPED else st.integers(0, 8))
    if kind == 8:
        return draw(mixtures(has_draft))
    if kind >= 6:
        return draw(from_texts())
    if kind >= 4 and BY_NAME[family].kinds != ("text",):
        return draw(ensembles(has_draft, family))
    names = ("speculative", "speculative", "specvlm") if has_draft else ("specvlm",)
    if family == CAPPED:
        names = ("speculative",) if has_draft else ("plain",)
    name = draw(st.sampled_from((*names, *names, "plain")))
    if name == "plain":
        return (("method", "plain"),)
    ahead = draw(st.integers(0, 3)) == 3
    if name == "specvlm":
        return draw(pruned(has_draft, ahead, family))
    if ahead:
        return (("method", "speculative"), *draw(schedules()))
    return (("method", "speculative"), *draw(shapes(trees_too)))


@st.composite
def of_another_family(draw: st.DrawFn, trees_too: bool) -> Pairs:
    """Options of methods whose draft reads its own inputs."""
    model = (("method", "speculative"), *draw(st.one_of(shapes(trees_too), schedules())))
    copying = (("name", draw(st.sampled_from(("lookup", "hsd")))), ("window", 1))
    mixed: Pairs = (("method", "mixed"), ("model", "speculative"), ("copying", copying))
    return draw(st.sampled_from((model, model, model, mixed)))


def drafts_for(family: str) -> st.SearchStrategy[Any]:
    """Drafts of a target."""
    if family not in MADE_NAMES:
        return drafts
    return st.one_of(
        st.sampled_from((*NOISE, *LITTLE, "self", "self", "random", None)),
        st.sampled_from(LITTLE),
        st.sampled_from(drafts_of_other_families(family)),
    )


@cache
def drafts_of_other_families(family: str) -> tuple[str, ...]:
    """Families that see all that a target may see."""
    seen = Backbone(target(BY_NAME[family])).modalities
    others = (*MADE_NAMES, *ALL)
    return tuple(name for name in others if Backbone(target(BY_NAME[name])).modalities >= seen)


drafts = st.sampled_from((*NOISE, "self", "self", "random", "words", *RETOKENIZED, None))
places = st.tuples(st.integers(0, 2), st.integers(1, LONG - 1))


def rarely(strategy: st.SearchStrategy[Any], default: Any = None) -> st.SearchStrategy[Any]:
    """A value of a strategy now and then, else the default."""
    return st.one_of(st.just(default), st.just(default), strategy)


@st.composite
def greedy_options(draw: st.DrawFn, criteria: bool = True) -> Options:
    """Options of a greedy call."""
    new = draw(st.integers(1, LONG))
    eos = draw(
        st.one_of(
            st.just(()),
            st.just((NO_PLACE,)),
            st.tuples(places),
            st.lists(places, min_size=2, max_size=3).map(tuple),
        )
    )
    options = Options(
        new=new,
        as_length=draw(st.booleans()),
        eos=eos,
        repetition_penalty=draw(rarely(st.sampled_from((0.8, 1.1, 1.3)))),
        no_repeat_ngram_size=draw(rarely(st.integers(1, 3))),
        min_new_tokens=draw(rarely(st.integers(0, new))),
        bad_words=draw(rarely(st.lists(places, min_size=1, max_size=2).map(tuple), ())),
        suppressed=draw(rarely(st.lists(places, min_size=1, max_size=2).map(tuple), ())),
        stop=draw(rarely(places)) if criteria else None,
        criterion=draw(rarely(st.sampled_from(tuple(CRITERIA)))) if criteria else None,
    )
    return replace(options, nones=draw(nones_for(options)))


def nones_for(options: Options) -> st.SearchStrategy[tuple[str, ...]]:
    """Names of options that are not given otherwise."""
    given = {
        "eos_token_id": options.eos,
        "bad_words_ids": options.bad_words,
        "suppress_tokens": options.suppressed,
        "stopping_criteria": options.stop or options.criterion,
        "repetition_penalty": options.repetition_penalty,
        "no_repeat_ngram_size": options.no_repeat_ngram_size,
        "min_new_tokens": options.min_new_tokens,
    }
    free = [name for name in NULLABLE if not given.get(name) and given.get(name) != 0]
    free.append("max_new_tokens" if options.as_length else "max_length")
    return rarely(st.lists(st.sampled_from(free), unique=True, max_size=4).map(tuple), ())


@st.composite
def greedy_cases(draw: st.DrawFn, families: tuple[str, ...] = ALL) -> Case:
    """A greedy call of any kind."""
    family = draw(st.sampled_from(families))
    draft = draw(drafts_for(family))
    entry = draw(st.sampled_from(("generate", "stream", "custom_generate")))
    # Stock `generate` itself needs padding on the left.
    side = "left" if entry == "custom_generate" else None
    method = draw(st.one_of(st.none(), methods(draft, family), methods(draft, family)))
    return Case(
        prompts=draw(batches_of_prompts(family, side)),
        draft=draft,
        draft_side=draw(rarely(st.sampled_from(("left", "right")))),
        method=method,
        options=draw(greedy_options()),
        entry=entry,
        script=draw(scripts),
        references=draw(kinds_of_references),
        prefill=draw(prefills(family)),
    )


@st.composite
def sampled_options(draw: st.DrawFn) -> Options:
    """Options of a call that draws."""
    return Options(
        new=draw(st.integers(1, 16)),
        eos=draw(st.one_of(st.just(()), st.tuples(places), st.tuples(places, places))),
        repetition_penalty=draw(rarely(st.sampled_from((0.8, 1.2)))),
        temperature=draw(st.sampled_from((0.3, 0.7, 1.0, 2.0))),
        top_k=draw(st.sampled_from((0, 5, 50))),
        top_p=draw(rarely(st.sampled_from((0.6, 0.9)))),
    )


@st.composite
def sampled_cases(draw: st.DrawFn, families: tuple[str, ...] = ALL) -> Case:
    """A call that draws, with a seed for each row."""
    family = draw(st.sampled_from(families))
    draft = draw(drafts_for(family))
    method = draw(methods(draft, family))
    # With a worker of its own, rejection sampling would depend on who moves when.
    options_of_method = dict(method)
    can_reject = (
        options_of_method["method"] not in ("plain", "mixed")
        and "schedule" not in options_of_method
        and options_of_method.get("tree") != "auto"
        and options_of_method["method"] != "tabed"  # which views are read depends on all rows
    )
    if can_reject and draw(st.integers(0, 3)) == 0:
        method = (*options_of_method.items(), ("sampling_rule", "rejection"))
    entry = draw(st.sampled_from(("generate", "stream", "custom_generate")))
    prompts = draw(batches_of_prompts(family, "left" if entry == "custom_generate" else None))
    seeds = draw(st.lists(any_seed, min_size=len(prompts.rows), max_size=len(prompts.rows)))
    options = draw(sampled_options())
    return Case(
        prompts=prompts,
        draft=draft,
        draft_side=None,
        method=method,
        options=options,
        entry=entry,
        seeds=tuple(seeds),
        script=draw(scripts),
        references=draw(kinds_of_references),
        prefill=draw(prefills(family)),
    )


@st.composite
def visits(draw: st.DrawFn, family: str) -> Visit:
    """One request; a call whose rows depend on each other stays whole."""
    prompts = draw(batches_of_prompts(family, side="left"))
    options = draw(st.one_of(greedy_options(), greedy_options(False), sampled_options()))
    seeds = draw(st.lists(any_seed, min_size=len(prompts.rows), max_size=len(prompts.rows)))
    leaves: tuple[tuple[int, int], ...] = ()
    if options.criterion is None and options.stop is None:
        removals = st.tuples(st.integers(0, 2), st.integers(0, 12))
        leaves = draw(st.lists(removals, max_size=2).map(tuple))
    return Visit(prompts, options, tuple(seeds), draw(st.integers(0, 15)), leaves)


@st.composite
def sessions(draw: st.DrawFn, families: tuple[str, ...] = ALL) -> Visits:
    """Two to four requests that share a session."""
    family = draw(st.sampled_from(families))
    draft = draw(drafts_for(family))
    method = draw(methods(draft, family))
    requests = draw(st.lists(visits(family), min_size=2, max_size=4))
    requests.sort(key=lambda visit: visit.joins)
    references = draw(kinds_of_references)
    prefill = draw(prefills(family))
    script = draw(scripts)
    part = draw(rarely(st.integers(1, 40)))
    caches = dict(prefill or ()).get("name", "spava") == "spava" and draw(st.booleans())
    return Visits(family, draft, method, tuple(requests), script, references, prefill, part, caches)


@st.composite
def jobs(draw: st.DrawFn, families: tuple[str, ...] = ALL) -> Visits:
    """Two to five requests to a scheduler."""
    family = draw(st.sampled_from(families))
    requests = draw(st.lists(visits(family), min_size=2, max_size=5))
    chain: Pairs = (("method", "speculative"), ("num_speculative_tokens", 3))
    ahead: Pairs = (("method", "speculative"), *draw(schedules()))
    drafting = st.sampled_from((chain, ahead))
    method: Pairs = draw(rarely(drafting, (("method", "plain"),)))
    part = draw(rarely(st.integers(1, 40)))
    caches = draw(st.booleans())
    script = draw(scripts)
    return Visits(family, 0.05, method, tuple(requests), script, part=part, caches=caches)


WILD: Mapping[str, tuple[Any, ...]] = {
    "num_speculative_tokens": (None, 1, 4),
    "tree": (None, "auto", "eagle", ((0,), (1,), (0, 0)), ()),
    "sampling_rule": ("coupled", "rejection"),
    "schedule": ("serial", "parallel"),
    "draft": ("auto", "self", "model"),
    "prune_ratio": (0, 0.7, 1),
    "pruner": tuple(PRUNERS),
    "views": (("text",), ("multimodal", "text"), ("caption", "pooled"), ("text", "text"), ()),
    "weights": ("bayes", "grid", (0.5, 0.5)),
    "rest": (True, False),
    "matching": ("text", "tokens"),
    "heads": (True, False),
    "recovery": (True, False),
    "max_nodes": (1, 40),
    "prefill": ("ring", "spava", "star"),
}
"""Values of options that are each allowed somewhere, but not together everywhere."""


@st.composite
def wild_cases(draw: st.DrawFn, name: str) -> Case:
    """A greedy call whose method, of this name, has options in any combination."""
    family = draw(st.one_of(st.sampled_from(ALL), st.sampled_from(MADE_NAMES)))
    known = [field.name for field in fields(METHODS[name]) if field.name in WILD]
    chosen = draw(st.lists(st.sampled_from(known), unique=True, max_size=5))
    options = [(option, draw(st.sampled_from(WILD[option]))) for option in chosen]
    entry = draw(st.sampled_from(("generate", "stream", "custom_generate")))
    return Case(
        prompts=draw(batches_of_prompts(family, "left" if entry == "custom_generate" else None)),
        draft=draw(drafts_for(family)),
        draft_side=draw(rarely(st.sampled_from(("left", "right")))),
        method=(("method", name), *options),
        options=Options(new=draw(st.integers(1, 12))),
        entry=entry,
        script=draw(scripts),
        references=draw(kinds_of_references),
    )


def check_wild(case: Case, seen: Counter[str]) -> None:
    """The call is refused in one sentence, or it has the tokens that it must have."""
    prefill = dict(case.method or ()).get("prefill")
    exact = replace(case, prefill=None if prefill is None else (("name", prefill),))
    try:
        result = case.run()
    except DraftlensError as error:
        seen["refused"] += 1
        refusal = str(error)
    else:
        seen["answered"] += 1
        stock = expected_of(exact)
        assert result.tokens == stock.rows or is_near_tie(result.tokens, stock)
        return
    assert refusal
    assert "\n" not in refusal
