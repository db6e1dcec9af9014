"""Similarities are those of an explicit map of cosines over the model's own hidden states, and they
arrive while the prefill still runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
import torch
from accelerate import cpu_offload
from families import FAMILIES, Family, inputs
from stock import ALL_KINDS, target
from torch import Tensor
from torch.nn.functional import cosine_similarity

from draftlens.core.prefill_readings import (
    ATTENTION,
    NO_FEATURES,
    FeatureSpec,
    PrefillFeatures,
    Similarity,
    early_layer,
)
from draftlens.models.adapter import Backbone
from draftlens.models.attention.similarities import similarity
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import FullPrefill, PrefillReading
from draftlens.pruning.similarity import UVPruner
from tests.unit.models.attention.test_scores import alone, eager

BY_NAME = {family.name: family for family in FAMILIES}
LONG = 30.0
"""Seconds after which a thread certainly has run."""

DEEP = 10
"""Layers of a deeper model, of which 7 may be read."""


def deeper(name: str) -> Family:
    """A family with more layers."""
    family = BY_NAME[name]
    return replace(family, text={**family.text, "num_hidden_layers": DEEP})


def encoded(family: Family, kind: str) -> tuple[Backbone, Prompt]:
    backbone = Backbone.of(target(family))
    return backbone, backbone.encode(backbone.prepare(inputs(family, kind), max_new_tokens=1))


def taken(backbone: Backbone, prompt: Prompt, spec: FeatureSpec) -> PrefillFeatures:
    reading = PrefillReading(prompt, backbone.new_cache(prompt, 1), spec)
    return FullPrefill().run(backbone, reading).readings


@torch.no_grad()
def stock_states(backbone: Backbone, prompt: Prompt, row: int) -> list[Tensor]:
    """Hidden states ``[L, D]`` of one row without padding, from the model's own list, to which the
    features are added that Qwen3-VL adds between layers."""
    length = prompt.lengths[row]
    extra = alone(prompt, row)
    output = backbone.decoder(
        inputs_embeds=prompt.embeds[row : row + 1, :length],
        attention_mask=torch.ones(1, length, dtype=torch.long),
        position_ids=prompt.position_ids[..., row : row + 1, :length],
        use_cache=False,
        output_hidden_states=True,
        **extra,
    )
    states = [layer[0].clone() for layer in output.hidden_states]
    visual = prompt.visual[row, :length]
    for layer, features in enumerate(extra.get("deepstack_visual_embeds", ()), start=1):
        states[layer][visual] += features
    return states


def cosines(states: Tensor, visual: Tensor, text: str) -> Tensor:
    """The map S_ij of one row, float32 ``[m, n]``, all by all."""
    places = visual.nonzero()[:, 0].tolist()
    words = [word for word in range(len(visual)) if not visual[word]]
    if text == "after":
        words = [word for word in words if places and word > places[0]]
    return cosine_similarity(states[places][:, None], states[words][None], dim=-1)


def twin(states: list[Tensor], visual: Tensor, layer: int, text: str) -> Tensor:
    """S^l of one row, float32 ``[L]``."""
    scores = torch.zeros(len(visual))
    scores[visual] = cosines(states[layer], visual, text).sum(1)
    return scores


@pytest.mark.parametrize(("family", "kind"), ALL_KINDS, ids=str)
def test_similarities_equal_an_explicit_map(family: Family, kind: str) -> None:
    """In a ragged batch, at both ends of what may be read, with both texts."""
    backbone, prompt = encoded(family, kind)
    wanted = tuple(Similarity(layer, text) for layer in (0, 20) for text in ("all", "after"))
    readings = taken(backbone, prompt, FeatureSpec(similarities=wanted)).similarities
    assert tuple(readings) == wanted
    last = {2: 1, 3: 2}[backbone.text_config.num_hidden_layers]
    for row, length in enumerate(prompt.lengths):
        states = stock_states(backbone, prompt, row)
        for entry, scores in readings.items():
            assert scores.dtype == torch.float32
            assert scores.shape == prompt.visual.shape
            layer = min(entry.layer, last)
            expected = twin(states, prompt.visual[row, :length], layer, entry.text)
            assert torch.allclose(scores[row, :length], expected, atol=1e-4)
            assert not scores[row, length:].any()
    assert all(not scores[~prompt.visual].any() for scores in readings.values())


@pytest.mark.pairwise
@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("text", ["all", "after"])
@pytest.mark.parametrize(("wanted", "read"), [(1, 1), (4, 4), (20, 7)])
def test_the_sum_over_the_layers_telescopes(name: str, text: str, wanted: int, read: int) -> None:
    """Equation 3 as it is written, all layers and text tokens, equals the pruner's two readings."""
    family = deeper(name)
    backbone, prompt = encoded(family, family.richest)
    spec = UVPruner(layer=wanted, text=text).readings
    scores = spec.scores(taken(backbone, prompt, spec))
    assert scores is not None
    for row, length in enumerate(prompt.lengths):
        visual = prompt.visual[row, :length]
        maps = [cosines(states, visual, text) for states in stock_states(backbone, prompt, row)]
        varied = sum(maps[layer] - maps[layer - 1] for layer in range(1, read + 1))
        assert isinstance(varied, Tensor)
        assert torch.allclose(scores[row, :length][visual], varied.sum(1), atol=1e-4)
        assert torch.allclose(varied, maps[read] - maps[0], atol=1e-5)
    assert not scores[~prompt.visual].any()


def test_attention_of_one_layer_and_its_variation() -> None:
    """Of the same layer as a similarity; the variation counts from the first layer on."""
    family = deeper("llava")
    backbone, prompt = encoded(family, "images")
    readings = taken(backbone, prompt, ATTENTION)
    for wanted, read in ((3, 3), (20, 7)):
        plain = UVPruner(layer=wanted, criterion="attention", variation=False).readings
        varied = UVPruner(layer=wanted, criterion="attention").readings
        assert plain == varied == ATTENTION
        one = plain.scores(readings)
        gained = varied.scores(readings)
        assert one is not None
        assert gained is not None
        assert torch.equal(one, readings.attention_by_layer[read - 1])
        assert torch.equal(gained, one - readings.attention_by_layer[0])


def test_layers_that_hide_something() -> None:
    """At most 0.7 of the depth, in whole numbers; at least 1, but 0 stays 0."""
    for depth in range(1, 200):
        most = max(1, 7 * depth // 10)
        assert [early_layer(layer, depth) for layer in (0, 1, most, most + 1, 999)] == [
            *(0, 1, most),
            *(most, most),
        ]
    assert [early_layer(20, depth) for depth in (28, 64, 80)] == [19, 20, 20]
    assert Similarity(20).layer_in(90) == 20


VISUAL = torch.tensor(
    [
        [0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0],  # two pictures, then padding
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],  # text alone
        [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0],  # begins with a picture
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1],  # no text behind the pictures
        [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],  # no text at all
    ]
).bool()
LENGTHS = [9, 7, 12, 12, 3]


def states_of(dtype: torch.dtype = torch.float32) -> Tensor:
    """Hidden states with padding that must not be looked at."""
    states = torch.randn(5, 12, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    for row, length in enumerate(LENGTHS):
        states[row, length:] = torch.nan
    return states


@pytest.mark.parametrize("text", ["all", "after"])
@pytest.mark.parametrize("block", [1, 8, 17, 1 << 24])
def test_rows_of_all_kinds(text: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without pictures, without text, and however few tokens are converted at once."""
    monkeypatch.setattr("draftlens.models.attention.similarities.BLOCK", block)
    states = states_of()
    scores = similarity(states, VISUAL, LENGTHS, text)
    for row, length in enumerate(LENGTHS):
        visual = VISUAL[row, :length]
        expected = torch.zeros(12)
        expected[:length][visual] = cosines(states[row, :length], visual, text).sum(1)
        assert torch.allclose(scores[row], expected, atol=1e-5)
    assert not scores[[1, 4]].any()
    assert bool(scores[3].any()) is (text == "all")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_half_precision_are_taken_in_float32(dtype: torch.dtype) -> None:
    """Squares of these states pass the largest float16."""
    states = (300 * states_of()).to(dtype)
    scores = similarity(states, VISUAL, LENGTHS, "all")
    assert scores.dtype == torch.float32
    expected = similarity(states.float(), VISUAL, LENGTHS, "all")
    assert scores.isfinite().all()
    assert torch.equal(scores, expected)


def test_states_without_a_direction() -> None:
    """A state of zeros is similar to nothing."""
    states = torch.zeros(1, 3, 4)
    states[0, 0, 0] = 1
    scores = similarity(states, torch.tensor([[False, True, True]]), [3], "all")
    assert scores.tolist() == [[0, 0, 0]]


def test_readings_change_nothing() -> None:
    """Neither logits nor cache, and no hook stays behind."""
    backbone, prompt = encoded(BY_NAME["qwen3_vl"], "mixed")
    made = []
    for spec in (NO_FEATURES, UVPruner().readings, UVPruner().readings | ATTENTION):
        cache = backbone.new_cache(prompt, 1)
        output = FullPrefill().run(backbone, PrefillReading(prompt, cache, spec))
        sides = [side for layer in cache.layers for side in (layer.keys, layer.values)]
        made.append([output.logits, *sides])
    for others in made[1:]:
        assert all(torch.equal(one, other) for one, other in zip(made[0], others, strict=True))
    assert not any(layer._forward_pre_hooks for layer in backbone.decoder.layers)


def test_an_eager_target() -> None:
    """Its passes run alone; what is read is the same."""
    family = BY_NAME["llava_onevision"]
    backbone, prompt = encoded(family, family.richest)
    other = Backbone.of(eager(family))
    assert other.attention == "eager"
    spec = UVPruner().readings
    ours, theirs = (spec.scores(taken(model, prompt, spec)) for model in (backbone, other))
    assert ours is not None
    assert theirs is not None
    assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("name", ["llava", "qwen3_vl"])
def test_a_target_whose_weights_are_elsewhere(name: str) -> None:
    """The hooks of accelerate bring them in; what is read is the same."""
    family = BY_NAME[name]
    backbone, prompt = encoded(family, family.richest)
    model = family.build()
    cpu_offload(model, execution_device=torch.device("cpu"))
    spec = UVPruner().readings
    ours, theirs = (spec.scores(taken(one, prompt, spec)) for one in (backbone, Backbone.of(model)))
    assert ours is not None
    assert theirs is not None
    assert torch.allclose(ours, theirs, atol=1e-5)


def layers_seen(backbone: Backbone, seen: list[int]) -> list[torch.utils.hooks.RemovableHandle]:
    """Hooks that count the layers that have run."""
    return [
        layer.register_forward_hook(lambda *_, number=number: seen.append(number))
        for number, layer in enumerate(backbone.decoder.layers, start=1)
    ]


@pytest.mark.parametrize(("wanted", "run"), [(1, 1), (4, 4), (20, 7)])
def test_readings_arrive_early(wanted: int, run: int) -> None:
    """Once, when just the layers that they need have run; the result holds them too."""
    backbone, prompt = encoded(deeper("qwen2_5_vl"), "video")
    spec = UVPruner(layer=wanted).readings
    arrived: list[tuple[PrefillFeatures, int]] = []
    seen: list[int] = []
    hooks = layers_seen(backbone, seen)
    reading = PrefillReading(
        prompt,
        backbone.new_cache(prompt, 1),
        spec,
        early=lambda readings: arrived.append((readings, len(seen))),
    )
    output = FullPrefill().run(backbone, reading)
    for hook in hooks:
        hook.remove()
    ((early, count),) = arrived
    assert count == run
    assert len(seen) == DEEP
    assert list(early.similarities) == list(output.readings.similarities) == [*spec.similarities]
    for entry, scores in early.similarities.items():
        assert torch.equal(scores, output.readings.similarities[entry])
    assert early.attention is None


def test_early_readings_are_complete() -> None:
    """Hidden states that lie deeper are waited for; nothing arrives early with attention, which
    needs the whole pass, or if there is nothing to read."""
    backbone, prompt = encoded(deeper("llava"), "image")
    uv = UVPruner(layer=2).readings
    hidden = FeatureSpec(hidden_layers=(1, DEEP))
    arrived: list[PrefillFeatures] = []
    for spec in (uv, uv | hidden, hidden, uv | ATTENTION, NO_FEATURES):
        cache = backbone.new_cache(prompt, 1)
        output = FullPrefill().run(
            backbone, PrefillReading(prompt, cache, spec, early=arrived.append)
        )
        assert sorted(output.readings.similarities) == sorted(spec.similarities)
        assert (output.readings.attention is not None) is spec.attention
    assert [sorted(readings.hidden_states) for readings in arrived] == [[], [1, DEEP], [1, DEEP]]
    assert [len(readings.similarities) for readings in arrived] == [2, 2, 0]


def test_an_error_of_the_receiver_ends_the_pass_and_removes_the_hooks() -> None:
    backbone, prompt = encoded(BY_NAME["llava"], "image")

    def fail(readings: PrefillFeatures) -> None:
        raise FloatingPointError

    reading = PrefillReading(prompt, backbone.new_cache(prompt, 1), UVPruner().readings, early=fail)
    with pytest.raises(FloatingPointError):
        FullPrefill().run(backbone, reading)
    assert not any(layer._forward_pre_hooks for layer in backbone.decoder.layers)
    backbone.prefill(prompt, backbone.new_cache(prompt, 1))


def test_other_threads_pass_while_one_is_watched_and_are_not_seen() -> None:
    """The draft of a self-speculating model works while the target's prefill goes on: a whole pass
    of another thread fits into the middle of a watched one."""
    backbone, prompt = encoded(deeper("llava"), "images")
    _, shorter = encoded(deeper("llava"), "image")
    expected = taken(backbone, prompt, UVPruner(layer=3).readings).similarities
    plain = backbone.prefill(shorter, backbone.new_cache(shorter, 1))
    done = Event()

    def other_pass() -> Tensor:
        logits = backbone.prefill(shorter, backbone.new_cache(shorter, 1))
        done.set()
        return logits

    with ThreadPoolExecutor(1) as pool:
        passes = []

        def work_beside(readings: PrefillFeatures) -> None:
            passes.append(pool.submit(other_pass))
            assert done.wait(LONG)

        cache = backbone.new_cache(prompt, 1)
        reading = PrefillReading(prompt, cache, UVPruner(layer=3).readings, early=work_beside)
        output = FullPrefill().run(backbone, reading)
    assert torch.equal(passes[0].result(), plain)
    for entry, scores in output.readings.similarities.items():
        assert torch.equal(scores, expected[entry])
