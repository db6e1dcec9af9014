"""One phase of training with Hugging Face's Trainer: AdamW, warm-up, cosine decay, checkpoints."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from rich.console import Console
from safetensors.torch import load_model
from torch import nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from recipes.pair.data import IGNORED, Batch

FINAL_SHARE = 0.02  # of the peak learning rate, at the end of a phase
STEPS_PER_LINE = 20  # of the curve
LINE_WIDTH = 160

Sample = TypeVar("Sample")
OnSave = Callable[[int], None] | None  # called with the step after each checkpoint


@dataclass(frozen=True)
class Phase:
    """The length and speed of a phase.

    Args:
        name: names its checkpoints and its curve.
        steps: number of batches.
        peak: highest learning rate.
        warmup: steps in which the learning rate rises.
        decay: weight decay of matrices.
        save_every: steps between checkpoints.
        horizon: steps for which the decay of the learning rate is planned, if more than ``steps``:
            the phase then ends before the decay does. 0 for ``steps``.
        first: steps that were made on another machine, of which only the weights were kept. The
            learning rate rises again, and the data go on.
    """

    name: str
    steps: int
    peak: float
    warmup: int = 80
    decay: float = 0.05
    save_every: int = 100
    horizon: int = 0
    first: int = 0


@dataclass(frozen=True)
class StepResult:
    """The result of a batch.

    Args:
        loss: a scalar with a gradient.
        accuracy: share of the predictions that are right.
        figures: further numbers, which the curve averages.
    """

    loss: torch.Tensor
    accuracy: float
    figures: Mapping[str, float] = field(default_factory=dict)


def adamw(module: Any, phase: Phase) -> torch.optim.AdamW:
    """AdamW on the parameters that are not frozen, with weight decay on matrices only.

    Its learning rate is 1: the schedule multiplies it by the actual rate.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim > 1]
    vectors = [parameter for parameter in trained if parameter.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": phase.decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.98))


@dataclass(frozen=True)
class Job(Generic[Sample]):
    """A phase with its model and its data.

    Args:
        phase: length and speed.
        module: everything that is trained and saved.
        source: returns endless batches, beginning with that of the given step.
        loss: computes loss and accuracy of a batch.
        tokens: returns the number of positions of a batch.
        optimizer: makes the optimizer; its learning rates are multiplied by the phase's.
    """

    phase: Phase
    module: Any
    source: Callable[[int], Iterator[Sample]]
    loss: Callable[[Sample], StepResult]
    tokens: Callable[[Sample], int]
    optimizer: Callable[[Any, Phase], torch.optim.Optimizer] = adamw


class OutOfTime(Exception):  # noqa: N818 - nothing went wrong
    """The time limit was reached after ``step``, which is saved; `train` resumes from it."""

    def __init__(self, step: int) -> None:
        super().__init__(f"out of time after step {step}, which is saved")
        self.step = step


@dataclass(frozen=True)
class _Progress:
    """How far earlier runs of a phase came.

    Args:
        checkpoint: the newest complete checkpoint, or None.
        step: its step.
        seconds: training time until then.
    """

    checkpoint: Path | None = None
    step: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class _BatchRecord:
    """The values of a batch that the curve averages."""

    loss: torch.Tensor
    accuracy: float
    tokens: int
    figures: Mapping[str, float]


def train(
    job: Job[Sample], folder: Path, on_save: OnSave = None, minutes: float | None = None
) -> float:
    """Train a job's module in place, from the newest checkpoint on.

    Args:
        job: what to train.
        folder: for checkpoints and curve.
        on_save: called with the step after each checkpoint.
        minutes: time limit; None for none.

    Returns:
        The training time of the phase in seconds, including earlier runs.

    Raises:
        OutOfTime: the time limit was reached; the last step is saved.
    """
    phase = job.phase
    progress = _progress(folder / phase.name)
    checkpoint = progress.checkpoint
    if checkpoint is not None and progress.step >= phase.steps:
        load_model(nn.ModuleDict({"trained": job.module}), checkpoint / "model.safetensors")
        return progress.seconds
    journal = _Journal(phase, folder / f"{phase.name}.jsonl", progress, on_save, minutes)
    trainer = _Trainer(job, folder / phase.name, journal, progress.step)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.state.global_step < phase.steps:
        raise OutOfTime(trainer.state.global_step)
    return journal.seconds()


def learning_rate(phase: Phase, step: int) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak.

    Args:
        phase: the phase.
        step: steps since the start of this run of the phase.
    """
    rise = min(1.0, (step + 1) / max(1, phase.warmup))
    horizon = phase.horizon or phase.first + phase.steps
    passed = max(0, phase.first + step - phase.warmup)
    progress = passed / max(1, horizon - phase.warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return rise * phase.peak * (FINAL_SHARE + (1 - FINAL_SHARE) * cosine)


def answer_loss(model: Any, batch: Batch) -> StepResult:
    """Mean cross entropy of the answers' tokens, and the share that the model ranks first."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    labels = batch["labels"][:, 1:]
    is_answer = labels != IGNORED
    device = next(model.parameters()).device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=bfloat16_is_fast(device)):
        hidden = model.model(**inputs, use_cache=False).last_hidden_state  # [B, L, D]
        logits = model.lm_head(hidden[:, :-1][is_answer])  # [N, V]: the answers' positions only
    tokens = labels[is_answer]
    accuracy = float((logits.argmax(-1) == tokens).float().mean())
    return StepResult(nn.functional.cross_entropy(logits.float(), tokens), accuracy)


def bfloat16_is_fast(device: str) -> bool:
    """Whether a device multiplies matrices faster in bfloat16 than in float32.

    A CPU without AMX or AVX512-BF16 emulates bfloat16, at a quarter of the speed of float32.
    """
    if device != "cpu":
        return True
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def to_device(batch: Any, device: torch.device) -> Any:
    """A copy of a batch on a device.

    Tensors may be nested in tuples, dictionaries and dataclasses; other values remain unchanged.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, tuple):
        return tuple(to_device(item, device) for item in batch)
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    if is_dataclass(batch) and not isinstance(batch, type):
        values = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return replace(batch, **to_device(values, device))
    return batch


class _Journal(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Prints and writes the curve, and measures the time.

    Its state is saved in every checkpoint, under the name of this class.
    """

    def __init__(
        self,
        phase: Phase,
        curve: Path,
        progress: _Progress,
        on_save: OnSave,
        minutes: float | None,
    ) -> None:
        self.phase = phase
        self.curve = curve
        self.earlier_seconds = progress.seconds
        self.on_saved = on_save
        self.minutes = minutes
        self.start = time.perf_counter()
        self.last_line = self.start
        self.recent: list[_BatchRecord] = []  # since the last line
        curve.parent.mkdir(parents=True, exist_ok=True)
        _truncate(curve, progress.step)

    def seconds(self) -> float:
        """Training time of the phase, including earlier runs."""
        return self.earlier_seconds + time.perf_counter() - self.start

    def state(self) -> dict[str, float]:
        return {"spent": self.seconds()}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % STEPS_PER_LINE == 0:
            self._add_line(state.global_step)
        elapsed = time.perf_counter() - self.start
        if self.minutes is not None and elapsed > 60 * self.minutes:
            control.should_save = True
            control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.on_saved:
            self.on_saved(state.global_step)

    def _add_line(self, step: int) -> None:
        """Print and write the means since the last line."""
        now = time.perf_counter()
        count = len(self.recent)
        tokens = sum(record.tokens for record in self.recent)
        row = {
            "step": step,
            "loss": float(sum(record.loss for record in self.recent)) / count,
            "right": sum(record.accuracy for record in self.recent) / count,
            "tokens_per_second": tokens / (now - self.last_line),
            "seconds": self.seconds(),
        }
        line = (
            f"{self.phase.name} step {step}/{self.phase.steps} loss {row['loss']:.3f} "
            f"right {row['right']:.3f} tokens/s {row['tokens_per_second']:.0f} "
            f"seconds {row['seconds']:.0f}"
        )
        for name in self.recent[-1].figures:
            row[name] = sum(record.figures[name] for record in self.recent) / count
            line += f" {name} {row[name]:.3f}"
        Console(width=LINE_WIDTH).print(line)
        with self.curve.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.last_line = now
        self.recent = []


class _Trainer(Trainer):  # type: ignore[misc]
    """A Trainer that takes ready-made batches and the job's loss, on the module's device.

    The module is wrapped in another one. Otherwise the Trainer would treat it as a model of
    transformers: it could save its parameters under the names of an older layout, and would change
    its configuration. Batches are wrapped because the Trainer counts labels in dictionaries.
    """

    def __init__(self, job: Job[Any], folder: Path, journal: _Journal, start: int) -> None:
        self.job = job
        self.journal = journal
        self.start = start
        optimizer = job.optimizer(job.module, job.phase)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate(job.phase, step)
        )
        super().__init__(
            nn.ModuleDict({"trained": job.module}),
            _arguments(job, folder),
            callbacks=[journal],
            optimizers=(optimizer, schedule),
        )
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> Any:
        """The job's batches, without a `DataLoader`.

        A `DataLoader` would draw from the random state that was just restored, and would make one
        batch more than needed.
        """
        return ({"batch": batch} for batch in self.job.source(self.start))

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        batch = to_device(inputs["batch"], self.args.device)
        result = self.job.loss(batch)
        record = _BatchRecord(
            result.loss.detach(), result.accuracy, self.job.tokens(batch), result.figures
        )
        self.journal.recent.append(record)
        return result.loss


def _arguments(job: Job[Any], folder: Path) -> TrainingArguments:
    return TrainingArguments(
        str(folder),
        max_steps=job.phase.steps,
        max_grad_norm=1.0,
        save_steps=job.phase.save_every,
        save_total_limit=1,
        ignore_data_skip=True,  # the source begins at the right step
        logging_strategy="no",
        logging_nan_inf_filter=False,  # it would make a GPU wait at every step
        report_to=[],
        disable_tqdm=True,
        use_cpu=next(job.module.parameters()).device.type == "cpu",
    )


def newest_checkpoint(folder: Path) -> tuple[Path | None, int]:
    """The newest complete checkpoint in a folder and its step; None and 0 if there is none."""
    progress = _progress(folder)
    return progress.checkpoint, progress.step


def _progress(folder: Path) -> _Progress:
    """The newest complete checkpoint in a folder. The Trainer writes its state last."""
    checkpoints: dict[int, Path] = {}
    for state_file in folder.glob("checkpoint-*/trainer_state.json"):
        checkpoint = state_file.parent
        checkpoints[int(checkpoint.name.split("-")[1])] = checkpoint
    if not checkpoints:
        return _Progress()
    step = max(checkpoints)
    state = json.loads((checkpoints[step] / "trainer_state.json").read_text())
    seconds = float(state["stateful_callbacks"]["_Journal"]["spent"])
    return _Progress(checkpoints[step], step, seconds)


def _truncate(curve: Path, step: int) -> None:
    """Delete the lines of a curve after a step: training repeats them."""
    lines = curve.read_text().splitlines(keepends=True) if curve.exists() else []
    curve.write_text("".join(line for line in lines if json.loads(line)["step"] <= step))
