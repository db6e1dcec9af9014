"""The seam of all views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from draftlens.core.checks import shown
from draftlens.core.errors import ConfigError, DraftlensError
from draftlens.core.options import make
from draftlens.core.prefill_readings import ReadingSpec
from draftlens.core.registry import Registry
from draftlens.decoding.drafter import TargetContext
from draftlens.drafting.draft_prompt import DraftPrompt, prefilled
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt

VIEWS = Registry(
    "view",
    {
        "multimodal": "draftlens.methods.tabed.views.multimodal:MultimodalView",
        "text": "draftlens.methods.tabed.views.text:TextView",
        "pooled": "draftlens.methods.tabed.views.pooled:PooledView",
        "caption": "draftlens.methods.tabed.views.caption:CaptionView",
        "pruned": "draftlens.methods.tabed.views.pruned:PrunedView",
    },
    group="draftlens.views",
)

MakeInputs = Callable[[], Mapping[str, Any]]


class ViewError(DraftlensError):
    """A view that cannot be had of these prompts or with this draft.

    It never reaches a user: the ensemble goes on without the view, and if none is left it raises an
    `InputError` with the causes.
    """


@dataclass(frozen=True)
class Source:
    """What views make their prompts from. The draft's vision encoder runs once for all of them.

    Args:
        backbone: the model that drafts.
        inputs: the output of its processor for the rows that join; not used if the target drafts
            for itself.
        made: what makes the draft's inputs for further views, by name.
        context: the target's side of these rows.
        is_target: whether the target drafts for itself.
        config: of the model whose processor made `inputs`; None for `backbone`.
    """

    backbone: Backbone
    inputs: Mapping[str, Any]
    made: Mapping[str, MakeInputs]
    context: TargetContext
    is_target: bool = False
    config: Any = None

    @cached_property
    def whole(self) -> Prompt:
        """The prompt with all visual tokens, as the model reads it."""
        if self.is_target:
            return self.context.prompt
        return self.backbone.encode(self.backbone.prepare_prompt(self.inputs))

    def read(self, inputs: Mapping[str, Any]) -> DraftPrompt:
        """A prompt from the output of the draft's processor."""
        prompt = self.backbone.encode(self.backbone.prepare_prompt(inputs))
        return prefilled(self.backbone, prompt)


class View(Protocol):
    """A way to read the prompt: a frozen dataclass whose fields are its options."""

    @property
    def label(self) -> str:
        """The name by which the view is known in statistics and memories. Views of one kind with
        different options have different labels."""
        ...

    rewriting: str
    """How the view's inputs are made of messages: `text` or `caption`; empty for
    views that are made of the draft's own inputs."""

    same_without_media: bool
    """Whether the view is the whole prompt where that shows no picture and no clip."""

    needs_eyes: bool
    """Whether the model must take pictures or clips."""

    readings: ReadingSpec
    """The readings of the target's prefill that `read` needs."""

    def read(self, source: Source) -> DraftPrompt:
        """The prompt of the rows that join.

        Raises:
            ViewError: the ensemble goes on without the view.
        """
        ...


def make_view(choice: Any) -> View:
    """A view from a name, a mapping of options, or itself. ``{"pruner": ..., "ratio": ...}`` is a
    pruned view.

    Raises:
        ConfigError: the name or an option is unknown, or a value makes no sense.

    Example:

        >>> make_view({"pruner": "uniform", "ratio": 0.75}).ratio
        0.75
    """
    if isinstance(choice, Mapping) and "name" not in choice:
        choice = {"name": "pruned", **choice}
    view: View = make(VIEWS, choice, "read")
    return view


def make_views(choices: Any) -> tuple[View, ...]:
    """Several different views.

    Raises:
        ConfigError: there are none, or two are the same; and as `make_view`.
    """
    if isinstance(choices, (str, Mapping)) or not isinstance(choices, Sequence) or not choices:
        raise ConfigError(f"views is a list of views, at least one, not {shown(choices)}")
    views = tuple(make_view(choice) for choice in choices)
    names = [view.label for view in views]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"the view {name!r} is named twice")
    return views
