"""Training a draft from start to end: refuse, plan, train stage by stage, save."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import PrinterCallback, set_seed

from draftlens.core.errors import TrainingDataError
from draftlens.train import resume
from draftlens.train.data import TrainingData, read_data
from draftlens.train.media import check_media, media_digest
from draftlens.train.models import Draft, load_draft
from draftlens.train.options import DraftTraining
from draftlens.train.report import Losses, LossLog, Plan, Trained, losses_of, plot
from draftlens.train.stage import Stage, load_distillation, make_stage, try_models
from draftlens.train.trainer import DraftTrainer, EpochOrder, StopAtNan, arguments, restore


def train_draft(
    options: DraftTraining,
    *,
    on_plan: Callable[[Plan], None] | None = None,
    callbacks: Sequence[Any] = (),
    progress: bool = False,
) -> Trained:
    """Train a draft, or go on where an interrupted run of the same options left off.

    The recipe is LLaVA's: the projector alone, then projector and language model on instructions
    (Liu et al. 2023, 2024; numbers in `DraftTraining`). Everything that can be refused is refused
    before the first step.

    Args:
        on_plan: told what will be trained, in the main process.
        callbacks: further `TrainerCallback`s.
        progress: show progress bars and losses.

    Raises:
        ConfigError: options contradict each other or what is in the folder, the folder holds what
            the run reads, or a model cannot be loaded or cannot take what its processor makes.
        TrainingDataError: an entry is wrong; names it.
        UnsupportedModelError, IncompatiblePairError: the draft cannot be trained, or not for this
            target.
        KeyboardInterrupt: says from which step the same call, without `restart`, goes on.
    """
    begun, state = time.perf_counter(), PartialState(cpu=options.cpu)
    # Before anything is drawn at random, and again in each Trainer.
    set_seed(options.seed)
    files = _read_files(options)
    media = sum(map(check_media, files.values()))
    run, begun_before = resume.agreed(state, lambda: _checked_run(options, files))
    draft = load_draft(options)
    stages = [
        make_stage(name, options, draft, files, state.num_processes)
        for name in options.chosen_stages
    ]
    plan = _plan(options, draft, media, stages, state)
    if not begun_before:
        try_models(stages, options, draft, plan)
    resume.agreed(state, lambda: resume.open_folder(options.out, run, options.restart))
    if on_plan is not None and state.is_main_process:
        on_plan(plan)
    losses: Losses = {}
    resumed: dict[str, int] = {}
    try:
        for stage in stages:
            resumed[stage.plan.name] = _run_stage(
                stage, options, draft, plan, losses, (callbacks, progress)
            )
        plotted = _save(options.out, draft, losses) if state.is_main_process else False
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_where_it_goes_on(options, state.is_main_process)) from None
    state.wait_for_everyone()
    return Trained(
        options.out,
        plan,
        losses,
        resumed,
        time.perf_counter() - begun,
        plotted,
        state.is_main_process,
    )


def _read_files(options: DraftTraining) -> dict[str, TrainingData]:
    """The data by option; one file is read once."""
    files = {"data": read_data(options.data, options.media_root)}
    if options.projector_data is not None:
        files["projector_data"] = read_data(options.projector_data, options.media_root)
    return files


def _checked_run(
    options: DraftTraining, files: dict[str, TrainingData]
) -> tuple[dict[str, Any], bool]:
    """The run's fingerprint and whether it was begun before, once its folder is known to be nobody
    else's.

    Raises:
        ConfigError, TrainingDataError: it is, or a file has gone.
    """
    resume.check_apart(options)
    digests = {name: data.digest for name, data in files.items()}
    media = {f"media of {name}": media_digest(data) for name, data in files.items()}
    run = resume.fingerprint(options, {**digests, **media})
    resume.check_folder(options.out, run, options.restart)
    return run, resume.is_begun(options.out, options.restart)


def _plan(
    options: DraftTraining, draft: Draft, media: int, stages: list[Stage], state: Any
) -> Plan:
    sizes = {name: parameter.numel() for name, parameter in draft.model.named_parameters()}
    parts = {
        part: sum(map(sizes.__getitem__, getattr(draft.parts, part)))
        for part in ("vision", "projector", "language")
    }
    has_bf16 = state.device.type == "cuda" and torch.cuda.is_bf16_supported()
    precision = (
        options.precision if options.precision != "auto" else "bfloat16" if has_bf16 else "float32"
    )
    plans = tuple(stage.plan for stage in stages)
    return Plan(
        type(draft.model).__name__,
        parts,
        media,
        plans,
        str(state.device),
        state.num_processes,
        precision,
    )


def _run_stage(
    stage: Stage,
    options: DraftTraining,
    draft: Draft,
    plan: Plan,
    losses: Losses,
    show: tuple[Sequence[Any], bool],
) -> int:
    """Run a stage or the rest of it, add its losses, and return the step at which it went on."""
    name = stage.plan.name
    checkpoint = resume.agreed(PartialState(), lambda: resume.latest(options.out, name))
    done: dict[str, Any] = resume.state_of(checkpoint) if checkpoint else {"global_step": 0}
    if checkpoint is not None and done["global_step"] >= stage.plan.steps:
        restore(draft.model, checkpoint)
        losses[name] = losses_of(done["log_history"])
        return int(done["global_step"])
    trainer = _trainer(stage, options, draft, plan, dict(losses), show)
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except TrainingDataError as error:
        raise TrainingDataError(_without_traceback(str(error))) from error
    losses[name] = losses_of(trainer.state.log_history)
    trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
    return int(done["global_step"])


def _without_traceback(message: str) -> str:
    """The sentence of an error; one that comes from a worker process stands at the end of its
    traceback."""
    lines = message.strip().splitlines()
    return lines[-1].partition(": ")[2] if lines[0].startswith("Caught ") else message


def _where_it_goes_on(options: DraftTraining, is_main: bool) -> str:
    """Clear the folder of what is half-written, and say what is left."""
    if is_main:
        resume.discard_incomplete(options.out)
    command = "the same command without --restart" if options.restart else "the same command"
    for stage in reversed(options.chosen_stages):
        if checkpoint := resume.latest(options.out, stage):
            return f"{command} goes on from step {resume.state_of(checkpoint)['global_step']} of the {stage} stage"
    return f"{command} begins anew: there was no checkpoint yet"


def _trainer(
    stage: Stage,
    options: DraftTraining,
    draft: Draft,
    plan: Plan,
    losses: Losses,
    show: tuple[Sequence[Any], bool],
) -> DraftTrainer:
    names = draft.parts.trained(stage.plan.name, options.train_vision)
    for name, parameter in draft.model.named_parameters():
        parameter.requires_grad_(name in names)
    trains_vision = options.train_vision and stage.plan.name == "instruct"
    lengths = [entry.length for entry in stage.entries] if options.group_by_length else None
    at_once = stage.plan.device_batch * plan.processes if plan.processes > 1 else 1
    filler = replace(min(stage.entries, key=lambda entry: entry.length), counted=False)
    trainer = DraftTrainer(
        vision=draft.parts.vision,
        vision_lr_factor=options.vision_lr_factor,
        frozen=[]
        if trains_vision
        else [draft.model.get_submodule(path) for path in draft.parts.encoders],
        order=EpochOrder(lengths, len(stage.entries), stage.plan.batch, options.seed, at_once),
        distillation=load_distillation(stage, options, plan),
        model=draft.model,
        args=_arguments(stage, options, plan, show[1]),
        data_collator=stage.collate,
        train_dataset=[*stage.entries, filler],
        callbacks=[StopAtNan(), LossLog(options.out, stage.plan.name, losses), *show[0]],
    )
    if not show[1]:
        trainer.remove_callback(PrinterCallback)
    return trainer


def _arguments(stage: Stage, options: DraftTraining, plan: Plan, progress: bool) -> Any:
    each = stage.plan.device_batch
    return arguments(
        options.gradient_checkpointing,
        output_dir=str(options.out / resume.CHECKPOINTS / stage.plan.name),
        per_device_train_batch_size=each,
        gradient_accumulation_steps=stage.plan.batch // (each * plan.processes),
        learning_rate=stage.learning_rate,
        lr_scheduler_type=options.schedule,
        warmup_steps=options.warmup,
        weight_decay=options.weight_decay,
        num_train_epochs=stage.epochs,
        max_steps=options.max_steps or -1,
        bf16=plan.precision == "bfloat16",
        ddp_find_unused_parameters=True,  # a batch of text alone leaves the projector out
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
        disable_tqdm=not progress,
    )


def _save(out: Path, draft: Draft, losses: Losses) -> bool:
    """Write the model, its processor and its losses; returns whether there is a plot."""
    folder = out / resume.SAVING
    draft.model.save_pretrained(folder)
    draft.processor.processor.save_pretrained(folder)
    resume.move_in(out)
    resume.write_json(out / "loss.json", losses)
    return plot(out, losses)
