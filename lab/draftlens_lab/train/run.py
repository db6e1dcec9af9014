"""Training of a draft from start to end: refusals, plan, stages, result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import nn
from transformers import PrinterCallback, set_seed

from draftlens.core.errors import TrainingDataError
from draftlens.core.files import write_json
from draftlens_lab.train import resume
from draftlens_lab.train.data import Entry, TrainingData, read_data
from draftlens_lab.train.media import check_media, media_digest
from draftlens_lab.train.models import Draft, load_draft
from draftlens_lab.train.options import DraftTraining
from draftlens_lab.train.report import (
    LOSS_FILE,
    Losses,
    LossLog,
    Trained,
    TrainingPlan,
    loss_plot,
    losses_of,
)
from draftlens_lab.train.stage import Stage, load_teaching, make_stage, try_models
from draftlens_lab.train.trainer import DraftTrainer, EpochOrder, StopAtNan, arguments, restore


@dataclass(frozen=True)
class _Folder:
    """The state of the output folder before the run."""

    run: dict[str, Any]
    is_begun: bool


@dataclass(frozen=True)
class _Preparation:
    """The result of the preparation, before the output folder is written."""

    run: dict[str, Any]
    draft: Draft
    stages: list[Stage]
    plan: TrainingPlan


@dataclass(frozen=True)
class _Session:
    """The options and models that all stages of a run share."""

    options: DraftTraining
    draft: Draft
    plan: TrainingPlan
    callbacks: Sequence[Any]
    progress: bool


def train_draft(
    options: DraftTraining,
    *,
    on_plan: Callable[[TrainingPlan], None] | None = None,
    callbacks: Sequence[Any] = (),
    progress: bool = False,
) -> Trained:
    """Train a draft, or resume an interrupted run of the same options.

    The recipe is LLaVA's: first the projector alone, then projector and language model on
    instructions (Liu et al. 2023, 2024; `DraftTraining` gives the numbers). Invalid options, models
    and data are refused before the first step.

    Args:
        on_plan: called with the plan before the first step, in the main process.

    Returns:
        The result, in every process.
    """
    start = time.perf_counter()
    state = PartialState(cpu=options.cpu)
    # Before the first random number; each Trainer sets the seed again.
    set_seed(options.seed)
    ready = _prepare(options, state)
    resume.agreed(state, lambda: resume.open_folder(options.out, ready.run, options.restart))
    if on_plan is not None and state.is_main_process:
        on_plan(ready.plan)
    session = _Session(options, ready.draft, ready.plan, callbacks, progress)
    losses: Losses = {}
    resumed: dict[str, int] = {}
    plotted = False
    try:
        for stage in ready.stages:
            resumed[stage.plan.name] = _run_stage(stage, session, losses)
        if state.is_main_process:
            plotted = _save(options.out, ready.draft, losses)
    except KeyboardInterrupt:
        message = _interruption_message(options, state.is_main_process)
        raise KeyboardInterrupt(message) from None
    state.wait_for_everyone()
    return Trained(
        folder=options.out,
        plan=ready.plan,
        losses=losses,
        resumed=resumed,
        seconds=time.perf_counter() - start,
        plotted=plotted,
        main=state.is_main_process,
    )


def _prepare(options: DraftTraining, state: Any) -> _Preparation:
    files = _read_files(options)
    num_media = sum(check_media(data) for data in files.values())
    folder = resume.agreed(state, lambda: _check_folder(options, files))
    draft = load_draft(options)
    stages = []
    for name in options.chosen_stages:
        stages.append(make_stage(name, options, draft, files, state.num_processes))
    plan = _plan(options, draft, num_media, stages, state)
    if not folder.is_begun:
        try_models(stages, options, draft, plan)
    return _Preparation(folder.run, draft, stages, plan)


def _read_files(options: DraftTraining) -> dict[str, TrainingData]:
    files = {"data": read_data(options.data, options.media_root)}
    if options.projector_data is not None:
        files["projector_data"] = read_data(options.projector_data, options.media_root)
    return files


def _check_folder(options: DraftTraining, files: dict[str, TrainingData]) -> _Folder:
    resume.check_apart(options)
    digests = {name: data.digest for name, data in files.items()}
    for name, data in files.items():
        digests[f"media of {name}"] = media_digest(data)
    run = resume.run_properties(options, digests)
    resume.check_folder(options.out, run, options.restart)
    return _Folder(run, resume.is_begun(options.out, options.restart))


def _plan(
    options: DraftTraining, draft: Draft, num_media: int, stages: list[Stage], state: Any
) -> TrainingPlan:
    sizes = {name: parameter.numel() for name, parameter in draft.model.named_parameters()}
    parameters = {
        "vision": sum(sizes[name] for name in draft.parts.vision),
        "projector": sum(sizes[name] for name in draft.parts.projector),
        "language": sum(sizes[name] for name in draft.parts.language),
    }
    return TrainingPlan(
        model=type(draft.model).__name__,
        parameters=parameters,
        media=num_media,
        stages=tuple(stage.plan for stage in stages),
        device=str(state.device),
        processes=state.num_processes,
        precision=_precision(options, state.device),
    )


def _precision(options: DraftTraining, device: torch.device) -> str:
    if options.precision != "auto":
        return options.precision
    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return "bfloat16" if has_bfloat16 else "float32"


def _run_stage(stage: Stage, session: _Session, losses: Losses) -> int:
    """Run a stage or its remaining steps.

    Args:
        losses: of the stages before; those of this stage are added.

    Returns:
        The step from which the stage was resumed; 0 if it started at the beginning.
    """
    name = stage.plan.name
    checkpoint = resume.agreed(PartialState(), lambda: resume.latest(session.options.out, name))
    step = 0
    if checkpoint is not None:
        state = resume.state_of(checkpoint)
        step = int(state["global_step"])
        if step >= stage.plan.steps:
            restore(session.draft.model, checkpoint)
            losses[name] = losses_of(state["log_history"])
            return step
    trainer = _make_trainer(stage, session, dict(losses))
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except TrainingDataError as error:
        raise TrainingDataError(_without_traceback(str(error))) from error
    losses[name] = losses_of(trainer.state.log_history)
    trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
    return step


def _without_traceback(message: str) -> str:
    lines = message.strip().splitlines()
    if not lines[0].startswith("Caught "):
        return message
    return lines[-1].partition(": ")[2]


def _interruption_message(options: DraftTraining, is_main: bool) -> str:
    if is_main:
        resume.discard_incomplete(options.out)
    command = "the same command without --restart" if options.restart else "the same command"
    for stage in reversed(options.chosen_stages):
        checkpoint = resume.latest(options.out, stage)
        if checkpoint is not None:
            step = resume.state_of(checkpoint)["global_step"]
            return f"{command} resumes from step {step} of the {stage} stage"
    return f"{command} starts from the beginning, because there was no checkpoint yet"


def _make_trainer(stage: Stage, session: _Session, losses: Losses) -> DraftTrainer:
    options = session.options
    draft = session.draft
    log = LossLog(options.out, stage.plan.name, losses)
    teaching = load_teaching(stage, options, session.plan)
    trainer = DraftTrainer(
        vision=draft.parts.vision,
        vision_lr_factor=options.vision_lr_factor,
        frozen=_freeze(stage, session),
        order=_entry_order(stage, session),
        distillation=teaching.distillation,
        pruning=teaching.pruning,
        draws=stage.collate.draws,
        model=draft.model,
        args=_arguments(stage, session),
        data_collator=stage.collate,
        train_dataset=[*stage.entries, _filler(stage.entries)],
        callbacks=[StopAtNan(), log, *session.callbacks],
    )
    if not session.progress:
        trainer.remove_callback(PrinterCallback)
    return trainer


def _freeze(stage: Stage, session: _Session) -> list[nn.Module]:
    """Freeze the parameters that the stage does not train; return the frozen vision encoders."""
    draft = session.draft
    with_vision = session.options.train_vision
    names = draft.parts.trained(stage.plan.name, with_vision)
    for name, parameter in draft.model.named_parameters():
        parameter.requires_grad_(name in names)
    if with_vision and stage.plan.name == "instruct":
        return []
    return [draft.model.get_submodule(path) for path in draft.parts.encoders]


def _entry_order(stage: Stage, session: _Session) -> EpochOrder:
    lengths = None
    if session.options.group_by_length:
        lengths = [entry.length for entry in stage.entries]
    at_once = 1
    if session.plan.processes > 1:
        at_once = stage.plan.device_batch * session.plan.processes
    return EpochOrder(lengths, len(stage.entries), stage.plan.batch, session.options.seed, at_once)


def _filler(entries: Sequence[Entry]) -> Entry:
    """The entry that fills up the last round of an epoch: a short one that is not trained on."""
    return replace(min(entries, key=lambda entry: entry.length), counted=False)


def _arguments(stage: Stage, session: _Session) -> Any:
    options = session.options
    plan = session.plan
    size = stage.plan.device_batch
    return arguments(
        options.gradient_checkpointing,
        output_dir=str(options.out / resume.CHECKPOINTS / stage.plan.name),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=stage.plan.batch // (size * plan.processes),
        learning_rate=stage.learning_rate,
        lr_scheduler_type=options.schedule,
        warmup_steps=options.warmup,
        weight_decay=options.weight_decay,
        num_train_epochs=stage.epochs,
        max_steps=options.max_steps or -1,
        bf16=plan.precision == "bfloat16",
        ddp_find_unused_parameters=True,  # a batch of text alone does not use the projector
        dataloader_num_workers=options.workers,
        dataloader_pin_memory=plan.device != "cpu",
        save_strategy="steps",
        save_steps=options.save_steps,
        save_total_limit=options.keep_checkpoints,
        logging_steps=options.log_steps,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        seed=options.seed,
        use_cpu=options.cpu,
        disable_tqdm=not session.progress,
    )


def _save(out: Path, draft: Draft, losses: Losses) -> bool:
    folder = out / resume.SAVING
    draft.model.save_pretrained(folder)
    draft.processor.processor.save_pretrained(folder)
    resume.move_in(out)
    write_json(out / LOSS_FILE, losses, indent=2)
    return loss_plot(out, losses)
