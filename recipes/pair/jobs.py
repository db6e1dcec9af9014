"""Jobs of the loop: the vision encoder on frames, and the language model on dialogues."""

from typing import Any

import torch
from torch import nn

from recipes.pair.data import Batch, Mix, batches
from recipes.pair.loop import Job, Phase, StepResult, answer_loss
from recipes.pair.models import PATCHES
from recipes.pair.vision import (
    FrameBatch,
    FrameClassifier,
    frame_batches,
    frame_loss,
    visual_tokens,
)


class VisionModel(nn.Module):
    """The module of the vision job: vision encoder, projector, and a classifier to discard."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        # The names of the attributes are part of the checkpoints.
        self.tower = model.model.vision_tower
        self.projector = model.model.multi_modal_projector
        self.namer = FrameClassifier(model.config.text_config.hidden_size)


def vision_job(model: Any, phase: Phase, seed: int, scenes: int = 48) -> Job[FrameBatch]:
    """A job that trains the model's vision encoder and projector in place.

    Args:
        model: the model.
        phase: the length and speed of the training.
        seed: seed of the data and of the classifier.
        scenes: scenes per batch.
    """
    model.set_attn_implementation("eager")
    torch.manual_seed(seed)
    module = VisionModel(model).to(model.device)

    def loss(batch: FrameBatch) -> StepResult:
        return frame_loss(module.namer, visual_tokens(model, batch.frames), batch.labels)

    return Job(
        phase,
        module,
        lambda start: frame_batches(seed, scenes, start),
        loss,
        lambda batch: len(batch.frames) * PATCHES,
    )


def language_job(model: Any, tokenizer: Any, phase: Phase, mix: Mix, seed: int) -> Job[Batch]:
    """A job that trains the model on dialogues, in place.

    The vision encoder is already trained. It is frozen, which makes training much cheaper.
    """
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
