"""A second question is read as a chat reads it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from draftlens_lab.evaluate.answers import dialogue

import draftlens
from draftlens.pruning.base import Choice

ROOT = Path(__file__).resolve().parents[4]
FRAMES = 16
NEW = 12


@pytest.fixture
def scenes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which imports others as the script does."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("specvlm_parts.scenes")


def test_the_attention_of_what_follows_the_first_answer_guides(scenes: Any) -> None:
    engine = draftlens.load("embedded", device="cpu", calibrate=False, compile=False)
    (sample,) = scenes.samples_of("chat", 1, FRAMES)
    scene = scenes.read_scene(engine, sample, FRAMES, NEW)
    read = scene.context.readings.attention[0, scene.context.prompt.visual[0]]

    chat = engine.chat(video=dialogue(sample, FRAMES, 64).videos[0], namespace="twin")
    first, second = (turn.question for turn in sample.turns)
    chat.ask(first, max_new_tokens=NEW)
    choices: list[Choice] = []
    method = {"method": "specvlm", "pruner": "specvlm"}
    result = chat.ask(second, max_new_tokens=NEW, method=method, observe=choices.append)
    assert result.tokens == [scene.answer]
    assert result.stats.cached_tokens > int(scene.prompt.visual.sum())
    torch.testing.assert_close(choices[0].visual.scores, read, atol=1e-4, rtol=1e-4)

    whole = scenes.attention_from(engine.target.backbone, scene.inputs.target, 0)
    assert not torch.allclose(whole[scene.context.prompt.visual[0]], read, rtol=0.1)


def test_counts_by_ranks_are_those_of_the_engine_in_a_chat(scenes: Any) -> None:
    engine = draftlens.load("embedded", device="cpu", calibrate=False, compile=False)
    (sample,) = scenes.samples_of("chat", 1, FRAMES)
    scene = scenes.read_scene(engine, sample, FRAMES, NEW)
    scenes.check(engine, scene, {"prune_ratio": 0.9}, NEW)
