"""Rejection sampling in lock-step: the target's distribution, whichever of target and worker moves
when, and nothing rejected where target and draft are equal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from links import PromptLink, ScriptedLink, session_of
from stock import LONG, NEW, draft, reference
from tables import (
    DRAFTS,
    IMPOSSIBLE,
    LIKELY,
    ROWS,
    TARGET,
    VOCAB,
    WARPERS,
    TableModel,
    TableSession,
    answers,
    finished,
    fit,
    p_value,
)
from torch import Tensor
from transformers.generation import logits_process as hf

import draftlens.methods.parallelvlm.speculated_rows as speculated_rows
from draftlens.core import verify
from draftlens.core.sampling import SamplingRule
from draftlens.core.tree import chain
from draftlens.decoding import Plan, Session
from draftlens.decoding import decode as decode_serially
from draftlens.decoding.plan import Acceptance
from draftlens.drafting.draft_prompt import DraftPromptBuilder
from draftlens.drafting.model_drafter import ModelDrafter
from draftlens.methods.parallelvlm.drafters import ParallelDrafter
from draftlens.methods.parallelvlm.loop import decode
from draftlens.methods.parallelvlm.messages import WorkerLostError
from draftlens.methods.parallelvlm.schedule import Schedule
from draftlens.methods.parallelvlm.target_side import OwnPrompt
from draftlens.models.adapter import Backbone

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)

SAMPLED: Mapping[str, Any] = {
    "max_new_tokens": LONG,
    "do_sample": True,
    "top_k": 40,
    "top_p": 0.95,
    "repetition_penalty": 1.1,
}
GREEDY: Mapping[str, Any] = {"max_new_tokens": NEW, "do_sample": False}
SHORT: Mapping[str, Any] = {**SAMPLED, "max_new_tokens": NEW}
SEEDS = [11, 12, 13]


# --- the distribution, on tables -----------------------------------------------------------------


def speak(
    window: int, table: Tensor, processors: Any = (), rows: int = ROWS, link: Any = None
) -> TableSession:
    """A finished session in lock-step.

    Args:
        window: γ.
        table: of the draft.
        processors: logits processors.
        rows: number of them.
        link: the way to the worker; None for one that drafts whenever it may.
    """
    rule = SamplingRule(processors, True, "rejection")
    backbone: Any = TableModel(table)
    target: Any = TableModel(TARGET)
    serial = ModelDrafter(DraftPromptBuilder(backbone), chain(window), VOCAB)
    link = link or PromptLink(backbone, 0)
    drafter = ParallelDrafter(link, OwnPrompt(), Schedule(window), VOCAB, serial)
    session = TableSession(target, Plan(drafter, acceptance=Acceptance("rejection")))
    return finished(session, rule, 11, rows, schedule=decode)


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize(
    ("window", "processors"), [(1, ()), (2, WARPERS), (3, ())], ids=["1", "2 warped", "3"]
)
def test_lockstep_keeps_the_target_distribution(window: int, name: str, processors: Any) -> None:
    """Windows are checked, next draft tokens stand for bonus tokens, and rows are corrected
    alone."""
    session = speak(window, DRAFTS[name], processors)
    assert fit(session) > LIKELY
    assert session.stats.worker_lost is None
    if (
        name == "equal"
    ):  # p = q: only first tokens, which the prefill draws, contradict a draft token
        assert session.stats.accepted == session.stats.drafted
        assert session.drafter.ahead.done.corrections < ROWS


def test_histories_of_draft_tokens_that_are_not_judged_yet() -> None:
    """Tokens that were said before are less likely."""
    penalty = hf.RepetitionPenaltyLogitsProcessor(4.0)
    tokens = torch.tensor(answers(speak(2, DRAFTS["near"], (penalty,))))
    expected = torch.zeros(VOCAB, VOCAB, VOCAB, dtype=torch.float64)
    for first, second, third in itertools.product(range(VOCAB), repeat=3):
        said = torch.tensor([[0, first, second, third]])
        steps = [TARGET[0, 0, 0], TARGET[1, 0, first], TARGET[2, first, second]]
        chance = 1.0
        for count, logits in enumerate(steps, 1):
            p = penalty(said[:, :count], logits[None].clone()).softmax(-1)[0]
            chance *= float(p[said[0, count]])
        expected[first, second, third] = chance
    cells = tokens[:, 0] * VOCAB**2 + tokens[:, 1] * VOCAB + tokens[:, 2]
    assert p_value(cells, expected.flatten()) > LIKELY


@pytest.mark.parametrize("window", [1, 3])
def test_tokens_do_not_depend_on_who_moves_when(window: int) -> None:
    found = []
    works = set()
    for seed in range(5):
        link = ScriptedLink(TableModel(DRAFTS["near"]), seed, moves=seed)  # type: ignore[arg-type]
        session = speak(window, DRAFTS["near"], WARPERS, rows=40, link=link)
        found.append(answers(session))
        works.add((session.stats.passes, session.stats.drafted, session.stats.accepted))
    assert all(tokens == found[0] for tokens in found)
    assert len(works) == 1


class LosingLink(PromptLink):
    """A link that is lost after some looks."""

    looks = 4

    def receive(self, answer: int, timeout: float) -> Any:
        self.looks -= 1
        if self.looks < 0:
            raise WorkerLostError("the test has cut it")
        return super().receive(answer, timeout)


@pytest.mark.parametrize("window", [1, 3])
def test_a_lost_worker_leaves_the_distribution_as_it_is(window: int) -> None:
    """Draft tokens that are there are judged; the bonus tokens after them are drawn from p."""
    link = LosingLink(TableModel(DRAFTS["near"]), 0)  # type: ignore[arg-type]
    session = speak(window, DRAFTS["near"], link=link)
    assert session.stats.worker_lost == "the test has cut it"
    assert fit(session) > LIKELY


# --- power: rules that are wrong on purpose ------------------------------------------------------


def taken_unseen(p: Tensor, draft_token: Any, generator: torch.Generator) -> int:
    """The next draft token, whatever p is."""
    return int(draft_token.token) if draft_token is not None else int(torch.multinomial(p, 1))


def without_repair(p: Tensor, draft_token: Any, generator: torch.Generator) -> int:
    """The next draft token is judged; where it is rejected, the bonus token is drawn from all of
    p."""
    if draft_token is not None:
        chance = p[draft_token.token] / draft_token.probs[draft_token.token]
        if torch.rand((), generator=generator) < chance:
            return int(draft_token.token)
    return int(torch.multinomial(p, 1, generator=generator))


@pytest.mark.parametrize("wrong", [taken_unseen, without_repair])
def test_the_fit_notices_wrong_bonus_tokens(
    wrong: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_bonus", wrong)
    assert fit(speak(2, DRAFTS["far"])) < IMPOSSIBLE


def test_the_fit_notices_probabilities_of_another_draft_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def even(batch: Any, scores: Tensor) -> list[Tensor]:
        return list(torch.full_like(scores, 1 / VOCAB).float())

    monkeypatch.setattr(speculated_rows, "_probabilities", even)
    assert fit(speak(2, DRAFTS["far"])) < IMPOSSIBLE


# --- models --------------------------------------------------------------------------------------


def lockstep(
    family: Family, window: int = 4, kind: str = "noisy", seed: int | None = None
) -> Session:
    """A session without rows; `seed` makes target and worker move at random."""
    backbone = Backbone.of(draft(family, kind))
    link = PromptLink(backbone, 0) if seed is None else ScriptedLink(backbone, seed)
    return session_of(family, link, Schedule(window), kind=kind, acceptance="rejection")


def add(session: Session, family: Family, row: int, options: Mapping[str, Any]) -> Any:
    """Let one row of the richest batch join."""
    given = inputs(family, family.richest, (row,))
    return session.add(session.target.prepare(given, **options), [SEEDS[row]], given)[0]


def said(session: Session, family: Family, options: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """The tokens of the first rows, each with options of its own."""
    rows = [add(session, family, row, own) for row, own in enumerate(options)]
    for _ in decode(session):
        pass
    return [row.tokens for row in rows]


@cache
def sampled(family: Family) -> list[list[int]]:
    """What all three rows draw from the beginning together."""
    return said(lockstep(family), family, [SAMPLED] * 3)


@every_family
@pytest.mark.parametrize("window", [1, 4])
def test_equal_models_reject_nothing(family: Family, window: int) -> None:
    """In any window: only the first tokens, which the prefill draws, contradict draft tokens."""
    session = lockstep(family, window, "self", seed=6)
    said(session, family, [SHORT] * 3)
    stats = session.stats
    assert stats.accepted == stats.drafted
    assert session.drafter.ahead.done.corrections <= 3
    # Each round yields a window, but for those of a contradicted first token.
    assert stats.target_forwards <= 3 + -(-(NEW - 1) // window)


@every_family
def test_rows_depend_on_themselves_alone(family: Family) -> None:
    """Rows that are sampled, greedy, and sampled with other rules, in one batch and alone, in any
    order of target and worker."""
    cooler = {**SHORT, "temperature": 0.5, "max_new_tokens": NEW - 4}
    options = [SHORT, GREEDY, cooler]
    together = [said(lockstep(family, seed=seed), family, options) for seed in range(3)]
    assert together[0] == together[1] == together[2]
    assert together[0][1] == reference(family, family.richest)[1]
    for row, own in enumerate(options):
        session = lockstep(family)
        alone = add(session, family, row, own)
        for _ in decode(session):
            pass
        assert alone.tokens == together[0][row]


@every_family
def test_rows_that_join_and_leave(family: Family) -> None:
    expected = sampled(family)
    for seed in range(3):
        session = lockstep(family, seed=seed)
        first = add(session, family, 1, SAMPLED)
        leaving = add(session, family, 2, SAMPLED)
        chunks = decode(session)
        for _ in range(5):
            next(chunks)
        late = add(session, family, 0, SAMPLED)
        session.remove(leaving)
        for _ in chunks:
            pass
        assert [late.tokens, first.tokens] == expected[:2]
        assert leaving.tokens == expected[2][: len(leaving.tokens)]


@every_family
def test_ends_inside_windows(family: Family) -> None:
    """An answer that ends is the beginning of the one that goes on."""
    longer = sampled(family)
    ends = [row[LONG // 2] for row in longer]
    shorter = said(lockstep(family), family, [{**SAMPLED, "eos_token_id": ends}] * 3)
    for row, whole in zip(shorter, longer, strict=True):
        assert row == whole[: len(row)]
        assert len(row) <= LONG // 2 + 1
        assert row[-1] in ends


# --- rows that have ended ------------------------------------------------------------------------


def nothing_behind(length: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A processor that bans every token of longer sequences, which have no distribution then."""

    def process(input_ids: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf) if input_ids.shape[1] >= length else scores

    return process


@pytest.mark.parametrize("schedule", ["serial", "lockstep"])
@pytest.mark.parametrize("window", [1, 4])
def test_rows_that_have_ended_are_not_judged(schedule: str, window: int) -> None:
    family = FAMILIES[0]
    link = ScriptedLink(Backbone.of(draft(family)), seed=8)
    session = session_of(family, link, Schedule(window), acceptance="rejection")
    if schedule == "serial":
        session.drafter = session.drafter.serial
    rows = []
    for row, most in enumerate([3, LONG]):
        given = inputs(family, family.richest, (row,))
        length = given["input_ids"].shape[1] + most
        options = {**SAMPLED, "max_new_tokens": most, "logits_processor": [nothing_behind(length)]}
        rows += session.add(session.target.prepare(given, **options), [SEEDS[row]], given)
    for _ in (decode_serially if schedule == "serial" else decode)(session):
        pass
    assert [len(row.tokens) for row in rows] == [3, LONG]
    assert session.drafter.forwards > 3
