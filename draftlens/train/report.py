"""What a run tells: its plan, its losses as JSON and as a picture, its summary."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from draftlens.train.resume import write_json

Losses = dict[str, list[dict[str, float]]]


@dataclass(frozen=True)
class StagePlan:
    """What a stage will do.

    Args:
        name: projector or instruct.
        trained: number of parameters that it trains.
        entries: that it trains on.
        skipped: entries that it leaves out.
        tokens: estimate of all tokens of one epoch.
        answer_tokens: estimate of those that are trained on.
        steps: optimizer steps.
        batch: entries per step.
        device_batch: entries at once on one device.
    """

    name: str
    trained: int
    entries: int
    skipped: int
    tokens: int
    answer_tokens: int
    steps: int
    batch: int
    device_batch: int


@dataclass(frozen=True)
class Plan:
    """What will be trained.

    Args:
        model: its class.
        parameters: number by part.
        media: number of different files.
        stages: in order.
        device: of this process.
        processes: of the run.
        precision: float32 or bfloat16.
    """

    model: str
    parameters: dict[str, int]
    media: int
    stages: tuple[StagePlan, ...]
    device: str
    processes: int
    precision: str


@dataclass(frozen=True)
class Trained:
    """What was trained.

    Args:
        folder: holds the model, its processor, its losses and its checkpoints.
        plan: what was to be done.
        losses: by stage, the logged losses in order, each with `step`, `loss` and `learning_rate`.
        resumed: by stage, the step at which this run went on; 0 where it began.
        seconds: that this run took.
        plotted: whether there is a `loss.png`.
        main: whether this process is the one that reports.
    """

    folder: Path
    plan: Plan
    losses: Losses
    resumed: dict[str, int]
    seconds: float
    plotted: bool
    main: bool


class LossLog(TrainerCallback):  # type: ignore[misc]
    """Writes `loss.json` with every checkpoint, and has the loss logged there.

    The Trainer forgets the losses that no log has told yet when it goes on from a checkpoint. So
    none may be left.

    Args:
        out: the run's folder.
        stage: the one that is trained.
        earlier: losses of the stages before.
    """

    def __init__(self, out: Path, stage: str, earlier: Losses) -> None:
        self.out, self.stage, self.earlier = out, stage, earlier

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_save:
            control.should_log = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            write_json(
                self.out / "loss.json", {**self.earlier, self.stage: losses_of(state.log_history)}
            )


class LossLines(TrainerCallback):  # type: ignore[misc]
    """Tells each logged loss as a line, where there is no terminal for a bar.

    Args:
        tell: takes the line.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if state.is_world_process_zero and logs and "loss" in logs:
            self.tell(f"step {state.global_step} of {state.max_steps}: loss {logs['loss']:.4f}")


def losses_of(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Step, loss and learning rate of each entry of a Trainer's log that has them."""
    names = ("step", "loss", "learning_rate")
    return [
        {name: entry[name] for name in names} for entry in history if set(names) <= entry.keys()
    ]


def plot(out: Path, losses: Losses) -> bool:
    """Draw `loss.png`, a panel for each stage; False where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import (
        Figure,  # takes a second to import; without pyplot, which keeps figures for ever
    )

    figure = Figure(figsize=(5 * len(losses), 3.5), layout="constrained")
    panels = figure.subplots(1, len(losses), squeeze=False)[0]
    for panel, (stage, points) in zip(panels, losses.items(), strict=True):
        panel.plot(
            [p["step"] for p in points],
            [p["loss"] for p in points],
            marker="." if len(points) < 50 else "",
        )
        panel.set(title=stage, xlabel="step", ylabel="loss per answer token")
        panel.grid(alpha=0.3)
    part = out / "loss.png.part"
    figure.savefig(part, dpi=120, format="png")
    os.replace(part, out / "loss.png")
    return True
