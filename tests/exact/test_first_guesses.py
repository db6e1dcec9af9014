"""First tokens that the draft guesses before the target reads the prompt: the same tokens as stock
`generate`, and less work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import (
    ALL_KINDS,
    METHODS,
    NEW,
    Divisible,
    NoEcho,
    draft,
    reach,
    reference,
    rounds,
    stock,
    target,
)
from test_matrix import ranks_of_the_answer

import draftlens
from draftlens import ConfigError
from draftlens.core.prefill_readings import ATTENTION
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import chain
from draftlens.decoding import Session, decode, first_guesses
from draftlens.decoding.first_guesses import FirstGuesses, Timing, delays_of
from draftlens.methods.base import Models, from_dict
from draftlens.methods.parts import FIRST_GUESSES_OF_AUTO_TREE
from draftlens.models.adapter import Backbone
from draftlens.prefill.full import FullPrefill

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
every_kind = pytest.mark.parametrize(("family", "kind"), ALL_KINDS, ids=str)

GREEDY: Mapping[str, Any] = {"max_new_tokens": NEW, "do_sample": False}
CASES = (("noisy", "chain3"), ("noisy", "odd"), ("self", "chain5"), ("random", "chain3"))
RAGGED = [
    (family, kind, *case)
    for number, (family, kind) in enumerate(ALL_KINDS)
    for case in (CASES[number % 4], CASES[(number + 1 + number // 4 % 3) % 4])
]
"""Two cases for each kind of input; each family and each kind of input meets every case."""
PRUNED: Mapping[str, Any] = {
    "method": "specvlm",
    "pruner": {"name": "random", "seed": 3},
    "prune_ratio": 0.5,
    "draft": "model",
    "tree": "eagle",
}


def guessing(name: str) -> dict[str, Any]:
    """A method that always guesses first tokens."""
    return {**METHODS[name], "first_guesses": True}


def answer(
    family: Family, kind: str, guesser: str, method: Mapping[str, Any], **options: Any
) -> draftlens.Result:
    """One call for a ragged batch."""
    options = {"max_new_tokens": NEW, **options}
    given: dict[str, Any] = inputs(family, kind)
    return draftlens.generate(
        target(family), given, draft=draft(family, guesser), method=method, **options
    )


# --- tokens and work


@pytest.mark.pairwise
@pytest.mark.parametrize(("family", "kind", "guesser", "name"), RAGGED, ids=str)
def test_a_ragged_batch(family: Family, kind: str, guesser: str, name: str) -> None:
    """Each row accepts its own number of first guesses: as many as a draft that reads the answer
    afresh predicts, and so do the rounds behind them."""
    result = answer(family, kind, guesser, guessing(name))
    assert result.tokens == reference(family, kind)
    assert result.lossless
    stats = result.stats
    topology = from_dict(METHODS[name]).topology
    ranks = ranks_of_the_answer(family, kind, guesser)
    accepted = [reach(chain(topology.depth), row) for row in ranks]
    assert stats.first_drafted == 3 * topology.depth
    assert stats.first_accepted == sum(accepted)
    assert stats.first == 3 + sum(accepted)
    assert stats.accepted_by_depth == rounds(topology, ranks, [1 + count for count in accepted])
    assert stats.accepted + stats.first_accepted == sum(map(sum, result.from_draft))
    assert stats.mean_acceptance_length == (stats.emitted - stats.first) / stats.passes
    for row, count in zip(result.from_draft, accepted, strict=True):
        assert row[: count + 1] == [True] * count + [False]


def test_the_cases_cover_families_and_kinds() -> None:
    for place in (0, 1):
        met = {(case[place], *case[2:]) for case in RAGGED}
        assert len(met) == len(CASES) * len({case[place] for case in RAGGED})


@every_kind
def test_a_batch_of_one(family: Family, kind: str) -> None:
    given = inputs(family, kind, (0,))
    options = {"draft": draft(family), "method": guessing("chain3"), "max_new_tokens": NEW}
    result = draftlens.generate(target(family), given, **options)
    assert result.tokens == reference(family, kind)[:1]


@every_family
def test_padding_on_the_right(family: Family) -> None:
    given = inputs(family, family.richest, side="right")
    options = {"draft": draft(family), "method": guessing("chain3"), "max_new_tokens": NEW}
    result = draftlens.generate(target(family), given, **options)
    assert result.tokens == reference(family, family.richest)
    assert result.stats.first_drafted == 9


@every_family
@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_the_work_of_a_draft_that_is_always_right(family: Family, gamma: int) -> None:
    """Prefill emits γ tokens more, so that one pass of γ + 1 tokens is saved for about each γ + 1
    of them; the chain of first guesses needs one draft forward less than any other chain."""
    new = NEW - 1
    forwards = {}
    for first in (False, True):
        method = {"num_speculative_tokens": gamma, "first_guesses": first}
        stats = answer(family, "text", "self", method, max_new_tokens=new).stats
        behind = new - 1 - gamma * first
        num_rounds = -(-behind // (gamma + 1))
        assert stats.first == 3 * (new - behind)
        assert stats.target_forwards == num_rounds
        assert stats.passes == 3 * num_rounds
        last_depth = behind - (num_rounds - 1) * (gamma + 1) - 1
        in_rounds = (num_rounds - 1) * gamma + last_depth
        assert stats.draft_forwards == in_rounds + (gamma - 1) * first
        forwards[first] = stats.target_forwards
    assert forwards[True] == forwards[False] - 1


# --- where answers end


@pytest.mark.pairwise
@every_family
@pytest.mark.parametrize("guesser", ["noisy", "self"])
@pytest.mark.parametrize("new", [1, 2, 3, 4, 5])
def test_short_answers(family: Family, guesser: str, new: int) -> None:
    """Guesses are never deeper than the answer is long; a chain of three fills four tokens."""
    kind = family.richest
    result = answer(family, kind, guesser, guessing("chain3"), max_new_tokens=new)
    assert result.tokens == [row[:new] for row in reference(family, kind)]
    stats = result.stats
    assert stats.first_drafted == 3 * min(3, new - 1)
    if guesser == "self":
        assert stats.target_forwards == max(0, new - 4)
        assert stats.first_accepted == stats.first_drafted
        assert stats.draft_forwards == max(0, min(3, new - 1) - 1)


@every_family
@pytest.mark.parametrize("place", [1, 2, 4])
def test_eos_inside_the_first_run(family: Family, place: int) -> None:
    """Of the accepted guesses those behind the end are neither said nor counted."""
    kind = family.richest
    rows = reference(family, kind)
    eos = [rows[0][place], rows[1][place + 9]]
    expected = stock(target(family), inputs(family, kind), max_new_tokens=NEW, eos_token_id=eos)
    result = answer(family, kind, "self", guessing("chain5"), eos_token_id=eos)
    assert result.tokens == expected
    assert result.stats.first == sum(min(6, len(row)) for row in expected)
    assert result.stats.emitted == sum(map(len, expected))
    assert sum(map(sum, result.from_draft)) == (result.stats.accepted + result.stats.first_accepted)


@every_family
def test_all_rows_end_inside_the_first_run(family: Family) -> None:
    """Then no round follows."""
    kind = family.richest
    eos = [row[3] for row in reference(family, kind)]
    expected = stock(target(family), inputs(family, kind), max_new_tokens=NEW, eos_token_id=eos)
    result = answer(family, kind, "self", guessing("chain5"), eos_token_id=eos)
    assert result.tokens == expected
    assert (result.stats.passes, result.stats.target_forwards) == (0, 0)
    assert result.stats.draft_forwards == 4


@pytest.mark.pairwise
@every_family
@pytest.mark.parametrize("guesser", ["noisy", "self"])
@pytest.mark.parametrize("as_bool", [False, True])
def test_rows_in_step(family: Family, guesser: str, as_bool: bool) -> None:
    """Rows whose criteria compare them emit equally many first tokens, however many each could."""
    given = inputs(family, family.richest)
    options = {"max_new_tokens": NEW, "eos_token_id": 208}
    length = given["input_ids"].shape[1]

    def criteria() -> list[Any]:
        return [Divisible(length, as_bool)]

    expected = stock(target(family), given, stopping_criteria=criteria(), **options)
    result = answer(
        family,
        family.richest,
        guesser,
        guessing("chain5"),
        stopping_criteria=criteria(),
        **options,
    )
    assert result.tokens == expected
    assert result.stats.first_drafted == 15


# --- rules


@every_family
def test_processors_read_the_guesses_before_their_own(family: Family) -> None:
    kind = family.richest
    options = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}
    processors = {"logits_processor": [NoEcho()]}
    expected = stock(
        target(family), inputs(family, kind), max_new_tokens=NEW, **options, **processors
    )
    result = answer(family, kind, "self", guessing("chain5"), **options, **processors)
    assert result.tokens == expected
    assert result.stats.first_accepted == result.stats.first_drafted == 15


@pytest.mark.pairwise
@every_family
@pytest.mark.parametrize("guesser", ["noisy", "self"])
@pytest.mark.parametrize("name", ["chain3", "odd"])
def test_coupled_sampling(family: Family, guesser: str, name: str) -> None:
    """The tokens of plain sampling with the same seed; a draft that is the target draws alike."""
    kind = family.richest
    options = {"do_sample": True, "seed": 5, "temperature": 0.8, "top_k": 30}
    plain = answer(family, kind, guesser, {"method": "plain"}, **options)
    result = answer(family, kind, guesser, guessing(name), **options)
    assert result.tokens == plain.tokens
    assert result.lossless
    if guesser == "self":
        assert result.stats.first_accepted == result.stats.first_drafted


@every_family
def test_rejection_with_equal_models_rejects_nothing(family: Family) -> None:
    method = {**guessing("chain5"), "sampling_rule": "rejection"}
    result = answer(family, family.richest, "self", method, do_sample=True, seed=3)
    assert result.stats.first_accepted == result.stats.first_drafted == 15
    assert result.stats.accepted == result.stats.drafted


@every_family
def test_rejection_does_not_depend_on_the_other_rows(family: Family) -> None:
    method = {**guessing("chain3"), "sampling_rule": "rejection"}
    seeds = (7, 8, 9)
    options = {"do_sample": True, "method": method, "max_new_tokens": NEW, "draft": draft(family)}
    batch = draftlens.generate(
        target(family), inputs(family, family.richest), seed=seeds, **options
    ).tokens
    for row, seed in enumerate(seeds):
        given = inputs(family, family.richest, (row,))
        assert draftlens.generate(target(family), given, seed=seed, **options).tokens == [
            batch[row]
        ]


# --- methods and entry points


@every_family
@pytest.mark.parametrize("positions", ["original", "compact"])
def test_a_draft_that_reads_a_pruned_prompt(family: Family, positions: str) -> None:
    method = {**PRUNED, "positions": positions, "first_guesses": True}
    result = answer(family, family.richest, "self", method)
    assert result.tokens == reference(family, family.richest)
    assert result.stats.first_drafted == 15  # EAGLE's tree is five levels deep
    assert result.stats.visual == int(answer(family, family.richest, "self", PRUNED).stats.visual)


@every_family
def test_an_automatic_tree(family: Family) -> None:
    method = {"tree": "auto", "first_guesses": True}
    for _ in range(2):
        result = answer(family, family.richest, "noisy", method)
        assert result.tokens == reference(family, family.richest)
        assert result.stats.first_drafted == 3 * FIRST_GUESSES_OF_AUTO_TREE


class Heard:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


@every_family
def test_chunks_and_streamers(family: Family) -> None:
    """The first chunk of each row holds all tokens that prefill yields."""
    kind = family.richest
    options = {"draft": draft(family, "self"), "method": guessing("chain3")}
    stream = draftlens.stream(target(family), inputs(family, kind), **options, **GREEDY)
    chunks = list(stream)
    rows = reference(family, kind)
    for row, chunk in enumerate(chunks[:3]):
        assert (chunk.row, chunk.tokens) == (row, tuple(rows[row][:4]))
        assert chunk.from_draft == (True, True, True, False)
    assert [sum((c.tokens for c in chunks if c.row == row), ()) for row in range(3)] == [
        tuple(row) for row in rows
    ]
    heard = Heard()
    given = inputs(family, kind, (0,))
    draftlens.generate(target(family), given, streamer=heard, **options, **GREEDY)
    assert heard.ended
    assert heard.tokens == given["input_ids"][0].tolist() + rows[0]


@every_family
def test_behind_the_callers_own_generate(family: Family) -> None:
    kind = family.richest
    given = inputs(family, kind)
    custom = draftlens.SpeculativeGenerate(draft(family), given, guessing("chain3"))
    ids = target(family).generate(**given, **GREEDY, custom_generate=custom)
    assert ids[:, given["input_ids"].shape[1] :].tolist() == reference(family, kind)
    assert custom.last is not None
    assert custom.last.stats.first_drafted == 9


def session_of(
    family: Family, method: Mapping[str, Any], guesser: str = "noisy", **options: Any
) -> Session:
    """A session without requests."""
    models = Models(Backbone.of(target(family)), Backbone.of(draft(family, guesser)))
    plan = from_dict(method).plan(models)
    options = {"first_guesses": plan.first_guesses, **options}
    return Session(
        models.target, plan.drafter, plan.prefill, Clock(Stats()), plan.acceptance, **options
    )


def add(session: Session, family: Family, rows: Sequence[int], **options: Any) -> Any:
    """Let a call join."""
    given = inputs(family, family.richest, rows)
    prepared = session.target.prepare(given, **{**GREEDY, **options})
    return session.add(prepared, [0] * len(rows), given)


@every_family
def test_calls_that_start_together(family: Family) -> None:
    """The drafter receives their rows in order, also behind a row that ends with its first token
    and is not guessed."""
    session = session_of(family, guessing("chain3"))
    short = add(session, family, (2,), max_new_tokens=1)
    first = add(session, family, (0, 1))
    second = add(session, family, (2,))
    drafter: Any = session.drafter
    for _ in decode(session):
        if session.stats.first == session.stats.emitted:  # no round yet
            assert drafter.model.prompt_lengths == session.prompt_lengths
    answers = reference(family, family.richest)
    assert [row.tokens for row in (*first, *second)] == answers
    assert short[0].tokens == answers[2][:1]
    assert session.stats.first_drafted == 9


@every_family
def test_a_prefill_with_readings_checks_no_guesses(family: Family) -> None:
    """The readings would include the guesses."""
    session = session_of(family, guessing("chain3"), readings=ATTENTION)
    rows = add(session, family, (0, 1, 2))
    for _ in decode(session):
        pass
    assert [row.tokens for row in rows] == reference(family, family.richest)
    assert session.stats.first_drafted == 0


@dataclass(frozen=True)
class Unhelpful(FullPrefill):
    """A prefill that checks no guesses."""

    @property
    def checks_guesses(self) -> bool:
        return False


IMPOSSIBLE = {
    "attention": ({"method": "specvlm", "draft": "model"}, "no attention or hidden states"),
    "similarity": ({**PRUNED, "draft": "model", "pruner": "uv"}, "no attention or hidden states"),
    "self": ({**PRUNED, "draft": "self"}, "a draft model that reads the prompt"),
    "prefill": ({"prefill": Unhelpful()}, "a prefill that checks guesses"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_is_impossible_is_refused_or_off(name: str) -> None:
    method, message = IMPOSSIBLE[name]
    family = FAMILIES[0]
    with pytest.raises(ConfigError, match=message):
        answer(family, "image", "noisy", {**method, "first_guesses": True})
    for choice in ("auto", False):
        result = answer(family, "image", "noisy", {**method, "first_guesses": choice})
        assert result.tokens == reference(family, "image")
        assert result.stats.first == 3


@pytest.mark.parametrize("value", [1, 0, None, "always", "true"])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="first_guesses must be true, false or 'auto'"):
        from_dict({"first_guesses": value})


# --- automatic


def automatic(
    family: Family,
    monkeypatch: pytest.MonkeyPatch,
    allowed: float,
    rule: str = "coupled",
    **options: Any,
) -> draftlens.Result:
    """An answer with timings of two earlier ones, where some delay is allowed."""
    monkeypatch.setattr(first_guesses, "MAX_DELAY", allowed)
    models = Models(Backbone.of(target(family)), Backbone.of(draft(family, "noisy")))
    delays = delays_of(models.target.model, models.draft.model, (3,))  # type: ignore[union-attr]
    length = int(inputs(family, "text")["attention_mask"].sum(1).max())
    for _ in range(2):
        delays.record(3, Timing(length, target=1.0, draft=0.5))
    method = {**METHODS["chain3"], "sampling_rule": rule}
    return answer(family, "text", "noisy", method, **options)


@every_family
def test_automatic_first_guesses(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """On where any delay is allowed, off where none is, and always off under the rule whose tokens
    would depend on it."""
    assert automatic(family, monkeypatch, float("inf")).stats.first_drafted == 9
    assert automatic(family, monkeypatch, 0.0).stats.first_drafted == 0
    for rule, drafted in (("coupled", 9), ("rejection", 0)):
        result = automatic(family, monkeypatch, float("inf"), rule, do_sample=True, seed=1)
        assert result.stats.first_drafted == drafted


def test_timings_of_answers_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first answer nothing is known, the second gives the first timing that counts."""
    family = FAMILIES[1]
    monkeypatch.setattr(first_guesses, "MAX_DELAY", float("inf"))
    monkeypatch.setattr(first_guesses, "_DELAYS", type(first_guesses._DELAYS)())
    drafted = [
        answer(family, "text", "noisy", METHODS["chain3"]).stats.first_drafted for _ in range(4)
    ]
    assert drafted == [0, 0, 9, 9]


def test_a_plan_that_never_guesses_has_nothing_to_guess_with() -> None:
    family = FAMILIES[0]
    models = Models(Backbone.of(target(family)), Backbone.of(draft(family)))
    assert from_dict({"first_guesses": False}).plan(models).first_guesses is None
    chain = {"num_speculative_tokens": 5, "first_guesses": True}
    always = from_dict(chain).plan(models).first_guesses
    assert isinstance(always, FirstGuesses)
    assert (always.most, always.delays) == (5, None)
