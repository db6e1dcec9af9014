"""Where and how weights stand: attention, offloaded and quantized modules, other dtypes, a GPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from families import FAMILIES, Family, inputs
from stock import METHODS, NEW, draft, noisy, reference, stock, target
from torch import Tensor, nn

import draftlens

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
methods = pytest.mark.parametrize("method", ["chain5", "eagle"])


def attending(model: Any, name: str) -> Any:
    """A copy with another attention implementation."""
    other = copy.deepcopy(model)
    other.set_attn_implementation(name)
    return other


@pytest.mark.pairwise("placement")
@every_family
@pytest.mark.parametrize(
    ("ours", "theirs", "method"), [("eager", "sdpa", "eagle"), ("sdpa", "eager", "chain5")]
)
def test_attention(family: Family, ours: str, theirs: str, method: str) -> None:
    """Target and draft each have their own."""
    given, model = inputs(family, family.richest), attending(target(family), ours)
    expected = stock(model, given, max_new_tokens=NEW)
    small = attending(draft(family), theirs)
    result = draftlens.generate(
        model, given, draft=small, method=METHODS[method], max_new_tokens=NEW
    )
    assert result.tokens == expected
    assert 0 < result.stats.accepted < result.stats.drafted


@every_family
def test_attention_that_changes_between_calls(family: Family) -> None:
    """What was found out about a model does not outlive it."""
    given, model = inputs(family, family.richest), copy.deepcopy(target(family))
    for name in ("sdpa", "eager", "sdpa"):
        model.set_attn_implementation(name)
        result = draftlens.generate(
            model, given, draft=draft(family), method=METHODS["odd"], max_new_tokens=13
        )
        assert result.tokens == [row[:13] for row in reference(family, family.richest)]


def children(model: Any) -> dict[str, str]:
    """A device map: language layers on disk by turns, all else of the body on disk, embeddings and
    head in memory."""
    body = model.base_model
    decoder = model.get_decoder()
    names = {module: name for name, module in model.named_modules()}
    places = {}
    for module in [
        *body.children(),
        *(child for child in decoder.children() if child not in (decoder.layers,)),
    ]:
        if module is not decoder:
            places[names[module]] = "disk"
    for index, layer in enumerate(decoder.layers):
        places[names[layer]] = "disk" if index % 2 == 0 else "cpu"
    places[names[model.get_input_embeddings()]] = "cpu"
    places["lm_head"] = "cpu"
    covered = tuple(f"{name}." for name in places)
    loose = [
        name
        for name, _ in [*model.named_parameters(), *model.named_buffers()]
        if not name.startswith(covered)
    ]
    return {**places, **dict.fromkeys(loose, "cpu")}


@every_family
@pytest.mark.filterwarnings(
    "ignore:The following device_map keys"
)  # accelerate wants loose parameters there, and warns
def test_offloaded_to_disk(family: Family, tmp_path: Path) -> None:
    """Vision tower and half of the layers are on disk: the hooks of accelerate bring them in when
    they are called."""
    model = dispatch_model(
        family.build(), children(target(family)), main_device="cpu", offload_dir=tmp_path
    )
    check_offloaded(family, model)


@every_family
def test_offloaded_altogether(family: Family) -> None:
    """Every weight comes when it is needed, those of embeddings and head too."""
    model = family.build()
    cpu_offload(model, execution_device=torch.device("cpu"))
    check_offloaded(family, model)


def check_offloaded(family: Family, model: Any) -> None:
    """Weights that are not there still speak, as target and as draft."""
    away = [name for name, weight in model.named_parameters() if weight.device.type == "meta"]
    assert any("vis" in name for name in away)
    assert any("layers.0.self_attn" in name for name in away)
    given, rows = inputs(family, family.richest), reference(family, family.richest)
    expected = [row[:9] for row in rows]
    assert (
        draftlens.generate(model, given, draft=draft(family), max_new_tokens=9).tokens == expected
    )
    result = draftlens.generate(
        target(family), given, draft=model, method=METHODS["eagle"], max_new_tokens=13
    )
    assert result.tokens == [row[:13] for row in rows]
    assert result.stats.mean_acceptance_length == 6
    # A parameter of the body itself stays: its module's forward is cut short where the language
    # model is called.
    left = {name for name, weight in model.named_parameters() if weight.device.type == "meta"}
    assert set(away) - left <= {"model.image_newline"}


class Int8(nn.Module):
    """A linear layer with 8-bit weights and no float weight to look at."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("codes", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Weights become floats on the way."""
        return nn.functional.linear(x, self.codes.to(x.dtype) * self.scale, self.bias)


def quantized(family: Family) -> Any:
    """The family's model with all linear layers of its language model, and its head, in 8 bits."""
    model = family.build()
    for module in [*model.get_decoder().modules(), model]:
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8(child))
    return model


@pytest.mark.pairwise("placement")
@every_family
@methods
def test_quantized(family: Family, method: str) -> None:
    """As target, against stock `generate` of the same model; and as draft, where eight bits are
    noise enough."""
    given, model = inputs(family, family.richest), quantized(family)
    assert not any(isinstance(module, nn.Linear) for module in model.get_decoder().modules())
    result = draftlens.generate(
        model, given, draft=draft(family), method=METHODS[method], max_new_tokens=NEW
    )
    assert result.tokens == stock(model, given, max_new_tokens=NEW)
    assert 0 < result.stats.accepted < result.stats.drafted
    result = draftlens.generate(
        target(family), given, draft=model, method=METHODS[method], max_new_tokens=NEW
    )
    assert result.tokens == reference(family, family.richest)
    assert result.stats.mean_acceptance_length > 2


@every_family
def test_bfloat16_is_never_called_lossless(family: Family) -> None:
    """Near-ties may fall otherwise there, and the result says so; a draft in bfloat16 changes
    nothing."""
    given, rows = inputs(family, family.richest), reference(family, family.richest)
    small = copy.deepcopy(draft(family)).to(torch.bfloat16)
    half = {
        key: value.to(torch.bfloat16) if value.is_floating_point() else value
        for key, value in given.items()
    }
    result = draftlens.generate(
        target(family), given, draft=small, draft_inputs=half, max_new_tokens=NEW
    )
    assert result.tokens == rows
    assert result.lossless
    result = draftlens.generate(
        small, half, draft=draft(family), draft_inputs=given, max_new_tokens=3
    )
    assert not result.lossless
    assert result.approximate == ("near-ties in bfloat16",)
    copied = draftlens.generate(small, half, max_new_tokens=3)
    assert copied.approximate == ("near-ties in bfloat16",)
    assert draftlens.generate(small, half, method="plain", max_new_tokens=3).lossless


@pytest.mark.gpu
@methods
@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.name in ("qwen3_vl", "smolvlm")], ids=str
)
@pytest.mark.parametrize("do_sample", [False, True])
def test_on_a_gpu(family: Family, method: str, do_sample: bool) -> None:
    """The same on a CUDA device, in float32."""
    model = family.build().to("cuda")
    given = {key: value.to("cuda") for key, value in inputs(family, family.richest).items()}
    options = {"max_new_tokens": NEW, "do_sample": do_sample, "seed": 2}
    result = draftlens.generate(model, given, draft=noisy(model), method=METHODS[method], **options)
    assert 0 < result.stats.accepted < result.stats.drafted
    if do_sample:
        assert result.tokens == draftlens.generate(model, given, **options).tokens
    else:
        assert result.tokens == stock(model, given, max_new_tokens=NEW)


@pytest.mark.gpu
def test_target_and_draft_on_different_devices() -> None:
    """Draft tokens and verdicts cross over."""
    family = FAMILIES[2]
    model, given = copy.deepcopy(target(family)).to("cuda"), inputs(family, family.richest)
    expected = stock(
        model, {key: value.to("cuda") for key, value in given.items()}, max_new_tokens=NEW
    )
    assert (
        draftlens.generate(model, given, draft=draft(family), max_new_tokens=NEW).tokens == expected
    )
    result = draftlens.generate(
        target(family), given, draft=model, method=METHODS["eagle"], max_new_tokens=NEW
    )
    assert result.tokens == reference(family, family.richest)
