"""One phase of training: AdamW, warm-up and cosine, loss on the answers, checkpoints to resume from."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from draftlens.train.pair.data import IGNORED, Batch

Sample = TypeVar("Sample")


@dataclass(frozen=True)
class Phase:
    """For how long and how fast: ``steps`` batches, learning rate up to ``peak`` and down to a 50th."""

    name: str
    steps: int
    peak: float
    warmup: int = 80
    decay: float = 0.05
    save_every: int = 100


def learning_rate(phase: Phase, step: int) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak."""
    if step < phase.warmup:
        return phase.peak * (step + 1) / phase.warmup
    share = (step - phase.warmup) / max(1, phase.steps - phase.warmup)
    return phase.peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))


@dataclass(frozen=True)
class Job(Generic[Sample]):
    """A phase with its module (everything that is trained, and saved), its data and its loss.

    ``source(step)`` yields endless batches from that step on; ``loss`` gives a batch's loss (a scalar to
    differentiate) and the share of it that is right; ``tokens`` counts a batch's positions.
    """

    phase: Phase
    module: Any
    source: Callable[[int], Iterator[Sample]]
    loss: Callable[[Sample], tuple[torch.Tensor, float]]
    tokens: Callable[[Sample], int]


def answer_loss(model: Any, batch: Batch) -> tuple[torch.Tensor, float]:
    """Mean cross-entropy over the answers' tokens (a scalar), and the share of them that the model ranks first."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(**inputs, use_cache=False).last_hidden_state  # [B, L, D]
        told = batch["labels"][:, 1:] != IGNORED
        logits = model.lm_head(hidden[:, :-1][told])  # only the answers' positions: [N, V]
    wanted = batch["labels"][:, 1:][told]
    right = (logits.argmax(-1) == wanted).float().mean()
    return F.cross_entropy(logits.float(), wanted), float(right)


def _optimizer(module: Any, phase: Phase) -> torch.optim.AdamW:
    """Weight decay on matrices only; what is frozen stays out."""
    trained = [p for p in module.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim > 1]
    others = [p for p in trained if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": phase.decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=phase.peak, betas=(0.9, 0.98))


def train(job: Job[Sample], folder: Path, on_save: Callable[[int], None] | None = None) -> float:
    """Trains in place and returns the seconds spent, those before an interruption included."""
    phase, console = job.phase, Console(width=120)
    optimizer = _optimizer(job.module, phase)
    saved = folder / f"{phase.name}.pt"
    step, spent = _resume(saved, job.module, optimizer)
    job.module.train()
    source = job.source(step)
    meter = _Meter(time.perf_counter(), spent)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(phase.name, total=phase.steps, completed=step)
        while step < phase.steps:
            batch = next(source)
            meter.add(job.tokens(batch), *_update(job, optimizer, batch, learning_rate(phase, step)))
            step += 1
            progress.update(task, completed=step)
            if step % 20 == 0:
                progress.console.print(f"{phase.name} step {step}/{phase.steps} {meter.line()}")
            if step % phase.save_every == 0 or step == phase.steps:
                _save(saved, job.module, optimizer, step, meter.spent())
                if on_save is not None:
                    on_save(step)
    return meter.spent()


def _update(job: Job[Sample], optimizer: torch.optim.AdamW, batch: Sample, rate: float) -> tuple[float, float]:
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss, right = job.loss(batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_((p for p in job.module.parameters() if p.requires_grad), 1.0)
    optimizer.step()
    return float(loss.detach()), right


def _save(path: Path, model: Any, optimizer: torch.optim.AdamW, step: int, spent: float) -> None:
    """Writes beside the old checkpoint first: an interruption leaves one whole checkpoint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "spent": spent}, fresh)
    fresh.replace(path)


def _resume(path: Path, model: Any, optimizer: torch.optim.AdamW) -> tuple[int, float]:
    if not path.exists():
        return 0, 0.0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"]), float(state["spent"])


class _Meter:
    """Sums since the last line that was printed."""

    def __init__(self, now: float, spent: float) -> None:
        self.began, self.since, self.before = now, now, spent
        self.loss, self.right, self.tokens, self.count = 0.0, 0.0, 0, 0

    def add(self, tokens: int, loss: float, right: float) -> None:
        self.loss, self.right, self.count = self.loss + loss, self.right + right, self.count + 1
        self.tokens += tokens

    def spent(self) -> float:
        return self.before + time.perf_counter() - self.began

    def line(self) -> str:
        now, count = time.perf_counter(), max(1, self.count)
        speed = self.tokens / (now - self.since)
        text = f"loss {self.loss / count:.3f} right {self.right / count:.3f} tokens/s {speed:.0f}"
        self.since, self.loss, self.right, self.tokens, self.count = now, 0.0, 0.0, 0, 0
        return f"{text} seconds {self.spent():.0f}"
