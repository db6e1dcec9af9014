"""Targets with rounded weights: what an attach leaves in memory, and which matrices have 8 bits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration

from draftlens.core.memory import trim_memory
from draftlens.models.adapter import Backbone
from draftlens.models.rounded_weights import (
    RoundedLinear,
    RoundedMatrix,
    RoundedWeights,
    layer_bits,
    rounded_layer,
)
from draftlens.passes import openvino, quantization

SIZE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}
IN_A_PROCESS = """
import json, sys
from test_quantization import resident_of_attach
print(json.dumps(resident_of_attach(*sys.argv[1:])))
"""


def model_of(**text: Any) -> Any:
    """A random model with grouped queries."""
    torch.manual_seed(0)
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    }
    words: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        **text,
    }
    return LlavaForConditionalGeneration(
        LlavaConfig(text_config=words, vision_config=vision, image_token_index=95)
    ).eval()


def resident() -> float:
    """Bytes of this process that are in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) * 1024


def resident_of_attach(folder: str, rounding: str) -> dict[str, float]:
    """What loading and attaching add to the bytes of this process, and the model's bytes in
    float32. Libraries and their buffers are there before, by a small model."""
    quantization.attach_rounded(Backbone(model_of()), "openvino", rounding)
    trim_memory()
    before = resident()
    config = quantization.rounding_engine("openvino", rounding).loading()
    model = LlavaForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, quantization_config=config
    )
    quantization.attach_rounded(Backbone(model), "openvino", rounding)
    weights = json.loads((Path(folder) / "size.json").read_text())
    return {"added": resident() - before, "float32": weights}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system has no such file")
@pytest.mark.parametrize("rounding", ["int8", "int4"])
def test_a_rounded_target_is_smaller_than_in_float32(rounding: str, tmp_path: Path) -> None:
    """Memory of the checkpoint, of rounding and of the check is handed back."""
    model = model_of(**SIZE)
    size = sum(each.numel() * 4 for each in model.parameters())
    (tmp_path / "size.json").write_text(json.dumps(size))
    model.bfloat16().save_pretrained(tmp_path)
    command = [sys.executable, "-W", "ignore", "-c", IN_A_PROCESS, str(tmp_path), rounding]
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent
    )
    found = json.loads(output.stdout.splitlines()[-1])
    assert found["added"] < found["float32"]


def test_memory_is_handed_back_before_and_after_passes_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = []
    made = quantization.made_passes

    def make(*given: Any) -> Any:
        events.append("made")
        return made(*given)

    monkeypatch.setattr(quantization, "made_passes", make)
    monkeypatch.setattr(quantization, "trim_memory", lambda: events.append("trimmed"))
    quantization.attach_rounded(Backbone(model_of()), "openvino", "int8")
    assert events == ["trimmed", "made", "trimmed"]


def loaded(folder: Path, bits: int = 4) -> Any:
    """A model whose matrices are rounded while they are read."""
    model_of().save_pretrained(folder)
    return LlavaForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, quantization_config=RoundedWeights(bits)
    )


def test_4_bit_constants_stand_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph has the memory of the layers' integers, which lives as long as the passes, and the
    layers give it up."""
    backbone = Backbone(loaded(tmp_path))
    layers = [each for each in backbone.model.modules() if isinstance(each, RoundedLinear)]
    integers = {each.matrix.integers.data_ptr() for each in layers if each.zeros is not None}
    graphs = []
    round_products = openvino.round_products

    def rounded(graph: Any, *given: Any) -> int:
        graphs.append(graph)
        return round_products(graph, *given)

    monkeypatch.setattr(openvino, "round_products", rounded)
    quantization.attach_rounded(backbone, "openvino", "int4")
    constants = {
        node.data.ctypes.data
        for node in graphs[-1].get_ops()
        if node.get_type_name() == "Constant" and node.get_element_type().get_type_name() == "u4"
    }
    assert integers
    assert constants == integers
    assert isinstance(backbone.passes, openvino.OpenVinoPasses)
    assert integers <= {each.data_ptr() for each in backbone.passes._constants}
    assert all(each.integers is None and each.zeros is None for each in layers)


def test_sensitive_matrices_have_8_bits() -> None:
    """Values, keys of grouped queries, a half of the last products of feed-forward blocks, and the
    output head; all else has 4. Without grouped queries values alone."""
    model = model_of(num_hidden_layers=16)
    bits = layer_bits(model, 4)
    of_role = {
        role: "".join(str(each) for name, each in bits.items() if name.endswith(role))
        for role in ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head")
    }
    assert of_role == {
        "q_proj": "4" * 16,
        "k_proj": "8" * 16,
        "v_proj": "8" * 16,
        "o_proj": "4" * 16,
        "up_proj": "4" * 16,
        "down_proj": "8844844844844888",
        "lm_head": "8",
    }
    assert not any("vision" in name or "projector" in name for name in bits)
    assert set(layer_bits(model, 8).values()) == {8}
    alone = layer_bits(model_of(num_key_value_heads=8), 4)
    assert {name.rpartition(".")[2] for name, each in alone.items() if each == 8} == {
        "v_proj",
        "down_proj",
        "lm_head",
    }


@pytest.mark.parametrize("way", ["read", "copied"])
def test_bits_are_the_same_however_a_model_is_rounded(way: str, tmp_path: Path) -> None:
    """While it is read, and in a graph of the model in float32."""
    if way == "read":
        model = loaded(tmp_path)
        found = {
            name: each.matrix.bits
            for name, each in model.named_modules()
            if isinstance(each, RoundedLinear)
        }
        assert found == layer_bits(model_of(), 4)
        assert all(rounded_layer(model, f"{name}.weight") is not None for name in found)
        return
    backbone = Backbone(model_of())
    graph = openvino.traced_graph(backbone, ())
    openvino.unbind(graph, backbone)
    openvino.bind(graph, backbone)
    expected = layer_bits(backbone.model, 4)
    openvino.round_products(graph, 4, expected)
    kinds = [
        node.get_element_type().get_type_name()
        for node in graph.get_ops()
        if node.get_type_name() == "Constant"
    ]
    used = list(expected.values())
    assert (kinds.count("u4"), kinds.count("i8")) == (used.count(4), used.count(8))


def test_4_bits_have_a_zero_in_each_group() -> None:
    """Values of one sign use all 16 integers, 0 stays 0, and a group without values is exact."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.rand(3, 256, generator=generator) + 0.01
    matrix[1, :128] *= -1
    matrix[2, 128:] = 0
    matrix[0, ::7] = 0
    rounded = RoundedMatrix.of(matrix, 4)
    values = rounded.values()
    assert rounded.zeros is not None
    assert rounded.zeros.flatten().tolist() == [0, 0, 15, 0, 0, 0]
    assert (values[matrix == 0] == 0).all()
    steps = matrix.abs().view(3, 2, 128).amax(2, keepdim=True) / 15
    assert ((values - matrix).view(3, 2, 128).abs() <= 0.5001 * steps).all()
    assert torch.equal(rounded.rows(slice(1, 3)).values(), values[1:])
