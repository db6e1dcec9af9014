"""Sessions of a family's models, to which rows are added one by one."""

from __future__ import annotations

from typing import Any

from families import Family, inputs
from stock import LONG, draft, target

from draftlens.core.sequence import Sequence
from draftlens.core.stats import Clock, Stats
from draftlens.decoding import Session
from draftlens.methods.base import Models, from_dict
from draftlens.models.adapter import Backbone


def session_of(family: Family, method: Any) -> Session:
    """A session without requests."""
    models = Models(Backbone.of(target(family)), Backbone.of(draft(family)))
    return Session(models.target, from_dict(method).plan(models), Clock(Stats()))


def add_row(session: Session, family: Family, row: int, new: int = LONG) -> Sequence:
    """Let one row of the family's richest input join, with greedy decoding."""
    given = inputs(family, family.richest, (row,))
    prepared = session.target.prepare(given, max_new_tokens=new, do_sample=False)
    return session.add(prepared, [0], given)[0]
