"""Passes by OpenVINO: the tokens of stock `generate`, and the states that the modules write."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import multimodal_types
import pytest
import torch
from batches import batch_of, sequences
from document_models import READERS, Reader
from families import FAMILIES, Family, inputs
from pass_engines import check_process_drafts_by, copied
from stock import METHODS, NEW, draft, noisy, reference, stock, target
from stock_families import STOCK_FAMILIES, WINDOW, WINDOWED, model_of, prompts
from test_windows import MIXED

import draftlens
from draftlens.core import tree as trees
from draftlens.core.errors import ConfigError
from draftlens.methods.parallelvlm.draft_side import Worker
from draftlens.methods.parallelvlm.messages import Arrive, DraftTokens, Open
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER
from draftlens.passes import BY_MODULES, attach, engine_of, openvino, split_pass
from draftlens.passes.openvino import OpenVinoEngine, OpenVinoPasses
from draftlens.request import Request
from draftlens.streaming import Stream

pytest.importorskip("openvino")
pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="OpenVINO's attention needs AVX2: models keep their modules",
)

BY_NAME = {family.name: family for family in FAMILIES}
BY_LABEL = {str(family): family for family in (*WINDOWED, *STOCK_FAMILIES)}

OTHER_LAYERS = ("MistralText", "Gemma3", "Gemma4", "Cohere2Vision", "PaliGemma")
"""All layers slide, some, or none. Prompts of Gemma with pictures attend both ways; Gemma 4 has
layers that share keys, inputs of tokens for each layer and capped logits."""

INT8 = "<Type: 'int8_t'>"

INTERRUPTED = """
import gc, signal, threading, draftlens
engines = [draftlens.load(device="cpu", compile="openvino")]
engines[0].generate("Hello", max_new_tokens=4)
freeing = threading.Thread(target=lambda: (engines.clear(), gc.collect()))
freeing.start()
freeing.join()
signal.signal(signal.SIGINT, lambda number, frame: print("handled"))
signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_family_answers_by_openvino(family: Family) -> None:
    """A ragged batch of the richest inputs; a chain and a tree. The shared models may have hooks of
    other tests, which no engine would call."""
    model = copied(target(family))
    for method in ("chain5", "eagle"):
        result = draftlens.generate(
            model,
            inputs(family, family.richest),
            draft=draft(family),
            method=METHODS[method],
            max_new_tokens=NEW,
            compile="openvino",
        )
        assert result.tokens == reference(family, family.richest)
    attach([backbone := Backbone.of(model)], "openvino")
    assert isinstance(backbone.passes, OpenVinoPasses)


@pytest.mark.parametrize("label", OTHER_LAYERS)
def test_other_layers_answer_by_openvino(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt longer than the window beside one that becomes so, with a picture where the family
    has any. OpenVINO computes every pass, those of prompts in parts that divide no picture."""
    family = BY_LABEL[label]
    model = model_of(family)
    small = Backbone.of(noisy(model))
    given = prompts(family, (19, 5), bool(family.tokens))
    expected = stock(model, given, max_new_tokens=NEW)
    backbone = Backbone.of(copied(model))
    attach([backbone], "openvino")
    assert isinstance(backbone.passes, OpenVinoPasses)
    monkeypatch.setattr(Backbone, "_hidden", _no_modules(backbone))
    monkeypatch.setattr(split_pass, "PART", 5)
    monkeypatch.setattr(split_pass, "FEW_SLOTS", WINDOW)
    for method in ("chain5", "eagle"):
        request = Request(given, method=METHODS[method], options={"max_new_tokens": NEW})
        result = Stream(backbone, small, request).run()
        assert result.tokens == expected
        assert 0 < result.stats.accepted < result.stats.drafted


def _no_modules(backbone: Backbone) -> Any:
    """`Backbone._hidden` that refuses passes of one model."""
    compute = Backbone._hidden

    def hidden(self: Backbone, *arguments: Any) -> torch.Tensor:
        assert self.model is not backbone.model
        return compute(self, *arguments)

    return hidden


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("reader", READERS, ids=str)
def test_pages_are_read_by_openvino(reader: Reader) -> None:
    """Trees of references that are nearly right. DeepSeek's layers loop over experts."""
    model, processor = reader.build()
    given = reader.inputs(processor)
    expected = stock(model, given, max_new_tokens=NEW)
    backbone = Backbone.of(model)
    attach([backbone], "openvino")
    assert isinstance(backbone.passes, OpenVinoPasses) is (reader.name != "DeepseekOcr2")
    texts = [[[*row[:6], 7, *row[7:]]] for row in expected]
    method = {"method": "lookup", "num_speculative_tokens": 4, "max_branches": 2}
    request = Request(
        given, method=method, options={"max_new_tokens": NEW}, extras={"references": texts}
    )
    result = Stream(backbone, None, request).run()
    assert result.tokens == expected
    assert result.stats.accepted > 0


def test_masks_of_the_wrong_layers_never_run(
    private_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The tokens of the check cross a window of two, however long the window of the model is."""
    monkeypatch.setattr(split_pass, "FULL", split_pass.SLIDING)
    monkeypatch.setattr(split_pass, "SLIDING", "full_attention")
    backbone = Backbone.of(copied(target(MIXED)))
    attach([backbone], "openvino")
    assert backbone.passes is EAGER
    assert "its logits differ from those of the model" in caplog.text


@pytest.mark.parametrize("label", ["MuseGlimmer", "Cohere2Text"])
def test_what_is_computed_around_the_graph(label: str) -> None:
    """An answer with placeholders of media, which Muse reads as other ids; a scale of logits."""
    model = copied(model_of(BY_LABEL[label]))
    ids = torch.tensor([[7, 9, 201, 202, 11]])
    logits = []
    for compile in (False, "openvino"):
        backbone = Backbone.of(model)
        attach([backbone], compile)
        prompt = backbone.text_prompt(ids[:, :2])
        cache = backbone.new_cache(prompt, room=3)
        backbone.prefill(prompt, cache)
        positions = prompt.positions(torch.arange(3)[None])
        mask = trees.attention_mask([2], torch.ones(3, 3, dtype=torch.bool).tril())
        logits.append(backbone.forward(ids[:, 2:], positions, cache, mask))
    assert backbone.passes.label
    assert torch.allclose(*logits, atol=1e-4)


@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[3]], ids=str)
@pytest.mark.parametrize("method", ["chain5", "eagle"])
def test_a_draft_with_8_bit_weights_changes_no_token(family: Family, method: str) -> None:
    """A ragged batch; the draft's passes are those of OpenVINO with 8-bit weights."""
    models = [Backbone.of(copied(target(family))), Backbone.of(copied(draft(family)))]
    attach(models, "openvino", "int8")
    assert [model.passes.label for model in models] == ["openvino", "openvino int8"]
    request = Request(
        inputs(family, family.richest), method=METHODS[method], options={"max_new_tokens": NEW}
    )
    result = Stream(*models, request).run()
    assert result.tokens == reference(family, family.richest)
    assert result.lossless


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_process_drafts_by_the_same_engine(
    quantization: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = OpenVinoEngine(quantization or "")
    check_process_drafts_by("openvino", quantization, engine, monkeypatch)


def test_a_worker_drafts_by_the_engine_that_is_named() -> None:
    family = FAMILIES[0]
    small = Backbone.of(copied(draft(family)))
    given: Any = inputs(family, family.richest, (0,))
    tokens = []
    for engine in (BY_MODULES, OpenVinoEngine(), OpenVinoEngine("int8"), BY_MODULES):
        sent: list[Any] = []
        worker = Worker(small, sent.append)
        worker.handle(Open(0, small.vocab_size, None, shows_choices=False, engine=engine))
        assert engine_of(small) == engine
        batch = batch_of(sequences(given["input_ids"], [[]]))
        worker.handle(Arrive(0, (0,), batch, given, 20, 4, waits=False))
        while worker.can_step:
            worker.step()
        drafted = [each for each in sent if isinstance(each, DraftTokens)]
        tokens.append([token.token for each in drafted for token in each.tokens])
    assert tokens[0] == tokens[1] == tokens[3]
    assert len(tokens[2]) == len(tokens[0])


def test_8_bit_weights_are_those_of_the_products() -> None:
    """Each matrix of a product is int8 with a scale for each output; other weights are float32."""
    backbone = Backbone.of(copied(target(FAMILIES[0])))
    graph = openvino.traced_graph(backbone, ())
    openvino.round_products(graph, 8)
    constants = [node for node in graph.get_ops() if node.get_type_name() == "Constant"]
    bytes_of = [node.data.nbytes for node in constants if str(node.get_element_type()) == INT8]
    linear = [m for m in backbone.decoder.modules() if isinstance(m, torch.nn.Linear)]
    expected = [module.weight.numel() for module in [*linear, backbone.head]]
    assert sorted(bytes_of) == sorted(expected)


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("draftlens.passes.structure.cache_folder", lambda: tmp_path)
    return tmp_path / "compiled"


def test_a_second_start_reads_the_graph(private_cache: Path) -> None:
    """It holds no weights, and fits other weights of the same structure."""
    first = copied(target(FAMILIES[0]))
    assert not _passes(first).is_stored
    (graph,) = private_cache.glob("*/*.bin")
    assert graph.stat().st_size < 1000
    other = copied(first)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.9)
    assert _passes(other).is_stored


def test_files_that_others_may_write_or_that_are_damaged_are_not_read(private_cache: Path) -> None:
    """The model is traced again, and the file is replaced."""
    model = copied(target(FAMILIES[0]))
    _passes(model)
    (path,) = private_cache.glob("*/*.xml")
    path.chmod(0o666)
    assert not _passes(copied(model)).is_stored
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("<net")
    assert not _passes(copied(model)).is_stored
    assert _passes(copied(model)).is_stored


def test_a_stored_graph_that_differs_is_traced_again(private_cache: Path) -> None:
    """Logits of a graph on disk are compared with those of the modules at each start."""
    model = copied(target(FAMILIES[0]))
    _passes(model)
    (path,) = private_cache.glob("*/*.xml")
    text = path.read_text()
    path.write_text(text.replace('type="Cos"', 'type="Sin"'))
    os.chmod(path, 0o600)
    assert not _passes(copied(model)).is_stored
    assert 'type="Cos"' in path.read_text()


def _passes(model: Any) -> OpenVinoPasses:
    return OpenVinoPasses(Backbone.of(model))


def test_a_pass_writes_the_slots_that_the_modules_write() -> None:
    """Rows of 3 and 2 tokens and a tree mask: equal logits, keys and values."""
    model = copied(target(FAMILIES[0]))
    expected = _forward(Backbone.of(model))
    backbone = Backbone.of(model)
    attach([backbone], "openvino")
    for ours, theirs in zip(_forward(backbone), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def _forward(backbone: Backbone) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids = torch.arange(1, 13).reshape(2, 6)
    prompt = backbone.text_prompt(ids[:, :3])
    positions = prompt.positions(torch.tensor([[0, 1, 1], [0, 1, 1]]))
    cache = backbone.new_cache(prompt, room=3)
    backbone.prefill(prompt, cache)
    cache.truncate([3, 2])
    window = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    mask = trees.attention_mask([3, 2], window)
    logits = backbone.forward(ids[:, 3:], positions, cache, mask)
    layer = cache.layers[-1]
    return logits, layer.keys[1, :, :5].clone(), layer.values[1, :, :5].clone()


@pytest.mark.parametrize("family", [FAMILIES[0], BY_NAME["qwen2_5_vl"], MIXED], ids=str)
@pytest.mark.parametrize("num_logits", [1, 3])
@pytest.mark.parametrize("size", [5, 256])
def test_prompts_are_read_as_by_the_modules(
    family: Family, num_logits: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ragged rows with pictures, in one part or in several: equal logits, keys and values, also
    where a second turn is read after the first."""
    monkeypatch.setattr(split_pass, "PART", size)
    monkeypatch.setattr(split_pass, "LEAST_PART", 1)
    monkeypatch.setattr(split_pass, "FEW_SLOTS", WINDOW)
    backbone = Backbone.of(copied(target(family)))
    prompt = backbone.encode(backbone.prepare(inputs(family, family.richest), max_new_tokens=1))
    assert len(set(prompt.lengths)) > 1
    turn = backbone.text_prompt(torch.arange(1, 22).reshape(3, 7))
    read = []
    for compile in (False, "openvino"):
        attach([backbone], compile)
        cache = backbone.new_cache(prompt, room=8).whole()
        logits = [backbone.prefill(prompt, cache, None, num_logits), backbone.read_on(turn, cache)]
        states = [cache.states(row, 0, length) for row, length in enumerate(cache.lengths)]
        tensors = [tensor for row in states for layer in row for tensor in layer]
        read.append((cache.lengths, [*logits, *tensors]))
    assert isinstance(backbone.passes, OpenVinoPasses)
    assert read[0][0] == read[1][0] == [length + 7 for length in prompt.lengths]
    for ours, theirs in zip(read[1][1], read[0][1], strict=True):
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_prompts_may_have_further_axes_of_positions() -> None:
    """Texts that Qwen2.5-Omni reads alone have three axes, its prompts four."""
    model = multimodal_types.build("qwen2_5_omni_thinker")
    given = multimodal_types.prompts(model)
    backbone = Backbone(model)
    attach([backbone], "openvino")
    request = Request(given, method="lookup", options={"max_new_tokens": NEW})
    result = Stream(backbone, None, request).run()
    assert result.tokens == stock(model, given, max_new_tokens=NEW)
    assert isinstance(backbone.passes, OpenVinoPasses)
    assert backbone.passes._functions[(4,)] is not None


def test_what_reads_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules, where they have features to add between layers, where attention is measured,
    and where the pairs of a long prompt would take much memory."""
    with_features, family = BY_NAME["qwen3_vl"], BY_NAME["llava"]
    assert _parts_read(family, "plain") == [True]
    assert _parts_read(with_features, "plain") == [False]
    assert _parts_read(family, {"method": "specvlm", "draft": "self"}) == []
    monkeypatch.setattr(split_pass, "SCORES", 1000)
    assert _parts_read(family, "plain") == [False]


def _parts_read(family: Family, method: Any) -> list[bool]:
    """Of each prompt that the passes were given, whether they read it; the answer is stock's."""
    backbone = Backbone.of(copied(target(family)))
    attach([backbone], "openvino")
    read, found = backbone.passes.read, []

    def watched(*arguments: Any) -> torch.Tensor | None:
        logits = read(*arguments)
        found.append(logits is not None)
        return logits

    backbone.passes.read = watched  # type: ignore[method-assign]
    request = Request(
        inputs(family, family.richest), method=method, options={"max_new_tokens": NEW}
    )
    result = Stream(backbone, None, request).run()
    assert result.tokens == reference(family, family.richest)
    return found


def test_changed_weights_are_noticed() -> None:
    """The engine has a copy of the weights; an answer after a change is that of the new ones."""
    family = FAMILIES[0]
    model = copied(target(family))
    arguments: dict[str, Any] = {"method": "plain", "max_new_tokens": NEW}
    draftlens.generate(model, inputs(family, "text"), compile="openvino", **arguments)
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight.copy_(weight.flip(0))
    ours = draftlens.generate(model, inputs(family, "text"), compile="openvino", **arguments)
    theirs = draftlens.generate(model, inputs(family, "text"), compile=False, **arguments)
    assert ours.tokens == theirs.tokens


def test_what_differs_from_the_modules_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the weights the engine fails its check: the modules answer."""
    model = copied(target(FAMILIES[0]))
    backbone = Backbone.of(model)
    attach([backbone], "openvino")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1)
    split = openvino.SplitPass.forward

    def wrong(self: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits, *states = split(self, *inputs)
        return (logits + 1, *states)

    monkeypatch.setattr(openvino.SplitPass, "forward", wrong)
    monkeypatch.setattr(openvino.GraphFile, "of", lambda *_: None)
    backbone.passes.begin()
    expected = _forward(Backbone.of(copied(model)))
    for _ in range(2):
        for ours, theirs in zip(_forward(backbone), expected, strict=True):
            assert torch.equal(ours, theirs)


def test_a_model_is_not_kept_alive() -> None:
    """Its passes end with it."""
    model = copied(target(FAMILIES[0]))
    attach([Backbone.of(model)], "openvino")
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_a_signal_is_handled_after_a_thread_freed_the_passes() -> None:
    """A plug-in that a thread unloads leaves a freed stack for signals (`passes.openvino.core`)."""
    command = [sys.executable, "-c", INTERRUPTED]
    process = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["handled"]


def test_what_openvino_does_not_run_stays_with_the_modules(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bfloat16 model: one warning that says why."""
    model = copied(target(FAMILIES[0])).to(torch.bfloat16)
    backbone = Backbone.of(model)
    with caplog.at_level(logging.WARNING, "draftlens"):
        attach([backbone], "openvino")
    assert backbone.passes is EAGER
    assert "bfloat16" in caplog.text


def test_an_unknown_engine_is_refused() -> None:
    """The sentence names the values."""
    with pytest.raises(ConfigError, match="openvino"):
        attach([Backbone.of(target(FAMILIES[0]))], "tensorrt")  # type: ignore[arg-type]


def test_loops_over_experts_are_not_traced(caplog: pytest.LogCaptureFixture) -> None:
    """A trace would hold the experts that the tokens of the example choose."""
    model = multimodal_types.build("qwen3_vl_moe")
    model.set_experts_implementation("eager")
    backbone = Backbone(model)
    attach([backbone], "openvino")
    assert backbone.passes is EAGER
    assert "its layers run over experts that tokens choose" in caplog.text
    given = {"input_ids": torch.arange(5, 22)[None], "attention_mask": torch.ones(1, 17).long()}
    result = draftlens.generate(
        model, given, method="lookup", compile="openvino", max_new_tokens=NEW
    )
    assert result.tokens == stock(model, given, max_new_tokens=NEW)


def test_texts_and_pictures_share_a_function() -> None:
    """Positions of texts are those of M-RoPE with the same number on all axes, so that the weights
    are packed once."""
    family = next(each for each in FAMILIES if each.name == "qwen2_5_vl")
    backbone = Backbone.of(copied(target(family)))
    attach([backbone], "openvino")
    passes = backbone.passes
    assert isinstance(passes, OpenVinoPasses)
    prompt = backbone.text_prompt(torch.arange(3, 9)[None])
    flat = replace(prompt, position_ids=torch.arange(6)[None])
    logits = [backbone.prefill(each, backbone.new_cache(each, room=2)) for each in (prompt, flat)]
    assert torch.equal(*logits)
    assert passes.read(flat, backbone.new_cache(flat, room=2), 1) is not None
    given = backbone.encode(backbone.prepare(inputs(family, "image"), max_new_tokens=1))
    assert passes.read(given, backbone.new_cache(given, room=2), 1) is not None
    assert list(passes._functions) == [(4,)]
