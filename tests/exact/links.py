"""Target and draft worker of parallel decoding in one thread: a script says which of them moves
next."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import torch
from families import Family, inputs
from stock import draft, target

from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import chain
from draftlens.decoding import Plan, Session
from draftlens.decoding.plan import Acceptance
from draftlens.drafting.draft_prompt import DraftPromptBuilder, SelfPromptBuilder
from draftlens.drafting.model_drafter import ModelDrafter
from draftlens.drafting.pruning import Pruning
from draftlens.methods.parallelvlm.draft_side import Worker
from draftlens.methods.parallelvlm.drafters import ParallelDrafter
from draftlens.methods.parallelvlm.messages import FromDraft, ToDraft
from draftlens.methods.parallelvlm.schedule import Schedule
from draftlens.methods.parallelvlm.speculated_rows import SpeculatedRows
from draftlens.methods.parallelvlm.target_side import OwnPrompt, TargetsPrompt
from draftlens.models.adapter import Backbone


class ScriptedLink:
    """A link whose worker makes a random number of moves whenever the target looks at it, and whose
    messages take any time in both directions.

    Args:
        backbone: the draft.
        seed: of the script.
        moves: most moves of the worker between two looks.
    """

    cores = 0
    processes: tuple[int, ...] = ()

    def __init__(self, backbone: Backbone, seed: int, moves: int = 4) -> None:
        self.rng = random.Random(seed)
        self.moves = moves
        self.worker = Worker(backbone, self._send)
        self.sent: deque[ToDraft] = deque()
        self.made: deque[FromDraft] = deque()
        self.steps = 0
        self._number = 0

    def _send(self, message: FromDraft) -> None:
        if message.answer == self._number:
            self.made.append(message)

    def new_answer(self) -> int:
        self._number += 1
        return self._number

    def send(self, message: ToDraft) -> None:
        self.sent.append(message)

    def forget(self, answer: int) -> None:
        """Messages of the session that are there or come later are dropped."""
        self.made.clear()

    def receive(self, answer: int, timeout: float) -> list[FromDraft]:
        """A target that waits gets at least one message, if there ever is one."""
        for _ in range(self.rng.randint(0, self.moves)):
            self.move()
        if timeout:
            while not self.made and self.move():
                pass
        count = self.rng.randint(1 if timeout else 0, max(1, len(self.made)))
        return [self.made.popleft() for _ in range(min(count, len(self.made)))]

    def move(self) -> bool:
        """Let the worker handle a message or draft; whether there was anything to do."""
        can_step = self.worker.can_step
        if self.sent and (not can_step or self.rng.random() < 0.5):
            self.worker.handle(self.sent.popleft())
            return True
        if can_step:
            self.steps += 1
            self.worker.step()
        return can_step


class PromptLink(ScriptedLink):
    """A link whose worker follows every message at once and drafts whenever it may: the fastest
    draft that there can be."""

    def receive(self, answer: int, timeout: float) -> list[FromDraft]:
        while self.sent:
            self.worker.handle(self.sent.popleft())
        while self.worker.can_step:
            self.steps += 1
            self.worker.step()
        messages = list(self.made)
        self.made.clear()
        return messages


def session_of(
    family: Family,
    link: Any,
    schedule: Schedule,
    pruning: Pruning | None = None,
    kind: str = "noisy",
    acceptance: str = "coupled",
) -> Session:
    """A session without requests whose drafter is a draft worker; `kind` as for `stock.draft`, or
    `target` for the target itself on its own pruned prompt."""
    backbone = Backbone.of(target(family))
    if kind == "target":
        assert pruning is not None
        reader: Any = SelfPromptBuilder(backbone, pruning)
        reading: Any = TargetsPrompt(pruning)
    else:
        reader = DraftPromptBuilder(Backbone.of(draft(family, kind)), pruning)
        reading = OwnPrompt(pruning)
    serial = ModelDrafter(reader, chain(schedule.longest), backbone.vocab_size)
    drafter = ParallelDrafter(link, reading, schedule, backbone.vocab_size, serial)
    return Session(backbone, Plan(drafter, acceptance=Acceptance(acceptance)), Clock(Stats()))


def speculated_rows_of(link: ScriptedLink) -> SpeculatedRows:
    """The worker's rows in its only session."""
    [session] = link.worker._sessions.values()
    return session._speculated_rows


@torch.inference_mode()
def check_speculated_rows(link: ScriptedLink, family: Family, rows: tuple[int, ...]) -> None:
    """The worker's cache equals that of a fresh pass over each row's prompt and speculated tokens.

    Args:
        link: the way to the worker.
        family: of the models; the prompt is its richest one, not pruned.
        rows: of that prompt's batch, by the number in the session.
    """
    worker_side = speculated_rows_of(link)
    cache = worker_side.draft_rows.cache
    assert cache is not None
    backbone = worker_side.draft_rows.backbone
    for index, row in enumerate(worker_side.rows):
        given = inputs(family, family.richest, (rows[row.number],))
        prompt = backbone.encode(backbone.prepare_prompt(given))
        cached = cache.lengths[index] - prompt.lengths[0]
        assert 0 <= cached <= len(row.tokens)
        fresh = backbone.new_cache(prompt, room=len(row.tokens) + 1)
        backbone.prefill(prompt, fresh)
        if cached:
            tokens = torch.tensor([row.tokens[:cached]])
            causal = torch.ones(1, 1, cached, prompt.lengths[0] + cached, dtype=torch.bool)
            mask = causal.tril(prompt.lengths[0])
            backbone.forward(tokens, prompt.positions(torch.arange(cached)[None]), fresh, mask)
        length = fresh.lengths[0]
        for held, expected in zip(cache.layers, fresh.layers, strict=True):
            torch.testing.assert_close(
                held.keys[index, :, :length], expected.keys[0, :, :length], rtol=0, atol=2e-4
            )
            torch.testing.assert_close(
                held.values[index, :, :length], expected.values[0, :, :length], rtol=0, atol=2e-4
            )
