"""TABED: one draft model reads the prompt in several views, weighed by the target's tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.core.options import Registry, shown
from draftlens.core.tree import Topology
from draftlens.decoding.plan import Acceptance, Plan, make_schedule
from draftlens.media.conversation import ChatSource
from draftlens.methods.base import Models, name_of, resolve_parts
from draftlens.methods.parts import (
    DEFAULT_LENGTH,
    Tree,
    check_choice,
    check_room,
    controllers_of,
    draft_of,
    draft_use_of,
    resolve_drafting,
    timed_models,
    topology_of,
)
from draftlens.methods.tabed.ensemble import Ensemble
from draftlens.methods.tabed.prompts import VIEWS_EXTRA, ViewPrompts, read_views
from draftlens.methods.tabed.views import VIEWS, MakeView, View, make_views
from draftlens.methods.tabed.weights import WEIGHTS, make_weighting
from draftlens.models.adapter import Backbone

SCHEDULES = ("serial",)

_log = logging.getLogger("draftlens")


@dataclass(frozen=True)
class TABED:
    """The draft reads the prompt in several views; their distributions are mixed by weights that
    follow the target's tokens (TABED).

    Args:
        views: the ways to read the prompt: names of `methods.tabed.views.VIEWS` (`"multimodal"`:
            everything; `"text"`: the words only; `"pooled"`: means over 2 x 2 visual tokens),
            mappings of a name and options, or ``{"pruner": ..., "ratio": ...}`` for a part of the
            visual tokens. The package draftlens-lab adds `"caption"`: captions in place of
            pictures.
        weights: how the views are weighed: a name of `methods.tabed.weights.WEIGHTS`, a mapping of
            a name and options, or fixed numbers, one for each view. The paper's are `"uniform"`
            (MT, MTCP) and, of the package draftlens-lab, `"grid"` (MT*) and `"kld"` (MTCP*).
        rest: whether a view with a negligible weight is left out for the rest of the answer.
        num_speculative_tokens, tree: as for `SpeculativeDecoding`, but without both a chain of 5,
            as in the paper.
        sampling_rule: as for `SpeculativeDecoding`.
        draft: `"model"` for a draft model, which may be a language model if no view needs pictures,
            `"self"` for the target's own weights, `"auto"` for the draft model if there is one.
        schedule: `"serial"`.
        prefill: how the target reads prompts (`prefill.base.PREFILLS`).

    Raises:
        ConfigError: a value makes no sense.

    Example:

        >>> import draftlens
        >>> draftlens.TABED(weights=[0.5, 0.5]).weights
        FixedWeights(values=(0.5, 0.5))
    """

    parts: ClassVar[Mapping[str, Registry]] = {"views": VIEWS, "weights": WEIGHTS}
    extras: ClassVar[tuple[str, ...]] = (VIEWS_EXTRA,)

    views: Any = ("multimodal", "text")
    weights: Any = "bayes"
    rest: bool = True
    num_speculative_tokens: int | None = None
    tree: Tree = None
    sampling_rule: str = "coupled"
    draft: str = "auto"
    schedule: str = "serial"
    prefill: Any = "full"

    def __post_init__(self) -> None:
        if self.num_speculative_tokens is None and self.tree is None:
            object.__setattr__(self, "num_speculative_tokens", DEFAULT_LENGTH)
        if self.schedule not in SCHEDULES:
            raise ConfigError(
                "method 'tabed' weighs its views by the target's latest tokens, which a draft that "
                f"runs ahead lacks: schedule must be 'serial', not {shown(self.schedule)}"
            )
        resolve_drafting(self)
        resolve_parts(self)
        check_choice("draft", self.draft, ("auto", "model", "self"))
        if not isinstance(self.rest, bool):
            raise ConfigError(f"rest must be true or false, not {shown(self.rest)}")
        object.__setattr__(self, "views", make_views(self.views))
        object.__setattr__(self, "weights", make_weighting(self.weights))
        self.weights.tally([view.label for view in self.views])  # refuses numbers for other views

    @property
    def draft_use(self) -> str:
        """Whether a draft model is needed (`methods.base.draft_use`)."""
        return draft_use_of(self.draft)

    @property
    def topology(self) -> Topology:
        """The tree that the draft grows; the largest one of an automatic tree."""
        return topology_of(self.tree, self.num_speculative_tokens)

    def plan(self, models: Models) -> Plan:
        """How a session answers by this method."""
        check_room(self.topology, models)
        drafts_for_itself = self.draft == "self" or (self.draft == "auto" and models.draft is None)
        backbone = models.target if drafts_for_itself else self._draft(models)
        if backbone.indexers is not None:
            backbone.indexers.check_parts()
        views = _readable(self.views, backbone)
        if backbone.chains_only and len(views) > 1:
            raise UnsupportedModelError(
                f"{backbone.chains_only}, and a draft of method 'tabed' has several views of a row "
                "in one cache: name one view, or use method 'speculative'"
            )
        config = _config_of_inputs(models, backbone)
        labels = tuple(view.label for view in views)
        settings = (name_of(self), drafts_for_itself, labels, repr(self.weights))
        drafter = Ensemble(
            ViewPrompts(backbone, views, drafts_for_itself, config),
            self.topology,
            models.target.vocab_size,
            self.weights,
            controllers_of(self.tree, models.target, backbone, settings),
            self.rest,
        )
        return Plan(
            drafter=drafter,
            schedule=make_schedule(self.schedule),
            prefill=self.prefill,
            acceptance=Acceptance(self.sampling_rule),
            uses_draft=not drafts_for_itself,
            timed=timed_models(self.tree, models.target, backbone),
            extras={VIEWS_EXTRA: partial(read_views, _makers(views, models, drafts_for_itself))},
        )

    def _draft(self, models: Models) -> Backbone:
        """The draft model; it needs vision only if all views do."""
        needs_vision = all(view.needs_vision for view in self.views)
        return draft_of(models, f"method {name_of(self)!r} with draft 'model'", needs_vision)


def _readable(views: tuple[View, ...], backbone: Backbone) -> tuple[View, ...]:
    """The views that a model can read: one without vision reads words only."""
    if _sees(backbone):
        return views
    readable = tuple(view for view in views if not view.needs_vision)
    if len(readable) < len(views):
        left_out = ", ".join(view.label for view in views if view.needs_vision)
        _log.info("the draft %s takes no pictures: without %s", backbone.name, left_out)
    return readable


def _config_of_inputs(models: Models, backbone: Backbone) -> Any:
    """The configuration that names the placeholders of pictures in a draft's inputs: a draft
    without vision is given the target's inputs."""
    return (backbone if _sees(backbone) else models.target).model.config


def _sees(backbone: Backbone) -> bool:
    return bool(backbone.modalities & {"image", "video"})


def _makers(
    views: tuple[View, ...], models: Models, drafts_for_itself: bool
) -> Mapping[str, MakeView]:
    """What makes the inputs of further views of messages, with the processor of the model that
    drafts."""
    makers: dict[str, MakeView] = {}
    for view in views:
        if view.rewriting is not None:
            make_view = view.rewriting(models)
            makers[view.label] = partial(_made, make_view, drafts_for_itself)
    return makers


def _made(make_view: MakeView, drafts_for_itself: bool, chat: ChatSource) -> Mapping[str, Any]:
    if drafts_for_itself and chat.target is not None:
        chat = replace(chat, process=chat.target.process, decode=chat.target.decode)
    return make_view(chat)
