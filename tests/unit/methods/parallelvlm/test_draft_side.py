"""The draft worker by itself: sessions, and speculated rows."""

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


class DraftSide:
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
        """Draft as far as allowed; returns the draft tokens of all sessions in order."""
        while self.worker.can_step:
            self.worker.step()
        draft_tokens = []
        while self.made:
            message = self.made.popleft()
            if isinstance(message, DraftTokens):
                draft_tokens += message.tokens
        return draft_tokens


def tokens_of(draft_tokens: Seq[DraftToken], row: int = 0) -> list[int]:
    return [draft_token.token for draft_token in draft_tokens if draft_token.row == row]


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
    side = DraftSide(backbone)
    side.open(1)
    side.open(2)
    assert sum(isinstance(message, Joined) for message in side.made) == 2
    side.made.clear()
    while side.worker.can_step:
        side.worker.step()
    assert [message.answer for message in side.made] == [1, 2] * LIMIT
    first, second = ([m for m in side.made if m.answer == number] for number in (1, 2))
    for one, other in zip(first, second, strict=True):
        assert isinstance(one, DraftTokens)
        assert isinstance(other, DraftTokens)
        assert one.tokens == other.tokens


def test_an_error_ends_its_own_session_only(backbone: Backbone) -> None:
    side = DraftSide(backbone)
    side.open(1)
    side.open(2, inputs={"attention_mask": torch.ones(1, 4)})
    failed = side.made[-1]
    assert isinstance(failed, Failed)
    assert failed.answer == 2
    assert isinstance(failed.error, InputError)
    side.decide(2, Decision(0, 0, (40,), 9))  # is ignored
    side.worker.handle(Close(2))
    assert len(tokens_of(side.run())) == LIMIT
    side.worker.handle(Close(1))
    assert not side.worker.can_step
    side.decide(7, Decision(0, 0, (40,), 9))
    side.worker.handle(Leave(7, 0))
    side.worker.step()
    assert not side.made


def test_any_error_can_be_sent(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    class OddError(Exception):
        def __init__(self, one: int, other: int) -> None:
            super().__init__(f"{one} and {other}")

    def fail(speculated_rows: SpeculatedRows) -> None:
        raise OddError(1, 2)

    side = DraftSide(backbone)
    side.open(1)
    monkeypatch.setattr(SpeculatedRows, "step", fail)
    side.worker.step()
    failed = pickle.loads(pickle.dumps(side.made[-1]))
    assert str(failed.error) == "OddError: 1 and 2"
    assert not side.worker.can_step


def test_draft_tokens_carry_what_they_were_drawn_from(backbone: Backbone) -> None:
    """In rows with rejection sampling only, and each without the other rows' share."""
    side = DraftSide(backbone)
    given: Any = inputs(FAMILY, FAMILY.richest, (0, 1, 2))
    rule = SamplingRule((hf.TopKLogitsWarper(5),), do_sample=True, acceptance="rejection")
    rows = sequences(given["input_ids"], [[]] * 3, rule)
    rows[1].sampling = SamplingRule()
    side.worker.handle(Open(1, side.vocab_size, None, shows_choices=False))
    side.worker.handle(Arrive(1, (0, 1, 2), batch_of(rows), given, 20, LIMIT, waits=False))
    draft_tokens = side.run()
    assert len(draft_tokens) == 3 * LIMIT
    for draft_token in draft_tokens:
        if draft_token.row == 1:
            assert draft_token.probs is None
            continue
        assert draft_token.probs is not None
        assert draft_token.probs.dtype == torch.float32
        assert draft_token.probs.untyped_storage().nbytes() == 4 * side.vocab_size
        assert int((draft_token.probs > 0).sum()) == 5
        assert float(draft_token.probs.sum()) == pytest.approx(1)
        assert draft_token.probs[draft_token.token] > 0


@pytest.mark.parametrize("agreed", range(LIMIT + 1))
def test_a_row_rolls_back_to_any_length(backbone: Backbone, agreed: int) -> None:
    side = DraftSide(backbone)
    side.open(1)
    own = tokens_of(side.run())
    assert own == greedy(backbone, 0, [], LIMIT)
    answer = [*own[:agreed], 45]
    assert agreed == LIMIT or own[agreed] != 45
    side.decide(1, Decision(0, 0, tuple(answer), LIMIT + 3))
    draft_tokens = side.run()
    assert {draft_token.epoch for draft_token in draft_tokens} == {1}
    assert [draft_token.position for draft_token in draft_tokens] == list(
        range(agreed + 1, LIMIT + 3)
    )
    assert tokens_of(draft_tokens) == greedy(backbone, 0, answer, LIMIT + 2 - agreed)


def test_a_verdict_that_agrees_changes_nothing(backbone: Backbone) -> None:
    side = DraftSide(backbone)
    side.open(1)
    own = tokens_of(side.run())
    [session] = side.worker._sessions.values()
    cache = session._speculated_rows.draft_rows.cache
    assert cache is not None
    lengths = list(cache.lengths)
    side.decide(1, Decision(0, 0, tuple(own[:2]), LIMIT + 2))
    assert cache.lengths == lengths  # draft tokens that still stand are not read again
    draft_tokens = side.run()
    assert {draft_token.epoch for draft_token in draft_tokens} == {0}
    assert tokens_of(draft_tokens) == greedy(backbone, 0, own, 2)


def test_a_row_that_lags_goes_on_behind_the_answer(backbone: Backbone) -> None:
    side = DraftSide(backbone)
    side.open(1)
    own = greedy(backbone, 0, [], 3)
    side.worker.step()  # one draft token only, and the answer holds it and two more
    side.made.clear()
    side.decide(1, Decision(0, 0, tuple(own), 5))
    draft_tokens = side.run()
    assert [(draft_token.epoch, draft_token.position) for draft_token in draft_tokens] == [
        (1, 3),
        (1, 4),
    ]
    assert tokens_of(draft_tokens) == greedy(backbone, 0, own, 2)


def test_rows_at_their_limit_and_finished_rows_wait(backbone: Backbone) -> None:
    side = DraftSide(backbone)
    side.open(1, rows=(0, 1, 2))
    own = side.run()
    answers = [tuple(tokens_of(own, row)[:1]) for row in range(3)]
    side.decide(
        1,
        Decision(0, 0, answers[0], LIMIT),  # may not go on
        Decision(1, 0, answers[1], 2 * LIMIT, finished=True),
        Decision(2, 0, (45,), LIMIT),
    )
    draft_tokens = side.run()
    assert {draft_token.row for draft_token in draft_tokens} == {2}
    assert tokens_of(draft_tokens, 2) == greedy(backbone, 2, [45], LIMIT - 1)
    # Rows that waited beside the others go on where they were.
    side.decide(1, Decision(0, 1, tuple(tokens_of(own, 0)[1:2]), LIMIT + 2))
    assert tokens_of(side.run(), 0) == greedy(backbone, 0, tokens_of(own, 0), 2)


def test_a_row_leaves(backbone: Backbone) -> None:
    side = DraftSide(backbone)
    side.open(1, rows=(0, 1, 2))
    own = side.run()
    side.worker.handle(Leave(1, 0))
    side.decide(1, Decision(2, 0, (45,), LIMIT), Decision(1, 0, (45,), LIMIT))
    draft_tokens = side.run()
    for row in (1, 2):
        assert tokens_of(own, row) == greedy(backbone, row, [], LIMIT)
        assert tokens_of(draft_tokens, row) == greedy(backbone, row, [45], LIMIT - 1)
    assert 0 not in {draft_token.row for draft_token in draft_tokens}
