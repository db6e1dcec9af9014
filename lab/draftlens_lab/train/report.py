"""Reports of a run: its plan, its losses as JSON and as a plot, its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from draftlens.core.files import whole_file, write_json

Losses = dict[str, list[dict[str, float]]]

LOSS_FILE = "loss.json"
PLOT_FILE = "loss.png"

_LOGGED_NAMES = ("step", "loss", "learning_rate")
_MAX_MARKED_POINTS = 50  # markers of more points would overlap


@dataclass(frozen=True)
class StagePlan:
    """The plan of a stage.

    Args:
        name: ``projector`` or ``instruct``.
        batch: entries per step.
        device_batch: entries per device and forward pass.
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
class TrainingPlan:
    """The plan of a run.

    Args:
        precision: ``float32`` or ``bfloat16``.
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
    """The result of a run.

    Args:
        losses: the logged losses of each stage in order, each with ``step``, ``loss`` and
            ``learning_rate``.
        resumed: the step from which this run resumed each stage; 0 if it started the stage.
        seconds: duration of this run.
        plotted: whether ``loss.png`` was drawn.
    """

    folder: Path
    plan: TrainingPlan
    losses: Losses
    resumed: dict[str, int]
    seconds: float
    plotted: bool
    main: bool


class LossLog(TrainerCallback):  # type: ignore[misc]
    """Writes ``loss.json`` at every checkpoint, after logging the loss there.

    When the Trainer resumes from a checkpoint, losses that were not logged before it are lost.
    Logging at every checkpoint leaves none of them out.

    Args:
        earlier: losses of the stages before it.
    """

    def __init__(self, out: Path, stage: str, earlier: Losses) -> None:
        self.out = out
        self.stage = stage
        self.earlier = earlier

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_save:
            control.should_log = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            losses = {**self.earlier, self.stage: losses_of(state.log_history)}
            write_json(self.out / LOSS_FILE, losses, indent=2)


class LossLines(TrainerCallback):  # type: ignore[misc]
    """Writes each logged loss as a line, as a replacement for progress bars."""

    def __init__(self, write_line: Callable[[str], None]) -> None:
        self.write_line = write_line

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if state.is_world_process_zero and logs and "loss" in logs:
            step = f"step {state.global_step} of {state.max_steps}"
            self.write_line(f"{step}: loss {logs['loss']:.4f}")


def losses_of(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Step, loss and learning rate of the entries of a Trainer's log that have all three."""
    losses = []
    for entry in history:
        if all(name in entry for name in _LOGGED_NAMES):
            losses.append({name: entry[name] for name in _LOGGED_NAMES})
    return losses


def loss_plot(out: Path, losses: Losses) -> bool:
    """Draw ``loss.png`` with one panel per stage.

    Returns:
        False if matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        return False
    # It takes a second to import. pyplot is avoided because it keeps every figure in memory.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(losses), 3.5), layout="constrained")
    panels = figure.subplots(1, len(losses), squeeze=False)[0]
    for panel, (stage, points) in zip(panels, losses.items(), strict=True):
        steps = [point["step"] for point in points]
        values = [point["loss"] for point in points]
        panel.plot(steps, values, marker="." if len(points) < _MAX_MARKED_POINTS else "")
        panel.set(title=stage, xlabel="step", ylabel="loss per answer token")
        panel.grid(alpha=0.3)
    with whole_file(out / PLOT_FILE) as part:
        figure.savefig(part, dpi=120, format="png")
    return True
