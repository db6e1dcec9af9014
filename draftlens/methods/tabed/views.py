"""Views: the ways in which a draft model reads a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError, DraftlensError
from draftlens.core.options import Registry, describe, make, shown
from draftlens.core.prefill_readings import NO_FEATURES, FeatureSpec
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.draft_prompt import DraftPrompt, SelfPromptBuilder, append_slots, prefilled
from draftlens.drafting.pruning import Pruning
from draftlens.drafting.text_inputs import text_ids
from draftlens.media.conversation import ChatSource
from draftlens.media.rewriting import without_media
from draftlens.methods.base import Models
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_subset import gather
from draftlens.pruning import PRUNERS, make_pruner

VIEWS = Registry(
    "view",
    {
        "multimodal": "draftlens.methods.tabed.views:MultimodalView",
        "text": "draftlens.methods.tabed.views:TextView",
        "pooled": "draftlens.methods.tabed.views:PooledView",
        "pruned": "draftlens.methods.tabed.views:PrunedView",
    },
    group="draftlens.views",
    lab=("caption",),
)

MakeInputs = Callable[[], Mapping[str, Any]]

# The draft's inputs for one view, as its processor's output, one row per conversation.
MakeView = Callable[[ChatSource], Mapping[str, Any]]


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

    @property
    def rewriting(self) -> Callable[[Models], MakeView] | None:
        """Makes what makes the view's inputs of messages, for the models of a session; None for
        views that are made of the draft's own inputs."""
        ...

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
    rewriting = None
    needs_vision = True
    readings = NO_FEATURES

    def read(self, source: Source) -> DraftPrompt:
        if not source.is_target:
            return prefilled(source.backbone, source.whole)
        lengths = source.whole.lengths

        def fill(cache: KVCache) -> None:
            slots = [torch.arange(length) for length in lengths]
            append_slots(source.context.cache, cache, [slots] * len(cache.stores))

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
    needs_vision = False
    readings = NO_FEATURES

    def __post_init__(self) -> None:
        if not isinstance(self.instead, str):
            raise ConfigError(f"instead is a text, not {self.instead!r}")

    @property
    def label(self) -> str:
        return "text" if self.instead == "\n" else f"text({self.instead!r})"

    def rewriting(self, models: Models) -> MakeView:
        return self._inputs

    def _inputs(self, chat: ChatSource) -> Mapping[str, Any]:
        return chat.process([without_media(each, self.instead) for each in chat.conversations])

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
    rewriting = None
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
    rewriting = None
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


def pool(prompt: Prompt, size: int = 2) -> Prompt:
    """The prompt with the means over blocks of ``size x size`` cells of a frame as visual tokens.

    Blocks at the right and lower edge may be smaller. The mean replaces the block's first token,
    and gaps between positions are closed, so that the prompt reads like that of a smaller picture.
    A token that marks the end of a row of cells stays where a row of blocks ends. Deepstack
    features, if any, are pooled as well.
    """
    blocks = [_blocks(prompt, row, size) for row in range(len(prompt.lengths))]
    kept_tokens = []
    for row, length in enumerate(prompt.lengths):
        stays = ~prompt.visual[row, :length]
        _, firsts = _first_of(blocks[row])
        stays[_visual(prompt, row)[firsts]] = True
        kept_tokens.append(stays.nonzero()[:, 0])
    return gather(_averaged(prompt, blocks), kept_tokens, "compact")


def _visual(prompt: Prompt, row: int) -> Tensor:
    """Indices of the row's visual tokens, int64 ``[n]``."""
    return prompt.visual[row, : prompt.lengths[row]].nonzero()[:, 0]


def _blocks(prompt: Prompt, row: int, size: int) -> Tensor:
    """The block of each visual token of a row, int64 ``[n]``; blocks count by first appearance."""
    cells = prompt.cells[row, _visual(prompt, row)]
    if not len(cells):
        return cells.new_empty(0)
    # The end of a row of cells shares the cell of the token before it.
    ends_row = torch.zeros(len(cells), dtype=torch.bool, device=cells.device)
    ends_row[1:] = (cells.diff(dim=0) == 0).all(1)
    keys = torch.stack([cells[:, 0], cells[:, 1] // size, cells[:, 2] // size, ends_row.long()], 1)
    blocks: Tensor = torch.unique(keys, dim=0, return_inverse=True)[1]
    return blocks


def _first_of(blocks: Tensor) -> tuple[int, Tensor]:
    """The number of blocks, and for each the index of its first token."""
    number = int(blocks.max()) + 1 if len(blocks) else 0
    order = torch.arange(len(blocks), device=blocks.device)
    firsts = order.new_full((number,), len(blocks))
    firsts.scatter_reduce_(0, blocks, order, "amin")
    return number, firsts


def _averaged(prompt: Prompt, blocks: list[Tensor]) -> Prompt:
    embeds = prompt.embeds.clone()
    for row, row_blocks in enumerate(blocks):
        visual = _visual(prompt, row)
        embeds[row, visual] = _means(embeds[row, visual], row_blocks)
    num_visual = [len(row_blocks) for row_blocks in blocks]

    def averaged(features: Tensor) -> Tensor:
        parts = torch.split(features, num_visual)
        pairs = zip(parts, blocks, strict=True)
        return torch.cat([_means(part, row_blocks) for part, row_blocks in pairs])

    extra = {
        name: _per_visual_token(value, sum(num_visual), averaged)
        for name, value in prompt.extra.items()
    }
    pooled = replace(prompt, embeds=embeds, extra=extra)
    pooled.__dict__["cells"] = prompt.cells  # which follow from embeddings in some models
    return pooled


def _per_visual_token(value: Any, number: int, averaged: Callable[[Tensor], Tensor]) -> Any:
    """An argument of the language model, averaged if it holds one feature for each visual token of
    the batch (`models.prompt_subset` refuses tensors of other shapes)."""
    if isinstance(value, (list, tuple)):
        return [_per_visual_token(part, number, averaged) for part in value]
    if isinstance(value, dict):
        return {key: _per_visual_token(part, number, averaged) for key, part in value.items()}
    is_feature = isinstance(value, Tensor) and value.ndim == 2 and value.is_floating_point()
    return averaged(value) if is_feature and value.shape[0] == number else value


def _means(features: Tensor, blocks: Tensor) -> Tensor:
    """The mean of each feature's block, ``[n, D]``."""
    number, _ = _first_of(blocks)
    sums = features.new_zeros(number, features.shape[1], dtype=torch.float32)
    sums.index_add_(0, blocks, features.float())
    counts = torch.bincount(blocks, minlength=number)[:, None]
    return (sums / counts)[blocks].to(features.dtype)
