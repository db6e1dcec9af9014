"""Cost curves of models, kept in memory and on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from draftlens.core.files import cache_folder, read_cache, write_json
from draftlens.core.locks import ForkLock
from draftlens.drafting.adaptive.calibration import CONTEXT, forward_seconds, measure_curve
from draftlens.drafting.adaptive.controller import Costs, PairHistory, TreeController
from draftlens.drafting.adaptive.costs import FIRST_LIMIT, CostCurve, ForwardCosts
from draftlens.models.adapter import Backbone
from draftlens.models.facts import facts_by_modules, facts_of
from draftlens.models.model_state import Slot

STALE = 1.5
"""A stored curve whose first width now takes this many times as long, or as short, is measured
anew."""

FIRST_SHARE = 0.7
"""Share of the time for a target, whose curve has more steps than that of its draft."""

# The file, whose name is a hash of the conditions of the measurement, and the curve.
_CURVES = Slot[tuple[Path, CostCurve]]("cost curve")

_log = logging.getLogger(__name__)


def calibrate(backbone: Backbone, seconds: float) -> CostCurve:
    """The cost curve of a model, which is measured unless it is known.

    A curve on disk is compared with one forward over one token, and measured anew if the two
    differ by more than `STALE`. Nothing fails if the folder cannot be read or written.

    Args:
        backbone: the model.
        seconds: time after which the measurement ends with the widths so far.
    """
    curve = checked_curve(backbone)
    if curve is not None:
        return curve
    curve = _stored(backbone)
    if curve is None or not _is_current(curve, backbone):
        curve = measure_curve(backbone, seconds)
        _store(backbone, curve)
    _CURVES.set(backbone.model, (cost_file(backbone), curve))
    return curve


def calibrate_models(backbones: Sequence[Backbone], seconds: float) -> list[CostCurve]:
    """The cost curves of several models, the largest share of the time for the first of them.

    Args:
        backbones: the models.
        seconds: as for `calibrate`, all models together.
    """
    began = time.perf_counter()
    curves = []
    for number, backbone in enumerate(backbones, 1):
        remaining = seconds - (time.perf_counter() - began)
        share = 1.0 if number == len(backbones) else FIRST_SHARE
        curves.append(calibrate(backbone, share * remaining))
    return curves


def checked_curve(backbone: Backbone) -> CostCurve | None:
    """The curve of a model if `calibrate` has measured or compared it in this process, under the
    same conditions; None otherwise."""
    path, curve = _CURVES.get(backbone.model) or (None, None)
    return curve if path is not None and path == cost_file(backbone) else None


def known_curve(backbone: Backbone) -> CostCurve | None:
    """The curve of a model from memory, else from disk; None if it was never measured.

    Where forwards have been compiled since, the curve of the modules is better than none: timings
    correct it.
    """
    curve = checked_curve(backbone) or _stored(backbone)
    if curve is None and backbone.passes.label:
        curve = _read(_path_by(facts_by_modules(backbone)))
    return curve


def cost_file(backbone: Backbone) -> Path:
    """The file of a model's curve; its name is a hash of `facts_of`."""
    return _path_by(facts_of(backbone))


def _path_by(facts: Mapping[str, Any]) -> Path:
    text = json.dumps(facts, sort_keys=True, default=str)
    return cache_folder() / "costs" / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"


def _is_current(curve: CostCurve, backbone: Backbone) -> bool:
    now = forward_seconds(backbone, 1)
    return 1 / STALE <= now / curve.cost(1, context=CONTEXT) <= STALE


def _stored(backbone: Backbone) -> CostCurve | None:
    return _read(cost_file(backbone))


def _read(path: Path) -> CostCurve | None:
    return read_cache(path, lambda values: CostCurve.from_dict(values["curve"]))


def _store(backbone: Backbone, curve: CostCurve) -> None:
    path = cost_file(backbone)
    facts = json.loads(json.dumps(facts_of(backbone), default=str))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"curve": curve.to_dict(), "facts": facts})
    except OSError as error:
        _log.info("the cost curve of %s is not kept: %s", backbone.name, error)


TreeControllers = Callable[[str], TreeController]
"""Maps a kind of prompt, such as ``"video"``, to a controller for one answer."""

# Of a target, by draft model, then by settings and kind of prompt. The draft is a weak key: it may
# be the target itself, and no new draft may inherit the record of an old one.
_RECORDS = Slot[WeakKeyDictionary[Any, dict[Hashable, PairHistory]]]("records of drafting")

# With the engine of passes, whose forwards cost something else than those of another one.
_COSTS = Slot[tuple[str, ForwardCosts]]("live costs of forwards")

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
        chains_only = bool(target.chains_only or draft.chains_only)
        costs = Costs(_live_costs(target), _live_costs(draft, target), chains_only)
        history = by_settings.get((settings, kind))
        if history is None:
            history = by_settings[settings, kind] = PairHistory(costs, _LOCK)
        history.costs = costs
        return history


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
    """The live costs of a model; the same object for the same model and engine of passes."""
    label = backbone.passes.label
    known, costs = _COSTS.get(backbone.model) or (None, None)
    if costs is None or known != label:
        costs = _new_costs(backbone, other)
        _COSTS.set(backbone.model, (label, costs))
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
