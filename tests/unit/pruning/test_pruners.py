"""Every pruner keeps exactly what it was told to, and the tokens that its paper means."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import Readings, Similarity
from draftlens.pruning import PRUNERS, Visual, keep_count, make_pruner
from draftlens.pruning.attention import AttentionPruner, SpecVLMPruner
from draftlens.pruning.base import spread, top
from draftlens.pruning.similarity import UVPruner
from draftlens.pruning.spatial import GridPruner, RandomPruner, UniformPruner, WindowPruner
from draftlens.pruning.temporal import DyCokePruner, FastVIDPruner, FramePruner

RASTERS: Mapping[str, list[tuple[int, int]]] = {
    "nothing": [],
    "a token": [(1, 1)],
    "a square": [(6, 6)],
    "a column": [(9, 1)],
    "a page": [(5, 11)],
    "a film": [(4, 4)] * 6,
    "a wide film": [(2, 7)] * 5,
    "dots": [(1, 1)] * 8,
    "pictures of all sizes": [(3, 5), (1, 1), (7, 2), (4, 4), (1, 6)],
}
"""Heights and widths of the frames."""


def film(rasters: list[tuple[int, int]], seed: int = 0) -> Visual:
    """Frames of these sizes with random features and scores."""
    cells = [
        (t, h, w)
        for t, (high, wide) in enumerate(rasters)
        for h in range(high)
        for w in range(wide)
    ]
    generator = torch.Generator().manual_seed(seed)
    count = len(cells)
    return Visual(
        torch.tensor(cells, dtype=torch.long).view(count, 3),
        torch.randn(count, 8, generator=generator),
        torch.rand(count, generator=generator) ** 6,  # a long tail
    )


def newlines(visual: Visual) -> Visual:
    """The same with two tokens more that have the cell of the last one."""
    assert visual.scores is not None
    cells, features, scores = (
        torch.cat([part, part[-1:], part[-1:]])
        for part in (visual.cells, visual.features, visual.scores)
    )
    return Visual(cells, features, scores)


def frames_of(visual: Visual, kept: Tensor) -> Counter[int]:
    """Kept tokens by frame."""
    return Counter(visual.cells[kept, 0].tolist())


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


@pytest.mark.parametrize("raster", RASTERS)
def test_none_prunes_nothing_and_all_prunes_everything(raster: str) -> None:
    """Whatever the ratio."""
    visual = film(RASTERS[raster])
    for keep in {0, len(visual) // 2, len(visual)}:
        assert make_pruner("none").select(visual, keep).tolist() == list(range(len(visual)))
        assert make_pruner("all").select(visual, keep).tolist() == []


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
    assert make_pruner({"name": "window", "window": "end"}) == WindowPruner("end")
    assert make_pruner({"name": "random", "seed": 3}) == RandomPruner(3)
    assert make_pruner({"name": "specvlm", "attention_mass": 0.7}) == SpecVLMPruner(0.7)
    pruner = RandomPruner(4)
    assert make_pruner(pruner) is pruner
    with pytest.raises(
        ConfigError, match="pruner 'window' has no option 'attention_mass', 'seed'; known: window"
    ):
        make_pruner({"name": "window", "window": "end", "seed": 3, "attention_mass": 7})
    with pytest.raises(ConfigError, match="pruner 'uniform' has no option 'seed'; known: none"):
        make_pruner({"name": "uniform", "seed": 3})
    for name in PRUNERS:
        assert bool(make_pruner(name).readings) is (name in ("specvlm", "attention", "uv"))
    with pytest.raises(
        ConfigError,
        match="unknown pruner 'best'; known: all, attention, dycoke, fastvid, frames, grid",
    ):
        make_pruner("best")
    with pytest.raises(ConfigError, match="window is front, middle or end, not 'top'"):
        make_pruner({"name": "window", "window": "top"})
    for mass in (-0.1, 1.1, float("nan")):
        with pytest.raises(
            ConfigError, match=f"attention_mass is a share between 0 and 1, not {mass}"
        ):
            make_pruner({"name": "specvlm", "attention_mass": mass})
    with pytest.raises(ConfigError, match="group must be at least 1 frame, not 0"):
        make_pruner({"name": "dycoke", "group": 0})


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
    assert pruner.readings.scores(Readings()) is None
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
    readings = Readings(similarities={first: torch.tensor([[1.0]]), last: torch.tensor([[3.0]])})
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


def check_evenly_spaced(places: list[int], count: int) -> None:
    """Gaps differ by one at most, and half a gap is left at either end."""
    if not places:
        return
    gaps = [other - one for one, other in pairwise(places)]
    assert not gaps or max(gaps) - min(gaps) <= 1
    half = count / len(places) / 2
    assert abs(places[0] - half) <= 1
    assert abs(count - 1 - places[-1] - half) <= 1.5


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


@pytest.mark.parametrize("raster", [[(6, 6)] * 4, [(4, 8)] * 3, [(9, 5)] * 7, [(14, 14)] * 2])
@pytest.mark.parametrize("each", [1, 2, 4, 5, 6, 9, 12, 16, 20])
def test_a_grid_of_every_frame(raster: list[tuple[int, int]], each: int) -> None:
    """As many of each frame, and none of its places far from them."""
    visual, frames = film(raster), len(raster)
    for more in range(frames):
        kept = GridPruner().select(visual, each * frames + more)
        counts = frames_of(visual, kept)
        assert len(counts) == frames
        assert max(counts.values()) - min(counts.values()) <= 1
    kept = GridPruner().select(visual, each * frames)
    for time, (high, wide) in enumerate(raster):
        cells = visual.cells[kept][visual.cells[kept, 0] == time, 1:].tolist()
        assert farthest(cells, high, wide) <= 0.5 + 0.9 * (high * wide / each) ** 0.5
        quarters = {(2 * h >= high, 2 * w >= wide) for h, w in cells}
        assert len(quarters) == 4 or each < 4 or high != wide


def farthest(cells: list[list[int]], high: int, wide: int) -> float:
    """How far the loneliest place of a frame is from what was kept."""
    return max(
        min(((h - y) ** 2 + (w - x) ** 2) ** 0.5 for y, x in cells)
        for h in range(high)
        for w in range(wide)
    )


def test_a_regular_grid() -> None:
    """Nine of a square of six: every other row and column."""
    visual = film([(6, 6)])
    kept = visual.cells[GridPruner().select(visual, 9), 1:].tolist()
    assert kept == [[h, w] for h in (1, 3, 5) for w in (1, 3, 5)]


def test_small_frames_leave_their_share_to_others() -> None:
    visual = film([(1, 2), (6, 6), (6, 6)])
    kept = GridPruner().select(visual, 32)
    assert frames_of(visual, kept) == {0: 2, 1: 15, 2: 15}
    alone = film([(6, 6)])
    regular = alone.cells[GridPruner().select(alone, 15), 1:]
    for time in (1, 2):
        assert torch.equal(visual.cells[kept][visual.cells[kept, 0] == time, 1:], regular)


def test_random_tokens() -> None:
    """Each with the same chance; the seed decides."""
    visual, seen = film([(5, 4)]), Counter[int]()
    for seed in range(400):
        seen.update(RandomPruner(seed).select(visual, 5).tolist())
    assert set(seen) == set(range(20))
    assert all(60 < times < 140 for times in seen.values())
    assert RandomPruner(1).select(visual, 5).tolist() != RandomPruner(2).select(visual, 5).tolist()


def test_windows() -> None:
    visual = film([(2, 5)])
    kept = {
        place: WindowPruner(place).select(visual, 4).tolist()
        for place in ("front", "middle", "end")
    }
    assert kept == {"front": [0, 1, 2, 3], "middle": [3, 4, 5, 6], "end": [6, 7, 8, 9]}


@pytest.mark.parametrize("frames", [1, 4, 7, 10])
def test_whole_frames_at_regular_intervals(frames: int) -> None:
    """What the budget pays for in part is the last of them, itself evenly thinned out."""
    visual = film([(3, 4)] * frames)
    for whole in range(1, frames + 1):
        counts = frames_of(visual, FramePruner().select(visual, 12 * whole))
        assert set(counts.values()) == {12}
        check_evenly_spaced(sorted(counts), frames)
        if whole < frames:
            rest = frames_of(visual, FramePruner().select(visual, 12 * whole + 5))
            assert sorted(rest.values()) == [5, *[12] * whole]
            check_evenly_spaced(sorted(rest), frames)
    kept = FramePruner().select(film([(3, 4)]), 4).tolist()
    assert kept == UniformPruner().select(film([(3, 4)]), 4).tolist()


def scenes(*lengths: int, noise: float = 0.01) -> Visual:
    """A film of 2 by 3 tokens a frame with cuts between scenes that hardly move."""
    generator = torch.Generator().manual_seed(2)
    visual = film([(2, 3)] * sum(lengths))
    features = []
    for length in lengths:
        still = torch.randn(6, 8, generator=generator)
        features += [still + noise * torch.randn(6, 8, generator=generator) for _ in range(length)]
    return Visual(visual.cells, torch.cat(features))


def test_frames_that_changed_stay() -> None:
    """The first and those behind a cut."""
    visual = scenes(3, 1, 4, 2)
    for frames, expected in ((1, {0}), (4, {0, 3, 4, 8})):
        kept = FastVIDPruner().select(visual, 6 * frames)
        assert frames_of(visual, kept) == dict.fromkeys(expected, 6)
    more = frames_of(visual, FastVIDPruner().select(visual, 27))
    assert {frame for frame, count in more.items() if count == 6} == {0, 3, 4, 8}
    assert sum(more.values()) == 27


def test_frames_are_compared_with_the_one_before() -> None:
    """Not with the first one: of A A B B A A the third and the fifth have changed."""
    still = scenes(1, 1, noise=0).features.split(6)
    visual = Visual(
        film([(2, 3)] * 6).cells, torch.cat([still[scene] for scene in (0, 0, 1, 1, 0, 0)])
    )
    assert set(frames_of(visual, FastVIDPruner().select(visual, 18))) == {0, 2, 4}


def moving(frames: int) -> Visual:
    """Still but for the token in row 1, column 2 of every frame."""
    visual = film([(2, 3)] * frames)
    features = visual.features[:6].repeat(frames, 1)
    features[5::6] = visual.features[5::6]
    return Visual(visual.cells, features)


def test_still_tokens_go_first() -> None:
    """Of two groups of four frames the first stay whole, and what moves."""
    visual = moving(8)
    kept = DyCokePruner().select(visual, 6 + 6 + 6).tolist()
    assert kept == sorted(
        [*range(6), *range(24, 30), *(6 * frame + 5 for frame in (1, 2, 3, 5, 6, 7))]
    )
    assert DyCokePruner().select(visual, 12).tolist() == [*range(6), *range(24, 30)]
    assert DyCokePruner(group=2).select(visual, 24).tolist() == [
        6 * f + n for f in (0, 2, 4, 6) for n in range(6)
    ]
    everything_new = DyCokePruner(group=1).select(visual, 20).tolist()
    assert everything_new == list(range(20))


def test_tokens_are_compared_with_the_frame_before() -> None:
    """A token that changes for good changes once."""
    visual = moving(4)
    features = visual.features.clone()
    features[5::6] = features[5]
    features[[5 + 12, 5 + 18]] = -features[5]
    for keep in (7, 8, 11):  # still tokens fill up the rest, the one in the fourth frame the last
        kept = DyCokePruner().select(Visual(visual.cells, features), keep).tolist()
        assert kept[:6] == [*range(6)]
        assert 17 in kept
        assert 23 not in kept


@pytest.mark.parametrize("name", ["fastvid", "dycoke"])
def test_half_precision_features(name: str) -> None:
    visual = scenes(3, 3)
    half = Visual(visual.cells, visual.features.bfloat16())
    assert len(make_pruner(name).select(half, 13)) == 13
