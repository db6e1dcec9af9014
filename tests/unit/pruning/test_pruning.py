"""Every pruner keeps exactly what it was told to, and the tokens that its paper means."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import torch
from visuals import RASTERS, check_evenly_spaced, film, newlines

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import PrefillFeatures, Similarity
from draftlens.pruning import PRUNERS, Visual, keep_count, make_pruner
from draftlens.pruning.attention import AttentionPruner, SpecVLMPruner, UniformPruner
from draftlens.pruning.base import spread, top
from draftlens.pruning.similarity import UVPruner


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
        assert bool(make_pruner(name).readings) is (name in ("specvlm", "attention", "uv"))
    with pytest.raises(
        ConfigError,
        match=r"unknown pruner 'best'; known: .*attention.*specvlm, uniform, uv",
    ):
        make_pruner("best")
    for mass in (-0.1, 1.1, float("nan")):
        with pytest.raises(
            ConfigError, match=f"attention_mass is a share between 0 and 1, not {mass}"
        ):
            make_pruner({"name": "specvlm", "attention_mass": mass})


@pytest.mark.parametrize("name", ["specvlm", "attention"])
def test_attention_that_was_not_read(name: str) -> None:
    visual = Visual(torch.zeros(3, 3, dtype=torch.long), torch.zeros(3, 2))
    with pytest.raises(
        ConfigError, match="this pruner needs the target's attention, and none was read"
    ):
        make_pruner(name).select(visual, 1)


@pytest.mark.parametrize("criterion", ["similarity", "attention"])
@pytest.mark.parametrize("variation", [True, False])
def test_scores_that_were_not_read(criterion: str, variation: bool) -> None:
    pruner = UVPruner(criterion=criterion, variation=variation)
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


def test_a_pruner_of_the_lab_is_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRUNERS.__dict__, "_points", {})
    with pytest.raises(
        ConfigError,
        match=r"the pruner 'dycoke' is part of the package draftlens-lab: pip install \./lab in a ",
    ):
        make_pruner("dycoke")
