"""Views: the ways in which a draft model reads a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch

from draftlens.core.errors import ConfigError, DraftlensError
from draftlens.core.options import Registry, describe, make, shown
from draftlens.core.prefill_readings import NO_FEATURES, FeatureSpec
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.draft_prompt import DraftPrompt, SelfPromptBuilder, append_slots, prefilled
from draftlens.drafting.pruning import Pruning
from draftlens.drafting.text_inputs import text_ids
from draftlens.methods.tabed.pooling import pool
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.pruning import PRUNERS, make_pruner

VIEWS = Registry(
    "view",
    {
        "multimodal": "draftlens.methods.tabed.views:MultimodalView",
        "text": "draftlens.methods.tabed.views:TextView",
        "pooled": "draftlens.methods.tabed.views:PooledView",
        "caption": "draftlens.methods.tabed.views:CaptionView",
        "pruned": "draftlens.methods.tabed.views:PrunedView",
    },
    group="draftlens.views",
)

MakeInputs = Callable[[], Mapping[str, Any]]


class ViewError(DraftlensError):
    """A view cannot be made of these prompts or for this draft.

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
        makers: what makes the draft's inputs for further views, by name.
        context: the target's side of these rows.
        is_target: whether the target drafts for itself.
        config: of the model with the processor that made `inputs`; None for `backbone`.
    """

    backbone: Backbone
    inputs: Mapping[str, Any]
    makers: Mapping[str, MakeInputs]
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
        """The name of the view in statistics. Views of one kind with different options have
        different labels."""
        ...

    rewriting: str
    """How the view's inputs are made of messages: `text` or `caption`; empty for
    views that are made of the draft's own inputs."""

    same_without_media: bool
    """Whether the view is the whole prompt where that shows no picture and no clip."""

    needs_vision: bool
    """Whether the model must take pictures or clips."""

    readings: FeatureSpec
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


@dataclass(frozen=True)
class MultimodalView:
    """The whole prompt (TABED's M). If the target drafts for itself, its keys and values are
    copied and nothing is read twice."""

    label = "multimodal"
    same_without_media = True
    rewriting = ""
    needs_vision = True
    readings = NO_FEATURES

    def read(self, source: Source) -> DraftPrompt:
        if not source.is_target:
            return prefilled(source.backbone, source.whole)
        lengths = source.whole.lengths

        def fill(cache: KVCache) -> None:
            slots = [torch.arange(length) for length in lengths]
            append_slots(source.context.cache, cache, [slots] * len(cache.layers))

        return DraftPrompt(source.whole, fill)


@dataclass(frozen=True)
class TextView:
    """Each picture and each clip becomes a line break (TABED's T, App. I.2).

    The prompt is made of the messages, by the draft's own processor and chat template. Callers that
    give tensors only give the view's inputs as ``draft_inputs["views"]["text"]``; without these
    they are made of the token ids, for the families for which that is safe.

    Args:
        instead: replaces a picture or clip, where the prompt is made of messages. It must not be a
            placeholder of the draft: one without its features ruins the draft tokens.

    Raises:
        ConfigError: it is no string.
    """

    instead: str = "\n"

    same_without_media = True
    rewriting = "text"
    needs_vision = False
    readings = NO_FEATURES

    def __post_init__(self) -> None:
        if not isinstance(self.instead, str):
            raise ConfigError(f"instead is a text, not {self.instead!r}")

    @property
    def label(self) -> str:
        return "text" if self.instead == "\n" else f"text({self.instead!r})"

    def read(self, source: Source) -> DraftPrompt:
        make_inputs = source.makers.get(self.label)
        if make_inputs is not None:
            return source.read(make_inputs())
        mask = source.inputs.get("attention_mask")
        config = source.config or source.backbone.model.config
        inputs = text_ids(config, source.inputs["input_ids"], mask)
        if inputs is None:
            raise ViewError(
                f"the token ids of {source.backbone.name} do not show which words belong to a "
                "picture: give messages, or the view's inputs as draft_inputs['views']['text']"
            )
        return source.read(inputs)


@dataclass(frozen=True)
class CaptionView:
    """Each picture becomes ``image: CAPTION`` and each clip ``video: CAPTION`` (TABED's C, App.
    I.2).

    Args:
        captioner: writes the captions, once for each picture: `"draft"` or `"target"`, a
            callable from a PIL image or a clip to a string, or the captions themselves, one for
            each picture and clip.
        prompt: the instruction to a model; None for a description of the image or the video.
        max_tokens: most tokens of a caption.
    """

    captioner: Any = "draft"
    prompt: str | None = None
    max_tokens: int = 32

    label = "caption"
    same_without_media = True
    rewriting = "caption"
    needs_vision = False
    readings = NO_FEATURES

    def __post_init__(self) -> None:
        if isinstance(self.captioner, list):
            object.__setattr__(self, "captioner", tuple(self.captioner))

    def read(self, source: Source) -> DraftPrompt:
        make_inputs = source.makers.get(self.label)
        if make_inputs is None:
            raise ViewError(
                "captions are made of messages: give them, or the view's inputs as "
                "draft_inputs['views']['caption']"
            )
        with source.context.observer.phase("caption"):
            inputs = make_inputs()
        return source.read(inputs)


@dataclass(frozen=True)
class PooledView:
    """Means over blocks of visual tokens, such as 2 x 2 (TABED's P: 576 tokens become 144).

    The paper pools in front of the projector; here the draft's embeddings are pooled, which works
    alike for all families.

    Args:
        size: side of a block in visual tokens.

    Raises:
        ConfigError: it is no whole number of at least 2.
    """

    size: int = 2

    same_without_media = True
    rewriting = ""
    needs_vision = True
    readings = NO_FEATURES

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 2:
            raise ConfigError(f"size is a whole number of at least 2, not {self.size!r}")

    @property
    def label(self) -> str:
        return "pooled" if self.size == 2 else f"pooled({self.size})"

    def read(self, source: Source) -> DraftPrompt:
        return prefilled(source.backbone, pool(source.whole, self.size))


@dataclass(frozen=True)
class PrunedView:
    """The visual tokens that a pruner keeps, as in SpecVLM and ParallelVLM. If the target drafts
    for itself, their keys and values are copied.

    Args:
        pruner: a name, a mapping of a name and options, or a pruner.
        ratio: share of visual tokens that are removed, 0 to 1.

    Raises:
        ConfigError: a value makes no sense.
    """

    pruner: Any = "specvlm"
    ratio: float = 0.9

    same_without_media = True
    rewriting = ""
    needs_vision = True

    def __post_init__(self) -> None:
        is_number = isinstance(self.ratio, (int, float)) and not isinstance(self.ratio, bool)
        if not is_number or not 0 <= self.ratio <= 1:
            raise ConfigError(f"ratio is a share between 0 and 1, not {self.ratio!r}")
        object.__setattr__(self, "pruner", make_pruner(self.pruner))

    @property
    def label(self) -> str:
        """The pruner and the ratio; two views may prune by the same name with other options."""
        options = describe(PRUNERS, self.pruner)
        name = options.pop("name")
        option_text = "".join(f",{key}={value}" for key, value in options.items())
        return f"{name}({self.ratio:g}{option_text})"

    @property
    def readings(self) -> FeatureSpec:
        spec: FeatureSpec = self.pruner.readings
        return spec

    def read(self, source: Source) -> DraftPrompt:
        pruning = Pruning(self.pruner, self.ratio)
        if source.is_target:
            return SelfPromptBuilder(source.backbone, pruning).read(None, source.context)
        pruned = pruning.apply(source.whole, source.context)
        return prefilled(source.backbone, pruned.prompt)
