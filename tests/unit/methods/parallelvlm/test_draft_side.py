"""The drafting lane by itself: sessions, and hypotheses about answers."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from batches import batch_of, sequences
from families import FAMILIES, inputs
from stock import draft
from transformers.generation import logits_process as hf

from draftlens.core.errors import InputError
from draftlens.core.sampling import SamplingRule
from draftlens.methods.parallelvlm.draft_side import Worker
from draftlens.methods.parallelvlm.messages import (
    Arrive,
    Close,
    Decide,
    Decision,
    DraftToken,
    DraftTokens,
    Failed,
    FromDraft,
    Joined,
    Leave,
    Open,
)
from draftlens.methods.parallelvlm.speculated_rows import SpeculatedRows
from draftlens.models.adapter import Backbone

FAMILY = FAMILIES[0]
LIMIT = 4


@pytest.fixture
def backbone() -> Backbone:
    return Backbone.of(draft(FAMILY))


class Lane:
    """A worker and what it has sent."""

    def __init__(self, backbone: Backbone) -> None:
        self.made: deque[FromDraft] = deque()
        self.worker = Worker(backbone, self.made.append)
        self.vocab_size = backbone.vocab_size

    def open(self, answer: int, rows: tuple[int, ...] = (0,), **changed: Any) -> None:
        """A session with rows of the family's richest batch."""
        given: Any = inputs(FAMILY, FAMILY.richest, rows)
        self.worker.handle(Open(answer, self.vocab_size, None, shows_choices=False))
        batch = batch_of(sequences(given["input_ids"], [[]] * len(rows)))
        given = changed.get("inputs", given)
        self.worker.handle(
            Arrive(answer, tuple(range(len(rows))), batch, given, 20, LIMIT, waits=False)
        )

    def decide(self, answer: int, *decisions: Decision) -> None:
        self.worker.handle(Decide(answer, decisions))

    def run(self) -> list[DraftToken]:
        """Guess as far as allowed; returns the guesses of all sessions in order."""
        while self.worker.can_step:
            self.worker.step()
        guesses = []
        while self.made:
            message = self.made.popleft()
            if isinstance(message, DraftTokens):
                guesses += message.tokens
        return guesses


def tokens_of(guesses: Seq[DraftToken], row: int = 0) -> list[int]:
    return [guess.token for guess in guesses if guess.row == row]


@torch.inference_mode()
def greedy(backbone: Backbone, row: int, answer: Seq[int], count: int) -> list[int]:
    """The slow twin: the draft's own continuation, each token by a fresh pass."""
    tokens = list(answer)
    for _ in range(count):
        prompt = backbone.encode(backbone.prepare_prompt(inputs(FAMILY, FAMILY.richest, (row,))))
        cache = backbone.new_cache(prompt, len(tokens) + 1)
        logits = backbone.prefill(prompt, cache)
        length = prompt.lengths[0]
        for index, token in enumerate(tokens):
            mask = torch.ones(1, 1, 1, length + index + 1, dtype=torch.bool)
            positions = prompt.positions(torch.tensor([[index]]))
            logits = backbone.forward(torch.tensor([[token]]), positions, cache, mask)
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(answer) :]


def test_sessions_take_turns(backbone: Backbone) -> None:
    lane = Lane(backbone)
    lane.open(1)
    lane.open(2)
    assert sum(isinstance(message, Joined) for message in lane.made) == 2
    lane.made.clear()
    while lane.worker.can_step:
        lane.worker.step()
    assert [message.answer for message in lane.made] == [1, 2] * LIMIT
    first, second = ([m for m in lane.made if m.answer == number] for number in (1, 2))
    for one, other in zip(first, second, strict=True):
        assert isinstance(one, DraftTokens)
        assert isinstance(other, DraftTokens)
        assert one.tokens == other.tokens


def test_an_error_ends_its_own_session_only(backbone: Backbone) -> None:
    lane = Lane(backbone)
    lane.open(1)
    lane.open(2, inputs={"attention_mask": torch.ones(1, 4)})
    failed = lane.made[-1]
    assert isinstance(failed, Failed)
    assert failed.answer == 2
    assert isinstance(failed.error, InputError)
    lane.decide(2, Decision(0, 0, (40,), 9))  # is ignored
    lane.worker.handle(Close(2))
    assert len(tokens_of(lane.run())) == LIMIT
    lane.worker.handle(Close(1))
    assert not lane.worker.can_step
    lane.decide(7, Decision(0, 0, (40,), 9))
    lane.worker.handle(Leave(7, 0))
    lane.worker.step()
    assert not lane.made


def test_any_error_can_be_sent(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    class OddError(Exception):
        def __init__(self, one: int, other: int) -> None:
            super().__init__(f"{one} and {other}")

    def fail(hypotheses: SpeculatedRows) -> None:
        raise OddError(1, 2)

    lane = Lane(backbone)
    lane.open(1)
    monkeypatch.setattr(SpeculatedRows, "step", fail)
    lane.worker.step()
    failed = pickle.loads(pickle.dumps(lane.made[-1]))
    assert str(failed.error) == "OddError: 1 and 2"
    assert not lane.worker.can_step


def test_guesses_carry_what_they_were_drawn_from(backbone: Backbone) -> None:
    """In rows with rejection sampling only, and each without the other rows' share."""
    lane = Lane(backbone)
    given: Any = inputs(FAMILY, FAMILY.richest, (0, 1, 2))
    rule = SamplingRule((hf.TopKLogitsWarper(5),), do_sample=True, acceptance="rejection")
    rows = sequences(given["input_ids"], [[]] * 3, rule)
    rows[1].sampling = SamplingRule()
    lane.worker.handle(Open(1, lane.vocab_size, None, shows_choices=False))
    lane.worker.handle(Arrive(1, (0, 1, 2), batch_of(rows), given, 20, LIMIT, waits=False))
    guesses = lane.run()
    assert len(guesses) == 3 * LIMIT
    for guess in guesses:
        if guess.row == 1:
            assert guess.probs is None
            continue
        assert guess.probs is not None
        assert guess.probs.dtype == torch.float32
        assert guess.probs.untyped_storage().nbytes() == 4 * lane.vocab_size
        assert int((guess.probs > 0).sum()) == 5
        assert float(guess.probs.sum()) == pytest.approx(1)
        assert guess.probs[guess.token] > 0


@pytest.mark.parametrize("agreed", range(LIMIT + 1))
def test_a_row_rolls_back_to_any_length(backbone: Backbone, agreed: int) -> None:
    lane = Lane(backbone)
    lane.open(1)
    own = tokens_of(lane.run())
    assert own == greedy(backbone, 0, [], LIMIT)
    answer = [*own[:agreed], 45]
    assert agreed == LIMIT or own[agreed] != 45
    lane.decide(1, Decision(0, 0, tuple(answer), LIMIT + 3))
    guesses = lane.run()
    assert {guess.epoch for guess in guesses} == {1}
    assert [guess.position for guess in guesses] == list(range(agreed + 1, LIMIT + 3))
    assert tokens_of(guesses) == greedy(backbone, 0, answer, LIMIT + 2 - agreed)


def test_a_verdict_that_agrees_changes_nothing(backbone: Backbone) -> None:
    lane = Lane(backbone)
    lane.open(1)
    own = tokens_of(lane.run())
    [session] = lane.worker._sessions.values()
    cache = session._speculated_rows.draft_rows.cache
    assert cache is not None
    lengths = list(cache.lengths)
    lane.decide(1, Decision(0, 0, tuple(own[:2]), LIMIT + 2))
    assert cache.lengths == lengths  # guesses that still stand are not read again
    guesses = lane.run()
    assert {guess.epoch for guess in guesses} == {0}
    assert tokens_of(guesses) == greedy(backbone, 0, own, 2)


def test_a_row_that_lags_goes_on_behind_the_answer(backbone: Backbone) -> None:
    lane = Lane(backbone)
    lane.open(1)
    own = greedy(backbone, 0, [], 3)
    lane.worker.step()  # one guess only, and the answer holds it and two more
    lane.made.clear()
    lane.decide(1, Decision(0, 0, tuple(own), 5))
    guesses = lane.run()
    assert [(guess.epoch, guess.position) for guess in guesses] == [(1, 3), (1, 4)]
    assert tokens_of(guesses) == greedy(backbone, 0, own, 2)


def test_rows_at_their_limit_and_finished_rows_wait(backbone: Backbone) -> None:
    lane = Lane(backbone)
    lane.open(1, rows=(0, 1, 2))
    own = lane.run()
    answers = [tuple(tokens_of(own, row)[:1]) for row in range(3)]
    lane.decide(
        1,
        Decision(0, 0, answers[0], LIMIT),  # may not go on
        Decision(1, 0, answers[1], 2 * LIMIT, finished=True),
        Decision(2, 0, (45,), LIMIT),
    )
    guesses = lane.run()
    assert {guess.row for guess in guesses} == {2}
    assert tokens_of(guesses, 2) == greedy(backbone, 2, [45], LIMIT - 1)
    # Rows that waited beside the others go on where they were.
    lane.decide(1, Decision(0, 1, tuple(tokens_of(own, 0)[1:2]), LIMIT + 2))
    assert tokens_of(lane.run(), 0) == greedy(backbone, 0, tokens_of(own, 0), 2)


def test_a_row_leaves(backbone: Backbone) -> None:
    lane = Lane(backbone)
    lane.open(1, rows=(0, 1, 2))
    own = lane.run()
    lane.worker.handle(Leave(1, 0))
    lane.decide(1, Decision(2, 0, (45,), LIMIT), Decision(1, 0, (45,), LIMIT))
    guesses = lane.run()
    for row in (1, 2):
        assert tokens_of(own, row) == greedy(backbone, row, [], LIMIT)
        assert tokens_of(guesses, row) == greedy(backbone, row, [45], LIMIT - 1)
    assert 0 not in {guess.row for guess in guesses}
