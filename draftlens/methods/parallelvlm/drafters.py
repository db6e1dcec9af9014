"""The drafters of the schedules `parallel` and `lockstep`."""

from __future__ import annotations

from draftlens.drafting.model_drafter import ModelDrafter
from draftlens.drafting.pruning import Pruning
from draftlens.methods.parallelvlm.draft_inputs import OwnPrompt, Reading, TargetsPrompt
from draftlens.methods.parallelvlm.placement import link_of
from draftlens.methods.parallelvlm.schedule import Eager, LockStep, Pace
from draftlens.methods.parallelvlm.target_side import LaneDrafter
from draftlens.models.adapter import Backbone

DEFAULT_LENGTH = 5
"""γ in lock-step where none is given."""


def make_drafter(
    schedule: str,
    length: int | None,
    drafter: ModelDrafter,
    target: Backbone,
    pruning: Pruning | None,
    reads_target_prompt: bool,
    wait: int | None,
) -> LaneDrafter:
    """The drafter of a schedule; arguments as for `methods.parts.parallel_drafter`."""
    pace: Pace = Eager(length, wait)
    if schedule == "lockstep":
        pace = LockStep(length or DEFAULT_LENGTH)
    reading: Reading = OwnPrompt(pruning)
    if reads_target_prompt and pruning is not None:
        reading = TargetsPrompt(pruning)
    link = link_of(drafter.prompts.backbone)
    return LaneDrafter(link, reading, pace, target.vocab_size, drafter)
