"""The probe reads what an eager forward with `output_attentions` shows, and costs next to
nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import ALL_KINDS, target
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from draftlens.core.errors import UnsupportedModelError
from draftlens.core.prefill_readings import ATTENTION
from draftlens.models.adapter import Backbone
from draftlens.models.attention import dispatch
from draftlens.models.attention import scores as probe
from draftlens.models.attention.dispatch import dispatching
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import FullPrefill, PrefillReading

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


@cache
def eager(family: Family) -> Any:
    """A model of the same weights that can show its attention."""
    model = family.build()
    model.set_attn_implementation("eager")
    return model


def encoded(family: Family, given: dict[str, Any]) -> tuple[Backbone, Prompt]:
    backbone = Backbone.of(target(family))
    return backbone, backbone.encode(backbone.prepare(given, max_new_tokens=1))


def probed(backbone: Backbone, prompt: Prompt) -> Tensor:
    reading = PrefillReading(prompt, backbone.new_cache(prompt, 1), ATTENTION)
    output = FullPrefill().run(backbone, reading)
    assert output.readings.attention is not None
    return output.readings.attention


@torch.no_grad()
def twin(family: Family, prompt: Prompt) -> Tensor:
    """Row by row without padding, all maps of all layers at once, summed up in loops."""
    scores = torch.zeros(prompt.visual.shape)
    for row, length in enumerate(prompt.lengths):
        visual = prompt.visual[row, :length].tolist()
        output = eager(family).get_decoder()(
            inputs_embeds=prompt.embeds[row : row + 1, :length],
            attention_mask=torch.ones(1, length, dtype=torch.long),
            position_ids=prompt.position_ids[..., row : row + 1, :length],
            use_cache=False,
            output_attentions=True,
            **alone(prompt, row),
        )
        assert len(output.attentions) == family.build().config.get_text_config().num_hidden_layers
        maps = torch.cat(output.attentions).flatten(0, 1)  # [layers * heads, L, L]
        for reader in range(length):
            if not visual[reader] and any(visual[:reader]):
                scores[row, :length] += maps[:, reader].sum(0)
    return scores * prompt.visual


def alone(prompt: Prompt, row: int) -> dict[str, Any]:
    """Deepstack features of one row."""
    if "visual_pos_masks" not in prompt.extra:
        return {}
    before, own = int(prompt.visual[:row].sum()), int(prompt.visual[row].sum())
    features = [part[before : before + own] for part in prompt.extra["deepstack_visual_embeds"]]
    return {
        "visual_pos_masks": prompt.visual[row : row + 1, : prompt.lengths[row]],
        "deepstack_visual_embeds": features,
    }


@pytest.mark.parametrize(("family", "kind"), ALL_KINDS, ids=str)
def test_scores_equal_an_eager_forward(family: Family, kind: str) -> None:
    """Grouped queries, M-RoPE and deepstack, in a batch of different lengths."""
    backbone, prompt = encoded(family, inputs(family, kind))
    scores = probed(backbone, prompt)
    assert scores.dtype == torch.float32
    assert torch.allclose(scores, twin(family, prompt), atol=1e-5, rtol=1e-5)
    assert torch.equal(scores > 0, prompt.visual)


@pytest.mark.parametrize("name", ["llava", "llava_onevision", "qwen2_5_vl", "qwen3_vl", "smolvlm"])
def test_several_turns(name: str) -> None:
    """Words between two pictures read the first alone, words after both read both."""
    family = next(family for family in FAMILIES if family.name == name)
    texts = [
        f"User: hello {family.image}what is it\nAssistant: abc\nUser: and "
        f"{family.image}this\nAssistant:",
        f"User: {family.image}\nAssistant:",
    ]
    noise = np.random.default_rng(5)
    images = [
        [noise.integers(0, 256, (20, 28, 3), dtype=np.uint8) for _ in range(count)]
        for count in (2, 1)
    ]
    given = dict(
        family.tools(
            text=texts, images=images, padding=True, padding_side="left", return_tensors="pt"
        )
    )
    backbone, prompt = encoded(family, given)
    assert torch.allclose(probed(backbone, prompt), twin(family, prompt), atol=1e-5, rtol=1e-5)


VISUAL = torch.tensor(
    [
        [0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0],  # two pictures, then padding
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],  # text alone
        [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0],  # begins with a picture
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1],  # nobody reads what comes last
    ]
).bool()
LENGTHS = [9, 7, 12, 12]
READERS = [[4, 5, 7, 8], [], [4, 5, 6, 7, 8, 9, 10, 11], []]


def layers(heads: int, shared: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries and keys of three layers."""
    generator = torch.Generator().manual_seed(heads)
    for _ in range(3):
        yield (
            torch.randn(4, heads, 12, 8, generator=generator),
            torch.randn(4, shared, 12, 8, generator=generator),
        )


def summed(heads: int, shared: int, scaling: float) -> Tensor:
    """What the probe should find, one number after the other."""
    scores = torch.zeros(4, 12, dtype=torch.float64)
    for query, key in layers(heads, shared):
        for row, readers in enumerate(READERS):
            for head in range(heads):
                keys = key[row, head * shared // heads].double()
                for reader in readers:
                    weights = (
                        keys[: reader + 1] @ query[row, head, reader].double() * scaling
                    ).softmax(0)
                    scores[row, : reader + 1] += weights
    return (scores * VISUAL).float()


def read(heads: int, shared: int, scaling: float) -> Tensor:
    reading = AttentionProbe(VISUAL, LENGTHS)
    assert [row.tolist() for row in reading.readers] == READERS
    for query, key in layers(heads, shared):
        reading.add(query, key, scaling)
    assert len(reading.by_layer) == 3
    return reading.result()


@pytest.mark.parametrize(("heads", "shared"), [(1, 1), (4, 4), (4, 2), (6, 2), (4, 1)])
@pytest.mark.parametrize("scaling", [8**-0.5, 1.0])
def test_scores_equal_loops(heads: int, shared: int, scaling: float) -> None:
    scores = read(heads, shared, scaling)
    assert torch.allclose(scores, summed(heads, shared, scaling), atol=1e-5)
    assert not scores[1].any()
    assert not scores[3].any()
    assert not scores[~VISUAL].any()


@pytest.mark.parametrize("block", [1, 11, 12, 13, 30, 100, 300, 1 << 20])
def test_the_block_does_not_matter(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One question at a time, a few, a head, a few heads, all of them."""
    whole = read(6, 3, 0.5)
    monkeypatch.setattr(probe, "BLOCK", block)
    assert torch.allclose(read(6, 3, 0.5), whole, atol=1e-6)


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "internvl"])
def test_the_block_does_not_matter_to_a_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = next(family for family in FAMILIES if family.name == name)
    backbone, prompt = encoded(family, inputs(family, family.richest))
    whole = probed(backbone, prompt)
    monkeypatch.setattr(probe, "BLOCK", 500)
    assert torch.allclose(probed(backbone, prompt), whole, atol=1e-5, rtol=1e-5)


class Allocations(TorchDispatchMode):
    """Remembers the most elements of any tensor that was made, views not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        held = {
            leaf.untyped_storage().data_ptr()
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor)
        }
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in held:
                self.largest = max(
                    self.largest, leaf.untyped_storage().nbytes() // leaf.element_size()
                )
        return made


@pytest.mark.parametrize(("readers", "block"), [(6, 1 << 24), (300, 1 << 13), (300, 1 << 15)])
def test_no_map_of_all_tokens_by_all_tokens(
    readers: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few words reading much, and much text in blocks, which no number of heads and words makes
    larger."""
    monkeypatch.setattr(probe, "BLOCK", block)
    length, heads, width = 600, 8, 4
    visual = torch.zeros(1, length, dtype=torch.bool)
    visual[:, 2 : length - readers] = True
    reading = AttentionProbe(visual, [length])
    query, key = torch.randn(1, heads, length, width), torch.randn(1, 4, length, width)
    with Allocations() as seen:
        reading.add(query, key, 0.5)
    asked = heads * readers * width
    bound = max(asked, heads * readers * length if block > length**2 else block)
    assert length <= seen.largest <= bound < length**2


def test_a_language_model_is_as_it_was() -> None:
    """Also after an error, inside the `with` or inside the forward."""
    family = FAMILIES[0]
    backbone, prompt = encoded(family, inputs(family, "image"))
    config = backbone.decoder.config
    assert config._attn_implementation == "sdpa"
    with dispatching(backbone.decoder):
        assert config._attn_implementation == dispatch.NAME
    assert config._attn_implementation == "sdpa"
    with pytest.raises(ZeroDivisionError), dispatching(backbone.decoder):
        _ = 1 / 0
    assert config._attn_implementation == "sdpa"

    class Broken(AttentionProbe):
        def add(self, *_: object) -> None:
            raise FloatingPointError

    with pytest.raises(FloatingPointError):
        backbone.prefill(
            prompt, backbone.new_cache(prompt, 1), Broken(prompt.visual, prompt.lengths)
        )
    assert config._attn_implementation == "sdpa"


@every_family
def test_an_eager_target(family: Family) -> None:
    """It is read like any other, and stays eager."""
    backbone, prompt = encoded(family, inputs(family, family.richest))
    other = Backbone.of(eager(family))
    assert other.attention == "eager"
    assert torch.allclose(probed(other, prompt), probed(backbone, prompt), atol=1e-5, rtol=1e-5)
    assert other.decoder.config._attn_implementation == "eager"


@pytest.mark.parametrize("deaf", [slice(None), slice(1, None)], ids=["all", "one"])
def test_a_model_that_hands_nothing_on_is_refused(deaf: slice) -> None:
    """Or that hands it on to some of its layers only: half a reading is none."""
    family = FAMILIES[0]
    backbone, prompt = encoded(family, inputs(family, "image"))

    def forget(module: Any, args: Any, kwargs: Any) -> Any:
        return args, {name: value for name, value in kwargs.items() if name != dispatch.ARGUMENT}

    hooks = [
        layer.register_forward_pre_hook(forget, with_kwargs=True)
        for layer in list(backbone.decoder.layers)[deaf]
    ]
    try:
        with pytest.raises(
            UnsupportedModelError,
            match=r"Llava\w* does not let its attention be read: prune without",
        ):
            probed(backbone, prompt)
    finally:
        for hook in hooks:
            hook.remove()
    assert probed(backbone, prompt).any()


def test_without_a_probe_nothing_is_read() -> None:
    """Under the probe's name attention is `sdpa`."""
    family = FAMILIES[0]
    backbone, prompt = encoded(family, inputs(family, "image"))
    plain = backbone.prefill(prompt, backbone.new_cache(prompt, 1))
    with dispatching(backbone.decoder):
        assert torch.equal(backbone.prefill(prompt, backbone.new_cache(prompt, 1)), plain)


def test_half_precision_is_summed_in_float32() -> None:
    """Sixteen bits of queries and keys, thirty-two of scores."""
    exact, rough = AttentionProbe(VISUAL, LENGTHS), AttentionProbe(VISUAL, LENGTHS)
    for query, key in layers(4, 2):
        exact.add(query, key, 0.3)
        rough.add(query.bfloat16(), key.bfloat16(), 0.3)
    assert rough.result().dtype == torch.float32
    assert torch.allclose(rough.result(), exact.result(), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_queries_and_keys(dtype: torch.dtype) -> None:
    """Their unscaled products pass the largest float16; the scaled ones are no larger than
    usual."""
    exact, rough = AttentionProbe(VISUAL, LENGTHS), AttentionProbe(VISUAL, LENGTHS)
    for query, key in layers(4, 2):
        query, key = (300 * query).to(dtype), (300 * key).to(dtype)
        rough.add(query, key, 1e-5)
        exact.add(query.float(), key.float(), 1e-5)
    assert torch.allclose(rough.result(), exact.result(), atol=1e-5)
    assert rough.result().isfinite().all()


def test_layer_by_layer() -> None:
    """Each layer's own reading is the one it would give alone; together they are the whole."""
    whole = AttentionProbe(VISUAL, LENGTHS)
    for query, key in layers(4, 2):
        whole.add(query, key, 0.5)
        alone = AttentionProbe(VISUAL, LENGTHS)
        alone.add(query, key, 0.5)
        assert torch.equal(whole.by_layer[-1], alone.result())
    assert len(whole.by_layer) == 3
    assert torch.allclose(torch.stack(whole.by_layer).sum(0), whole.result(), atol=1e-5)


@pytest.mark.parametrize("scaling", [None, 0.7])
def test_a_layer_that_names_no_scaling(scaling: float | None) -> None:
    """It has the usual one, as in `sdpa`, whose answer is handed back; the probe goes no
    further."""

    class Layer:
        is_causal, num_key_value_groups = True, 2

    expected, reading = AttentionProbe(VISUAL, LENGTHS), AttentionProbe(VISUAL, LENGTHS)
    (query, key), *_ = layers(4, 2)
    expected.add(query, key, 8**-0.5 if scaling is None else scaling)
    attend = AttentionInterface()[dispatch.NAME]
    made, _ = attend(
        Layer(), query, key, key, None, scaling=scaling, **{dispatch.ARGUMENT: reading}
    )
    assert torch.equal(reading.result(), expected.result())
    assert torch.equal(
        made, sdpa_attention_forward(Layer(), query, key, key, None, scaling=scaling)[0]
    )
