"""A Trainer with the losses, learning rates and reproducible order of draft training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from draftlens.core.errors import ConfigError
from draftlens_lab.train.distil import answer_labels, answer_logits, answer_loss
from draftlens_lab.train.draws import Draws
from draftlens_lab.train.errors import loading
from draftlens_lab.train.pruned import PromptPruning, RowPruning, cast, reading_only, taken

MAX_DEVICE_BATCH = 8
"""Largest number of entries per device and forward pass, unless the options set it."""

_STEPS_PER_STRETCH = 50  # steps over which entries are sorted by length
_SEED_STRIDE = 1_000_003  # so that no two (seed, epoch) of usual size share an order


@dataclass(frozen=True)
class Distillation:
    """A target with logits for the draft to learn.

    Args:
        target: the model; it is not trained.
    """

    target: Any
    weight: float
    temperature: float


@dataclass(frozen=True)
class TrainingBatch:
    """A batch of the collator in its parts.

    Args:
        inputs: of the draft.
        labels: int64 ``[B, L]``.
        rows: how the draft's rows are pruned; None if they are not.
        target: the target's own inputs, labels and rows; None if the draft's serve both.
    """

    inputs: dict[str, Any]
    labels: Tensor
    rows: RowPruning | None
    target: TrainingBatch | None

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> TrainingBatch:
        inputs = dict(batch)
        target = inputs.pop("target", None)
        labels, rows = inputs.pop("labels"), inputs.pop("pruning", None)
        return cls(inputs, labels, rows, None if target is None else cls.of(target))

    def kept(self, pruning: PromptPruning | None, draft: Any) -> list[Tensor] | None:
        """The tokens of each row that the draft reads, int64 ``[K]``; None for all."""
        if pruning is None or self.rows is None or not any(self.rows.ratios):
            return None
        of_target = self.target or self
        return pruning.kept(draft, self.inputs, self.rows, of_target.inputs, of_target.rows)


class EpochOrder(Sampler[int]):
    """A random order of entries that depends on the seed and the epoch only.

    A resumed run therefore repeats the order of the interrupted one.

    Args:
        lengths: lengths of the entries in any unit, to group entries of similar length; None for no
            grouping.
        group: entries per step.
        at_once: entries that all processes take at once. The last round is filled with the index
            `count`, which is not an entry; accelerate would fill it with earlier entries.
    """

    def __init__(
        self, lengths: Sequence[int] | None, count: int, group: int, seed: int, at_once: int = 1
    ) -> None:
        self.lengths = lengths
        self.count = count
        self.group = group
        self.seed = seed
        self.missing = -count % at_once
        self.epoch = 0

    def __len__(self) -> int:
        return self.count + self.missing

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * _SEED_STRIDE + self.epoch)
        order: list[int] = torch.randperm(self.count, generator=generator).tolist()
        if self.lengths is not None:
            order = self._grouped(order, self.lengths, generator)
        return iter(order + [self.count] * self.missing)

    def _grouped(
        self, order: list[int], lengths: Sequence[int], generator: torch.Generator
    ) -> list[int]:
        """Entries in steps of similar length, and the steps in random order.

        LLaVA only sorts within a random step. For steps of similar length, entries must be sorted
        over a longer stretch.
        """
        stretch = min(self.group * _STEPS_PER_STRETCH, max(self.group, self.count // 4))
        steps: list[list[int]] = []
        for entries in _chunks(order, stretch):
            entries.sort(key=lengths.__getitem__, reverse=True)
            steps += _chunks(entries, self.group)
        full = [step for step in steps if len(step) == self.group]
        short = [step for step in steps if len(step) < self.group]
        # Short steps stay at the end, because they would shift the boundaries of later ones.
        shuffled = torch.randperm(len(full), generator=generator).tolist()
        steps = [full[index] for index in shuffled] + short
        return list(chain.from_iterable(steps))


def _chunks(items: list[int], size: int) -> list[list[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


class DraftTrainer(Trainer):  # type: ignore[misc]
    """Trains the parameters that require a gradient on the answers of a batch.

    Args:
        vision_lr_factor: learning rate of these parameters, as a share of that of the others.
        frozen: modules that are not trained; they remain in evaluation mode.
        distillation: the target to learn from, or None to learn the answers of the data only.
        pruning: chooses the visual tokens that the draft reads; None for all.
        draws: of the collator, whose epoch is set; None without pruning.
    """

    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        *,
        vision: frozenset[str],
        vision_lr_factor: float,
        frozen: Sequence[nn.Module],
        order: EpochOrder,
        distillation: Distillation | None,
        pruning: PromptPruning | None = None,
        draws: Draws | None = None,
        **options: Any,
    ) -> None:
        self.vision = vision
        self.vision_lr_factor = vision_lr_factor
        self.frozen = frozen
        self.order = order
        self.distillation = distillation
        self.pruning = pruning
        config = options["model"].config
        original_config = dict(vars(config))
        super().__init__(**options)
        # The Trainer disables the cache in the config, and would save this change. `answer_logits`
        # disables the cache at each call instead.
        vars(config).clear()
        vars(config).update(original_config)
        # The loss is a sum over the tokens of all accumulated batches, divided by their number.
        self.model_accepts_loss_kwargs = True
        self.add_callback(_EpochListener(order, draws))

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """A batch's part of the step's mean loss per answer token."""
        for module in self.frozen:
            module.eval()  # reverts the Trainer's train(): no dropout, no running statistics
        batch = TrainingBatch.of(inputs)
        tokens = answer_labels(batch.labels)
        logits_to_learn = None
        weight = 0.0
        temperature = 1.0
        if self.distillation is not None:
            logits_to_learn = target_logits(self.distillation.target, batch)
            weight = self.distillation.weight
            temperature = self.distillation.temperature
        logits = self._draft_logits(model, batch)
        loss = answer_loss(logits, tokens, logits_to_learn, weight, temperature)
        # Gradients are averaged over processes, but the tokens are counted over all of them.
        num_tokens = num_items_in_batch or len(tokens)
        share: Tensor = loss * self.accelerator.num_processes / num_tokens
        return share

    def _draft_logits(self, model: Any, batch: TrainingBatch) -> Tensor:
        """The draft's logits float32 ``[N, V]`` for the answer tokens."""
        draft = self.accelerator.unwrap_model(model)
        kept = batch.kept(self.pruning, draft)
        if kept is None:
            return answer_logits(draft, model, batch.inputs, batch.labels)
        with reading_only(draft, batch.inputs["input_ids"], kept):
            return answer_logits(draft, model, batch.inputs, taken(batch.labels, kept))

    def create_optimizer(self, model: Any = None) -> Any:
        """AdamW, with a separate learning rate for the vision encoder."""
        if self.optimizer is None:
            trained = self.model if model is None else model
            optimizer_class, settings = self.get_optimizer_cls_and_kwargs(self.args, trained)
            self.optimizer = optimizer_class(self._parameter_groups(trained), **settings)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The learning rates of `share_of_rate`.

        The Trainer's own schedules begin at 0, so the first step would learn nothing.
        """
        if self.lr_scheduler is None:
            factor = partial(
                share_of_rate,
                warmup=self.args.get_warmup_steps(num_training_steps),
                steps=num_training_steps,
                schedule=self.args.lr_scheduler_type.value,
            )
            self.lr_scheduler = LambdaLR(self.optimizer if optimizer is None else optimizer, factor)
        return self.lr_scheduler

    def _parameter_groups(self, model: Any) -> list[dict[str, Any]]:
        """The optimizer's groups: of the vision encoder and of the rest, with and without decay.

        Checkpoints depend on the order of the groups: that of their first parameters, and vision
        last, because the Trainer logs the learning rate of the first group.
        """
        decaying = set(self.get_decay_parameter_names(model))
        vision: dict[bool, list[nn.Parameter]] = {}
        rest: dict[bool, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                groups = vision if name in self.vision else rest
                groups.setdefault(name in decaying, []).append(parameter)
        rate = self.args.learning_rate
        return [
            *self._groups_by_decay(rest, rate),
            *self._groups_by_decay(vision, rate * self.vision_lr_factor),
        ]

    def _groups_by_decay(
        self, parameters: dict[bool, list[nn.Parameter]], rate: float
    ) -> list[dict[str, Any]]:
        """A group for the parameters with weight decay, and one for those without it."""
        groups = []
        for decays, members in parameters.items():
            weight_decay = self.args.weight_decay if decays else 0.0
            groups.append({"params": members, "lr": rate, "weight_decay": weight_decay})
        return groups

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return self.order

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # The next file, the state, marks the checkpoint as complete, so every process must have
        # written its part before.
        self.accelerator.wait_for_everyone()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        # The Trainer loads by the names in the file. For many vision-language models these are the
        # names of an older layout.
        restore(self.model if model is None else model, Path(resume_from_checkpoint))


class _EpochListener(TrainerCallback):  # type: ignore[misc]
    """Sets the epoch of the order and of the draws; accelerate does not set it when an epoch is
    resumed."""

    def __init__(self, order: EpochOrder, draws: Draws | None) -> None:
        self.order = order
        self.draws = draws

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.order.epoch = int(state.epoch or 0)
        if self.draws is not None:
            self.draws.epoch = self.order.epoch


class StopAtNan(TrainerCallback):  # type: ignore[misc]
    """Ends a run at a loss that is not finite, before it overwrites its good checkpoints."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if not logs or "loss" not in logs:
            return
        if not math.isfinite(logs["loss"]):
            raise ConfigError(
                f"the loss is {logs['loss']} at step {state.global_step}: a lower learning rate "
                f"or --precision float32 may help"
            )


@torch.no_grad()
def target_logits(target: Any, batch: TrainingBatch) -> Tensor:
    """The target's logits float32 ``[N, V]`` for the answer tokens of a batch."""
    own = batch.target or batch
    return answer_logits(target, target, cast(own.inputs, target.dtype), own.labels)


def share_of_rate(done: int, warmup: int, steps: int, schedule: str) -> float:
    """The learning rate of a step, as a share of the highest one.

    The k-th of w warm-up steps has k / w. After the warm-up, the shares are those of transformers'
    schedule of the same name.

    Args:
        done: number of steps before this one.
    """
    if done < warmup:
        return (done + 1) / warmup
    progress = (done - warmup) / max(1, steps - warmup)
    shares = {
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "linear": 1 - progress,
        "constant_with_warmup": 1.0,
    }
    return max(0.0, shares[schedule])


def restore(model: Any, checkpoint: Path) -> None:
    """Load the weights of a model's checkpoint into it, as `from_pretrained` reads them."""
    with loading(f"the checkpoint {str(checkpoint)!r}"):
        saved = type(model).from_pretrained(checkpoint, dtype=torch.float32)
    model.load_state_dict(saved.state_dict())


def device_batch(batch: int, processes: int, size: int | None) -> int:
    """The number of entries per device and forward pass; accumulation makes up the batch.

    Args:
        batch: entries per step, over all processes.
        size: the required number; None for the largest divisor up to `MAX_DEVICE_BATCH`.
    """
    share, rest = divmod(batch, processes)
    if rest or (size is not None and share % size):
        detail = f" of {size} at once" if size else ""
        raise ConfigError(
            f"a batch of {batch} cannot be divided among {processes} processes{detail}"
        )
    if size is not None:
        return size
    candidates = range(min(MAX_DEVICE_BATCH, share), 0, -1)
    return next(candidate for candidate in candidates if share % candidate == 0)


def arguments(recompute: bool, **settings: Any) -> Any:
    """`TrainingArguments` without reports to other services and without `DataParallel`."""
    if recompute:
        name = "gradient_checkpointing"
        if any(item.name == "activation_checkpointing" for item in fields(TrainingArguments)):
            name = "activation_checkpointing"
        settings |= {name: True, f"{name}_kwargs": {"use_reentrant": False}}
    training_arguments = TrainingArguments(
        report_to="none", log_level="error", remove_unused_columns=False, **settings
    )
    # DataParallel splits every tensor into equal parts, but one tensor contains the patches of all
    # images.
    training_arguments._n_gpu = min(training_arguments.n_gpu, 1)
    return training_arguments
