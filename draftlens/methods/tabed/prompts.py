"""The prompts of an ensemble: the views as the draft model reads them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from draftlens.core.prefill_readings import NO_FEATURES
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.draft_prompt import DraftPrompt
from draftlens.media.conversation import CaptionError
from draftlens.methods.tabed.given_views import VIEWS_EXTRA
from draftlens.methods.tabed.view_rows import Present
from draftlens.methods.tabed.views import Source, View, ViewError
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt

_log = logging.getLogger("draftlens")


class ViewPrompts:
    """Makes the prompts of views. `config` is that of the model with the processor that makes the
    draft's inputs; None for the draft itself."""

    def __init__(
        self,
        backbone: Backbone,
        views: Sequence[View],
        is_target: bool = False,
        config: Any = None,
    ) -> None:
        self.backbone = backbone
        self.views = tuple(views)
        self.is_target = is_target
        self.config = config
        self.readings = NO_FEATURES  # of the target's prefill that the views need
        for view in self.views:
            self.readings = self.readings | view.readings
        self._causes: dict[int, str] = {}

    def source(self, encoded: Mapping[str, Any], context: TargetContext) -> Source:
        """What the views of rows that join are made of; `encoded` are the draft's inputs."""
        makers = context.extras.get(VIEWS_EXTRA, {})
        return Source(self.backbone, encoded, makers, context, self.is_target, self.config)

    def read(self, chosen: Sequence[int], source: Source) -> list[DraftPrompt | None]:
        """The prompt of each chosen view; None where it repeats another one, as most do without
        pictures, or where it cannot be read, which is logged once."""
        shows_nothing = not bool(source.context.prompt.visual.any())
        drafts: list[DraftPrompt | None] = []
        for view in chosen:
            is_repeated = shows_nothing and self.views[view].same_without_media and any(drafts)
            drafts.append(None if is_repeated else self._read(view, source))
        return drafts

    def _read(self, view: int, source: Source) -> DraftPrompt | None:
        try:
            return self.views[view].read(source)
        except (ViewError, CaptionError) as error:
            if view not in self._causes:
                self._causes[view] = str(error)
                if len(self.views) > 1:
                    name = self.views[view].label
                    _log.warning("the draft goes on without the view %r: %s", name, error)
            return None

    @property
    def causes(self) -> str:
        return "; ".join(dict.fromkeys(self._causes.values()))


def present_views(drafts: Sequence[DraftPrompt | None], row: int) -> Present:
    """Which views a row has: those that could be read, without repetitions."""
    present: list[bool] = []
    for view, draft in enumerate(drafts):
        earlier = [drafts[index] for index in range(view) if present[index]]
        is_new = draft is not None and not any(
            _are_equal(draft.prompt, previous.prompt, row)
            for previous in earlier
            if previous is not None
        )
        present.append(is_new)
    return tuple(present)


def _are_equal(prompt: Prompt, other: Prompt, row: int) -> bool:
    length = prompt.lengths[row]
    if length != other.lengths[row]:
        return False
    positions = prompt.position_ids[..., row, :length]
    if not torch.equal(positions, other.position_ids[..., row, :length]):
        return False
    return torch.equal(prompt.embeds[row, :length], other.embeds[row, :length])
