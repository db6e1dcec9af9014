"""Helpers of the tests of draft training: tiny checkpoints, pictures, data and options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from draftlens_lab.train import DraftTraining
from draftlens_lab.train.collate import Collator
from draftlens_lab.train.data import read_data
from draftlens_lab.train.labels import AnswerProcessor
from draftlens_lab.train.trainer import DraftTrainer
from families import Family
from PIL import Image
from torch import Tensor
from transformers import AutoProcessor, TrainerCallback

CLIPS = Path(__file__).resolve().parents[4] / "draftlens" / "embedded" / "clips"

_MESSAGE_CONTENT = """{% for item in message['content'] -%}
{%- if item['type'] == 'image' %}IMAGE{% elif item['type'] == 'video' %}VIDEO\
{% else %}{{ item['text'] }}{% endif -%}
{%- endfor %}"""

ENDED = (
    "{%- for message in messages %}{{ message['role'] + '\\n' }}"
    + _MESSAGE_CONTENT
    + "{{ '</s>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant\\n' }}{% endif %}"
)
"""A template with an end token after each message, like ChatML."""

UNENDED = (
    "{%- for message in messages %}{{ message['role'] }}: "
    + _MESSAGE_CONTENT
    + " {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
"""A template without end tokens, like that of LLaVA-1.5."""


class Interrupt(TrainerCallback):
    """Ends a run at the end of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Interrupt like Ctrl-C."""
        if state.global_step == self.step:
            raise KeyboardInterrupt


class Float64Trainer(DraftTrainer):
    """Trains in float64, where the order of sums hardly changes a gradient.

    Adam's step lr · g / (|g| + 1e-8) divides by the gradient itself, so the rounding of float32, or
    another processor's, moves a weight whose gradient is nearly 0 by up to lr.
    """

    def __init__(self, **options: Any) -> None:
        options["model"].double()
        if options["distillation"] is not None:
            options["distillation"].target.double()
        super().__init__(**options)


def rounding_of_weights(lr: float) -> float:
    """A bound on how far the order of sums moves a weight of `Float64Trainer`: Adam's step has a
    slope of at most lr / 1e-8, and a gradient is a sum of at most a thousand terms below 1."""
    return lr / 1e-8 * 1000 * torch.finfo(torch.float64).eps


def processor_of(family: Family, template: str = ENDED) -> Any:
    """The family's processor with a chat template."""
    processor = family.processor()
    processor.chat_template = template.replace("IMAGE", family.image).replace(
        "VIDEO", family.video or ""
    )
    return processor


def save_model(family: Family, folder: Path, seed: int = 0, **text: Any) -> str:
    """A checkpoint of a tiny random model with its processor."""
    family.build(seed, **text).save_pretrained(folder)
    processor_of(family).save_pretrained(folder)
    return str(folder)


def talk(*turns: str) -> list[dict[str, str]]:
    """A conversation of LLaVA's form: human and gpt in turn."""
    return [
        {"from": ("human", "gpt")[index % 2], "value": text} for index, text in enumerate(turns)
    ]


def write_data(folder: Path, count: int = 6, name: str = "data.json") -> Path:
    """Entries with one image each, but for every third, which is text alone; pictures beside the
    file."""
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    for index in range(count):
        answer = "".join("abcdefghij"[(index + k) % 10] for k in range(3 + index % 4))
        if index % 3 == 2:
            entries.append(
                {
                    "id": str(index),
                    "conversations": talk(f"say {index}", answer, "again", answer[::-1]),
                }
            )
            continue
        noise = np.random.default_rng(index).integers(
            0, 256, (20, 16 + 4 * (index % 2), 3), dtype=np.uint8
        )
        Image.fromarray(noise).save(folder / f"{index}.png")
        entries.append(
            {
                "id": index,
                "image": f"{index}.png",
                "conversations": talk(f"<image>\nwhat {index}", answer),
            }
        )
    path = folder / name
    path.write_text(json.dumps(entries, indent=1))
    return path


def training(data: Path, out: Path, draft: str | None, **options: Any) -> DraftTraining:
    """Options for a few small steps on the CPU."""
    small = {
        "projector_batch": 2,
        "batch": 2,
        "save_steps": 2,
        "log_steps": 1,
        "cpu": True,
        "precision": "float32",
    }
    return DraftTraining(
        data=data, out=out, draft=draft, **{**small, "lr": 1e-2, "projector_lr": 1e-2, **options}
    )


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two sets of weights are equal, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def batch_of(data: Path, processor: str) -> dict[str, Any]:
    """All entries of a file as one batch."""
    read = read_data(data)
    return Collator(
        read, AnswerProcessor(AutoProcessor.from_pretrained(processor), "tiny"), None, 2
    )(read.entries)
