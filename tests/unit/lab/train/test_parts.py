"""Options, the parts of a model, the loss, the order of entries, checkpoints: what needs no
training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from draftlens_lab.train import DraftTraining
from draftlens_lab.train.distil import answer_labels, answer_logits, answer_loss, distillation
from draftlens_lab.train.labels import IGNORE
from draftlens_lab.train.parts import find_parts
from draftlens_lab.train.report import losses_of
from draftlens_lab.train.resume import (
    check_folder,
    discard_incomplete,
    latest,
    open_folder,
    run_properties,
)
from draftlens_lab.train.trainer import EpochOrder, StopAtNan, device_batch
from families import FAMILIES, TEXT, Family

from draftlens.core.errors import ConfigError, UnsupportedModelError

LLAVA = FAMILIES[0]
PLACES = {
    "llava": "multi_modal_projector",
    "qwen": "visual.merger",
    "internvl": "multi_modal_projector",
}


def options(**changed: Any) -> DraftTraining:
    values: dict[str, Any] = {"data": "data.json", "out": "out", "draft": "draft", **changed}
    return DraftTraining(**values)


def test_the_defaults_are_the_papers() -> None:
    made = options()
    assert (made.projector_lr, made.lr, made.projector_batch, made.batch) == (1e-3, 2e-5, 256, 128)
    assert (made.projector_epochs, made.epochs, made.warmup, made.weight_decay) == (1, 1, 0.03, 0)
    assert (made.schedule, made.vision_lr_factor, made.train_vision) == ("cosine", 0.2, False)
    assert made.chosen_stages == ("projector", "instruct")
    assert made.data == Path("data.json")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"batch": 0}, "batch must be a whole number of at least 1, not 0"),
        ({"frames": 2.0}, "frames must be a whole number"),
        ({"workers": -1}, "workers must be a whole number of at least 0"),
        ({"max_steps": 0}, "max_steps must be"),
        ({"save_steps": None}, "save_steps must be a whole number of at least 1, not None"),
        ({"lr": 0}, "lr must be a number above 0"),
        ({"lr": math.nan}, "lr must be a number above 0"),
        ({"epochs": True}, "epochs must be a number above 0"),
        ({"warmup": 1.0}, "warmup must be a share of the steps"),
        ({"weight_decay": -0.1}, "weight_decay must be"),
        ({"distil_weight": 1.1}, "distil_weight must be from 0 to 1"),
        ({"stages": "three"}, "unknown stages 'three'; known: both, projector, instruct"),
        ({"schedule": "steps"}, "unknown schedule 'steps'"),
        ({"precision": "int8"}, "unknown precision 'int8'"),
        ({"draft": None}, "either a draft to train on or a draft_config"),
        ({"draft_config": "c.json"}, "either a draft to train on or a draft_config"),
        (
            {"projector_data": "p.json", "stages": "instruct"},
            "the projector stage is not to be run",
        ),
        (
            {"distil": "target", "stages": "projector"},
            "the instruct stage, which distils, is not to be run",
        ),
        ({"restart": 1}, "restart must be True or False"),
    ],
)
def test_options_that_make_no_sense_are_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        options(**changed)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_parts_of_every_family(family: Family) -> None:
    model = family.build()
    parts = find_parts(model)
    names = [name for name, _ in model.named_parameters()]
    assert sorted([*parts.projector, *parts.vision, *parts.language]) == sorted(names)
    place = next(
        (place for start, place in PLACES.items() if family.name.startswith(start)), "connector"
    )
    assert {name for name in names if f".{place}." in name} <= parts.projector
    deepstack = {name for name in names if "deepstack_merger_list" in name}
    assert parts.projector == {name for name in names if f".{place}." in name} | deepstack
    decoder = {id(parameter) for parameter in model.get_decoder().parameters()}
    assert all(
        name in parts.language
        for name, parameter in model.named_parameters()
        if id(parameter) in decoder
    )
    assert all(
        name.startswith(tuple(f"{path}." for path in parts.encoders)) for name in parts.vision
    )
    assert parts.trained("projector", True) == parts.projector
    assert parts.trained("instruct", False) == parts.projector | parts.language
    assert parts.trained("instruct", True) == set(names)


def test_a_model_without_a_projector_is_refused_with_what_was_looked_for() -> None:
    text = hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT))
    with pytest.raises(
        UnsupportedModelError,
        match=r"LlamaForCausalLM has no projector of a known name: "
        r".*multi_modal_projector, .*merger",
    ):
        find_parts(text)
    model = LLAVA.build()
    model.model.eyes = model.model.vision_tower
    del model.model.vision_tower
    with pytest.raises(
        UnsupportedModelError,
        match=r"has no vision encoder of a known name: .*vision_tower, visual",
    ):
        find_parts(model)


def slow_distillation(draft: torch.Tensor, target: torch.Tensor, temperature: float) -> float:
    """The formula of the docstring, number by number."""
    total = 0.0
    for z_draft, z_target in zip(draft.tolist(), target.tolist(), strict=True):
        shared = min(len(z_draft), len(z_target))
        p, q = ([math.exp(z / temperature) for z in row[:shared]] for row in (z_target, z_draft))
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        total += sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True))
    return temperature**2 * total


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("sizes", [(7, 7), (7, 9), (9, 7)])
def test_distillation_is_its_formula(temperature: float, sizes: tuple[int, int]) -> None:
    torch.manual_seed(0)
    draft, target = (torch.randn(4, size, dtype=torch.double) * 2 for size in sizes)
    assert float(distillation(draft, target, temperature)) == pytest.approx(
        slow_distillation(draft, target, temperature)
    )
    tokens = torch.tensor([1, 0, 6, 3])
    entropy = -sum(
        float(row.log_softmax(-1)[token]) for row, token in zip(draft, tokens.tolist(), strict=True)
    )
    for weight in (0.0, 0.3, 1.0):
        mixed = (1 - weight) * entropy + weight * slow_distillation(draft, target, temperature)
        assert float(answer_loss(draft, tokens, target, weight, temperature)) == pytest.approx(
            mixed
        )
    assert float(answer_loss(draft, tokens, None, 0.3, temperature)) == pytest.approx(entropy)


def test_no_divergence_from_itself_and_a_gradient_towards_the_target() -> None:
    torch.manual_seed(0)
    target = torch.randn(3, 5)
    assert float(distillation(target, target, 2.0)) == pytest.approx(0, abs=1e-6)
    draft = torch.zeros(3, 5, requires_grad=True)
    distillation(draft, target, 1.0).backward()
    assert draft.grad is not None
    torch.testing.assert_close(draft.grad, draft.softmax(-1) - target.softmax(-1))


def test_logits_that_nobody_wants_are_left_out_and_the_others_are_the_same() -> None:
    model = LLAVA.build()
    ids = torch.randint(10, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    labels = torch.full_like(ids, IGNORE)
    labels[0, 3:5], labels[1, 4:8] = ids[0, 3:5], ids[1, 4:8]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    whole = model(**inputs).logits
    expected = torch.cat([whole[0, 2:4], whole[1, 3:7]])
    widths: list[int] = []

    def counted(**given: Any) -> Any:
        output = model(**given)
        widths.append(output.logits.shape[1])
        return output

    class Plain:
        def forward(self, input_ids: Any) -> None:
            """Of a model that always gives all logits."""

    torch.testing.assert_close(answer_logits(model, counted, inputs, labels), expected)
    torch.testing.assert_close(answer_logits(Plain(), model, inputs, labels), expected)
    assert widths == [5]  # columns 2 to 6
    assert answer_labels(labels).tolist() == [*ids[0, 3:5].tolist(), *ids[1, 4:8].tolist()]


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    one, other = EpochOrder(None, 50, 4, seed=1), EpochOrder(None, 50, 4, seed=1)
    first = list(one)
    assert list(one) == first == list(other)
    assert sorted(first) == list(range(50)) != first
    one.epoch = 1
    assert list(one) != first
    assert list(EpochOrder(None, 50, 4, seed=2)) != first


def test_entries_of_one_length_come_together() -> None:
    lengths = [(7 * index) % 50 for index in range(50)]
    order = EpochOrder(lengths, 50, 4, seed=0)
    steps = [
        [lengths[index] for index in list(order)[start : start + 4]] for start in range(0, 50, 4)
    ]
    assert sorted(index for index in order) == list(range(50))
    spreads = [max(step) - min(step) for step in steps if len(step) == 4]
    mixed = list(EpochOrder(None, 50, 4, seed=0))
    loose = [[lengths[index] for index in mixed[start : start + 4]] for start in range(0, 48, 4)]
    assert sum(spreads) * 2 < sum(max(step) - min(step) for step in loose)
    order.epoch = 1
    assert list(order) != list(EpochOrder(lengths, 50, 4, seed=0))


@pytest.mark.parametrize(
    ("batch", "processes", "wanted", "size"),
    [
        (256, 1, None, 8),
        (128, 8, None, 8),
        (6, 1, None, 6),
        (12, 1, None, 6),
        (11, 1, None, 1),
        (12, 2, 3, 3),
    ],
)
def test_a_batch_is_divided(batch: int, processes: int, wanted: int | None, size: int) -> None:
    assert device_batch(batch, processes, wanted) == size


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigError, match="a batch of 6 cannot be divided among 4 processes"):
        device_batch(6, 4, None)
    with pytest.raises(
        ConfigError, match="a batch of 6 cannot be divided among 1 processes of 4 at once"
    ):
        device_batch(6, 1, 4)


def test_a_loss_that_is_no_number_ends_the_run() -> None:
    state = SimpleNamespace(global_step=7)
    StopAtNan().on_log(None, state, None, {"loss": 1.0})
    StopAtNan().on_log(None, state, None, {"train_runtime": 1.0})
    with pytest.raises(ConfigError, match="the loss is nan at step 7"):
        StopAtNan().on_log(None, state, None, {"loss": math.nan})


def test_losses_are_taken_from_a_log() -> None:
    entry = {"step": 1, "loss": 2.0, "learning_rate": 0.1, "grad_norm": 3.0, "epoch": 1.0}
    assert losses_of([entry, {"train_loss": 2.0, "step": 1}]) == [
        {"step": 1, "loss": 2.0, "learning_rate": 0.1}
    ]


def checkpoint(out: Path, step: int, state: str | None) -> Path:
    folder = out / "checkpoints" / "instruct" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    if state is not None:
        (folder / "trainer_state.json").write_text(state)
    return folder


def test_only_whole_checkpoints_count_and_the_others_go(tmp_path: Path) -> None:
    whole = [checkpoint(tmp_path, step, json.dumps({"global_step": step})) for step in (2, 10)]
    cut = [checkpoint(tmp_path, 11, None), checkpoint(tmp_path, 12, '{"global_st')]
    (tmp_path / "loss.json.part").write_text("[")
    assert latest(tmp_path, "instruct") == whole[1]
    assert latest(tmp_path, "projector") is None
    discard_incomplete(tmp_path)
    assert not any(path.exists() for path in cut)
    assert all(path.exists() for path in whole)
    assert not (tmp_path / "loss.json.part").exists()


def test_a_folder_knows_its_run(tmp_path: Path) -> None:
    out, digests = tmp_path / "out", {"data": "1" * 64}
    run = run_properties(options(), digests)
    open_folder(out, run, restart=False)
    check_folder(out, run, restart=False)
    check_folder(
        out,
        run_properties(options(save_steps=3, workers=1, device_batch=1, out="x"), digests),
        restart=False,
    )
    with pytest.raises(
        ConfigError, match=r"contains another run \(lr is 2e-05 there and 0.001 here\).* --restart"
    ):
        check_folder(out, run_properties(options(lr=1e-3), digests), restart=False)
    with pytest.raises(
        ConfigError, match=r"contains another run \(data differs, seed is 0 there and 1 here\)"
    ):
        check_folder(out, run_properties(options(seed=1), {"data": "2" * 64}), restart=False)
    check_folder(out, run_properties(options(seed=1), digests), restart=True)


def test_a_changed_config_is_another_run(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    before = run_properties(options(draft=None, draft_config=config), {})
    config.write_text('{"model_type": "llava"}')
    out = tmp_path / "out"
    open_folder(out, before, restart=False)
    with pytest.raises(ConfigError, match="the draft's config differs"):
        check_folder(
            out, run_properties(options(draft=None, draft_config=config), {}), restart=False
        )


def test_starting_anew_deletes_what_a_run_made_and_nothing_else(tmp_path: Path) -> None:
    run = run_properties(options(), {})
    open_folder(tmp_path, run, restart=False)
    checkpoint(tmp_path, 2, "{}")
    for name in ("model.safetensors", "config.json", "loss.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    open_folder(tmp_path, run, restart=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "training.json"]


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for restart in (False, True):
        with pytest.raises(ConfigError, match="is not empty and contains no run of draft training"):
            check_folder(tmp_path, {}, restart)
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        check_folder(tmp_path / "thesis.txt", {}, restart=False)
    (tmp_path / "training.json").write_text("{")
    with pytest.raises(
        ConfigError, match=r"cannot read .*training\.json, which an earlier run wrote"
    ):
        check_folder(tmp_path, {}, restart=False)
