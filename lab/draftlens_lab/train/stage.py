"""Preparation of a stage: its entries, its plan, and a trial of the models on its data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import send_to_device

from draftlens.core.errors import TrainingDataError
from draftlens.models.load import load_model
from draftlens.models.loading import LoadOptions
from draftlens_lab.train.collate import Collator
from draftlens_lab.train.data import Entry, TrainingData
from draftlens_lab.train.distil import answer_labels, answer_logits
from draftlens_lab.train.draws import Draws
from draftlens_lab.train.errors import config_errors
from draftlens_lab.train.labels import AnswerProcessor
from draftlens_lab.train.media import evenly_spaced
from draftlens_lab.train.models import Draft, load_processor
from draftlens_lab.train.options import DraftTraining
from draftlens_lab.train.pruned import PromptPruning
from draftlens_lab.train.report import StagePlan, TrainingPlan
from draftlens_lab.train.trainer import (
    Distillation,
    TrainingBatch,
    device_batch,
    target_logits,
)

NUM_SAMPLES = 16
"""Entries per stage that are made into batches before training, to estimate the number of tokens
and to refuse unusable data early."""


@dataclass(frozen=True)
class Stage:
    """A stage that is ready to run.

    Args:
        target: name of the model that takes part, by its logits or its attention; None for none.
    """

    entries: list[Entry]
    collate: Collator
    learning_rate: float
    epochs: float
    target: str | None
    plan: StagePlan


@dataclass(frozen=True)
class _Settings:
    batch: int
    learning_rate: float
    epochs: float
    target: str | None
    draws: Draws | None


@dataclass(frozen=True)
class Teaching:
    """What the draft learns in a stage beside the answers of the data.

    Args:
        distillation: the target's logits; None for none.
        pruning: which tokens of its prompts the draft reads; None for all.
    """

    distillation: Distillation | None = None
    pruning: PromptPruning | None = None


@dataclass(frozen=True)
class _TokenCounts:
    tokens: int
    answer_tokens: int


def make_stage(
    name: str, options: DraftTraining, draft: Draft, files: dict[str, TrainingData], processes: int
) -> Stage:
    """Prepare a stage.

    Args:
        name: ``projector`` or ``instruct``.
    """
    settings = _settings(name, options)
    data = files["data"]
    entries = data.entries
    if name == "projector":
        data = files.get("projector_data", data)
        entries = _visual_entries(data)
    target = _target_processor(settings)
    collate = Collator(data, draft.processor, target, options.frames, settings.draws)
    counts = _estimate_tokens(collate, entries)
    size = device_batch(settings.batch, processes, options.device_batch)
    num_steps = options.max_steps or _num_steps(settings, len(entries), size * processes)
    plan = StagePlan(
        name=name,
        trained=_num_trained(draft, draft.parts.trained(name, options.train_vision)),
        entries=len(entries),
        skipped=len(data.entries) - len(entries),
        tokens=counts.tokens,
        answer_tokens=counts.answer_tokens,
        steps=num_steps,
        batch=settings.batch,
        device_batch=size,
    )
    return Stage(entries, collate, settings.learning_rate, settings.epochs, settings.target, plan)


def load_teaching(stage: Stage, options: DraftTraining, plan: TrainingPlan) -> Teaching:
    """Load the target of a stage, if one takes part."""
    target = None
    if stage.target is not None:
        load_options = LoadOptions(device=plan.device, dtype=plan.precision)
        target = load_model(stage.target, "target", load_options).backbone
        target.model.requires_grad_(False)
    distillation = None
    if target is not None and options.distil is not None:
        distillation = Distillation(target.model, options.distil_weight, options.distil_temperature)
    pruner = options.pruner_choice
    if pruner is None or stage.collate.draws is None:
        return Teaching(distillation)
    return Teaching(distillation, PromptPruning(pruner, target if pruner.readings else None))


def try_models(
    stages: Sequence[Stage], options: DraftTraining, draft: Draft, plan: TrainingPlan
) -> None:
    """Run the draft, and the target that takes part, on an entry with images and one with videos.

    Some mismatches of a config and a processor, such as another patch size, only become apparent
    in a forward pass.
    """
    model = draft.model.to(plan.device)
    for stage in stages:
        # The stage loads the target again later. Until then, its memory is free.
        teaching = load_teaching(stage, options, plan)
        for entry in of_each_kind(stage.entries):
            _try_entry(stage, teaching, draft, model, entry, plan.device)


def _try_entry(
    stage: Stage, teaching: Teaching, draft: Draft, model: Any, entry: Entry, device: str
) -> None:
    batch = send_to_device(stage.collate([entry]), device)
    failure = (
        f"cannot take what its processor makes of {entry.place}, so the two may not belong together"
    )
    with torch.no_grad():
        step = TrainingBatch.of(batch)
        with config_errors(f"the draft {draft.processor.name!r} {failure}", (Exception,)):
            answer_logits(model, model, step.inputs, step.labels)
        if stage.target is None:
            return
        with config_errors(f"the target {stage.target!r} {failure}", (Exception,)):
            if teaching.pruning is not None:
                step.kept(teaching.pruning, model)
            if teaching.distillation is not None:
                target_logits(teaching.distillation.target, step)


def of_each_kind(entries: Sequence[Entry]) -> list[Entry]:
    """The first entry with images and the first with videos, if there are any."""
    first_image = next((entry for entry in entries if entry.images), None)
    first_video = next((entry for entry in entries if entry.videos), None)
    examples = []
    if first_image is not None:
        examples.append(first_image)
    if first_video is not None and first_video is not first_image:
        examples.append(first_video)
    return examples


def _settings(name: str, options: DraftTraining) -> _Settings:
    if name == "projector":
        return _Settings(
            batch=options.projector_batch,
            learning_rate=options.projector_lr,
            epochs=options.projector_epochs,
            target=None,
            draws=None,
        )
    return _Settings(
        batch=options.batch,
        learning_rate=options.lr,
        epochs=options.epochs,
        target=options.distil or options.guide,
        draws=options.draws,
    )


def _visual_entries(data: TrainingData) -> list[Entry]:
    entries = [entry for entry in data.entries if entry.images or entry.videos]
    if not entries:
        raise TrainingDataError(
            f"{data.path} contains no images or videos, so the projector cannot learn from it"
        )
    return entries


def _target_processor(settings: _Settings) -> AnswerProcessor | None:
    if settings.target is None:
        return None
    return AnswerProcessor(load_processor(settings.target, "target"), settings.target)


def _num_steps(settings: _Settings, num_entries: int, at_once: int) -> int:
    """The number of optimizer steps, for `at_once` entries per forward pass of all processes."""
    rounds_per_epoch = math.ceil(num_entries / at_once)
    rounds_per_step = settings.batch // at_once
    return math.ceil(settings.epochs * math.ceil(rounds_per_epoch / rounds_per_step))


def _num_trained(draft: Draft, names: frozenset[str]) -> int:
    return sum(p.numel() for name, p in draft.model.named_parameters() if name in names)


def _estimate_tokens(collate: Collator, entries: list[Entry]) -> _TokenCounts:
    batches = [collate([entry]) for entry in evenly_spaced(entries, NUM_SAMPLES)]
    tokens = sum(batch["input_ids"].numel() for batch in batches)
    answer_tokens = sum(answer_labels(batch["labels"]).numel() for batch in batches)
    return _TokenCounts(
        tokens * len(entries) // len(batches), answer_tokens * len(entries) // len(batches)
    )
