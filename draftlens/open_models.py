"""From names to loaded models and a method: which draft is loaded, and the fallback without one."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from draftlens.core.errors import ConfigError, DraftlensError
from draftlens.core.options import wrong
from draftlens.methods.base import MethodLike, draft_use, resolve
from draftlens.models.known_pairs import AUTO, EMBEDDED, remedy
from draftlens.models.load import (
    PLAIN_PAIR,
    Loaded,
    check_pair,
    check_source,
    known_draft,
    load_model,
)
from draftlens.models.loading import PairOptions

FALLBACK = "lookup"
"""The method if no method is named and there is no draft."""

PLAIN_METHOD = "plain"
"""The method if none is named and nothing can be drafted for the target."""

_log = logging.getLogger("draftlens")


@dataclass(frozen=True)
class Opened:
    """Loaded models and the method that was named or its fallback; `notice` is a line about a
    missing draft, or empty."""

    target: Loaded
    draft: Loaded | None
    method: MethodLike
    notice: str = ""


def open_models(
    target: str,
    draft: str | None = AUTO,
    method: MethodLike = None,
    options: PairOptions = PLAIN_PAIR,
) -> Opened:
    """Load a target and, if the method has a use for one, its draft.

    Draft `auto` is the known draft of the target. Without one, method `lookup` is used unless a
    method is named, or `plain` for a target whose cache cannot be rolled back. A named method with
    an optional draft (`specvlm`, `parallelvlm`, `tabed`) then lets the target draft for itself, and
    one that needs a draft is refused.

    Raises:
        ConfigError: a name or value is unknown, or the method needs a draft and there is none;
            before the target is loaded, if possible.
        UnsupportedModelError: a model lacks something that draftlens needs.
        IncompatiblePairError: the draft was named, and does not match the target.
    """
    use = "optional" if method is None else draft_use(resolve(method, has_draft=True))
    if draft == AUTO:
        return _open_with_known_draft(target, method, use, options)
    if draft is None and use == "needed":
        raise ConfigError(f"the method needs a draft model: {remedy()}")
    if draft is not None:
        check_source(draft, "draft", options.draft)
    loaded = load_model(target, "target", options.target)
    if draft is None:
        return Opened(loaded, None, method)
    return Opened(loaded, _load_draft(draft, loaded, options), method)


def _open_with_known_draft(
    target: str, method: MethodLike, use: str, options: PairOptions
) -> Opened:
    # The embedded draft is small, and each call may choose another method.
    if use == "unused" and target != EMBEDDED:
        return Opened(load_model(target, "target", options.target), None, method)
    name = known_draft(target, options.target)
    reason = f"no draft is known for {target!r}"
    if name is None and use == "needed":
        raise ConfigError(f"{reason}, and the method needs one: {remedy()}")
    loaded = load_model(target, "target", options.target)
    if method is None and loaded.backbone.plain_only:
        return _without_draft(loaded, PLAIN_METHOD, loaded.backbone.plain_only)
    if name is None:
        return _without_draft(loaded, method, reason)
    try:
        return Opened(loaded, _load_draft(name, loaded, options), method)
    except DraftlensError as error:
        if use == "needed":
            raise
        return _without_draft(loaded, method, str(error))


def _load_draft(name: str, target: Loaded, options: PairOptions) -> Loaded:
    draft = load_model(name, "draft", options.draft, target.processor)
    check_pair(target, draft)
    return draft


def _without_draft(target: Loaded, method: MethodLike, reason: str) -> Opened:
    """A target and its fallback: the known draft is not available."""
    used_method: MethodLike = FALLBACK if method is None else method
    if method is None:
        notice = f"{reason}; method {FALLBACK!r} drafts from the text instead"
    elif method == PLAIN_METHOD:
        notice = f"{reason}; method {PLAIN_METHOD!r} drafts nothing"
    elif _drafts_for_itself(method):
        notice = f"{reason}; the target drafts for itself"
    else:
        notice = f"{reason}; the method goes on without one"
    _log.warning("%s", notice)
    return Opened(target, None, used_method, notice)


def _drafts_for_itself(method: MethodLike) -> bool:
    """Whether a method lets the target draft if there is no draft model."""
    return getattr(resolve(method, has_draft=False), "draft", None) == AUTO


def model_name(role: str, value: Any) -> str:
    """The name of a model as text; raises ConfigError otherwise, also for a model that is loaded
    already, which goes into an `Engine`."""
    name = fspath(value) if isinstance(value, PathLike) else value
    if not isinstance(name, str) or not name.strip():
        raise wrong(
            role,
            value,
            "the name of a model, a folder or a Hub id (draftlens.Engine takes loaded models)",
        )
    return name
