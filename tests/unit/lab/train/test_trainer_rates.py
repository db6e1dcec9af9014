"""Learning rates of every step and in the log; fillers of batches are not trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from draftlens_lab.train import DraftTraining, train_draft
from draftlens_lab.train.collate import Collator
from draftlens_lab.train.data import read_data
from draftlens_lab.train.labels import IGNORE, AnswerProcessor
from draftlens_lab.train.options import SCHEDULES
from draftlens_lab.train.parts import find_parts
from draftlens_lab.train.trainer import EpochOrder, share_of_rate
from families import FAMILIES
from safetensors.torch import load_file
from transformers import AutoProcessor, get_scheduler

from tests.unit.lab.train.drafts import Interrupt, training, write_data

LLAVA = next(family for family in FAMILIES if family.name == "llava")


def test_every_step_of_a_warm_up_learns() -> None:
    assert [share_of_rate(done, 4, 10, "cosine") for done in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert all(share_of_rate(0, 1, 1, schedule) == 1.0 for schedule in SCHEDULES)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (0, 7), (1, 2), (3, 9)])
def test_behind_the_warm_up_the_rate_is_that_of_transformers(
    schedule: str, warmup: int, steps: int
) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    stock = get_scheduler(schedule, optimizer, warmup, steps).lr_lambdas[0]
    for done in range(warmup, steps):
        assert share_of_rate(done, warmup, steps, schedule) == pytest.approx(stock(done))


def test_a_run_of_one_step_with_all_defaults_learns(llava: str, tmp_path: Path) -> None:
    """Eight entries are one step of each stage."""
    data = write_data(tmp_path / "data", 8)
    out = tmp_path / "out"
    trained = train_draft(DraftTraining(data=data, out=out, draft=llava, cpu=True))
    assert [stage.steps for stage in trained.plan.stages] == [1, 1]
    assert [trained.losses[stage][0]["learning_rate"] for stage in ("projector", "instruct")] == [
        1e-3,
        2e-5,
    ]
    parts = find_parts(LLAVA.build())
    start, middle, end = (
        dict(LLAVA.model.from_pretrained(folder).named_parameters())
        for folder in (llava, out / "checkpoints" / "projector" / "checkpoint-1", out)
    )
    for before, after, names in (
        (start, middle, parts.projector),
        (middle, end, parts.projector | parts.language),
    ):
        assert {name for name in start if not torch.equal(before[name], after[name])} == names


def test_a_resumed_run_has_the_rates_of_a_whole_one(llava: str, data: Path, tmp_path: Path) -> None:
    """Interrupted in the warm-up of 4 steps: the scheduler's state goes on in the middle of it."""
    due: dict[str, Any] = {
        "stages": "instruct",
        "max_steps": 8,
        "warmup": 0.5,
        "schedule": "linear",
    }
    whole = train_draft(training(data, tmp_path / "whole", llava, **due))
    rates = [point["learning_rate"] for point in whole.losses["instruct"]]
    assert rates == pytest.approx(
        [1e-2 * share for share in (0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25)]
    )
    options = training(data, tmp_path / "parts", llava, **due)
    with pytest.raises(KeyboardInterrupt, match="step 2 of the instruct stage"):
        train_draft(options, callbacks=[Interrupt(3)])
    assert train_draft(options).losses == whole.losses
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_with_vision_the_logged_rate_is_that_of_the_others(
    llava: str, data: Path, tmp_path: Path
) -> None:
    due: dict[str, Any] = {
        "stages": "instruct",
        "max_steps": 4,
        "train_vision": True,
        "weight_decay": 0.1,
    }
    due |= {"warmup": 0.0, "schedule": "constant_with_warmup", "lr": 1e-3}
    trained = train_draft(training(data, tmp_path / "out", llava, **due))
    assert [point["learning_rate"] for point in trained.losses["instruct"]] == [1e-3] * 4
    options = training(data, tmp_path / "parts", llava, **due)
    with pytest.raises(KeyboardInterrupt):
        train_draft(options, callbacks=[Interrupt(3)])
    assert train_draft(options).losses == trained.losses
    assert json.loads((options.out / "loss.json").read_text()) == trained.losses


@pytest.mark.parametrize(
    ("count", "at_once", "missing"), [(5, 1, 0), (5, 4, 3), (8, 4, 0), (1, 4, 3), (9, 4, 3)]
)
def test_the_last_round_is_filled_up_with_what_is_no_entry(
    count: int, at_once: int, missing: int
) -> None:
    order = EpochOrder(None, count, 4, seed=0, at_once=at_once)
    indices = list(order)
    assert len(order) == len(indices) == count + missing
    assert indices == [*EpochOrder(None, count, 4, seed=0), *[count] * missing]


def test_nothing_is_learnt_from_an_entry_that_is_not_counted(llava: str, data: Path) -> None:
    read = read_data(data)
    collate = Collator(read, AnswerProcessor(AutoProcessor.from_pretrained(llava), "tiny"), None, 2)
    entries = read.entries[:3]
    whole, part = (
        collate(entries),
        collate([entries[0], replace(entries[1], counted=False), entries[2]]),
    )
    assert (part["labels"][1] == IGNORE).all()
    assert torch.equal(part["labels"][[0, 2]], whole["labels"][[0, 2]])
    assert torch.equal(part["input_ids"], whole["input_ids"])
