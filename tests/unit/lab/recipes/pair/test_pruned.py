"""The draft that is trained with pruned prompts: its batches, and what it reads and learns."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from draftlens_lab.train.distil import answer_logits
from draftlens_lab.train.pruned import PromptPruning
from draftlens_lab.world.samples import draw
from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.pruning.attention import SpecVLMPruner
from recipes.pair.data import IGNORED, BatchPlan
from recipes.pair.export import load
from recipes.pair.loop import train
from recipes.pair.pruned import (
    DATA_SEED,
    LEAST,
    MOST,
    PHASE,
    PRUNED,
    REPEATS,
    PrunedBatch,
    pruned_batches,
    pruned_job,
    read_target,
    repeated,
)
from recipes.pair.recipe import EMBEDDED


@pytest.fixture(scope="module")
def draft() -> tuple[Any, Any]:
    return load(EMBEDDED / "draft")


@pytest.fixture(scope="module")
def target() -> Backbone:
    return Backbone(load(EMBEDDED / "target")[0])


def batch_of(tokenizer: Any, kind: str, frames: int) -> PrunedBatch:
    plan = BatchPlan([draw(kind, seed, 16) for seed in range(3)], frames)
    return next(repeated(tokenizer, plan, [5, 0], [0]))


@pytest.mark.parametrize(
    ("kind", "frames"), [("clip", 16), ("clip", 4), ("chat", 16), ("picture", 0), ("talk", 0)]
)
def test_one_pass_of_the_target_gives_its_logits_and_its_attention(
    draft: tuple[Any, Any], target: Backbone, kind: str, frames: int
) -> None:
    """With 4 frames, the answers may be longer than the shortest row."""
    item = batch_of(draft[1].tokenizer, kind, frames)
    labels = item.batch["labels"]
    inputs = {name: value for name, value in item.batch.items() if name != "labels"}
    reading = read_target(target, item)
    expected = answer_logits(target.model, target.model, inputs, labels)
    torch.testing.assert_close(reading.logits, expected, rtol=0, atol=1e-3)
    slow = PromptPruning(SpecVLMPruner(), target).kept(draft[0], inputs, item.rows)
    for indices, slow_indices in zip(reading.kept(item.rows.ratios), slow, strict=True):
        assert torch.equal(indices, slow_indices)


def test_batches_go_on_where_training_stopped(draft: tuple[Any, Any]) -> None:
    tokenizer = draft[1].tokenizer
    whole = list(islice(pruned_batches(tokenizer, PRUNED, DATA_SEED, 0), 20))
    again = list(islice(pruned_batches(tokenizer, PRUNED, DATA_SEED, 17), 3))
    ratios: list[float] = []
    for expected, item in zip(whole[17:], again, strict=True):
        assert item.rows == expected.rows
        assert torch.equal(item.batch["labels"], expected.batch["labels"])
    for item in whole:
        ratios += item.rows.ratios
        if item.batch.keys() == {"input_ids", "labels", "attention_mask"}:
            assert not any(item.rows.ratios)
        assert ((item.batch["labels"] != IGNORED).sum(1) > 0).all()
    assert [item.number for item in whole] == [number // REPEATS for number in range(20)]
    assert 0.0 in ratios
    assert all(LEAST <= ratio <= MOST for ratio in ratios if ratio)


def test_it_trains_and_resumes(target: Backbone, tmp_path: Path) -> None:
    """Not the vision encoder; an interrupted run ends with the same weights."""
    mix = replace(PRUNED, batch=2, rows=2, tokens=256, frames=(8,), share=(1.0,))
    mix = replace(mix, reel_frames=(16,), reel_share=(1.0,))
    phase = replace(PHASE, steps=3, warmup=1, save_every=2)
    ends: list[dict[str, Tensor]] = []
    for steps in ((3,), (2, 3)):
        runs = tmp_path / str(len(steps))
        for last in steps:
            model, processor = load(EMBEDDED / "draft")
            job = pruned_job(model, target, processor.tokenizer, phase, mix)
            whole = job.phase
            if last < whole.steps:
                job = replace(job, phase=replace(whole, steps=last, horizon=whole.steps))
            train(job, runs)
        ends.append(model.state_dict())
    before = load(EMBEDDED / "draft")[0].state_dict()
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name
        if ".vision_tower." in name:
            assert torch.equal(value, before[name]), name
    assert not all(torch.equal(value, before[name]) for name, value in ends[0].items())
