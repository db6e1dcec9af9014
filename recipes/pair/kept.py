"""Weights that are kept between machines: float16, small enough to copy.

Checkpoints of the Trainer hold the optimizer and are large; they stay in ``runs/``. What is kept
here is enough to go on elsewhere, after a short rise of the learning rate.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from recipes.pair.loop import Phase, newest_checkpoint

KEPT = Path("runs/pair/kept")  # relative to the working directory
WEIGHTS_FILE = "weights.safetensors"
HEADS_FILE = "heads.safetensors"

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class State:
    """How far a model's further training has come.

    Args:
        phase: name of the phase.
        step: steps of this phase that were made.
        layers: number of layers of the language model.
        figures: losses by family at this step.
    """

    phase: str
    step: int
    layers: int
    figures: dict[str, float]


def keep(folder: Path, model: Any, state: State, heads: Weights | None = None) -> None:
    """Write the weights in float16, and the state.

    Args:
        folder: where.
        model: the model.
        state: how far it has come.
        heads: the heads that are trained with it and discarded at the end, if there are any.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _save(model.state_dict(), folder / WEIGHTS_FILE)
    (folder / HEADS_FILE).unlink(missing_ok=True)
    if heads is not None:
        _save(heads, folder / HEADS_FILE)
    (folder / "state.json").write_text(json.dumps(asdict(state), indent=2) + "\n")


def read_state(folder: Path) -> State | None:
    """The state that is kept in a folder, or None."""
    file = folder / "state.json"
    return State(**json.loads(file.read_text())) if file.exists() else None


@torch.no_grad()
def load_weights(folder: Path, model: Any) -> None:
    """Load the kept weights into a model of the same sizes, in float32."""
    model.load_state_dict(_load(folder / WEIGHTS_FILE))


def load_heads(folder: Path) -> Weights | None:
    """The kept heads in float32, or None."""
    file = folder / HEADS_FILE
    return _load(file) if file.exists() else None


def continued(phase: Phase, runs: Path, state: State | None) -> Phase:
    """A phase as it goes on here: from its beginning or from a step that another machine reached.

    Of the runs in ``runs`` and the kept weights, which begin a new run, the one that came furthest
    goes on. A run that begins with kept weights is a phase of its own name.

    Args:
        phase: the whole phase.
        runs: folder of checkpoints.
        state: that of the kept weights, if there are any.
    """
    first = first_step(phase.name, runs, state)
    if first is None:
        return phase
    name = f"{phase.name}-from-{first}"
    return replace(phase, name=name, steps=phase.steps - first, first=first)


def first_step(name: str, runs: Path, state: State | None) -> int | None:
    """The step from which a phase runs on this machine; None from its beginning."""
    reached: dict[int | None, int] = {None: newest_checkpoint(runs / name)[1]}
    if state is not None and state.phase == name:
        reached[state.step] = state.step
    for folder in runs.glob(f"{name}-from-*/"):
        first = int(folder.name.rsplit("-", 1)[1])
        reached[first] = max(reached.get(first, 0), first + newest_checkpoint(folder)[1])
    furthest = max(reached.values())
    # Of equal ones the last: a run on this machine has its optimizer, kept weights have none.
    return [first for first, step in reached.items() if step == furthest][-1]


def _save(weights: Weights, file: Path) -> None:
    save_file({name: value.half().contiguous() for name, value in weights.items()}, file)
    file.chmod(0o644)  # by default only the owner may read it


def _load(file: Path) -> Weights:
    return {name: value.float() for name, value in load_file(file).items()}


def last_line(file: Path) -> dict[str, Any]:
    """The last line of a probe's file, flat; empty where there is no file."""
    if not file.exists():
        return {}
    row: dict[str, Any] = json.loads(file.read_text().splitlines()[-1])
    return row
