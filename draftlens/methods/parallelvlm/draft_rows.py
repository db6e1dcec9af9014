"""A draft model that runs ahead of the target: each row is a hypothesis about its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftlens.core.batch import Batch
from draftlens.core.history import History
from draftlens.core.rows import replace_by_last
from draftlens.core.tree import EMPTY, ROOT
from draftlens.decoding.drafter import draw_children
from draftlens.drafting.draft_prompt import DraftPrompt
from draftlens.drafting.draft_rows import DraftRows
from draftlens.drafting.draft_scores import with_ids_of_the_target
from draftlens.methods.parallelvlm.messages import Decision, Guess
from draftlens.models.adapter import Backbone


@dataclass(eq=False)
class Hypothesis:
    """One row: the answer as far as it is known, and the guesses behind it.

    Args:
        number: of the row in its session.
        history: prompt, seed and sampling rule; its own tokens are not read.
        limit: length up to which the row may be guessed.
        tip: logits behind the last of `tokens`, ``[V]``; None until they are computed.
        tokens: answer and guesses.
        known: how many of them the target has emitted.
        epoch: how often guesses were replaced.
        finished: whether the answer has ended.
    """

    number: int
    history: History
    limit: int
    tip: Tensor | None
    tokens: list[int]
    known: int = 0
    epoch: int = 0
    finished: bool = False

    def decide(self, decision: Decision) -> int:
        """Follow the target; returns how many leading tokens are as they were."""
        start = decision.start
        end = start + len(decision.tokens)
        self.known = end
        self.limit = decision.limit
        self.finished = decision.finished
        same = start
        while same < min(end, len(self.tokens)):
            if self.tokens[same] != decision.tokens[same - start]:
                break
            same += 1
        if same == end:
            return len(self.tokens)
        self.tokens[same:] = decision.tokens[same - start :]
        self.epoch += 1
        self.tip = None
        return same


class Hypotheses:
    """The rows of a session as a draft model continues them: `DraftRows` that hold draft tokens
    before they are accepted. A verdict that rejects them rolls back its own row only.

    Args:
        backbone: the draft model.
        vocab_size: ids that the target has; the draft may have more or fewer.

    Attributes:
        rows: in the order of the cache.
        draft_rows: their cache.
    """

    def __init__(self, backbone: Backbone, vocab_size: int) -> None:
        self.rows: list[Hypothesis] = []
        self.draft_rows = DraftRows(backbone, vocab_size)

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return self.draft_rows.nbytes

    @property
    def can_step(self) -> bool:
        """Whether a row may be continued."""
        return any(self._is_open(row) for row in self.rows)

    def join(
        self, numbers: Sequence[int], batch: Batch, draft: DraftPrompt, room: int, limit: int
    ) -> None:
        """Read the prompts of rows.

        Args:
            numbers: of the rows.
            batch: the rows.
            draft: what the draft reads.
            room: most tokens that an answer may gain.
            limit: length up to which the rows may be continued.
        """
        logits = self.draft_rows.join(draft, batch, room)
        for row, (number, history) in enumerate(zip(numbers, batch.histories, strict=True)):
            tip = None
            if logits is not None:
                tip = with_ids_of_the_target(logits[row, -1], self.draft_rows.vocab_size)
            self.rows.append(Hypothesis(number, history, limit, tip, []))

    def decide(self, decisions: Sequence[Decision]) -> None:
        """Follow the target's verdicts; draft tokens that they reject are forgotten."""
        index_of = {row.number: index for index, row in enumerate(self.rows)}
        for decision in decisions:
            index = index_of[decision.row]
            self.draft_rows.truncate(index, self.rows[index].decide(decision))

    def remove(self, number: int) -> None:
        """Drop a row; the last row takes its place."""
        row = next(index for index, row in enumerate(self.rows) if row.number == number)
        self.draft_rows.remove(row)
        replace_by_last(self.rows, row)

    def step(self) -> tuple[Guess, ...]:
        """Guess the next token of every row that may be guessed further, with one forward."""
        rows = [index for index, row in enumerate(self.rows) if self._is_open(row)]
        if not rows:
            return ()
        self._forward(rows)
        chosen = [self.rows[index] for index in rows]
        tips = [row.tip for row in chosen if row.tip is not None]
        batch = Batch(tuple(map(_history, chosen)))
        logits = torch.stack(tips)[:, None]  # [B, 1, V]
        count = len(tips)
        no_guesses = torch.empty(count, 0, dtype=torch.long, device=logits.device)
        scores = batch.process(logits, [EMPTY] * count, no_guesses, [[ROOT]] * count)
        drawn = draw_children(batch, scores, 1, batch.steps(logits.device))
        probs = _probabilities(batch, scores[:, 0])
        tokens = drawn[:, 0, 0].tolist()
        guesses = []
        for index, row in enumerate(chosen):
            token = tokens[index]
            guesses.append(Guess(row.number, row.epoch, len(row.tokens), token, probs[index]))
            row.tokens.append(token)
            row.tip = None
        return tuple(guesses)

    def _is_open(self, row: Hypothesis) -> bool:
        is_readable = row.tip is not None or bool(row.tokens)
        return is_readable and not row.finished and len(row.tokens) < row.limit

    def _forward(self, rows: Sequence[int]) -> None:
        """Forward what the cache lacks of these rows, so that each has a tip. Other rows are
        forwarded beside them with fillers."""
        held = [self.draft_rows.held(index) for index in range(len(self.rows))]
        pending: list[list[int]] = [[] for _ in self.rows]
        for index in rows:
            pending[index] = self.rows[index].tokens[held[index] :]
        if not any(pending):
            return
        self.draft_rows.begin_round()
        self.draft_rows.pending = pending
        steps = [[cached + len(tokens)] for cached, tokens in zip(held, pending, strict=True)]
        logits = self.draft_rows.catch_up(torch.tensor(steps, device=self.draft_rows.device))
        for index in rows:
            if pending[index]:
                self.rows[index].tip = logits[index, len(pending[index]) - 1]


def _probabilities(batch: Batch, scores: Tensor) -> list[Tensor | None]:
    """What each row's guess was drawn from, float32 ``[V]`` on the CPU, where the target judges by
    it; None for rows whose guesses are compared.

    Args:
        batch: the rows.
        scores: processed scores ``[B, V]``.
    """
    probs: list[Tensor | None] = [None] * len(batch)
    for rule, rows in batch.rules.items():
        if rule.rejects:
            drawn_from = torch.softmax(scores[rows].double(), -1).float().cpu()
            for row, row_probs in zip(rows, drawn_from, strict=True):
                probs[row] = row_probs.clone()  # a view would be sent with all rows
    return probs


def _history(row: Hypothesis) -> History:
    return replace(row.history, answer=row.tokens, length=len(row.tokens))
