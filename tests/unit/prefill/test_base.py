"""Hidden states of a prefill are those that the unmodified model returns."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import target
from torch import Tensor
from transformers import DynamicCache

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.core.prefill_readings import FeatureSpec
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from draftlens.models.support import with_cache
from draftlens.prefill.base import FullPrefill, PrefillReading

BY_NAME = {family.name: family for family in FAMILIES}
two_families = pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])


def encoded(family: Family) -> tuple[Backbone, Prompt]:
    backbone = Backbone.of(target(family))
    prepared = backbone.prepare(inputs(family, family.richest), max_new_tokens=1)
    return backbone, backbone.encode(prepared)


@torch.no_grad()
def stock_states(backbone: Backbone, prompt: Prompt) -> tuple[Tensor, ...]:
    """Embeddings, the output of each layer but the last, and the normed output of the last."""
    output = backbone.decoder(
        inputs_embeds=prompt.embeds,
        position_ids=prompt.position_ids,
        attention_mask=None,
        **with_cache(DynamicCache(config=backbone.text_config)),
        use_cache=True,
        output_hidden_states=True,
        **prompt.extra,
    )
    states: tuple[Tensor, ...] = output.hidden_states
    return states


@two_families
def test_hidden_states_equal_those_of_the_model(name: str) -> None:
    backbone, prompt = encoded(BY_NAME[name])
    expected = stock_states(backbone, prompt)
    num_layers = backbone.text_config.num_hidden_layers
    with backbone.hidden_states(range(num_layers + 1)) as states:
        backbone.prefill(prompt, backbone.new_cache(prompt, 1))
    assert sorted(states) == [*range(num_layers + 1)]
    for layer in range(num_layers):
        assert torch.equal(states[layer], expected[layer]), layer
    with torch.no_grad():
        assert torch.equal(backbone.decoder.norm(states[num_layers]), expected[num_layers])


@two_families
def test_a_prefill_returns_the_requested_layers(name: str) -> None:
    """With attention scores as well; neither changes the logits."""
    backbone, prompt = encoded(BY_NAME[name])
    expected = stock_states(backbone, prompt)
    plain = backbone.prefill(prompt, backbone.new_cache(prompt, 1))
    for attention in (False, True):
        spec = FeatureSpec(attention, hidden_layers=(0, 1))
        reading = PrefillReading(prompt, backbone.new_cache(prompt, 1), spec)
        output = FullPrefill().run(backbone, reading)
        assert sorted(output.readings.hidden_states) == [0, 1]
        for layer, states in output.readings.hidden_states.items():
            assert torch.equal(states, expected[layer])
        assert (output.readings.attention is not None) is attention
        assert torch.equal(output.logits, plain)


def test_deepstack_features_are_included() -> None:
    """Qwen3-VL adds them between two layers; the model's own list does not show them."""
    backbone, prompt = encoded(BY_NAME["qwen3_vl"])
    expected = stock_states(backbone, prompt)
    with backbone.hidden_states([0, 1, 2]) as states:
        backbone.prefill(prompt, backbone.new_cache(prompt, 1))
    assert torch.equal(states[0], expected[0])
    features = prompt.extra["deepstack_visual_embeds"]
    assert len(features) == 2
    for layer, added in enumerate(features, start=1):
        assert torch.equal(states[layer][~prompt.visual], expected[layer][~prompt.visual])
        assert torch.equal(states[layer][prompt.visual], expected[layer][prompt.visual] + added)


def test_no_layers_no_hooks() -> None:
    backbone, prompt = encoded(BY_NAME["llava"])
    with backbone.hidden_states(()) as states:
        backbone.prefill(prompt, backbone.new_cache(prompt, 1))
    assert states == {}


def test_hooks_end_with_the_context() -> None:
    backbone, prompt = encoded(BY_NAME["llava"])
    with pytest.raises(ZeroDivisionError), backbone.hidden_states([0, 2]) as states:
        _ = 1 / 0
    backbone.prefill(prompt, backbone.new_cache(prompt, 1))
    assert states == {}


@pytest.mark.parametrize("layers", [[-1], [0, 3]])
def test_layers_that_do_not_exist(layers: list[int]) -> None:
    backbone, _ = encoded(BY_NAME["llava"])
    with (
        pytest.raises(ConfigError, match=r"has layers 0 to 2, not \["),
        backbone.hidden_states(layers),
    ):
        pass


def test_a_decoder_that_does_not_list_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, _ = encoded(BY_NAME["llava"])
    monkeypatch.setattr(backbone, "decoder", object())
    with (
        pytest.raises(UnsupportedModelError, match="does not list the layers of its decoder"),
        backbone.hidden_states([0]),
    ):
        pass
