"""A draft model that runs ahead of the target: rows of answers and the draft tokens after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftlens.core.sequence import Batch, History, replace_by_last
from draftlens.core.tree import EMPTY, ROOT
from draftlens.decoding.plan import draw_children
from draftlens.drafting.draft_prompt import DraftPrompt
from draftlens.drafting.draft_rows import DraftRows, with_ids_of_the_target
from draftlens.methods.parallelvlm.messages import Decision, DraftToken
from draftlens.models.adapter import Backbone


@dataclass(eq=False)
class SpeculatedRow:
    """One row: the answer as far as it is known, and the draft tokens after it."""

    number: int  # of the row in its session
    history: History  # prompt, seed and sampling rule; its own tokens are not read
    limit: int  # length up to which the row may be drafted
    tip: Tensor | None  # logits after the last of `tokens`, ``[V]``; None until they are computed
    tokens: list[int]  # answer and draft tokens
    epoch: int = 0  # how often draft tokens were replaced
    finished: bool = False

    def decide(self, decision: Decision) -> int:
        """Apply a decision of the target; returns how many leading tokens are unchanged."""
        start = decision.start
        end = start + len(decision.tokens)
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


class SpeculatedRows:
    """The rows of a session as a draft model continues them: `DraftRows` that hold draft tokens
    before they are accepted. A verdict that rejects them rolls back its own row only."""

    def __init__(self, backbone: Backbone, vocab_size: int) -> None:
        self.rows: list[SpeculatedRow] = []  # in the order of the cache
        self.draft_rows = DraftRows(backbone, vocab_size)

    @property
    def nbytes(self) -> int:
        return self.draft_rows.nbytes

    @property
    def can_step(self) -> bool:
        return any(self._is_open(row) for row in self.rows)

    def join(
        self, numbers: Sequence[int], batch: Batch, draft: DraftPrompt, room: int, limit: int
    ) -> None:
        """Read prompts; answers gain `room` tokens at most, and are drafted up to `limit`."""
        logits = self.draft_rows.join(draft, batch, room)
        for row, (number, history) in enumerate(zip(numbers, batch.histories, strict=True)):
            tip = None
            if logits is not None:
                tip = with_ids_of_the_target(logits[row, -1], self.draft_rows.vocab_size)
            self.rows.append(SpeculatedRow(number, history, limit, tip, []))

    def decide(self, decisions: Sequence[Decision]) -> None:
        """Apply the target's decisions; rejected draft tokens are dropped."""
        index_of = {row.number: index for index, row in enumerate(self.rows)}
        for decision in decisions:
            index = index_of[decision.row]
            same = self.rows[index].decide(decision)
            settled = min(same, decision.start + len(decision.tokens))
            self.draft_rows.truncate(index, same, settled)

    def remove(self, number: int) -> None:
        """Drop a row, if it has joined; the last row takes its place."""
        for index in [index for index, row in enumerate(self.rows) if row.number == number]:
            self.draft_rows.remove(index)
            replace_by_last(self.rows, index)

    def step(self) -> tuple[DraftToken, ...]:
        """Draft the next token of every open row with one forward."""
        rows = [index for index, row in enumerate(self.rows) if self._is_open(row)]
        if not rows:
            return ()
        self._forward(rows)
        open_rows = [self.rows[index] for index in rows]
        tips = [row.tip for row in open_rows if row.tip is not None]
        batch = Batch(tuple(map(_history, open_rows)))
        logits = torch.stack(tips)[:, None]  # [B, 1, V]
        count = len(tips)
        no_tokens = torch.empty(count, 0, dtype=torch.long, device=logits.device)
        scores = batch.process(logits, [EMPTY] * count, no_tokens, [[ROOT]] * count)
        children = draw_children(batch, scores, 1, batch.steps(logits.device))
        probs = _probabilities(batch, scores[:, 0])
        tokens = children[:, 0, 0].tolist()
        draft_tokens = []
        for index, row in enumerate(open_rows):
            token = tokens[index]
            draft_tokens.append(
                DraftToken(row.number, row.epoch, len(row.tokens), token, probs[index])
            )
            row.tokens.append(token)
            row.tip = None
        return tuple(draft_tokens)

    def _is_open(self, row: SpeculatedRow) -> bool:
        is_readable = row.tip is not None or bool(row.tokens)
        return is_readable and not row.finished and len(row.tokens) < row.limit

    def _forward(self, rows: Sequence[int]) -> None:
        """Forward what the cache lacks of these rows, for their tips; other rows get fillers."""
        cached_lengths = [self.draft_rows.held(index) for index in range(len(self.rows))]
        pending: list[list[int]] = [[] for _ in self.rows]
        for index in rows:
            pending[index] = self.rows[index].tokens[cached_lengths[index] :]
        if not any(pending):
            return
        self.draft_rows.begin_round()
        self.draft_rows.pending = pending
        steps = [
            [cached + len(tokens)] for cached, tokens in zip(cached_lengths, pending, strict=True)
        ]
        logits = self.draft_rows.catch_up(torch.tensor(steps, device=self.draft_rows.device))
        for index in rows:
            if pending[index]:
                self.rows[index].tip = logits[index, len(pending[index]) - 1]


def _probabilities(batch: Batch, scores: Tensor) -> list[Tensor | None]:
    """What each row's token was drawn from, float32 ``[V]`` on the CPU, from scores ``[B, V]``;
    None for rows without rejection sampling."""
    probs: list[Tensor | None] = [None] * len(batch)
    for rule, rows in batch.rules.items():
        if rule.rejects:
            drawn_from = torch.softmax(scores[rows].double(), -1).float().cpu()
            for row, row_probs in zip(rows, drawn_from, strict=True):
                probs[row] = row_probs.clone()  # a view would be sent with all rows
    return probs


def _history(row: SpeculatedRow) -> History:
    return replace(row.history, answer=row.tokens, length=len(row.tokens))
