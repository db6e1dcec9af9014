"""The option `compile`: its values, the rule of `"auto"`, and what is said about them."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from families import FAMILIES
from stock_families import STOCK_FAMILIES, model_of

import draftlens
from draftlens.cli.options import DecodingOptions, parse_compile, with_values
from draftlens.cli.parse import parse_command
from draftlens.core.errors import ConfigError
from draftlens.load_engine import pop_pass_quantization
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER, Passes
from draftlens.models.load import Loaded
from draftlens.models.loading import LoadOptions
from draftlens.passes import (
    BY_MODULES,
    attach,
    attach_for_call,
    base,
    chosen,
    describe_passes,
    engine_of,
    openvino,
)
from draftlens.passes import quantization as weights
from draftlens.passes.base import PassEngine
from draftlens.passes.inductor import engine as inductor
from draftlens.passes.inductor.engine import CompiledPasses, InductorEngine
from draftlens.passes.inductor.library import Library
from draftlens.passes.openvino import OpenVinoEngine
from draftlens.passes.structure import tracing_refusal

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


@dataclass(frozen=True)
class RoundingEngine(PassEngine):
    """Makes passes that name their weights and do nothing."""

    label: ClassVar[str] = "the rounding engine"
    quantizations: ClassVar[tuple[str, ...]] = ("int8",)
    quantization: str = ""

    def refusal(self, backbone: Backbone) -> str | None:
        return tracing_refusal(backbone)

    def draft_quantization(self) -> str:
        return "int8"

    def make(self, backbone: Backbone) -> Passes:
        passes = Passes()
        passes.quantization = self.quantization
        return passes


@pytest.fixture
def backbone() -> Backbone:
    return Backbone(FAMILIES[0].build(num_hidden_layers=1))


def by_script(monkeypatch: pytest.MonkeyPatch, **engines: PassEngine) -> None:
    """Let `"auto"` choose among these, in this order."""
    monkeypatch.setattr(base, "preferred", lambda: list(engines))
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
    monkeypatch.setattr(openvino, "LEAST", 0)
    with caplog.at_level(logging.INFO, "draftlens"):
        attach([backbone], "auto")
        attach([backbone], "auto")
    backbone.passes.prepare()
    assert backbone.passes is EAGER
    assert list(tmp_path.iterdir()) == []
    reason = "it needs OpenVINO: pip install openvino"
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", f"{backbone.name} would be faster: {reason}"),
        (
            "INFO",
            f"passes of {backbone.name} run by modules (not inductor: there is no code on disk; "
            f"not openvino: {reason})",
        ),
    ]
    passes = InductorEngine(compiles=False).make(backbone)
    positions = torch.zeros(1, 1, dtype=torch.long)
    cache = backbone.new_cache(backbone.text_prompt(positions), room=2)
    passes.prepare()
    assert passes.run(positions, positions, cache, None) is None
    assert list(tmp_path.iterdir()) == []


def test_auto_takes_code_that_is_on_disk(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of small models: it makes their passes 1.4 to 3.0 times as fast, large ones 1.06 to 1.15."""
    assert InductorEngine().unsuited(backbone) == "there is no code on disk"
    monkeypatch.setattr("draftlens.passes.structure.cache_folder", lambda: tmp_path)
    (tmp_path / "compiled" / "another model").mkdir(parents=True)
    (tmp_path / "compiled" / "another model" / "1x1.pt2").touch()
    assert InductorEngine().unsuited(backbone) == "there is no code on disk"
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
    assert engine.unsuited(backbone) == "it gains nothing with weights of less than 64 MiB"
    monkeypatch.setattr(openvino, "LEAST", 0)
    assert engine.unsuited(backbone) is None
    monkeypatch.setattr(openvino, "MEMORY", 1e9)
    assert "GiB" in str(engine.unsuited(backbone))


DRAFT_WEIGHTS = "draft_quantization"


def test_int8_of_the_draft_is_that_of_passes_where_their_engine_has_it() -> None:
    pytest.importorskip("openvino")
    words = {"draft_quantization": "int8", "dtype": "float32", "device": "cpu"}
    for compile in (False, True, "inductor", "modules"):
        assert pop_pass_quantization(words, compile, DRAFT_WEIGHTS) is None
    assert pop_pass_quantization({DRAFT_WEIGHTS: "4bit"}, "openvino", DRAFT_WEIGHTS) is None
    assert pop_pass_quantization(dict(words), "auto", DRAFT_WEIGHTS) == "int8"
    assert pop_pass_quantization(words, "openvino", DRAFT_WEIGHTS) == "int8"
    assert words == {"dtype": "float32", "device": "cpu"}


def test_int8_by_default_is_that_of_the_loading_where_passes_have_none() -> None:
    for further in ({"device": "cuda"}, {"device": "cpu", "dtype": "bf16"}):
        words = {"draft_quantization": "int8", **further}
        assert pop_pass_quantization(dict(words), "auto", DRAFT_WEIGHTS) is None
    for nothing in ("none", False):
        words = {"draft_quantization": nothing, "device": "cuda"}
        assert pop_pass_quantization(words, "auto", DRAFT_WEIGHTS) == "none"
        assert "draft_quantization" not in words
        assert LoadOptions(quantization=nothing).quantization is None


@pytest.fixture
def pair(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> tuple[Backbone, Backbone]:
    """A target and a draft, for which `"auto"` takes an engine that has 8-bit weights."""

    def engine(name: str, quantization: str | None) -> PassEngine:
        return RoundingEngine(quantization if quantization == "int8" else "")

    by_script(monkeypatch, rounding=RoundingEngine())
    monkeypatch.setattr(base, "_engine", engine)
    for module in (base, weights):
        monkeypatch.setattr(module, "PASSES", {"rounding": RoundingEngine})
    monkeypatch.setattr(weights, "preferred", lambda: ["rounding"])
    return backbone, Backbone(FAMILIES[0].build(num_hidden_layers=1))


@pytest.mark.parametrize("option", ["quantization", DRAFT_WEIGHTS])
def test_an_unknown_quantization_is_refused_with_all_known_ones(option: str) -> None:
    known = "4bit, 8bit, int8, int4, int8-weights, int4-weights"
    with pytest.raises(ConfigError, match=f"unknown {option} 'int9'; known: {known}$"):
        pop_pass_quantization({option: "int9"}, "auto", option)


def test_auto_gives_the_draft_8_bit_weights_where_they_are_faster(
    pair: tuple[Backbone, Backbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = pair
    for given, expected in ((None, "int8"), ("none", ""), ("int8", "int8")):
        attach(pair, "auto", given)
        assert (target.passes.quantization, draft.passes.quantization) == ("", expected)
    assert str(chosen(draft, None)) == "rounding with int8 weights"
    monkeypatch.setattr(RoundingEngine, "draft_quantization", lambda _: "")
    attach(pair, "auto")
    assert (draft.passes.engine, draft.passes.quantization) == (RoundingEngine(), "")


def test_a_target_never_has_the_rounded_weights_of_a_draft(
    pair: tuple[Backbone, Backbone],
) -> None:
    """Neither if it drafts for itself nor if it becomes the draft of another target, or was one."""
    target, draft = pair
    for backbones in ([target, target], [draft], [target, draft]):
        attach(backbones, "auto")
        assert [each.passes.quantization for each in backbones] == [""] * len(backbones)
    later = Backbone(draft.model)
    attach([target, later], "auto")
    assert later.passes.quantization == "int8"
    attach([later], "auto", keeps=True)
    assert later.passes.quantization == ""


def test_the_first_call_of_models_prepares_nothing(pair: tuple[Backbone, Backbone]) -> None:
    """It may be the only one. What is there is used at once."""
    attach_for_call(pair, "auto")
    assert [each.passes for each in pair] == [EAGER, EAGER]
    again = [Backbone(each.model) for each in pair]
    attach_for_call(again, "auto")
    assert [each.passes.quantization for each in again] == ["", "int8"]


def test_auto_leaves_a_model_that_has_hooks_now(pair: tuple[Backbone, Backbone]) -> None:
    target, _ = pair
    attach([target], "auto")
    assert engine_of(target) == RoundingEngine()
    handle = target.decoder.layers[0].register_forward_hook(lambda *_: None)
    attach([target], "auto")
    assert target.passes is EAGER
    handle.remove()


def test_models_of_another_engine_keep_their_passes() -> None:
    """Unless something is named."""
    first = draftlens.load(device="cpu", calibrate=False, compile=False)
    assert first.target.backbone.passes is EAGER
    passes = first.target.backbone.passes = Passes()
    second = draftlens.Engine(first.target, first.draft)
    assert second.target.backbone.passes is passes
    draftlens.Engine(first.target, first.draft, compile=False)
    assert first.target.backbone.passes is EAGER


def test_what_a_pair_that_is_only_loaded_runs_by_is_chosen(
    pair: tuple[Backbone, Backbone],
) -> None:
    """Models have no passes of another engine before an engine has had them."""
    target, draft = (Loaded("name", each, FAMILIES[0].processor()) for each in pair)
    draftlens.Engine(target, draft)
    assert [engine_of(each) for each in pair] == [RoundingEngine(), RoundingEngine("int8")]


def test_every_entry_point_chooses_by_default() -> None:
    for call in (draftlens.load, draftlens.Engine):
        assert signature(call).parameters["compile"].default == "auto"
    assert signature(draftlens.SpeculativeGenerate).parameters["compile"].default is False
    assert DecodingOptions().parsed()["compile"] == "auto"
    assert signature(parse_command).parameters["compile"].default == "auto"


def test_the_embedded_pair_runs_by_its_modules(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "draftlens"):
        engine = draftlens.load(device="cpu", calibrate=False)
    assert engine.draft is not None
    assert engine.target.backbone.passes is engine.draft.backbone.passes is EAGER
    assert "weights of less than 64 MiB" in caplog.text


def test_quantized_passes_need_their_engine(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match='compile="openvino" or "auto", and is "int8"'):
        attach([backbone, backbone], True, "int8")
    with pytest.raises(ConfigError, match="int2"):
        attach([backbone, backbone], "openvino", "int2")
    monkeypatch.setattr(openvino, "find_spec", lambda _: None)
    for compile in ("auto", "openvino"):
        with pytest.raises(ConfigError, match="pip install openvino"):
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
    assert str(refused.value) == 'compile="openvino" needs OpenVINO: pip install openvino'


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
