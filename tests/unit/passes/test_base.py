"""The option `compile`: its values, the rule of `"auto"`, and what is said about them."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from families import FAMILIES
from stock_families import STOCK_FAMILIES, model_of

import draftlens
from draftlens.cli.options import parse_compile, with_values
from draftlens.core.errors import ConfigError
from draftlens.load_engine import pop_pass_quantization
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER, Passes
from draftlens.passes import (
    BY_MODULES,
    attach,
    base,
    chosen,
    describe_passes,
    engine_of,
    openvino,
)
from draftlens.passes.base import PassEngine
from draftlens.passes.inductor import engine as inductor
from draftlens.passes.inductor.engine import CompiledPasses, InductorEngine
from draftlens.passes.inductor.library import Library
from draftlens.passes.openvino import OpenVinoEngine

ROOT = Path(draftlens.__file__).parent


@dataclass(frozen=True)
class ScriptedEngine(PassEngine):
    """Refuses models for a reason, raises an error, or makes passes that do nothing."""

    label: ClassVar[str] = "the script"
    why: str | None = None
    unfit: str | None = None
    error: str = ""

    def refusal(self, backbone: Backbone) -> str | None:
        return self.why

    def unsuited(self, backbone: Backbone) -> str | None:
        return self.unfit

    def make(self, backbone: Backbone) -> Passes:
        if self.error:
            raise ValueError(self.error)
        return Passes()


@pytest.fixture
def backbone() -> Backbone:
    return Backbone(FAMILIES[0].build(num_hidden_layers=1))


def by_script(monkeypatch: pytest.MonkeyPatch, **engines: PassEngine) -> None:
    """Let `"auto"` choose among these, in this order."""
    monkeypatch.setattr(base, "_preferred", lambda: list(engines))
    monkeypatch.setattr(base, "_engine", lambda name, quantization: engines[name])


def test_auto_takes_the_first_engine_that_suits_the_model(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says which and why, once, and the same passes are taken again."""
    by_script(
        monkeypatch,
        refusing=ScriptedEngine(why="no"),
        unfit=ScriptedEngine(unfit="too small"),
        failing=ScriptedEngine(error="first\nlast"),
        taken=ScriptedEngine(),
        later=ScriptedEngine(unfit="never asked"),
    )
    with caplog.at_level(logging.INFO, "draftlens"):
        attach([backbone], "auto")
        passes = backbone.passes
        attach([backbone], "auto")
    assert backbone.passes is passes is not EAGER
    assert engine_of(backbone) == ScriptedEngine()
    assert [record.message for record in caplog.records] == [
        f"passes of {backbone.name} run by taken (not refusing: no; not unfit: too small; "
        "not failing: ValueError: last)"
    ]


def test_auto_takes_the_modules_where_nothing_else_suits(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_script(monkeypatch, unfit=ScriptedEngine(unfit="too small"))
    attach([backbone], "auto")
    assert backbone.passes is EAGER
    assert engine_of(backbone) == BY_MODULES
    assert str(chosen(backbone)) == "modules (not unfit: too small)"


def test_a_named_engine_is_taken_though_it_does_not_suit(backbone: Backbone) -> None:
    base.attach_engine(backbone, ScriptedEngine(unfit="too small"))
    assert engine_of(backbone) == ScriptedEngine(unfit="too small")


def test_why_an_engine_does_not_run_a_model_is_said_once(
    backbone: Backbone, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed attempt is not repeated."""
    engine = ScriptedEngine(error="no such operation")
    made = mock.Mock(wraps=ScriptedEngine.make)
    record = caplog.at_level(logging.WARNING, "draftlens")
    with record, mock.patch.object(ScriptedEngine, "make", lambda *given: made(*given)):
        for _ in range(2):
            base.attach_engine(backbone, engine)
            assert backbone.passes is EAGER
    assert made.call_count == 1
    assert [record.message for record in caplog.records] == [
        f"passes of {backbone.name} do not run by the script: ValueError: no such operation"
    ]


def test_auto_compiles_nothing_for_inductor(
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(inductor, "folder_of", lambda *_: tmp_path)
    monkeypatch.setattr(openvino, "find_spec", lambda _: None)
    with caplog.at_level(logging.INFO, "draftlens"):
        attach([backbone], "auto")
    backbone.passes.prepare()
    assert backbone.passes is EAGER
    assert list(tmp_path.iterdir()) == []
    assert "not inductor: there is no code on disk" in caplog.text
    assert "not openvino: it needs OpenVINO" in caplog.text
    passes = InductorEngine(compiles=False).make(backbone)
    positions = torch.zeros(1, 1, dtype=torch.long)
    cache = backbone.new_cache(backbone.text_prompt(positions), room=2)
    passes.prepare()
    assert passes.run(positions, positions, cache, None) is None
    assert list(tmp_path.iterdir()) == []


def test_auto_takes_code_that_is_on_disk(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of small models: it makes their passes 1.4 to 3.0 times as fast, large ones 1.06 to 1.15."""
    monkeypatch.setattr(Library, "load", lambda *_: True)
    monkeypatch.setattr(inductor, "LARGEST", 0)
    assert "it gains little" in str(InductorEngine().unsuited(backbone))
    monkeypatch.setattr(inductor, "LARGEST", 1e9)
    attach([backbone], "auto")
    assert isinstance(backbone.passes, CompiledPasses)
    assert not backbone.passes.compiles


def test_openvino_suits_models_whose_copy_fits(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = OpenVinoEngine()
    assert engine.unsuited(backbone) == "it gains nothing with weights of less than 8 MiB"
    monkeypatch.setattr(openvino, "LEAST", 0)
    assert engine.unsuited(backbone) is None
    monkeypatch.setattr(openvino, "MEMORY", 1e9)
    assert "GiB" in str(engine.unsuited(backbone))


def test_int8_of_the_draft_is_that_of_passes_where_their_engine_has_it() -> None:
    pytest.importorskip("openvino")
    words = {"draft_quantization": "int8", "dtype": "float32"}
    for compile in (False, True, "inductor", "modules"):
        assert pop_pass_quantization(words, compile) is None
    assert pop_pass_quantization({"draft_quantization": "4bit"}, "openvino") is None
    assert pop_pass_quantization(dict(words), "auto") == "int8"
    assert pop_pass_quantization(words, "openvino") == "int8"
    assert words == {"dtype": "float32"}


def test_quantized_passes_need_their_engine(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match='compile="openvino" or "auto", and is "int8"'):
        attach([backbone, backbone], True, "int8")
    with pytest.raises(ConfigError, match="int4"):
        attach([backbone, backbone], "openvino", "int4")
    monkeypatch.setattr(openvino, "find_spec", lambda _: None)
    for compile in ("auto", "openvino"):
        with pytest.raises(ConfigError, match=r"draftlens\[openvino\]"):
            draftlens.load(compile=compile, draft_quantization="int8")


def test_a_bad_value_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError) as refused:
        draftlens.load(compile="yes")
    assert str(refused.value) == (
        'compile must be True (the same as "inductor"), "openvino", "auto" or False, not \'yes\''
    )
    with pytest.raises(ConfigError, match="compile must be"):
        draftlens.SpeculativeGenerate(None, compile=None)  # type: ignore[arg-type]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "find_spec", lambda _: None)
    with pytest.raises(ConfigError) as refused:
        draftlens.load(compile="openvino")
    assert str(refused.value) == (
        'compile="openvino" needs OpenVINO: pip install "draftlens[openvino]"'
    )


def test_the_command_line_names_an_engine_in_several_ways() -> None:
    understood = [
        ("a.mp4 --compile", "a.mp4 --compile=yes"),
        ("--compile a.mp4", "--compile=yes a.mp4"),
        ("--compile yes a.mp4", "--compile=yes a.mp4"),
        ("--compile no a.mp4", "--compile=no a.mp4"),
        ("--compile=yes --compile=no", "--compile=yes --compile=no"),
        ("a.mp4 --compile auto", "a.mp4 --compile=auto"),
        ("a.mp4 --compile-auto", "a.mp4 --compile=auto"),
        ("--compile=openvino --compile inductor", "--compile=openvino --compile=inductor"),
        ("--compile --openvino", "--compile=yes --compile=openvino"),
        ("--no-compile yes", "--compile=no yes"),
    ]
    for words, expected in understood:
        assert with_values(words.split()) == expected.split()
    values: list[Any] = [parse_compile(word) for word in ("yes", "no", "openvino", "auto")]
    assert values == [True, False, "openvino", "auto"]


def test_no_engine_is_named_outside_its_files() -> None:
    """But in the registry, and in the catalogue that is made of it."""
    found = set()
    for path in [*ROOT.rglob("*.py"), *ROOT.rglob("*.json")]:
        place = path.relative_to(ROOT)
        if place.parts[:2] in (("passes", "openvino.py"), ("passes", "inductor")):
            continue
        if re.search("openvino|inductor", path.read_text(encoding="utf-8"), re.IGNORECASE):
            found.add(str(place))
    assert found == {"passes/base.py", "cli/catalogue.json"}
    source = (ROOT / "passes" / "base.py").read_text(encoding="utf-8")
    lines = [line for line in source.splitlines() if re.search("openvino|inductor", line, re.I)]
    assert len(lines) == 4  # two entries, what True stands for, and the order of "auto"


def test_engines_are_described_for_a_model_that_drafts_nothing() -> None:
    family = next(each for each in STOCK_FAMILIES if each.cause)
    backbone = Backbone(model_of(family))
    assert backbone.plain_only
    facts = describe_passes(backbone)
    assert set(facts) == {"inductor", "openvino"}
    assert all(fact == f"never: {backbone.plain_only}" for fact in facts.values())
