"""One phase of training on Hugging Face's Trainer: AdamW, warm-up and cosine, checkpoints to resume
from."""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from rich.console import Console
from safetensors.torch import load_model
from torch import nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from recipes.pair.data import IGNORED, Batch

Sample = TypeVar("Sample")
OnSave = Callable[[int], None] | None  # is given the step, after each checkpoint


@dataclass(frozen=True)
class Phase:
    """For how long and how fast: ``steps`` batches, learning rate up to ``peak`` and down to a
    50th.

    With a ``horizon`` the way down is made for that many steps, and the phase ends on it.
    """

    name: str
    steps: int
    peak: float
    warmup: int = 80
    decay: float = 0.05
    save_every: int = 100
    horizon: int = 0


def learning_rate(phase: Phase, step: int) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak."""
    if step < phase.warmup:
        return phase.peak * (step + 1) / phase.warmup
    share = (step - phase.warmup) / max(1, (phase.horizon or phase.steps) - phase.warmup)
    return phase.peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))


@dataclass(frozen=True)
class Job(Generic[Sample]):
    """A phase with its module (everything that is trained, and saved), its data and its loss.

    ``source(step)`` yields endless batches from that step on; ``loss`` gives a batch's loss (a
    scalar to differentiate) and the share of it that is right; ``tokens`` counts a batch's
    positions.
    """

    phase: Phase
    module: Any
    source: Callable[[int], Iterator[Sample]]
    loss: Callable[[Sample], tuple[torch.Tensor, float]]
    tokens: Callable[[Sample], int]


class OutOfTime(Exception):  # noqa: N818 - nothing went wrong
    """The minutes were over after ``step``, which is saved: call ``train`` again to go on."""

    def __init__(self, step: int) -> None:
        super().__init__(f"out of time after step {step}, which is saved")
        self.step = step


def answer_loss(model: Any, batch: Batch) -> tuple[torch.Tensor, float]:
    """Mean cross-entropy over the answers' tokens (a scalar), and the share of them that the model
    ranks first."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with torch.autocast(next(model.parameters()).device.type, dtype=torch.bfloat16):
        hidden = model.model(**inputs, use_cache=False).last_hidden_state  # [B, L, D]
        told = batch["labels"][:, 1:] != IGNORED
        logits = model.lm_head(hidden[:, :-1][told])  # only the answers' positions: [N, V]
    wanted = batch["labels"][:, 1:][told]
    right = float((logits.argmax(-1) == wanted).float().mean())
    return nn.functional.cross_entropy(logits.float(), wanted), right


def to_device(batch: Any, device: torch.device) -> Any:
    """The same batch elsewhere: tensors in tuples, dictionaries and dataclasses; all else as it
    is."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, tuple):
        return tuple(to_device(part, device) for part in batch)
    if isinstance(batch, dict):
        return {name: to_device(part, device) for name, part in batch.items()}
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(
            batch, **to_device({f.name: getattr(batch, f.name) for f in fields(batch)}, device)
        )
    return batch


class _Journal(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Prints and writes the curve, and keeps the time; its state lies in every checkpoint."""

    def __init__(
        self, phase: Phase, curve: Path, start: int, spent: float, on_save: OnSave, minutes: Any
    ) -> None:
        self.phase, self.curve, self.before, self.on_saved, self.minutes = (
            phase,
            curve,
            spent,
            on_save,
            minutes,
        )
        self.began = self.since = time.perf_counter()
        self.recent: list[
            tuple[Any, float, int]
        ] = []  # loss, share right and tokens since the last line
        curve.parent.mkdir(parents=True, exist_ok=True)
        lines = curve.read_text().splitlines(keepends=True) if curve.exists() else []
        curve.write_text(
            "".join(line for line in lines if json.loads(line)["step"] <= start)
        )  # later ones come again

    def spent(self) -> float:
        return self.before + time.perf_counter() - self.began

    def state(self) -> dict[str, float]:
        return {"spent": self.spent()}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % 20 == 0:
            self._line(state.global_step)
        if self.minutes is not None and time.perf_counter() - self.began > 60 * self.minutes:
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.on_saved:
            self.on_saved(state.global_step)

    def _line(self, step: int) -> None:
        now, count, spent = time.perf_counter(), len(self.recent), self.spent()
        losses, rights, tokens = zip(*self.recent, strict=True)
        loss, right, speed = (
            float(sum(losses)) / count,
            sum(rights) / count,
            sum(tokens) / (now - self.since),
        )
        text = f"loss {loss:.3f} right {right:.3f} tokens/s {speed:.0f} seconds {spent:.0f}"
        Console(width=120).print(f"{self.phase.name} step {step}/{self.phase.steps} {text}")
        row = {
            "step": step,
            "loss": loss,
            "right": right,
            "tokens_per_second": speed,
            "seconds": spent,
        }
        with self.curve.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.since, self.recent = now, []


class _Trainer(Trainer):  # type: ignore[misc]
    """Takes ready-made batches and the job's loss, on the module's device.

    The module is wrapped: seen as a model of transformers, its saved names could be older ones than
    its own, and its configuration would be changed. So is each batch: the Trainer looks into
    dictionaries for labels to count.
    """

    def __init__(self, job: Job[Any], folder: Path, journal: _Journal, start: int) -> None:
        self.job, self.journal, self.start = job, journal, start
        arguments = TrainingArguments(
            str(folder),
            max_steps=job.phase.steps,
            max_grad_norm=1.0,
            save_steps=job.phase.save_every,
            save_total_limit=1,
            ignore_data_skip=True,  # the source starts at the right step
            logging_strategy="no",
            logging_nan_inf_filter=False,  # would make a GPU wait at every step
            report_to=[],
            disable_tqdm=True,
            use_cpu=next(job.module.parameters()).device.type == "cpu",
        )
        optimizer = _optimizer(job.module, job.phase)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate(job.phase, step)
        )
        module = nn.ModuleDict({"trained": job.module})
        super().__init__(module, arguments, callbacks=[journal], optimizers=(optimizer, schedule))
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> Any:
        """No DataLoader: it would draw from the random state that was just restored, and make a
        batch too many."""
        return ({"batch": batch} for batch in self.job.source(self.start))

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        batch = to_device(inputs["batch"], self.args.device)
        loss, right = self.job.loss(batch)
        self.journal.recent.append((loss.detach(), right, self.job.tokens(batch)))
        return loss


def _optimizer(module: Any, phase: Phase) -> torch.optim.AdamW:
    """Weight decay on matrices only; what is frozen stays out. The schedule gives the rate itself,
    so it is 1 here."""
    trained = [p for p in module.parameters() if p.requires_grad]
    matrices, others = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": phase.decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.98))


def _last(folder: Path) -> tuple[Path | None, int, float]:
    """The newest whole checkpoint, its step and the seconds until then; the Trainer writes the
    state last."""
    states = [
        (int(path.parent.name.split("-")[1]), path)
        for path in folder.glob("checkpoint-*/trainer_state.json")
    ]
    if not states:
        return None, 0, 0.0
    step, path = max(states)
    return (
        path.parent,
        step,
        float(json.loads(path.read_text())["stateful_callbacks"]["_Journal"]["spent"]),
    )


def train(
    job: Job[Sample], folder: Path, on_save: OnSave = None, minutes: float | None = None
) -> float:
    """Trains in place; returns all seconds spent on the phase. After so many minutes: saves and
    raises OutOfTime."""
    phase = job.phase
    checkpoint, step, spent = _last(folder / phase.name)
    if checkpoint is not None and step >= phase.steps:
        load_model(nn.ModuleDict({"trained": job.module}), checkpoint / "model.safetensors")
        return spent
    journal = _Journal(phase, folder / f"{phase.name}.jsonl", step, spent, on_save, minutes)
    trainer = _Trainer(job, folder / phase.name, journal, step)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.state.global_step < phase.steps:
        raise OutOfTime(trainer.state.global_step)
    return journal.spent()
