"""The draft worker: it reads prompts and drafts ahead, one forward at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from draftlens.core.errors import DraftlensError
from draftlens.core.timeline import DRAFT, Span
from draftlens.decoding.observer import Observer
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.draft_prompt import DraftPrompt, DraftPromptBuilder, prefilled
from draftlens.methods.parallelvlm.messages import (
    Arrive,
    Close,
    Decide,
    DraftTokens,
    Failed,
    FromDraft,
    Joined,
    Leave,
    Open,
    Read,
    TargetSide,
    ToDraft,
)
from draftlens.methods.parallelvlm.speculated_rows import SpeculatedRows
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.passes import attach_engine
from draftlens.pruning import Choice


class Worker:
    """Drafts for any number of sessions with one model.

    The caller runs `handle` for each message that has come, and `step` while `can_step`. A session
    that fails is forgotten; its further messages are ignored. `send` receives messages for the
    target.
    """

    def __init__(self, backbone: Backbone, send: Callable[[FromDraft], None]) -> None:
        self.backbone = backbone
        self._send = send
        self._sessions: dict[int, _Session] = {}
        self._turns: deque[int] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._sessions

    @property
    def can_step(self) -> bool:
        return any(session.can_step for session in self._sessions.values())

    def handle(self, message: ToDraft) -> None:
        number = message.answer
        if isinstance(message, Open):
            attach_engine(self.backbone, message.engine)
            self._sessions[number] = _Session(self.backbone, message, self._send)
            self._turns.append(number)
            return
        session = self._sessions.get(number)
        if session is None:
            return
        if isinstance(message, Close):
            self._forget(number)
            return
        self._guarded(number, lambda: session.handle(message))

    def step(self) -> None:
        """One forward for the next session in turn that may be drafted further."""
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            number = self._turns[-1]
            session = self._sessions[number]
            if session.can_step:
                self._guarded(number, session.step)
                return

    def _guarded(self, number: int, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # of any kind: the target goes on and reports it
            self._forget(number)
            self._send(Failed(number, _sendable(error)))

    def _forget(self, number: int) -> None:
        del self._sessions[number]
        self._turns.remove(number)


class _Session:
    """One session of the draft worker."""

    def __init__(self, backbone: Backbone, opened: Open, send: Callable[[FromDraft], None]) -> None:
        self._backbone = backbone
        self._opened = opened
        self._send = send
        self._reader = DraftPromptBuilder(backbone, opened.pruning)
        self._speculated_rows = SpeculatedRows(backbone, opened.vocab_size)
        self._waiting: dict[tuple[int, ...], tuple[Arrive, Prompt | None]] = {}
        self._spans: list[Span] = []
        self._choices: list[Choice] = []
        self._visual = 0
        self._kept = 0

    @property
    def can_step(self) -> bool:
        return self._speculated_rows.can_step

    def handle(self, message: Arrive | Read | Decide | Leave) -> None:
        if isinstance(message, Arrive):
            self._arrive(message)
        elif isinstance(message, Read):
            self._read(message)
        elif isinstance(message, Decide):
            self._speculated_rows.decide(message.decisions)
        else:
            self._leave(message.row)

    def step(self) -> None:
        """One forward; its tokens are sent."""
        began = time.perf_counter()
        tokens = self._speculated_rows.step()
        span = Span(DRAFT, "draft", began, time.perf_counter(), tokens=len(tokens))
        number = self._opened.answer
        self._send(DraftTokens(number, tokens, self._speculated_rows.nbytes, span))

    def _arrive(self, message: Arrive) -> None:
        encoded = None
        if message.inputs is not None:
            with self._phase("vision"):
                encoded = self._reader.encode(message.inputs)
        if message.waits or encoded is None:
            self._waiting[message.rows] = message, encoded
        else:
            self._join(message, self._prune(encoded, TargetSide(encoded)))

    def _read(self, message: Read) -> None:
        arrived, encoded = self._waiting.pop(message.rows)
        if message.prompt is not None:
            self._join(arrived, prefilled(self._backbone, message.prompt))
        elif message.side is not None and encoded is not None:
            self._join(arrived, self._prune(encoded, message.side))

    def _leave(self, row: int) -> None:
        for rows in [rows for rows in self._waiting if row in rows]:
            del self._waiting[rows]
        self._speculated_rows.remove(row)

    def _prune(self, encoded: Prompt, side: TargetSide) -> DraftPrompt:
        context = TargetContext(
            prompt=side.prompt,
            cache=KVCache(0, 0, 0),
            readings=side.readings,
            observer=Observer(
                phase=self._phase, on_prune=self._count_pruned, on_choice=self._choices.append
            ),
        )
        return self._reader.read(encoded, context)

    def _join(self, arrived: Arrive, draft: DraftPrompt) -> None:
        """Read the prompts of some rows."""
        with self._phase("prefill"):
            self._speculated_rows.join(
                arrived.rows, arrived.batch, draft, arrived.room, arrived.limit
            )
        self._send(
            Joined(
                self._opened.answer,
                self._visual,
                self._kept,
                self._speculated_rows.nbytes,
                tuple(self._choices) if self._opened.shows_choices else (),
                tuple(self._spans),
            )
        )
        self._visual = 0
        self._kept = 0
        self._choices.clear()
        self._spans.clear()

    def _count_pruned(self, visual: int, kept: int) -> None:
        self._visual += visual
        self._kept += kept

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._spans.append(Span(DRAFT, name, began, time.perf_counter()))


def _sendable(error: Exception) -> Exception:
    """Exceptions of other libraries may not be picklable."""
    if isinstance(error, DraftlensError):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")
