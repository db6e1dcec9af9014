"""Passes by OpenVINO: the tokens of stock `generate`, and the states that the modules write."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import METHODS, NEW, draft, reference, target

import draftlens
from draftlens.compile import attach, openvino_passes
from draftlens.compile.openvino_passes import OpenVinoPasses
from draftlens.core import tree as trees
from draftlens.core.errors import ConfigError
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER

pytest.importorskip("openvino")


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_family_answers_by_openvino(family: Family) -> None:
    """A ragged batch of the richest inputs; a chain and a tree. The shared models may have hooks of
    other tests, which no engine would call."""
    model = _copy(target(family))
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


def test_a_pass_writes_the_slots_that_the_modules_write() -> None:
    """Rows of 3 and 2 tokens and a tree mask: equal logits, keys and values."""
    model = _copy(target(FAMILIES[0]))
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


def test_changed_weights_are_noticed() -> None:
    """The engine has a copy of the weights; an answer after a change is that of the new ones."""
    family = FAMILIES[0]
    model = _copy(target(family))
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
    model = _copy(target(FAMILIES[0]))
    backbone = Backbone.of(model)
    attach([backbone], "openvino")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1)
    split = openvino_passes.SplitPass.forward

    def wrong(self: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits, *states = split(self, *inputs)
        return (logits + 1, *states)

    monkeypatch.setattr(openvino_passes.SplitPass, "forward", wrong)
    backbone.passes.begin()
    expected = _forward(Backbone.of(_copy(model)))
    for _ in range(2):
        for ours, theirs in zip(_forward(backbone), expected, strict=True):
            assert torch.equal(ours, theirs)


def test_a_model_is_not_kept_alive() -> None:
    """Its passes end with it."""
    model = _copy(target(FAMILIES[0]))
    attach([Backbone.of(model)], "openvino")
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_what_openvino_does_not_run_stays_with_the_modules(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bfloat16 model: one warning that says why."""
    model = _copy(target(FAMILIES[0])).to(torch.bfloat16)
    backbone = Backbone.of(model)
    with caplog.at_level(logging.WARNING, "draftlens"):
        attach([backbone], "openvino")
    assert backbone.passes is EAGER
    assert "bfloat16" in caplog.text


def test_an_unknown_engine_is_refused() -> None:
    """The sentence names the values."""
    with pytest.raises(ConfigError, match="openvino"):
        attach([Backbone.of(target(FAMILIES[0]))], "tensorrt")  # type: ignore[arg-type]


def _copy(model: Any) -> Any:
    copied = type(model)(model.config)
    copied.load_state_dict(model.state_dict())
    return copied.eval()
