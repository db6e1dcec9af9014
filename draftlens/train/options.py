"""All options of draft training, as one frozen dataclass: the command line and Python share it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from draftlens.core.errors import ConfigError

STAGES = ("projector", "instruct")
PRECISIONS = ("auto", "float32", "bfloat16")
SCHEDULES = ("cosine", "linear", "constant_with_warmup")

_COUNTS = (
    "frames",
    "projector_batch",
    "batch",
    "device_batch",
    "max_steps",
    "save_steps",
    "keep_checkpoints",
)
_AT_LEAST = {**dict.fromkeys((*_COUNTS, "log_steps"), 1), "workers": 0, "seed": 0}
_ABOVE_ZERO = (
    "projector_lr",
    "lr",
    "projector_epochs",
    "epochs",
    "vision_lr_factor",
    "distil_temperature",
)
_MAY_BE_NONE = ("device_batch", "max_steps")
_PATHS = ("data", "out", "draft_config", "projector_data", "media_root")


@dataclass(frozen=True)
class DraftTraining:
    """What to train, on what, and how: each field says what it means, here and in `--help`.

    The defaults are those of LLaVA-1.5's two stages as TABED (Appendix H.1, Table 7) used them for
    its drafts: one epoch each, batches of 256 and 128, learning rates 1e-3 and 2e-5, a cosine
    schedule with 3% of warm-up, no weight decay. `vision_lr_factor` is the one-fifth of its recipe
    for LLaVA-OneVision (the same appendix).

    Raises:
        ConfigError: a value makes no sense, or two contradict each other.
    """

    data: Annotated[Path, "The instruction data: LLaVA-style JSON or JSONL."]
    out: Annotated[Path, "Folder for the trained draft, its checkpoints and its losses."]
    draft: Annotated[str | None, "The draft to train on: a folder, a Hub id, or `embedded`."] = None
    draft_config: Annotated[Path | None, "A config.json to start from random weights instead."] = (
        None
    )
    processor: Annotated[
        str | None, "The draft's processor; by default the draft's own, else the target's."
    ] = None
    target: Annotated[
        str | None, "The model that the draft is for: its tokenizer must be the draft's."
    ] = None
    projector_data: Annotated[
        Path | None, "Other data for the projector stage; by default the same."
    ] = None
    media_root: Annotated[
        Path | None, "Where media paths begin; by default the folder of the data."
    ] = None
    frames: Annotated[int, "Frames to sample from each video."] = 8
    stages: Annotated[str, "both, projector or instruct."] = "both"
    train_vision: Annotated[bool, "Train the vision encoder too in the instruct stage."] = False
    vision_lr_factor: Annotated[
        float, "The vision encoder's learning rate, as a share of --lr."
    ] = 0.2
    projector_batch: Annotated[
        int, "Entries per step of the projector stage, over all devices."
    ] = 256
    batch: Annotated[int, "Entries per step of the instruct stage, over all devices."] = 128
    projector_lr: Annotated[float, "Highest learning rate of the projector stage."] = 1e-3
    lr: Annotated[float, "Highest learning rate of the instruct stage."] = 2e-5
    projector_epochs: Annotated[float, "Passes over the data of the projector stage."] = 1.0
    epochs: Annotated[float, "Passes over the data of the instruct stage."] = 1.0
    schedule: Annotated[
        str, "How the learning rate goes on: cosine, linear or constant_with_warmup."
    ] = "cosine"
    warmup: Annotated[float, "Share of the steps in which the learning rate rises."] = 0.03
    weight_decay: Annotated[float, "Of AdamW."] = 0.0
    max_steps: Annotated[int | None, "Steps of each stage, whatever the epochs say."] = None
    device_batch: Annotated[
        int | None, "Entries at once on one device; the rest of a batch is accumulated."
    ] = None
    distil: Annotated[
        str | None, "A model whose logits the draft shall learn in the instruct stage."
    ] = None
    distil_weight: Annotated[float, "Share of the distillation in the loss, 0 to 1."] = 0.5
    distil_temperature: Annotated[
        float, "Temperature of both distributions in the distillation."
    ] = 1.0
    precision: Annotated[str, "auto (bfloat16 where the hardware has it), float32 or bfloat16."] = (
        "auto"
    )
    gradient_checkpointing: Annotated[bool, "Compute activations twice to save memory."] = False
    group_by_length: Annotated[bool, "Put entries of about one length into a batch."] = False
    workers: Annotated[int, "Processes that read media ahead, per device."] = 0
    save_steps: Annotated[int, "Steps between checkpoints."] = 500
    keep_checkpoints: Annotated[int, "Newest checkpoints to keep, per stage."] = 1
    log_steps: Annotated[int, "Steps between two logged losses."] = 10
    seed: Annotated[int, "Of random weights, order and dropout."] = 0
    restart: Annotated[bool, "Start anew although the folder holds checkpoints."] = False
    cpu: Annotated[bool, "Train on the CPU although there is a GPU."] = False

    def __post_init__(self) -> None:
        for name in _PATHS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        self._check_numbers()
        self._check_choices()

    @property
    def chosen_stages(self) -> tuple[str, ...]:
        """The stages to run, in order."""
        return STAGES if self.stages == "both" else (self.stages,)

    def _check_numbers(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if not (type(value) is int and value >= least) and not (
                value is None and name in _MAY_BE_NONE
            ):
                raise ConfigError(
                    f"{name} must be a whole number of at least {least}, not {value!r}"
                )
        for name in _ABOVE_ZERO:
            if not (_is_number(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"{name} must be a number above 0, not {getattr(self, name)!r}")
        if not (_is_number(self.warmup) and 0 <= self.warmup < 1):
            raise ConfigError(
                f"warmup must be a share of the steps, at least 0 and below 1, not {self.warmup!r}"
            )
        if not (_is_number(self.weight_decay) and self.weight_decay >= 0):
            raise ConfigError(
                f"weight_decay must be a number of at least 0, not {self.weight_decay!r}"
            )
        if not (_is_number(self.distil_weight) and 0 <= self.distil_weight <= 1):
            raise ConfigError(f"distil_weight must be from 0 to 1, not {self.distil_weight!r}")

    def _check_choices(self) -> None:
        known = {"stages": ("both", *STAGES), "schedule": SCHEDULES, "precision": PRECISIONS}
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"unknown {name} {getattr(self, name)!r}; known: {', '.join(choices)}"
                )
        if (self.draft is None) == (self.draft_config is None):
            raise ConfigError(
                "name either a draft to train on or a draft_config to start from random weights"
            )
        if self.projector_data is not None and self.stages == "instruct":
            raise ConfigError("projector_data is given, but the projector stage is not to be run")
        if self.distil is not None and self.stages == "projector":
            raise ConfigError(
                "distil is given, but the instruct stage, which distils, is not to be run"
            )
        for item in fields(self):
            if isinstance(item.default, bool) and type(getattr(self, item.name)) is not bool:
                raise ConfigError(
                    f"{item.name} must be True or False, not {getattr(self, item.name)!r}"
                )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
