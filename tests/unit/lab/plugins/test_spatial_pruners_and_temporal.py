"""The baseline pruners keep the tokens that their papers mean."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from draftlens_lab.plugins.spatial_pruners import GridPruner, RandomPruner, WindowPruner
from draftlens_lab.plugins.temporal_pruners import DyCokePruner, FastVIDPruner, FramePruner
from visuals import RASTERS, check_evenly_spaced, film, frames_of

from draftlens.core.errors import ConfigError
from draftlens.pruning import Visual, make_pruner
from draftlens.pruning.attention import UniformPruner


def test_names_and_options() -> None:
    assert make_pruner({"name": "window", "window": "end"}) == WindowPruner("end")
    assert make_pruner({"name": "random", "seed": 3}) == RandomPruner(3)
    with pytest.raises(ConfigError, match="window is front, middle or end, not 'top'"):
        make_pruner({"name": "window", "window": "top"})
    with pytest.raises(ConfigError, match="group must be at least 1 frame, not 0"):
        make_pruner({"name": "dycoke", "group": 0})


@pytest.mark.parametrize("raster", RASTERS)
def test_none_prunes_nothing_and_all_prunes_everything(raster: str) -> None:
    """Whatever the ratio."""
    visual = film(RASTERS[raster])
    for keep in {0, len(visual) // 2, len(visual)}:
        assert make_pruner("none").select(visual, keep).tolist() == list(range(len(visual)))
        assert make_pruner("all").select(visual, keep).tolist() == []


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
    """The first and those after a cut."""
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
