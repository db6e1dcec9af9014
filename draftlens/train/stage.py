"""A stage before its first step: what it will do, and whether the models can take what they will be
given."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from accelerate.utils import send_to_device

from draftlens.core.errors import ConfigError, TrainingDataError
from draftlens.models.load import load_model
from draftlens.train.collate import Collator
from draftlens.train.data import Entry, TrainingData
from draftlens.train.distil import answer_labels, answer_logits
from draftlens.train.labels import AnswerProcessor
from draftlens.train.media import spread
from draftlens.train.models import Draft, load_processor
from draftlens.train.options import DraftTraining
from draftlens.train.report import Plan, StagePlan
from draftlens.train.trainer import Distillation, device_batch, target_logits

TRIED = 16
"""Entries per stage that are made into batches before training: to estimate tokens, and to refuse
early."""


@dataclass(frozen=True)
class Stage:
    """A stage that is ready to run.

    Args:
        entries: to train on.
        collate: makes batches of them.
        learning_rate, epochs: of this stage.
        distil: the name of the model whose logits it learns, if any.
        plan: what it will do.
    """

    entries: list[Entry]
    collate: Collator
    learning_rate: float
    epochs: float
    distil: str | None
    plan: StagePlan


def make_stage(
    name: str, options: DraftTraining, draft: Draft, files: dict[str, TrainingData], processes: int
) -> Stage:
    """A stage with its entries.

    Args:
        name: projector or instruct.
        files: the data by option.

    Raises:
        ConfigError: its batch cannot be divided among the processes.
        TrainingDataError: it has no entries, or one of those tried cannot be made into a batch.
    """
    first = name == "projector"
    data = files.get("projector_data", files["data"]) if first else files["data"]
    # Text alone teaches a projector nothing; a batch of it would have no gradient at all.
    entries = (
        [entry for entry in data.entries if entry.images or entry.videos] if first else data.entries
    )
    if not entries:
        raise TrainingDataError(
            f"{data.path} shows no images or videos, so the projector cannot learn from it"
        )
    target = None if first else options.distil
    other = None if target is None else AnswerProcessor(load_processor(target, "target"), target)
    collate = Collator(data, draft.processor, other, options.frames)
    tokens, answers = _estimate(collate, entries)
    batch = options.projector_batch if first else options.batch
    each = device_batch(batch, processes, options.device_batch)
    epochs = options.projector_epochs if first else options.epochs
    per_epoch = math.ceil(
        math.ceil(len(entries) / (each * processes)) / (batch // (each * processes))
    )
    steps = options.max_steps or math.ceil(epochs * per_epoch)
    names = draft.parts.trained(name, options.train_vision)
    trained = sum(p.numel() for n, p in draft.model.named_parameters() if n in names)
    skipped = len(data.entries) - len(entries)
    plan = StagePlan(name, trained, len(entries), skipped, tokens, answers, steps, batch, each)
    return Stage(
        entries, collate, options.projector_lr if first else options.lr, epochs, target, plan
    )


def _estimate(collate: Collator, entries: list[Entry]) -> tuple[int, int]:
    """(all tokens, answer tokens) of the entries, from some of them.

    Raises:
        TrainingDataError: one of those cannot be made into a batch.
    """
    batches = [collate([entry]) for entry in spread(entries, TRIED)]
    counts = [sum(batch["input_ids"].numel() for batch in batches)]
    counts.append(sum(answer_labels(batch["labels"]).numel() for batch in batches))
    return counts[0] * len(entries) // len(batches), counts[1] * len(entries) // len(batches)


def load_distillation(stage: Stage, options: DraftTraining, plan: Plan) -> Distillation | None:
    """The model whose logits a stage learns, if any.

    Raises:
        ConfigError, UnsupportedModelError: it cannot be loaded or driven.
    """
    if stage.distil is None:
        return None
    loaded = load_model(stage.distil, "target", plan.device, plan.precision)
    return Distillation(
        loaded.backbone.model.requires_grad_(False),
        options.distil_weight,
        options.distil_temperature,
    )


def try_models(stages: Sequence[Stage], options: DraftTraining, draft: Draft, plan: Plan) -> None:
    """Pass an entry with images and one with videos through the draft, and through the model that
    it learns from.

    A config of another patch size, say, is only known by what the model makes of a picture.

    Raises:
        ConfigError: a model cannot take what its processor makes; names it and the entry.
        TrainingDataError: an entry cannot be made into a batch.
        UnsupportedModelError: the model to learn from cannot be driven.
    """
    model = draft.model.to(plan.device)
    for stage in stages:
        # Loaded again for the stage itself: until then, its memory is free.
        distillation = load_distillation(stage, options, plan)
        for entry in of_each_kind(stage.entries):
            inputs = send_to_device(stage.collate([entry]), plan.device)
            labels, other = inputs.pop("labels"), inputs.pop("target", None)
            with _explained(f"the draft {draft.processor.name!r}", entry), torch.no_grad():
                answer_logits(model, model, inputs, labels)
            if distillation is not None:
                with _explained(f"the target {stage.distil!r}", entry):
                    target_logits(distillation.target, inputs, labels, other)


def of_each_kind(entries: Sequence[Entry]) -> list[Entry]:
    """The first entry with images and the first with videos, as far as there are any."""
    found = [
        next((entry for entry in entries if getattr(entry, kind)), None)
        for kind in ("images", "videos")
    ]
    return list({entry.place: entry for entry in found if entry is not None}.values())


@contextmanager
def _explained(model: str, entry: Entry) -> Iterator[None]:
    """Turns whatever a model's own code raises over an entry into one sentence."""
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"{model} cannot take what its processor makes of {entry.place}, so the two may not "
            f"belong "
            f"together: {lines[0]}"
        ) from error
