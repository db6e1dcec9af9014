"""Every pruner keeps exactly what it was told to, and the tokens that its paper means."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from visuals import RASTERS, check_evenly_spaced, film, newlines

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import PrefillFeatures, Similarity
from draftlens.pruning import PRUNERS, Visual, keep_count, make_pruner
from draftlens.pruning.attention import (
    AttentionPruner,
    SampledAttentionPruner,
    SpecVLMPruner,
    UniformPruner,
)
from draftlens.pruning.base import chances_of, order_sample, spread, top
from draftlens.pruning.similarity import SampledUVPruner, UVPruner

GUIDED = ("specvlm", "attention", "attention-sampled", "uv", "uv-sampled")
"""Pruners with readings of the target's prefill."""


@pytest.mark.parametrize("name", [name for name in PRUNERS if name not in ("none", "all")])
@pytest.mark.parametrize("raster", RASTERS)
@pytest.mark.parametrize("lined", [False, True], ids=["", "newlines"])
def test_exactly_as_many_as_asked_for(name: str, raster: str, lined: bool) -> None:
    """Rising indices of its tokens, and the same ones when asked again."""
    visual = film(RASTERS[raster])
    visual = newlines(visual) if lined and len(visual) else visual
    count = len(visual)
    for keep in {0, min(1, count), count // 3, count // 2, max(0, count - 1), count}:
        for options in variants(name):
            pruner = make_pruner({"name": name, **options})
            kept = pruner.select(visual, keep)
            assert kept.dtype == torch.int64
            assert kept.shape == (keep,)
            assert all(0 <= index < count for index in kept.tolist())
            assert all(one < other for one, other in pairwise(kept.tolist()))
            assert torch.equal(make_pruner({"name": name, **options}).select(visual, keep), kept)


def variants(name: str) -> list[dict[str, Any]]:
    """Options worth trying."""
    choices: dict[str, list[dict[str, Any]]] = {
        "window": [{"window": place} for place in ("front", "middle", "end")],
        "specvlm": [{"attention_mass": mass} for mass in (0, 0.4, 0.9, 1)],
        "random": [{"seed": 0}, {"seed": 9}],
        "dycoke": [{"group": 1}, {"group": 3}, {}],
        "attention-sampled": [{"share": share} for share in (0, 0.5, 0.75, 1)],
        "uv-sampled": [{"share": share} for share in (0, 0.75, 1)],
        "uv": [{}, {"variation": False, "layer": 3}, {"criterion": "attention", "text": "after"}],
    }
    return choices.get(name, [{}])


@pytest.mark.parametrize("name", [name for name in PRUNERS if name not in ("none", "all")])
def test_every_number_of_every_small_raster(name: str) -> None:
    """All heights, widths and numbers of frames up to three, all budgets."""
    pruner = make_pruner(name)
    for frames in range(1, 4):
        for high in range(1, 4):
            for wide in range(1, 4):
                visual = film([(high, wide)] * frames)
                for keep in range(len(visual) + 1):
                    kept = pruner.select(visual, keep).tolist()
                    assert len(set(kept)) == keep
                    assert kept == sorted(kept)


@pytest.mark.parametrize("percent", range(0, 101, 5))
def test_the_count_equals_fractions(percent: int) -> None:
    rng = random.Random(percent)
    exact = 1 - Fraction(percent, 100)
    for count in [*range(400), *(rng.randrange(200_000) for _ in range(400))]:
        assert keep_count(count, percent / 100) == int(count * exact)


def test_equal_distances() -> None:
    """The middle of each equal part."""
    for count in range(40):
        for keep in range(count + 1):
            places = spread(count, keep, torch.device("cpu")).tolist()
            assert places == [(2 * index + 1) * count // (2 * keep) for index in range(keep)]
            gaps = [other - one for one, other in pairwise(places)]
            assert not gaps or max(gaps) - min(gaps) <= 1
    with pytest.raises(ConfigError, match="cannot keep 4 of 3 tokens"):
        spread(3, 4, torch.device("cpu"))


def test_of_equal_scores_the_first() -> None:
    assert top(torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 2.0]), 4).tolist() == [1, 2, 3, 4]


def test_names_and_options() -> None:
    assert make_pruner({"name": "specvlm", "attention_mass": 0.7}) == SpecVLMPruner(0.7)
    pruner = SpecVLMPruner(0.1)
    assert make_pruner(pruner) is pruner
    with pytest.raises(
        ConfigError, match="pruner 'specvlm' has no option 'seed', 'window'; known: attention_mass"
    ):
        make_pruner({"name": "specvlm", "window": "end", "seed": 3, "attention_mass": 7})
    with pytest.raises(ConfigError, match="pruner 'uniform' has no option 'seed'; known: none"):
        make_pruner({"name": "uniform", "seed": 3})
    for name in PRUNERS:
        assert bool(make_pruner(name).readings) is (name in GUIDED)
    with pytest.raises(
        ConfigError,
        match=r"unknown pruner 'best'; known: .*attention.*specvlm, uniform, uv, uv-sampled",
    ):
        make_pruner("best")
    for mass in (-0.1, 1.1, float("nan")):
        with pytest.raises(
            ConfigError, match=f"attention_mass is a share between 0 and 1, not {mass}"
        ):
            make_pruner({"name": "specvlm", "attention_mass": mass})
        for name in ("attention-sampled", "uv-sampled"):
            with pytest.raises(ConfigError, match=f"share is a share between 0 and 1, not {mass}"):
                make_pruner({"name": name, "share": mass})


@pytest.mark.parametrize("name", ["specvlm", "attention", "attention-sampled"])
def test_attention_that_was_not_read(name: str) -> None:
    visual = Visual(torch.zeros(3, 3, dtype=torch.long), torch.zeros(3, 2))
    with pytest.raises(
        ConfigError, match="this pruner needs the target's attention, and none was read"
    ):
        make_pruner(name).select(visual, 1)


@pytest.mark.parametrize("kind", [UVPruner, SampledUVPruner])
@pytest.mark.parametrize("criterion", ["similarity", "attention"])
@pytest.mark.parametrize("variation", [True, False])
def test_scores_that_were_not_read(kind: type[UVPruner], criterion: str, variation: bool) -> None:
    pruner = kind(criterion=criterion, variation=variation)
    assert pruner.readings.scores(PrefillFeatures()) is None
    visual = Visual(torch.zeros(3, 3, dtype=torch.long), torch.zeros(3, 2))
    with pytest.raises(
        ConfigError, match=f"needs the target's {criterion} readings, and none were taken"
    ):
        pruner.select(visual, 1)


def test_uv_keeps_the_highest_scores() -> None:
    """Whatever their sign."""
    visual = film([(4, 6)] * 3, seed=1)
    assert visual.scores is not None
    scores = visual.scores - visual.scores.median()
    ranked = sorted(range(len(visual)), key=scores.tolist().__getitem__, reverse=True)
    for keep in (0, 1, 10, 72):
        kept = UVPruner().select(replace(visual, scores=scores), keep)
        assert kept.tolist() == sorted(ranked[:keep])


def test_what_uv_reads() -> None:
    """Equation 3 telescopes to two readings; the plain similarity is one."""
    first, last = Similarity(0, "after"), Similarity(7, "after")
    spec = UVPruner(layer=7, text="after").readings
    assert spec.similarities == (first, last)
    assert not spec.attention
    assert UVPruner(layer=7, text="after", variation=False).readings.similarities == (last,)
    readings = PrefillFeatures(
        similarities={first: torch.tensor([[1.0]]), last: torch.tensor([[3.0]])}
    )
    assert spec.scores(readings) == 2
    assert UVPruner(layer=7, text="after", variation=False).readings.scores(readings) == 3
    assert make_pruner("uv") == UVPruner(layer=20, text="all")
    names = {
        UVPruner(criterion=criterion, variation=variation).readings.score_name
        for criterion in ("similarity", "attention")
        for variation in (True, False)
    }
    assert len(names) == 4
    assert make_pruner("grid").readings.score_name == "attention of the target"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"layer": 0}, "layer is a whole number from 1 on, not 0"),
        ({"layer": 2.0}, "layer is a whole number from 1 on, not 2.0"),
        ({"layer": True}, "layer is a whole number from 1 on, not True"),
        ({"text": "before"}, "unknown text 'before'; known: all, after"),
        ({"criterion": "length"}, "unknown criterion 'length'; known: similarity, attention"),
        ({"variation": "no"}, "variation is true or false, not 'no'"),
    ],
)
def test_options_of_uv_that_make_no_sense(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_pruner({"name": "uv", **options})


def stage_one(scores: list[float], mass: float) -> list[int]:
    """Eq. 6 by sorting and adding up in fractions."""
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    wanted, held = Fraction(mass) * sum(map(Fraction, scores)), Fraction(0)
    chosen: list[int] = []
    for index in order:
        if held >= wanted:
            break
        held += Fraction(scores[index])
        chosen.append(index)
    return chosen


@pytest.mark.parametrize("mass", [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1])
@pytest.mark.parametrize("count", [1, 2, 9, 40, 157])
def test_stage_one_is_the_smallest_set_that_holds_the_mass(mass: float, count: int) -> None:
    """As far as the budget goes; stage two is evenly spaced among the others."""
    visual = film([(1, count)], seed=count)
    assert visual.scores is not None
    wanted = stage_one(visual.scores.tolist(), mass)
    for keep in {0, 1, count // 4, count // 2, count - 1, count}:
        kept = SpecVLMPruner(mass).select(visual, keep).tolist()
        first = wanted[:keep]
        assert set(first) <= set(kept)
        others = [index for index in range(count) if index not in first]
        places = [others.index(index) for index in kept if index not in first]
        assert len(places) == keep - len(first)
        check_evenly_spaced(places, len(others))


def test_exactly_the_mass_is_enough() -> None:
    """4 + 3 + 2 + 1: half of ten is held by the first two and not by one; seven tenths by exactly
    two."""
    visual = Visual(
        torch.zeros(4, 3, dtype=torch.long), torch.zeros(4, 1), torch.tensor([1.0, 4.0, 2.0, 3.0])
    )
    equal = Visual(torch.zeros(8, 3, dtype=torch.long), torch.zeros(8, 1), torch.ones(8))
    assert SpecVLMPruner(0.5).select(visual, 2).tolist() == [1, 3]
    assert SpecVLMPruner(0.4).select(visual, 2).tolist() == [
        1,
        2,
    ]  # and of 0, 2, 3 the one in the middle
    assert SpecVLMPruner(0.25).select(equal, 3).tolist() == [
        0,
        1,
        5,
    ]  # two hold it; of 2 to 7 the middle
    assert SpecVLMPruner(0.25).select(equal, 4).tolist() == [0, 1, 3, 6]


def test_the_ends_of_the_mass() -> None:
    """Nothing by attention is uniform pruning, everything is the most attended tokens."""
    visual = film([(5, 5)] * 4, seed=3)
    for keep in range(0, 101, 7):
        assert torch.equal(
            SpecVLMPruner(0).select(visual, keep), UniformPruner().select(visual, keep)
        )
        assert torch.equal(
            SpecVLMPruner(1).select(visual, keep), AttentionPruner().select(visual, keep)
        )


def test_the_most_attended_stay() -> None:
    visual = film([(4, 6)] * 3, seed=1)
    assert visual.scores is not None
    ranked = sorted(range(len(visual)), key=visual.scores.tolist().__getitem__, reverse=True)
    for keep in (0, 1, 10, 72):
        assert AttentionPruner().select(visual, keep).tolist() == sorted(ranked[:keep])


def test_tokens_that_nobody_looks_at() -> None:
    """A prompt that ends in a picture: all scores are nothing, and the budget is spent all the
    same."""
    nobody = Visual(film([(3, 4)]).cells, torch.zeros(12, 2), torch.zeros(12))
    for keep in range(13):
        assert len(set(SpecVLMPruner(0.4).select(nobody, keep).tolist())) == keep


def points_of(count: int) -> Tensor:
    """A row of places."""
    return torch.stack([torch.arange(count), *[torch.zeros(count, dtype=torch.long)] * 2], -1)


def ordered(chances: list[float], points: list[list[int]], keep: int) -> list[int]:
    """Order sampling by sorting, with the sequence's generator as the root of g^4 = g + 1."""
    root = 1.0
    for _ in range(100):
        root = (root + 1) ** 0.25
    places = [
        (sum(x / root ** (axis + 1) for axis, x in enumerate(point)) + 0.5) % 1 for point in points
    ]
    ratios = [(c + 1e-9) / (u + 1e-9) for c, u in zip(chances, places, strict=True)]
    return sorted(sorted(range(len(ratios)), key=lambda index: (-ratios[index], index))[:keep])


@pytest.mark.parametrize("share", [0, 0.5, 0.75, 1])
def test_an_order_sample_is_that_of_sorted_ratios(share: float) -> None:
    visual = film([(5, 7)] * 6, seed=4)
    assert visual.scores is not None
    for scores in (visual.scores, visual.scores - visual.scores.median()):
        excess = scores.double() - min(0.0, float(scores.min()))
        chances = (share * excess / excess.mean() + 1 - share).tolist()
        assert chances_of(scores, share).tolist() == pytest.approx(chances)
        for keep in (0, 1, 20, 105, 209, 210):
            expected = ordered(chances, visual.cells.tolist(), keep)
            for pruner in (SampledAttentionPruner(share), SampledUVPruner(share=share)):
                assert pruner.select(replace(visual, scores=scores), keep).tolist() == expected


def test_certain_indices_stay() -> None:
    """Infinite chances, of each row its own; several rows are as many samples of one."""
    chances = torch.ones(3, 40)
    certain = torch.tensor([[3, 4, 5], [0, 20, 39], [37, 38, 39]])
    chances.scatter_(1, certain, torch.inf)
    points = points_of(40).expand(3, -1, -1)
    for keep in (3, 4, 39, 40):
        kept = order_sample(chances, points, keep)
        for row in range(3):
            assert set(certain[row].tolist()) <= set(kept[row].tolist())
            assert torch.equal(kept[row], order_sample(chances[row], points[row], keep))


@pytest.mark.parametrize("keep", [16, 25, 64, 128])
def test_equal_chances_are_spread_without_a_period(keep: int) -> None:
    """Every frame of sixteen, and every row and column of them, has its part: at r = 0.75 equal
    distances keep one of four columns."""
    visual = film([(4, 4)] * 16)
    even = Visual(visual.cells, visual.features, torch.ones(256))
    kept = visual.cells[SampledAttentionPruner().select(even, keep)]
    for axis, size in ((0, 16), (1, 4), (2, 4)):
        counts = torch.bincount(kept[:, axis], minlength=size)
        assert counts.min() >= keep / size / 2 - 1, (axis, counts)
        assert counts.max() <= 2 * keep / size + 1, (axis, counts)


@pytest.mark.parametrize("share", [0, 0.75, 1])
def test_scores_that_say_nothing_leave_an_even_sample(share: float) -> None:
    """Equal scores of any sign, zeros, and of a single token."""
    visual = film([(3, 4)] * 5)
    expected = SampledAttentionPruner(0).select(visual, 17)
    for value in (0.0, 2.0, -3.0):
        even = replace(visual, scores=torch.full((60,), value))
        assert torch.equal(SampledAttentionPruner(share).select(even, 17), expected)
    one = Visual(torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 2), torch.zeros(1))
    assert SampledAttentionPruner(share).select(one, 1).tolist() == [0]
    assert SampledAttentionPruner(share).select(one, 0).tolist() == []


def test_a_token_stays_more_often_the_higher_its_score() -> None:
    visual = film([(8, 8)] * 8)
    scores = torch.ones(512)
    scores[::4] = 5.0
    kept = SampledAttentionPruner(1).select(replace(visual, scores=scores), 64)
    assert (kept % 4 == 0).float().mean() > 0.5  # of a quarter of all
    most = SampledAttentionPruner(1).select(replace(visual, scores=scores**9), 64)
    assert (most % 4 == 0).all()


def test_a_pruner_of_the_lab_is_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRUNERS.__dict__, "_points", {})
    with pytest.raises(
        ConfigError,
        match=r"the pruner 'dycoke' is part of the package draftlens-lab: pip install \./lab in a ",
    ):
        make_pruner("dycoke")
