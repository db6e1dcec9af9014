"""What earlier answers of this process have shown about pairs of models."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

from draftlens.core.locks import ForkLock
from draftlens.drafting.adaptive.controller import Costs, PairHistory, TreeController
from draftlens.drafting.adaptive.cost_curve import CostCurve
from draftlens.drafting.adaptive.cost_store import checked_curve, known_curve
from draftlens.drafting.adaptive.forward_costs import FIRST_LIMIT, ForwardCosts
from draftlens.models.adapter import Backbone
from draftlens.models.model_state import Slot

TreeControllers = Callable[[str], TreeController]
"""Maps a kind of prompt, such as ``"video"``, to a controller for one answer."""

# Of a target, by draft model, then by settings and kind of prompt. The draft is a weak key: it may
# be the target itself, and no new draft may inherit the record of an old one.
_RECORDS = Slot[WeakKeyDictionary[Any, dict[Hashable, PairHistory]]]("records of drafting")

_COSTS = Slot[ForwardCosts]("live costs of forwards")

_LOCK = ForkLock()
"""Held while any record is used: pairs may share a model."""


def record_of(target: Backbone, draft: Backbone, settings: Hashable, kind: str) -> PairHistory:
    """The record of a target and a draft; the same object for the same models.

    Args:
        target: the model that verifies.
        draft: the model that drafts, `target` itself for self-drafting.
        settings: all other values that change which tokens are drafted.
        kind: of the prompts.
    """
    with _LOCK:
        by_draft = _RECORDS.get_or_make(target.model, WeakKeyDictionary)
        by_settings = by_draft.setdefault(draft.model, {})
        key = (settings, kind)
        if key not in by_settings:
            costs = Costs(_live_costs(target), _live_costs(draft, target))
            by_settings[key] = PairHistory(costs, _LOCK)
        return by_settings[key]


def costs_of(target: Backbone) -> tuple[ForwardCosts, AbstractContextManager[Any]]:
    """The live costs of a target, which all answers share, and the lock to hold while they are
    used."""
    with _LOCK:
        return _live_costs(target), _LOCK


def forget_answers(target: Backbone) -> None:
    """Forget what earlier answers of a target have shown in this process, but not what forwards
    cost. For measurements of first answers."""
    with _LOCK:
        _RECORDS.drop(target.model)


def _live_costs(backbone: Backbone, other: Backbone | None = None) -> ForwardCosts:
    """The live costs of a model; the same object for the same model."""
    costs = _COSTS.get(backbone.model)
    if costs is None:
        costs = _new_costs(backbone, other)
        _COSTS.set(backbone.model, costs)
    elif not costs.is_measured:
        curve = checked_curve(backbone)
        if curve is not None and curve.largest >= FIRST_LIMIT:
            costs.adopt(curve)
    return costs


def _new_costs(backbone: Backbone, other: Backbone | None) -> ForwardCosts:
    curve = known_curve(backbone)
    if other is None:
        return _costs_by(curve) if curve is not None else ForwardCosts(None)
    of_other = _live_costs(other)
    # Without a curve of the other model, nothing says how its seconds compare with these.
    if curve is not None and known_curve(other) is not None:
        return _costs_by(curve)
    scale = _size(backbone) / _size(other) * of_other.curve.cost(1)
    return ForwardCosts(None, scale, of_other)


def _costs_by(curve: CostCurve) -> ForwardCosts:
    """Live costs by a curve. Of a curve that knows no forward as wide as a chain of two needs, only
    the cost of one token is used."""
    if curve.largest < FIRST_LIMIT:
        return ForwardCosts(None, curve.cost(1))
    return ForwardCosts(curve)


def _size(backbone: Backbone) -> int:
    """Number of parameters of the language model and its head."""
    parameters = [*backbone.decoder.parameters(), *backbone.head.parameters()]
    return sum(parameter.numel() for parameter in parameters)
