"""Every path with models on another device than the CPU, on a machine without one: the tokens, and
no operation that mixes devices (`tests/fake_cuda.py`)."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import CPU, CudaTensor, FakeCuda, MixedDevices, fake_cuda, moved, on_cuda
from families import FAMILIES, Family, inputs
from stock import METHODS, NEW, draft, reference, target

import draftlens
from tests.e2e.conftest import CLIPS

__all__ = ["fake_cuda"]

Cuda = Callable[[], FakeCuda]

WAYS: Mapping[str, dict[str, Any]] = {
    "plain": {"method": "plain"},
    "auto": {},
    "specvlm": {"method": "specvlm"},
    "specvlm chain": {"method": {"method": "specvlm", "num_speculative_tokens": 5}},
    "parallelvlm": {"method": "parallelvlm"},
    "parallel": {"method": {"schedule": "parallel"}},
    "tabed": {"method": "tabed"},
    "lookup": {"method": "lookup"},
    "hsd": {"method": "hsd", "references": ["The video has one shot and no cut."]},
    "pooled": {"method": {"method": "tabed", "views": ["multimodal", "pooled", "text"]}},
}


@pytest.mark.parametrize("method", ["chain5", "eagle", "odd"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_family(fake_cuda: Cuda, family: Family, method: str) -> None:
    """A ragged batch of the richest inputs."""
    models = [on_cuda(copy.deepcopy(model)) for model in (target(family), draft(family))]
    with fake_cuda():
        result = draftlens.generate(
            models[0],
            moved(inputs(family, family.richest)),
            draft=models[1],
            method=METHODS[method],
            max_new_tokens=NEW,
        )
    assert result.tokens == reference(family, family.richest)


@pytest.fixture(scope="module")
def engine() -> draftlens.Engine:
    return draftlens.load("embedded", device="cpu", calibrate=False)


@pytest.fixture(scope="module")
def engine_there(engine: draftlens.Engine) -> draftlens.Engine:
    """The same pair on the device."""
    assert engine.draft is not None
    with FakeCuda():
        models = [
            on_cuda(copy.deepcopy(each.backbone.model)) for each in (engine.target, engine.draft)
        ]
        return draftlens.Engine(*models, processor=engine.target.processor)


@pytest.fixture(scope="module")
def expected(engine: draftlens.Engine) -> list[list[int]]:
    """What plain decoding answers on the CPU."""
    return answer(engine, method="plain").tokens


def answer(engine: draftlens.Engine, **options: Any) -> draftlens.Result:
    return engine.generate(
        "Describe the video.", video=CLIPS / "shapes.mp4", max_new_tokens=24, **options
    )


@pytest.mark.parametrize("way", WAYS)
def test_every_method(
    fake_cuda: Cuda, engine_there: draftlens.Engine, expected: list[list[int]], way: str
) -> None:
    with fake_cuda():
        result = answer(engine_there, **WAYS[way])
    assert result.tokens == expected
    assert result.lossless


@pytest.mark.parametrize("prefill", ["spava", {"name": "spava", "blocks": 3}], ids=str)
def test_a_prompt_in_blocks(
    fake_cuda: Cuda, engine: draftlens.Engine, engine_there: draftlens.Engine, prefill: Any
) -> None:
    with fake_cuda():
        result = answer(engine_there, prefill=prefill)
    assert result.tokens == answer(engine, method="plain", prefill=prefill).tokens


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_sampling_has_the_noise_of_the_cpu(
    fake_cuda: Cuda, engine: draftlens.Engine, engine_there: draftlens.Engine, rule: str
) -> None:
    method = {"num_speculative_tokens": 3, "sampling_rule": rule}
    with fake_cuda():
        result = answer(engine_there, method=method, do_sample=True, seed=3)
    assert result.tokens == answer(engine, method=method, do_sample=True, seed=3).tokens


def test_turns(fake_cuda: Cuda, engine: draftlens.Engine, engine_there: draftlens.Engine) -> None:
    questions = ("Describe the video.", "What is the secret word?", "Are you sure?")

    def answers(of: draftlens.Engine) -> list[list[list[int]]]:
        chat = of.chat(video=CLIPS / "shapes.mp4")
        return [chat.ask(question, max_new_tokens=NEW).tokens for question in questions]

    with fake_cuda():
        there = answers(engine_there)
    assert there == answers(engine)


@pytest.mark.parametrize("way", ["auto", "specvlm chain", "tabed", "parallelvlm"])
def test_a_draft_on_the_cpu(
    fake_cuda: Cuda,
    engine: draftlens.Engine,
    engine_there: draftlens.Engine,
    expected: list[list[int]],
    way: str,
) -> None:
    """Models on two devices: tokens of the draft come to the target's."""
    assert engine.draft is not None
    with fake_cuda():
        model = engine_there.target.backbone.model
        mixed = draftlens.Engine(
            model, engine.draft.backbone.model, processor=engine.target.processor
        )
        result = answer(mixed, **WAYS[way])
    assert result.tokens == expected


@pytest.mark.parametrize(
    ("method", "most"), [("plain", 1), ({"num_speculative_tokens": 5}, 2), ({"tree": "eagle"}, 2)]
)
def test_a_round_waits_once_for_each_model(
    fake_cuda: Cuda, engine_there: draftlens.Engine, method: Any, most: int
) -> None:
    """For the verdict of the target, and for what the draft would have said to accepted tokens."""
    with fake_cuda() as device:
        stream = engine_there.stream(
            "Describe the video.",
            video=CLIPS / "shapes.mp4",
            max_new_tokens=24,
            method=method,
        )
        waits = [len(device.transfers) for _ in stream]
    rounds = [after - before for before, after in pairwise(waits[1:])]
    assert len(rounds) >= 3
    assert max(rounds) <= most


@pytest.mark.slow
def test_the_kit_for_a_gpu(fake_cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark that is to run where a device is at hand mixes no devices either. Stock
    assisted generation calls the driver."""
    from benchmarks import gpu

    def load(name: str, device: str, **options: Any) -> draftlens.Engine:
        pair = draftlens.load(name, device="cpu", calibrate=False)
        assert device == "cuda"
        assert pair.draft is not None
        models = [on_cuda(each.backbone.model) for each in (pair.target, pair.draft)]
        return draftlens.Engine(*models, processor=pair.target.processor)

    monkeypatch.setattr(gpu, "draftlens", SimpleNamespace(load=load, generate=draftlens.generate))
    with fake_cuda():
        found = gpu.rows_of(argparse.Namespace(device="cuda", tiny=True, minutes=5))
    answers = [row for row in found.rows if row["way"] not in ("loading", "stock assisted")]
    assert len(answers) == 24
    assert all(row.get("equal") for row in answers), answers


def test_the_device_refuses_what_cuda_refuses() -> None:
    there, here = CudaTensor(torch.ones(2)), torch.ones(2)
    with FakeCuda() as device:
        for mistake in (
            lambda: there + here,
            lambda: torch.cat([here, there]),
            lambda: here[there.long()],
            lambda: there.__setitem__(torch.tensor([0, 1]), here),
            lambda: here.add_(there),
        ):
            with pytest.raises(MixedDevices):
                mistake()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert device.transfers == []
        assert (there + torch.tensor(1.0)).device.type == "cuda"
        assert there[here.long()].tolist() == [1.0, 1.0]
        assert torch.zeros(2, device="cuda").to(CPU).device == CPU
        assert there.to(here).device == CPU
        here[:] = there
        there[:] = here
        assert device.transfers == ["tolist", "cpu", "cpu", "__setitem__"]
