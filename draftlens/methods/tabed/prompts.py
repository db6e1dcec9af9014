"""The prompts of an ensemble: the views as the draft model reads them, and the inputs of views that
the caller gives or that are made of the messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from draftlens.core.errors import InputError
from draftlens.core.prefill_readings import KEYS, NO_FEATURES
from draftlens.decoding.plan import ExtraSource, TargetContext
from draftlens.drafting.draft_prompt import DraftPrompt
from draftlens.methods.tabed.view_rows import Present
from draftlens.methods.tabed.views import MakeInputs, MakeView, Source, View, ViewError
from draftlens.models.adapter import Backbone
from draftlens.models.checks import check_tokens
from draftlens.models.prompt import Prompt

VIEWS_EXTRA = "views"  # The name of further views among the extras of a call.

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
        # of the target's prefill that the views need
        self.readings = KEYS if is_target else NO_FEATURES
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
        except ViewError as error:
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


def read_views(
    makers: Mapping[str, MakeView], given: Any, source: ExtraSource
) -> dict[str, MakeInputs]:
    """What returns the draft's inputs of each view that is given, or can be made of the messages.
    The drafter calls it after the first token, so that captions do not delay that.

    Raises:
        InputError: views are given that the method does not read, in another form, or of another
            number of rows.
    """
    given = {} if given is None else given
    _check_form(given)
    unknown = sorted(given.keys() - makers.keys())
    if unknown and not makers:
        raise InputError(
            f"draft_inputs hold views ({', '.join(unknown)}), and the method reads its prompt in "
            "one way only: leave them out"
        )
    if unknown:
        raise InputError(
            f"draft_inputs hold views that the method does not read: {', '.join(unknown)}; it "
            f"reads {', '.join(sorted(makers))}"
        )
    for name, inputs in given.items():
        _check_view_rows(f"draft_inputs['views'][{name!r}]", inputs, source.num_rows)
    makers_of_inputs: dict[str, MakeInputs] = {}
    for name, make in makers.items():
        if name in given:
            makers_of_inputs[name] = partial(dict, given[name])
        elif source.chat is not None:
            makers_of_inputs[name] = partial(make, source.chat)
    return makers_of_inputs


def _check_form(given: Any) -> None:
    if not isinstance(given, Mapping):
        raise InputError(
            "draft_inputs['views'] map names of views to the processor's output for them, "
            f"not {type(given).__name__}"
        )
    for name, inputs in given.items():
        if not isinstance(inputs, Mapping):
            raise InputError(
                f"draft_inputs['views'][{name!r}] is the output of a processor, "
                f"not {type(inputs).__name__}"
            )


def _check_view_rows(described: str, inputs: Mapping[str, Any], num_rows: int) -> None:
    check_tokens(described, inputs)
    ids = inputs.get("input_ids")
    num_given = 0 if ids is None else len(ids)
    if num_given != num_rows:
        raise InputError(f"{described} must hold input_ids for {num_rows} rows, not {num_given}")
