"""The drafter of the schedule `parallel`."""

from __future__ import annotations

from draftlens.drafting.model_drafter import ModelDrafter
from draftlens.drafting.pruning import Pruning
from draftlens.methods.parallelvlm.draft_inputs import DraftReading, OwnPrompt, TargetsPrompt
from draftlens.methods.parallelvlm.placement import link_of
from draftlens.methods.parallelvlm.schedule import Schedule
from draftlens.methods.parallelvlm.target_side import ParallelDrafter
from draftlens.models.adapter import Backbone
from draftlens.passes import BY_MODULES, engine_of


def make_drafter(
    window: int | None,
    drafter: ModelDrafter,
    target: Backbone,
    pruning: Pruning | None,
    reads_target_prompt: bool,
) -> ParallelDrafter:
    """Arguments as for `methods.parts.parallel_drafter`."""
    reading: DraftReading
    if reads_target_prompt and pruning is not None:
        reading = TargetsPrompt(pruning)
    else:
        reading = OwnPrompt(pruning, drafter.prompts.readable)
    backbone = drafter.prompts.backbone
    # Compiled passes in a further thread of this process have not been run on a GPU.
    on_cpu = backbone.device.type == "cpu"
    engine = engine_of(backbone).without_compiling() if on_cpu else BY_MODULES
    return ParallelDrafter(
        link_of(backbone),
        reading,
        Schedule(window),
        target.vocab_size,
        drafter,
        engine,
    )
