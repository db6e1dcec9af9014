"""transformers' Trainer with our loss, our learning rates and an order that a resumed run
repeats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from draftlens.core.errors import ConfigError
from draftlens.train.distil import answer_labels, answer_logits, answer_loss
from draftlens.train.models import explained

DEVICE_BATCH = 8
"""Most entries at once on one device, if nobody says."""


@dataclass(frozen=True)
class Distillation:
    """How the draft learns a target's logits.

    Args:
        target: a model that is only read.
        weight, temperature: as in `answer_loss`.
    """

    target: Any
    weight: float
    temperature: float


class DraftTrainer(Trainer):  # type: ignore[misc]
    """Trains the parameters that want a gradient on the answers of a batch.

    Args:
        vision: names of the vision encoder's parameters.
        vision_lr_factor: their learning rate, as a share of the others'.
        frozen: modules that stay as they are, statistics of their norms included.
        order: in which entries are taken.
        distillation: None for the data's answers alone.
        options: as for the Trainer.
    """

    def __init__(
        self,
        *,
        vision: frozenset[str],
        vision_lr_factor: float,
        frozen: Sequence[nn.Module],
        order: EpochOrder,
        distillation: Distillation | None,
        **options: Any,
    ) -> None:
        self.vision, self.vision_lr_factor, self.frozen = vision, vision_lr_factor, frozen
        self.order, self.distillation = order, distillation
        config = options["model"].config
        before = dict(vars(config))
        super().__init__(**options)
        # The Trainer turns the cache off in the config, which would be saved so. Each call turns it
        # off for itself.
        vars(config).clear()
        vars(config).update(before)
        # Our loss is a sum over the tokens of all accumulated batches, divided by their number.
        self.model_accepts_loss_kwargs = True
        self.add_callback(_Epochs(order))

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """The loss of a batch, a share of the loss per answer token of the step."""
        for module in self.frozen:
            module.eval()  # undoes the Trainer's train(): no dropout, no running statistics
        labels, other = inputs.pop("labels"), inputs.pop("target", None)
        tokens, learnt = answer_labels(labels), None
        if self.distillation is not None:
            learnt = target_logits(self.distillation.target, inputs, labels, other)
        weight, temperature = (
            (self.distillation.weight, self.distillation.temperature)
            if self.distillation
            else (0.0, 1.0)
        )
        logits = answer_logits(self.accelerator.unwrap_model(model), model, inputs, labels)
        loss = answer_loss(logits, tokens, learnt, weight, temperature)
        # Gradients are averaged over processes, but the tokens are counted over all of them.
        shared: Tensor = loss * self.accelerator.num_processes / (num_items_in_batch or len(tokens))
        return shared

    def create_optimizer(self, model: Any = None) -> Any:
        """AdamW, with the vision encoder's own learning rate."""
        self.optimizer: Any  # of the Trainer
        if self.optimizer is None:
            trained = self.model if model is None else model
            decaying = set(self.get_decay_parameter_names(trained))
            kind, settings = self.get_optimizer_cls_and_kwargs(self.args, trained)
            groups: dict[tuple[bool, bool], list[Any]] = {}
            for name, parameter in trained.named_parameters():
                if parameter.requires_grad:
                    groups.setdefault((name in self.vision, name in decaying), []).append(parameter)
            lr = self.args.learning_rate
            self.optimizer = kind(
                [
                    {
                        "params": parameters,
                        "lr": lr * (self.vision_lr_factor if is_vision else 1),
                        "weight_decay": self.args.weight_decay if decays else 0.0,
                    }
                    # The Trainer logs the rate of the first group.
                    for (is_vision, decays), parameters in sorted(
                        groups.items(), key=lambda group: group[0][0]
                    )
                ],
                **settings,
            )
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The learning rates of `share_of_rate`: with the Trainer's own, the first step would learn
        nothing."""
        self.lr_scheduler: Any  # of the Trainer
        if self.lr_scheduler is None:
            warmup, kind = (
                self.args.get_warmup_steps(num_training_steps),
                self.args.lr_scheduler_type.value,
            )
            rate = partial(share_of_rate, warmup=warmup, steps=num_training_steps, schedule=kind)
            self.lr_scheduler = LambdaLR(self.optimizer if optimizer is None else optimizer, rate)
        return self.lr_scheduler

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return self.order

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # The state comes next, and makes the checkpoint whole: by then every process must have
        # written its part.
        self.accelerator.wait_for_everyone()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        # The Trainer's own goes by the names in the file, which for many VLMs are those of an older
        # layout.
        restore(self.model if model is None else model, Path(resume_from_checkpoint))


@torch.no_grad()
def target_logits(
    target: Any, inputs: dict[str, Any], labels: Tensor, other: dict[str, Any] | None
) -> Tensor:
    """The target's logits float32 ``[N, V]`` of the same answer tokens, from its own inputs where
    it has others."""
    if other is not None:
        labels = other.pop("labels")
        inputs = other
    dtype = target.dtype
    cast = {
        k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v
        for k, v in inputs.items()
    }
    return answer_logits(target, target, cast, labels)


def share_of_rate(done: int, warmup: int, steps: int, schedule: str) -> float:
    """The learning rate of a step, as a share of the highest.

    The k-th of w warm-up steps has k / w. Behind them it is transformers' schedule of that name.

    Args:
        done: steps before it.
        warmup: steps in which the rate rises.
        steps: of the stage.
        schedule: one of `SCHEDULES`.
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
    """Give a model the weights of a checkpoint of it, as `from_pretrained` reads them.

    Args:
        model: on any device; stays there.
        checkpoint: a folder that `save_pretrained` wrote.

    Raises:
        ConfigError: its weights cannot be read.
    """
    with explained(f"the checkpoint {str(checkpoint)!r}"):
        saved = type(model).from_pretrained(checkpoint, dtype=torch.float32)
    model.load_state_dict(saved.state_dict())


class EpochOrder(Sampler[int]):
    """A random order of entries that depends on the seed and the epoch only, so that a resumed run
    repeats it.

    Args:
        lengths: of the entries, in any unit, to put those of about one length together; None for
            any order.
        count: number of entries.
        group: entries of a step.
        seed: of the order.
        at_once: entries that all processes take at once. The last are made up with the index
            `count`, which is none of the entries: accelerate would make them up with entries that
            were there before.
    """

    def __init__(
        self, lengths: Sequence[int] | None, count: int, group: int, seed: int, at_once: int = 1
    ) -> None:
        self.lengths, self.count, self.group, self.seed, self.epoch = lengths, count, group, seed, 0
        self.missing = -count % at_once

    def __len__(self) -> int:
        return self.count + self.missing

    def __iter__(self) -> Iterator[int]:
        return iter([*self._entries(), *[self.count] * self.missing])

    def _entries(self) -> list[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order: list[int] = torch.randperm(self.count, generator=generator).tolist()
        if self.lengths is None:
            return order
        # As LLaVA does: shuffled, cut into steps of random entries, each step's sorted. Steps of
        # about one length need a longer stretch to sort over.
        stretch = min(self.group * 50, max(self.group, self.count // 4))
        steps: list[list[int]] = []
        for start in range(0, self.count, stretch):
            part = sorted(
                order[start : start + stretch], key=self.lengths.__getitem__, reverse=True
            )
            steps += [part[i : i + self.group] for i in range(0, len(part), self.group)]
        short = [
            step for step in steps if len(step) < self.group
        ]  # only full steps may be moved about
        full = [step for step in steps if len(step) == self.group]
        shuffled = torch.randperm(len(full), generator=generator).tolist()
        return [index for step in [*(full[i] for i in shuffled), *short] for index in step]


class _Epochs(TrainerCallback):  # type: ignore[misc]
    """Tells the order which epoch begins; accelerate's own way does not reach it in a resumed
    epoch."""

    def __init__(self, order: EpochOrder) -> None:
        self.order = order

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.order.epoch = int(state.epoch or 0)


class StopAtNan(TrainerCallback):  # type: ignore[misc]
    """Ends a run whose loss is no number any more: what follows would only overwrite sound
    checkpoints."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if not math.isfinite((logs or {}).get("loss", 0.0)):
            raise ConfigError(
                f"the loss is {(logs or {})['loss']} at step {state.global_step}: a lower "
                f"learning rate or "
                "--precision float32 may help"
            )


def device_batch(batch: int, processes: int, wanted: int | None) -> int:
    """How many entries a device takes at once, so that steps of accumulation make up the batch.

    Raises:
        ConfigError: the batch cannot be divided so.
    """
    share, rest = divmod(batch, processes)
    if rest or (wanted is not None and share % wanted):
        each = f" of {wanted} at once" if wanted else ""
        raise ConfigError(f"a batch of {batch} cannot be divided among {processes} processes{each}")
    return wanted or max(
        size for size in range(1, min(DEVICE_BATCH, share) + 1) if share % size == 0
    )


def arguments(recompute: bool, **settings: Any) -> Any:
    """TrainingArguments that neither report to anyone nor spread a batch over the GPUs of one
    process.

    Args:
        recompute: activations in the backward pass.
        settings: of TrainingArguments.
    """
    if recompute:
        known = {item.name for item in fields(TrainingArguments)}
        name = (
            "activation_checkpointing"
            if "activation_checkpointing" in known
            else "gradient_checkpointing"
        )
        settings |= {name: True, f"{name}_kwargs": {"use_reentrant": False}}
    made = TrainingArguments(
        report_to="none", log_level="error", remove_unused_columns=False, **settings
    )
    # DataParallel cuts every tensor into equal parts, but one tensor holds the patches of all
    # images.
    made._n_gpu = min(made.n_gpu, 1)
    return made
