"""All options of draft training as one frozen dataclass, for the command line and Python."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from draftlens.core.errors import ConfigError
from draftlens.core.files import parse_json

if TYPE_CHECKING:  # the help of the command line reads the fields of the options only
    from draftlens.pruning import Pruner
    from draftlens_lab.train.draws import Draws

STAGES = ("projector", "instruct")
UNPRUNED_SHARE = 0.25
"""Share of the entries that stay unpruned, unless the options set it."""
PRECISIONS = ("auto", "float32", "bfloat16")
DEFAULT_PRUNER = "specvlm"
SCHEDULES = ("cosine", "linear", "constant_with_warmup")

_PATHS = ("data", "out", "draft_config", "projector_data", "media_root")
_POSITIVE_INTEGERS = (
    "frames",
    "projector_batch",
    "batch",
    "device_batch",
    "max_steps",
    "save_steps",
    "keep_checkpoints",
    "log_steps",
)
_NATURAL_NUMBERS = ("workers", "seed")
_OPTIONAL_INTEGERS = ("device_batch", "max_steps")
_POSITIVE_NUMBERS = (
    "projector_lr",
    "lr",
    "projector_epochs",
    "epochs",
    "vision_lr_factor",
    "distil_temperature",
)


@dataclass(frozen=True)
class DraftTraining:
    """The options of `train_draft`; the annotation of each field is its text in ``--help``.

    The defaults are those of LLaVA-1.5's two stages as TABED (Appendix H.1, Table 7) uses them for
    its drafts: one epoch each, batches of 256 and 128, learning rates 1e-3 and 2e-5, a cosine
    schedule with 3% of warm-up, no weight decay. `vision_lr_factor` is the one-fifth of its recipe
    for LLaVA-OneVision (the same appendix).
    """

    data: Annotated[Path, "The instruction data: LLaVA-style JSON or JSONL."]
    out: Annotated[Path, "Folder for the trained draft, its checkpoints and its losses."]
    draft: Annotated[
        str | None, "The draft to continue from: a folder, a Hub id, or `embedded`."
    ] = None
    draft_config: Annotated[Path | None, "A config.json, to start from random weights instead."] = (
        None
    )
    processor: Annotated[
        str | None, "The draft's processor; by default the draft's own, else the target's."
    ] = None
    target: Annotated[
        str | None, "The model that the draft is for; it must have the draft's tokenizer."
    ] = None
    projector_data: Annotated[
        Path | None, "Data for the projector stage; by default the same data."
    ] = None
    media_root: Annotated[
        Path | None, "Folder of the media paths; by default the folder of the data."
    ] = None
    frames: Annotated[int, "Frames to sample from each video."] = 8
    stages: Annotated[str, "Stages to run: both, projector or instruct."] = "both"
    train_vision: Annotated[bool, "Also train the vision encoder in the instruct stage."] = False
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
        str, "Schedule of the learning rate: cosine, linear or constant_with_warmup."
    ] = "cosine"
    warmup: Annotated[float, "Share of the steps in which the learning rate rises."] = 0.03
    weight_decay: Annotated[float, "Weight decay of AdamW."] = 0.0
    max_steps: Annotated[int | None, "Steps of each stage; overrides the epochs."] = None
    device_batch: Annotated[
        int | None, "Entries per device and forward pass; gradients are accumulated to a batch."
    ] = None
    distil: Annotated[
        str | None, "A model whose logits the draft learns in the instruct stage."
    ] = None
    distil_weight: Annotated[float, "Share of the distillation in the loss, 0 to 1."] = 0.5
    distil_temperature: Annotated[
        float, "Temperature of both distributions in the distillation."
    ] = 1.0
    prune_ratio: Annotated[
        str | None,
        "Share of the visual tokens that the draft does not read in the instruct stage: a number, "
        "or a range such as 0.5..0.97 from which each entry draws.",
    ] = None
    pruner: Annotated[
        str | None,
        "With --prune-ratio, which tokens it reads: a name, or JSON of a name and options; by "
        "default specvlm.",
    ] = None
    unpruned_share: Annotated[
        float | None,
        f"With --prune-ratio, share of the entries that are not pruned; by default "
        f"{UNPRUNED_SHARE}.",
    ] = None
    precision: Annotated[
        str, "auto (bfloat16 if the hardware supports it), float32 or bfloat16."
    ] = "auto"
    gradient_checkpointing: Annotated[
        bool, "Recompute activations in the backward pass to save memory."
    ] = False
    group_by_length: Annotated[bool, "Batch entries of similar length together."] = False
    workers: Annotated[int, "Processes per device that load media in advance."] = 0
    save_steps: Annotated[int, "Steps between checkpoints."] = 500
    keep_checkpoints: Annotated[int, "Number of newest checkpoints to keep per stage."] = 1
    log_steps: Annotated[int, "Steps between two logged losses."] = 10
    seed: Annotated[
        int, "Seed of the random weights, the order of entries, prune ratios and dropout."
    ] = 0
    restart: Annotated[bool, "Delete the checkpoints in the folder and start over."] = False
    cpu: Annotated[bool, "Train on the CPU even if there is a GPU."] = False

    def __post_init__(self) -> None:
        for name in _PATHS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, Path(value))
        self._check_integers()
        self._check_numbers()
        self._check_choices()
        self._check_combinations()
        self._check_pruning()
        self._check_switches()

    @property
    def chosen_stages(self) -> tuple[str, ...]:
        return STAGES if self.stages == "both" else (self.stages,)

    @property
    def draws(self) -> Draws | None:
        """What the draft reads of each entry in the instruct stage; None for all of it."""
        if self.prune_ratio is None:
            return None
        from draftlens_lab.train.draws import Draws, RatioRange

        share = UNPRUNED_SHARE if self.unpruned_share is None else self.unpruned_share
        return Draws(RatioRange.parse(self.prune_ratio), share, self.seed)

    @property
    def pruner_choice(self) -> Pruner | None:
        """The pruner of the instruct stage; None where prompts are not pruned."""
        if self.prune_ratio is None:
            return None
        from draftlens.pruning import make_pruner  # imports torch

        name = self.pruner or DEFAULT_PRUNER
        if not name.startswith("{"):
            return make_pruner(name)
        try:
            return make_pruner(parse_json(name))
        except ValueError as error:
            raise ConfigError(f"pruner is not valid: {error}") from error

    @property
    def guide(self) -> str | None:
        """The target whose reading of the prompt guides the pruner; None if it needs none."""
        pruner = self.pruner_choice
        if pruner is None or not pruner.readings:
            return None
        return self.distil or self.target

    def _check_integers(self) -> None:
        for name in _POSITIVE_INTEGERS:
            self._check_integer(name, 1)
        for name in _NATURAL_NUMBERS:
            self._check_integer(name, 0)

    def _check_integer(self, name: str, minimum: int) -> None:
        value = getattr(self, name)
        if value is None and name in _OPTIONAL_INTEGERS:
            return
        if type(value) is not int or value < minimum:
            raise ConfigError(f"{name} must be a whole number of at least {minimum}, not {value!r}")

    def _check_numbers(self) -> None:
        for name in _POSITIVE_NUMBERS:
            value = getattr(self, name)
            if not (_is_number(value) and value > 0):
                raise ConfigError(f"{name} must be a number above 0, not {value!r}")
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
        options = {"stages": ("both", *STAGES), "schedule": SCHEDULES, "precision": PRECISIONS}
        for name, choices in options.items():
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"unknown {name} {value!r}; known: {', '.join(choices)}")

    def _check_combinations(self) -> None:
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

    def _check_pruning(self) -> None:
        if self.prune_ratio is None:
            for name in ("pruner", "unpruned_share"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{name} is given, but no prune_ratio")
            return
        if self.stages == "projector":
            raise ConfigError(
                "prune_ratio is given, but the instruct stage, which prunes, is not to be run"
            )
        from draftlens_lab.train.draws import RatioRange

        RatioRange.parse(self.prune_ratio)
        share = self.unpruned_share
        if share is not None and not (_is_number(share) and 0 <= share <= 1):
            raise ConfigError(f"unpruned_share must be from 0 to 1, not {share!r}")
        pruner = self.pruner_choice
        if pruner is not None and pruner.readings and self.guide is None:
            raise ConfigError(
                f"the pruner {self.pruner or DEFAULT_PRUNER!r} needs the target's reading of the "
                f"prompt: name a target, or prune by uniform"
            )
        if self.guide is not None and self.target not in (None, self.guide):
            raise ConfigError(
                f"the pruner {self.pruner or DEFAULT_PRUNER!r} is guided by the model to distil, "
                f"which is {self.distil!r}, but the target is {self.target!r}: name the same "
                f"model, or prune by uniform"
            )

    def _check_switches(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(item.default, bool) and type(value) is not bool:
                raise ConfigError(f"{item.name} must be True or False, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
