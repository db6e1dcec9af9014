"""`compile="auto"`: the fastest passes as measured, and what it says about them."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from torch import Tensor

import draftlens
from draftlens.cli.options import parse_compile
from draftlens.compile import choice as choices
from draftlens.compile import switch
from draftlens.compile.choice import MODULES, Choice, measured_choice
from draftlens.compile.passes import CompiledPasses
from draftlens.core.errors import ConfigError
from draftlens.load_engine import pop_pass_quantization
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER, Passes
from draftlens.models.kv_cache import KVCache


class TimedPasses(Passes):
    """Passes that take these seconds and compute nothing."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor | None:
        time.sleep(self.seconds)
        return torch.zeros(*tokens.shape, 8)


@pytest.fixture
def backbone() -> Backbone:
    return Backbone(FAMILIES[0].build(num_hidden_layers=1))


def chosen(backbone: Backbone, **candidates: Passes) -> Choice:
    return measured_choice(backbone, {MODULES: EAGER, **candidates}, {})


def test_the_fastest_wins(backbone: Backbone) -> None:
    slow = TimedPasses(0.05)
    assert chosen(backbone, slow=slow).name == MODULES
    assert chosen(backbone, slow=slow, fast=TimedPasses(0.0)).name == "fast"
    assert backbone.passes is EAGER


def test_a_small_gain_is_not_worth_another_engine(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "GAIN", 1e-6)
    assert chosen(backbone, fast=TimedPasses(0.0)).name == MODULES


def test_timing_ends_after_its_time(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "SECONDS", 0.0)
    began = time.perf_counter()
    chosen(backbone, slow=TimedPasses(0.1))
    assert time.perf_counter() - began < 0.1 * 2 * choices.ROUNDS


def test_the_choice_says_why() -> None:
    choice = Choice("openvino", {"modules": (0.002, 0.004)}, {"inductor": "no code on disk"})
    assert str(choice) == (
        "openvino (for 1 and 6 tokens: modules 2 and 4 ms; inductor not timed: no code on disk)"
    )


def test_auto_compiles_nothing_for_inductor(
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(switch, "folder_of", lambda *_: tmp_path)
    monkeypatch.setattr(switch, "openvino_refusal", lambda _: "it is not installed")
    with caplog.at_level(logging.INFO, "draftlens"):
        switch.attach([backbone], "auto")
    switch.compile_usual(backbone)
    assert backbone.passes is EAGER
    assert list(tmp_path.iterdir()) == []
    assert "inductor not timed: no code on disk" in caplog.text
    assert "openvino not timed: it is not installed" in caplog.text
    library = switch.library_of(backbone)
    assert library is not None
    passes = CompiledPasses(library, compiles=False)
    positions = torch.zeros(1, 1, dtype=torch.long)
    cache = backbone.new_cache(backbone.text_prompt(positions), room=2)
    assert passes.run(positions, positions, cache, None) is None
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_measured_once(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "openvino_refusal", lambda _: "it is not installed")
    switch.attach([backbone], "auto")
    monkeypatch.setattr(switch, "measured_choice", None)
    switch.attach([backbone], "auto")
    assert switch.choice_of(backbone) is not None


def test_a_copy_of_the_weights_needs_memory(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choices.memory_refusal(backbone) == ""
    monkeypatch.setattr(choices, "MEMORY", 1e9)
    assert "GiB" in choices.memory_refusal(backbone)


def test_int8_of_the_draft_is_openvinos_where_that_runs_the_passes() -> None:
    pytest.importorskip("openvino")
    words = {"draft_quantization": "int8", "dtype": "float32"}
    for compile in (False, True, "inductor"):
        assert pop_pass_quantization(words, compile) is None  # type: ignore[arg-type]
    assert pop_pass_quantization({"draft_quantization": "4bit"}, "openvino") is None
    assert pop_pass_quantization(words, "openvino") == "int8"
    assert words == {"dtype": "float32"}


def test_quantized_passes_need_their_engine(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match='compile="openvino"'):
        switch.attach([backbone, backbone], True, "int8")
    with pytest.raises(ConfigError, match="int4"):
        switch.attach([backbone, backbone], "openvino", "int4")
    monkeypatch.setattr(switch, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"draftlens\[openvino\]"):
        draftlens.load(compile="auto", draft_quantization="int8")


def test_the_switches_of_the_command_line_name_one_engine() -> None:
    assert parse_compile(False, False, False) is False
    assert parse_compile(True, False, False) is True
    assert parse_compile(True, True, False) == "openvino"
    assert parse_compile(False, True, True) == "auto"
