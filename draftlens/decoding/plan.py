"""A method's plan: the parts that the runtime needs to answer with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from draftlens.core.checks import shown
from draftlens.core.errors import ConfigError
from draftlens.core.references import GivenReferences
from draftlens.core.registry import Registry
from draftlens.core.result import Chunk
from draftlens.decoding.drafter import Drafter, DraftLane
from draftlens.decoding.session import Session
from draftlens.media.chat_source import ChatSource
from draftlens.models.adapter import Backbone
from draftlens.prefill.base import Prefill
from draftlens.prefill.full import FullPrefill

Schedule = Callable[[Session], Iterator[Chunk]]
"""Answers all requests of a session; see `decoding.loop.decode`."""

MakeView = Callable[[ChatSource], Mapping[str, Any]]
"""Makes the draft's inputs for one view of the prompts, in the form of its processor's output, one
row for each conversation."""

ReadReferences = Callable[
    [ChatSource, Callable[[str], AbstractContextManager[None]]], GivenReferences
]
"""Reads references off messages; the second argument measures phases."""

VIEW_INPUTS = "views"
"""The entry of a draft's inputs that maps names of views to callables without arguments, which
return the draft's inputs for these views."""

SCHEDULES = Registry(
    "schedule",
    {
        "serial": "draftlens.decoding.loop:decode",
        "parallel": "draftlens.methods.parallelvlm.loop:decode",
    },
)


def make_schedule(name: str) -> Schedule:
    """A schedule by name.

    Raises:
        ConfigError: the name is unknown.
    """
    if not isinstance(name, str):
        raise ConfigError(f"schedule must be one of {', '.join(SCHEDULES)}, not {shown(name)}")
    schedule: Schedule = SCHEDULES[name]
    return schedule


def is_ready() -> None:
    """A plan that runs in this process need not wait."""


def no_processes() -> Sequence[int]:
    """The other processes of a plan that runs in this one."""
    return ()


@dataclass(frozen=True)
class Plan:
    """How one session answers.

    Args:
        drafter: guesses. It keeps state, so a plan serves one session.
        schedule: the order of drafting and verifying.
        prefill: reads prompts with the target.
        acceptance: `"coupled"` or `"rejection"`; see `core/verify.py`.
        tolerance: τ of `core.verify.tolerant`, which decides in place of `acceptance` if it is
            below 1. Answers are greedy then.
        lane: the part of the drafter that works while the target reads; None if it has none.
        approximate: what the method does not compute exactly on the target's side, in words for the
            user.
        uses_draft: whether the method needs the draft model and its inputs.
        timed: the models whose costs the choices of the drafter follow from
            (`drafting.adaptive.cost_store.calibrate`); empty if it does not choose.
        processes: the ids of other processes that take part in the answer, as far as they have been
            started, so that their memory can be measured.
        wait_until_ready: waits until these processes can work, so that their start is no part of a
            measured answer.
        views: how the draft's inputs for further views of the prompts are made of messages, by the
            name of the view; empty if the draft reads its prompt in one way.
        uses_references: whether the drafter guesses from references
            (`decoding.drafter.TargetContext.references`).
        read_references: reads references off the messages of the prompts if none are given; None if
            the method does not.
    """

    drafter: Drafter
    schedule: Schedule
    prefill: Prefill = field(default_factory=FullPrefill)
    acceptance: str = "coupled"
    tolerance: float = 1.0
    lane: DraftLane | None = None
    approximate: tuple[str, ...] = ()
    uses_draft: bool = False
    timed: tuple[Backbone, ...] = ()
    processes: Callable[[], Sequence[int]] = no_processes
    wait_until_ready: Callable[[], None] = is_ready
    views: Mapping[str, MakeView] = field(default_factory=dict)
    uses_references: bool = False
    read_references: ReadReferences | None = None
