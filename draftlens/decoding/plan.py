"""A method's plan: the parts that a session needs to answer with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from draftlens.core.checks import shown
from draftlens.core.errors import ConfigError
from draftlens.core.registry import Registry
from draftlens.core.result import Chunk
from draftlens.decoding.acceptance import Acceptance
from draftlens.decoding.drafter import Drafter
from draftlens.decoding.observer import no_phase
from draftlens.media.chat_source import ChatSource
from draftlens.models.adapter import Backbone
from draftlens.prefill.base import Prefill
from draftlens.prefill.full import FullPrefill

# Answers all requests of a `Session`, its only argument; see `decoding.loop.decode`.
Schedule = Callable[..., Iterator[Chunk]]

SCHEDULES = Registry(
    "schedule",
    {
        "serial": "draftlens.decoding.loop:decode",
        "parallel": "draftlens.methods.parallelvlm.loop:decode",
    },
)


def make_schedule(name: str) -> Schedule:
    """A schedule by name; raises `ConfigError` if it is unknown."""
    if not isinstance(name, str):
        raise ConfigError(f"schedule must be one of {', '.join(SCHEDULES)}, not {shown(name)}")
    schedule: Schedule = SCHEDULES[name]
    return schedule


class DraftWorker:
    """Drafts in other processes; this base class has none."""

    def processes(self) -> Sequence[int]:
        """Ids of the processes that have been started, so that their memory can be measured."""
        return ()

    def wait_until_ready(self) -> None:
        """Wait until they can work, so that their start is no part of a measured answer."""


@dataclass(frozen=True)
class ExtraSource:
    """What extras of a call are made of besides the value that the caller gave."""

    num_rows: int
    tokenizer: Any = None  # of the target; None if it is not known
    chat: ChatSource | None = None  # the messages of the prompts; None if they are not known
    phase: Callable[[str], AbstractContextManager[None]] = no_phase  # measures a stretch of time


# Checks what a caller gave under one name (None for nothing) and makes the value that the drafter
# gets in `TargetContext.extras`. Raises `ConfigError` or `InputError`.
ReadExtra = Callable[[Any, ExtraSource], Any]


@dataclass(frozen=True)
class Plan:
    """How one session answers.

    Args:
        drafter: proposes draft tokens. It keeps state, so a plan serves one session.
        schedule: the order of drafting and verifying.
        prefill: reads prompts with the target.
        acceptance: the rule by which draft tokens are accepted.
        uses_draft: whether the method needs the draft model and its inputs.
        timed: the models with costs on which the choices of the drafter depend
            (`drafting.adaptive.cost_store.calibrate`); empty if it does not choose.
        worker: drafts in other processes; None if this process does everything.
        extras: what the method reads of a call besides the prompts, such as references, by name.
    """

    drafter: Drafter
    schedule: Schedule = field(default_factory=partial(make_schedule, "serial"))
    prefill: Prefill = field(default_factory=FullPrefill)
    acceptance: Acceptance = field(default_factory=Acceptance)
    uses_draft: bool = False
    timed: tuple[Backbone, ...] = ()
    worker: DraftWorker = field(default_factory=DraftWorker)
    extras: Mapping[str, ReadExtra] = field(default_factory=dict)

    @property
    def approximate(self) -> tuple[str, ...]:
        """What may not be exact on the target's side, in words for the user."""
        return (*self.prefill.approximate, *self.acceptance.approximate)

    def processes(self) -> Sequence[int]:
        return self.worker.processes()

    def wait_until_ready(self) -> None:
        self.worker.wait_until_ready()
