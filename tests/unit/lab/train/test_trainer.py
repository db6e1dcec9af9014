"""Training runs of a few steps: changed and unchanged parts, losses, resumed runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from draftlens_lab.train import run, train_draft
from draftlens_lab.train.labels import IGNORE
from draftlens_lab.train.parts import find_parts
from draftlens_lab.train.report import Trained, TrainingPlan
from draftlens_lab.train.trainer import DraftTrainer
from families import FAMILIES
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainerCallback

import draftlens
from draftlens.core.errors import ConfigError, TrainingDataError
from tests.unit.lab.train.drafts import (
    Float64Trainer,
    batch_of,
    rounding_of_weights,
    same,
    save_model,
    training,
    write_data,
)

NAMED = {family.name: family for family in FAMILIES}
LLAVA = NAMED["llava"]


class At(TrainerCallback):
    """Does something at the end of a step of a stage."""

    def __init__(self, stage: str, step: int, act: Any) -> None:
        self.stage, self.step, self.act = stage, step, act

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if Path(args.output_dir).name == self.stage and state.global_step == self.step:
            self.act(given)


def interrupt(_: Any) -> None:
    raise KeyboardInterrupt


def forbidden(_: Any) -> None:
    raise AssertionError("a step was made again")


def frozen_eyes(given: dict[str, Any]) -> None:
    """A frozen encoder is in evaluation mode; trained parts are in training mode."""
    assert not given["model"].model.vision_tower.training
    assert given["model"].model.language_model.training


def second_epoch(given: dict[str, Any]) -> None:
    """The order has the number of the current epoch."""
    assert given["train_dataloader"].batch_sampler.sampler.epoch == 1


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny LLaVA with dropout, so that resuming must restore the random state."""
    return save_model(LLAVA, tmp_path_factory.mktemp("llava"), attention_dropout=0.2)


@pytest.fixture(scope="module")
def ran(
    llava: str, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Trained, list[TrainingPlan]]:
    """An uninterrupted run of both stages: 4 steps of 2 entries with a picture, then 6 of all."""
    out, plans = tmp_path_factory.mktemp("run") / "out", []
    options = training(
        data,
        out,
        llava,
        target=llava,
        projector_epochs=2,
        epochs=2,
        device_batch=1,
        group_by_length=True,
    )
    return (
        out,
        train_draft(
            options,
            on_plan=plans.append,
            callbacks=[At("instruct", 1, frozen_eyes), At("instruct", 5, second_epoch)],
        ),
        plans,
    )


def test_the_plan_says_what_will_be_trained(
    ran: tuple[Path, Trained, list[TrainingPlan]], llava: str
) -> None:
    _, trained, (plan,) = ran
    model = LLAVA.build()
    assert sum(plan.parameters.values()) == sum(p.numel() for p in model.parameters())
    projector, instruct = plan.stages
    assert (projector.entries, projector.skipped, instruct.entries, instruct.skipped) == (
        4,
        1,
        5,
        0,
    )
    assert (projector.steps, instruct.steps) == (4, 6)
    assert (projector.trained, instruct.trained) == (
        plan.parameters["projector"],
        plan.parameters["projector"] + plan.parameters["language"],
    )
    assert (instruct.batch, instruct.device_batch, plan.media, plan.precision) == (
        2,
        1,
        4,
        "float32",
    )
    assert 0 < instruct.answer_tokens < instruct.tokens
    assert trained.resumed == {"projector": 0, "instruct": 0}


def test_each_stage_changes_its_parts_only(
    ran: tuple[Path, Trained, list[TrainingPlan]], llava: str
) -> None:
    out, _, _ = ran
    parts = find_parts(LLAVA.build())
    kind = LLAVA.model
    start, middle, end = (
        dict(kind.from_pretrained(folder).named_parameters())
        for folder in (llava, out / "checkpoints" / "projector" / "checkpoint-4", out)
    )
    for name in start:
        assert torch.equal(start[name], middle[name]) == (name not in parts.projector), name
        if name in parts.vision:
            assert torch.equal(middle[name], end[name]), name
    assert any(not torch.equal(middle[name], end[name]) for name in parts.language)
    assert any(not torch.equal(middle[name], end[name]) for name in parts.projector)


def test_the_losses_are_told_and_drawn(ran: tuple[Path, Trained, list[TrainingPlan]]) -> None:
    out, trained, _ = ran
    assert json.loads((out / "loss.json").read_text()) == trained.losses
    assert {
        stage: [point["step"] for point in points] for stage, points in trained.losses.items()
    } == {
        "projector": list(range(1, 5)),
        "instruct": list(range(1, 7)),
    }
    assert trained.plotted
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_result_drafts_for_its_target(
    ran: tuple[Path, Trained, list[TrainingPlan]], llava: str, data: Path
) -> None:
    out, _, _ = ran
    engine = draftlens.load(llava, draft=str(out), device="cpu")
    plain = draftlens.load(llava, device="cpu")
    picture = data.parent / "0.png"
    asked = {"images": picture, "max_new_tokens": 8}
    assert engine.generate("what 0", **asked).tokens == plain.generate("what 0", **asked).tokens
    assert json.loads((out / "config.json").read_text()).get("use_cache") is not False
    assert not list(out.glob("*.part"))


def test_an_interrupted_run_goes_on_and_loses_nothing(
    ran: tuple[Path, Trained, list[TrainingPlan]],
    llava: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interrupted in the first stage, in a save, and in the second epoch of the second stage."""
    whole, reference, _ = ran
    out = tmp_path / "out"
    options = training(
        data,
        out,
        llava,
        target=llava,
        projector_epochs=2,
        epochs=2,
        device_batch=1,
        group_by_length=True,
    )

    def stopped(message: str, *callbacks: Any) -> None:
        with pytest.raises(KeyboardInterrupt, match=message):
            train_draft(options, callbacks=callbacks)

    stopped("resumes from step 2 of the projector stage", At("projector", 3, interrupt))
    assert not (out / "config.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(DraftTrainer, "_save_rng_state", interrupt_in_save)
        stopped("resumes from step 2 of the projector stage")
    assert [path.name for path in (out / "checkpoints" / "projector").iterdir()] == ["checkpoint-2"]
    stopped("resumes from step 4 of the instruct stage", At("instruct", 5, interrupt))
    trained = train_draft(options, callbacks=[At("instruct", step, forbidden) for step in range(5)])
    assert trained.resumed == {"projector": 4, "instruct": 4}
    assert same(weights(out), weights(whole))
    assert trained.losses == reference.losses == json.loads((out / "loss.json").read_text())


def test_an_interruption_before_the_first_checkpoint(
    llava: str, data: Path, tmp_path: Path
) -> None:
    options = training(data, tmp_path / "out", llava, stages="instruct")
    with pytest.raises(
        KeyboardInterrupt, match="starts from the beginning, because there was no checkpoint yet"
    ):
        train_draft(options, callbacks=[At("instruct", 1, interrupt)])


class Deletes(TrainerCallback):
    """Deletes a file after the checks, when training begins."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.path.unlink()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_goes_while_training_is_named(llava: str, tmp_path: Path, workers: int) -> None:
    data = write_data(tmp_path / "data", 2)
    options = training(data, tmp_path / "out", llava, stages="instruct", workers=workers)
    with pytest.raises(
        TrainingDataError,
        match=rf"^{data}, entry 2 \(line \d+\): cannot read .*1\.png: there is no",
    ) as told:
        train_draft(options, callbacks=[Deletes(data.parent / "1.png")])
    assert "\n" not in str(told.value)


def interrupt_in_save(trainer: Any, folder: str) -> None:
    assert (Path(folder) / "model.safetensors").exists()
    raise KeyboardInterrupt


def test_a_finished_run_has_nothing_left_and_others_are_refused(
    ran: tuple[Path, Trained, list[TrainingPlan]], llava: str, data: Path
) -> None:
    out, reference, _ = ran
    before = weights(out)
    options = {
        "target": llava,
        "projector_epochs": 2,
        "epochs": 2,
        "device_batch": 1,
        "group_by_length": True,
    }

    steps = [At(stage, step, forbidden) for stage in ("projector", "instruct") for step in range(9)]
    again = train_draft(training(data, out, llava, **options, save_steps=3), callbacks=steps)
    assert again.resumed == {"projector": 4, "instruct": 6}
    assert again.losses == reference.losses
    assert same(weights(out), before)
    with pytest.raises(ConfigError, match=r"lr is 0\.01 there and 0\.02 here"):
        train_draft(training(data, out, llava, **options, lr=0.02))
    other = write_data(out.parent / "other", 6)
    with pytest.raises(ConfigError, match="data differs"):
        train_draft(training(other, out, llava, **options))
    assert same(weights(out), before)


def test_restart_begins_at_the_beginning(llava: str, data: Path, tmp_path: Path) -> None:
    options = {"stages": "instruct", "max_steps": 1}
    train_draft(training(data, tmp_path / "out", llava, **options, seed=1))
    anew = train_draft(training(data, tmp_path / "out", llava, **options, seed=2, restart=True))
    assert anew.resumed == {"instruct": 0}
    assert len(anew.losses["instruct"]) == 1


def test_the_loss_is_that_of_stock_models_however_the_batch_is_divided(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "DraftTrainer", Float64Trainer)
    draft = save_model(LLAVA, tmp_path / "draft")
    stock = LLAVA.model.from_pretrained(draft)(**batch_of(data, draft)).loss.item()
    results = []
    for each in (5, 1):
        out = tmp_path / str(each)
        options = training(
            data, out, draft, stages="instruct", batch=5, device_batch=each, max_steps=2, warmup=0.0
        )
        trained = train_draft(options)
        assert trained.losses["instruct"][0]["loss"] == pytest.approx(stock, rel=1e-5)
        results.append(weights(out))
    bound = rounding_of_weights(lr=1e-2)
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=0, atol=bound)


def test_the_loss_of_distillation_is_computed_the_slow_way(data: Path, tmp_path: Path) -> None:
    """The target's processor makes other tensors and more tokens than the draft's."""
    draft = save_model(NAMED["llava_onevision"], tmp_path / "draft")
    target = save_model(LLAVA, tmp_path / "target", seed=3)
    weight, temperature = 0.3, 2.0
    pair = []
    for family, folder in ((NAMED["llava_onevision"], draft), (LLAVA, target)):
        batch = batch_of(data, folder)
        labels = batch.pop("labels")
        logits = family.model.from_pretrained(folder)(**batch).logits.detach()
        pair.append(
            [(logits[b, t - 1], labels[b, t]) for b, t in (labels != IGNORE).nonzero().tolist()]
        )
    total = 0.0
    for (z_draft, token), (z_target, told) in zip(*pair, strict=True):
        assert token == told
        p = (z_target / temperature).softmax(-1)
        divergence = (p * (p.log() - (z_draft / temperature).log_softmax(-1))).sum()
        total += float(
            -(1 - weight) * z_draft.log_softmax(-1)[token] + weight * temperature**2 * divergence
        )
    options = training(
        data,
        tmp_path / "out",
        draft,
        stages="instruct",
        batch=5,
        device_batch=5,
        max_steps=1,
        distil=target,
        distil_weight=weight,
        distil_temperature=temperature,
    )
    trained = train_draft(options)
    assert trained.losses["instruct"][0]["loss"] == pytest.approx(total / len(pair[0]), rel=1e-4)


def test_training_vision_has_its_own_learning_rate(llava: str, data: Path, tmp_path: Path) -> None:
    rates: set[float] = set()

    def look(given: Any) -> None:
        rates.update(round(group["initial_lr"], 9) for group in given["optimizer"].param_groups)
        assert given["model"].model.vision_tower.training

    options = training(
        data, tmp_path / "out", llava, stages="instruct", max_steps=2, train_vision=True, lr=1e-3
    )
    train_draft(options, callbacks=[At("instruct", 1, look)])
    assert rates == {1e-3, 2e-4}
    before, after = weights(Path(llava)), weights(tmp_path / "out")
    moved = [
        name
        for name in before
        if "vision_tower.encoder" in name and not torch.equal(before[name], after[name])
    ]
    assert moved


def test_parameter_groups_have_the_order_of_their_first_parameters(
    llava: str, data: Path, tmp_path: Path
) -> None:
    """Checkpoints of an optimizer depend on the order of its groups."""
    groups: list[tuple[float, float]] = []

    def look(given: Any) -> None:
        for group in given["optimizer"].param_groups:
            groups.append((round(group["initial_lr"], 9), group["weight_decay"]))

    options = training(
        data,
        tmp_path / "out",
        llava,
        stages="instruct",
        max_steps=1,
        train_vision=True,
        lr=1e-3,
        weight_decay=0.1,
    )
    train_draft(options, callbacks=[At("instruct", 1, look)])
    assert groups == [(1e-3, 0.1), (1e-3, 0.0), (2e-4, 0.1), (2e-4, 0.0)]


def test_a_tiny_set_is_learnt(tmp_path: Path) -> None:
    draft = save_model(NAMED["qwen2_vl"], tmp_path / "draft")
    data = write_data(tmp_path / "data", 2)
    options = training(
        data, tmp_path / "out", draft, stages="instruct", max_steps=14, lr=1e-2, save_steps=100
    )
    losses = [point["loss"] for point in train_draft(options).losses["instruct"]]
    assert losses[-1] < 0.3 * losses[0]
