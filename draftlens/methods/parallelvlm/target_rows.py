"""Rows of a batch on the target's side: the answer and the draft tokens after it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from draftlens.core.sequence import History
from draftlens.core.timeline import DISCARDED, Span
from draftlens.core.tree import NextProposal
from draftlens.methods.parallelvlm.messages import Decision, DraftToken


@dataclass
class DraftForward:
    """A forward of the draft."""

    span: Span
    unjudged: int  # how many of its tokens have no verdict yet
    was_used: bool = False  # whether any of its tokens was accepted

    def judge(self, accepted: bool) -> None:
        self.unjudged -= 1
        self.was_used = self.was_used or accepted

    def finished(self) -> Span:
        """The span, marked if all tokens were rejected."""
        return self.span if self.was_used else replace(self.span, outcome=DISCARDED)


@dataclass(eq=False)
class Row:
    """One row."""

    number: int  # of the row in its session of the draft worker
    room: int  # most tokens that the answer may gain
    limit: int  # length up to which the worker may write
    # answer and draft tokens, as far as the worker has written them
    tokens: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)  # the target's own tokens, which only ever grow
    num_decided: int = 0  # how many of these were sent to the worker
    epoch: int = 0  # of the last draft token
    agrees: bool = True  # whether nothing in `tokens` contradicts the answer
    finished: bool = False  # whether the answer has ended, or goes on without a draft
    # by position, the forward of each draft token without a verdict
    works: dict[int, DraftForward] = field(default_factory=dict)
    # by position, what these were drawn from, float32 ``[V]``; for rejection sampling
    probs: dict[int, Tensor] = field(default_factory=dict)
    met: int = 0  # length of answer and draft tokens at the end of the last round

    @property
    def is_written(self) -> bool:
        """Whether the worker has written all that it may."""
        if self.finished or self.limit <= self.num_decided:
            return True
        return self.agrees and len(self.tokens) >= self.limit

    @property
    def proposed(self) -> list[int]:
        """The draft tokens to verify: those of the last round, without later ones."""
        if self.finished or not self.agrees:
            return []
        return self.tokens[self.num_decided : self.met]

    def next_proposal(self, depth: int) -> NextProposal | None:
        """The draft token after the first `depth` ones, with what it was drawn from."""
        position = self.num_decided + depth
        probs = self.probs.get(position)
        if probs is None or self.finished or not self.agrees:
            return None
        return NextProposal(self.tokens[position], probs)

    def take(self, drafted: DraftToken, work: DraftForward) -> list[bool]:
        """Append a token of the worker; returns its verdict if the answer has come so far."""
        if drafted.epoch != self.epoch:
            # The worker has followed the decisions up to here and goes on from the answer.
            self.epoch = drafted.epoch
            self.tokens = self.answer[: drafted.position]
            self.agrees = True
        self.tokens.append(drafted.token)
        if not self.agrees:
            work.judge(False)
            return []
        self.works[drafted.position] = work
        if drafted.probs is not None:
            self.probs[drafted.position] = drafted.probs
        return [self._compare(drafted.position)] if drafted.position < self.num_decided else []

    def advance(self, history: History) -> list[bool]:
        """Follow the answer; returns the verdicts on draft tokens that it has reached."""
        verdicts = []
        reached = min(history.length, len(self.tokens)) if self.agrees else 0
        for position in range(self.num_decided, reached):
            verdicts.append(self._compare(position))
            if not self.agrees:
                break
        self.num_decided = history.length
        self.finished = history.finished
        self.met = max(len(self.tokens), self.num_decided) if self.agrees else self.num_decided
        return verdicts

    def decision(self, start: int) -> Decision:
        gained = tuple(self.answer[start : self.num_decided])
        return Decision(self.number, start, gained, self.limit, self.finished)

    def _compare(self, position: int) -> bool:
        """Whether a draft token is accepted; if not, all after it are rejected, too."""
        accepted = self.answer[position] == self.tokens[position]
        self.works.pop(position).judge(accepted)
        self.probs.pop(position, None)
        if not accepted:
            self.agrees = False
            for work in self.works.values():
                work.judge(False)
            self.works.clear()
            self.probs.clear()
        return accepted
