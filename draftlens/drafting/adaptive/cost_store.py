"""Cost curves of models, kept in memory and on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftlens.core.files import cache_folder, read_cache, write_json
from draftlens.drafting.adaptive.calibration import CONTEXT, forward_seconds, measure_curve
from draftlens.drafting.adaptive.cost_curve import CostCurve
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
