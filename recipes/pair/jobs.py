"""The two kinds of training as jobs of the loop: learning to see, and learning to tell."""

from typing import Any

import torch
from torch import nn

from recipes.pair.data import Batch, Mix, batches
from recipes.pair.loop import Job, Phase, answer_loss
from recipes.pair.models import PATCHES
from recipes.pair.sight import Labels, Namer, sight_loss, sights, visual_tokens

Sight = tuple[torch.Tensor, Labels]


class Seeing(nn.Module):
    """What is trained while learning to see: tower, projector and the heads that are thrown
    away."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tower = model.model.vision_tower
        self.projector = model.model.multi_modal_projector
        self.namer = Namer(model.config.text_config.hidden_size)


def sight_job(model: Any, phase: Phase, seed: int, scenes: int = 48) -> Job[Sight]:
    """Trains the model's tower and projector in place."""
    model.set_attn_implementation("eager")
    torch.manual_seed(seed)
    seeing = Seeing(model).to(model.device)
    return Job(
        phase,
        seeing,
        lambda start: sights(seed, scenes, start),
        lambda batch: sight_loss(seeing.namer, visual_tokens(model, batch[0]), batch[1]),
        lambda batch: len(batch[0]) * PATCHES,
    )


def telling_job(model: Any, tokenizer: Any, phase: Phase, mix: Mix, seed: int) -> Job[Batch]:
    """Trains the model in place, except for the tower, which can see already: that is much
    cheaper."""
    model.set_attn_implementation("sdpa")
    model.requires_grad_(True)
    model.model.vision_tower.requires_grad_(False)
    return Job(
        phase,
        model,
        lambda start: batches(tokenizer, mix, seed, start),
        lambda batch: answer_loss(model, batch),
        lambda batch: batch["input_ids"].numel(),
    )
