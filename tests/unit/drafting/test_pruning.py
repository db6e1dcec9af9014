"""Which tokens of its own prompt a draft reads, by the target's scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.core.prefill_readings import ATTENTION, FeatureSpec, PrefillFeatures
from draftlens.decoding.observer import Observer
from draftlens.decoding.plan import TargetContext
from draftlens.drafting import pruning as pruned
from draftlens.drafting.pruning import Pruning
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.models.visual_grid import GridLayout
from draftlens.pruning import Choice, Pruner, Visual, make_pruner
from draftlens.pruning.base import top
from draftlens.pruning.similarity import UVPruner

TEXT, FIRST = 3, 1
"""Words around the pictures: one before, two behind."""


def prompt(*runs: int, frames: int | None = None, tile: int | None = None, seed: int = 0) -> Prompt:
    """A batch with one run of so many visual tokens in each row; rows stand left-aligned."""
    lengths = [TEXT + run for run in runs]
    rows, longest = len(runs), max(lengths)
    visual = torch.zeros(rows, longest, dtype=torch.bool)
    for row, run in enumerate(runs):
        visual[row, FIRST : FIRST + run] = True
    embeds = torch.randn(rows, longest, 5, generator=torch.Generator().manual_seed(seed))
    following = torch.tensor(lengths)[:, None]
    layout = GridLayout(visual[visual], frames, tile)
    return Prompt(
        embeds, torch.arange(longest).expand(rows, -1), lengths, following, visual, {}, layout
    )


@dataclass
class Notes:
    """What the drafter told the statistics."""

    phases: list[str] = field(default_factory=list)
    counts: list[tuple[int, int]] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.phases.append(name)
        yield

    def pruned(self, visual: int, kept: int) -> None:
        self.counts.append((visual, kept))


def seen(target: Prompt, scores: Tensor | None, notes: Notes | None = None) -> TargetContext:
    notes = notes or Notes()
    return TargetContext(
        target,
        KVCache(1, len(target.lengths), 1),
        readings=PrefillFeatures(attention=scores),
        observer=Observer(phase=notes.phase, on_prune=notes.pruned),
    )


def numbered(target: Prompt) -> Tensor:
    """Scores that name the row and the visual token that they belong to."""
    scores = torch.full(target.visual.shape, -1.0)
    for row in range(len(target.lengths)):
        count = int(target.visual[row].sum())
        scores[row, target.visual[row]] = 1000.0 * row + torch.arange(count)
    return scores


class Listener:
    """Keeps the first tokens and remembers what it was shown."""

    readings: ClassVar[FeatureSpec] = ATTENTION

    def __init__(self) -> None:
        self.shown: list[Visual] = []

    def select(self, visual: Visual, keep: int) -> Tensor:
        self.shown.append(visual)
        return torch.arange(keep)


def shown(draft: Prompt, target: Prompt, scores: Tensor | None) -> list[Visual]:
    """What a pruner sees of each row."""
    listener = Listener()
    Pruning(listener, 0.5).keep(draft, seen(target, scores))
    return listener.shown


def test_scores_of_equally_many_tokens_are_taken_one_by_one() -> None:
    """Row by row, although rows begin and end elsewhere."""
    both = prompt(9, 0, 16)
    first, none, last = shown(both, both, numbered(both))
    assert first.scores is not None
    assert none.scores is not None
    assert last.scores is not None
    assert first.scores.tolist() == list(range(9))
    assert len(none) == len(none.scores) == 0
    assert last.scores.tolist() == [2000 + index for index in range(16)]


def test_the_same_tokens_at_other_places() -> None:
    """The draft's template has other words before the picture."""
    target = prompt(4, 4)
    shifted = prompt(4, 4)
    shifted.visual[:] = shifted.visual.roll(1, 1)
    for row, tokens in enumerate(shown(shifted, target, numbered(target))):
        assert tokens.scores is not None
        assert tokens.scores.tolist() == [1000 * row + index for index in range(4)]


def test_a_pruner_sees_the_drafts_own_features_and_cells() -> None:
    draft, target = prompt(8, 12, frames=2, seed=1), prompt(8, 12, frames=2, seed=2)
    for row, tokens in enumerate(shown(draft, target, None)):
        at = draft.visual[row].nonzero()[:, 0]
        assert torch.equal(tokens.features, draft.embeds[row, at])
        assert torch.equal(tokens.cells, draft.cells[row, at])
        assert tokens.scores is None


Sides = tuple[int, int]
RASTERS: list[tuple[Sides, Sides, Sides]] = [
    ((4, 4), (2, 2), (2, 2)),
    ((2, 2), (4, 4), (2, 2)),
    ((3, 3), (5, 5), (4, 4)),
    ((5, 5), (3, 3), (4, 4)),
    ((4, 4), (2, 2), (8, 3)),
    ((4, 4), (2, 2), (2, 7)),
    ((2, 2), (7, 7), (8, 3)),
]
"""Sides of the target's frames and of the draft's, and how many each of them has."""


@pytest.mark.parametrize(("theirs", "ours", "frames"), RASTERS)
def test_scores_are_carried_over_to_other_rasters(
    theirs: Sides, ours: Sides, frames: Sides
) -> None:
    """A token takes the mean of the cells whose middles it covers, or of the nearest such cells;
    rows do not mix."""
    counts = [
        side * other * many for (side, other), many in zip((theirs, ours), frames, strict=True)
    ]
    target = prompt(counts[0], counts[0], frames=frames[0])
    draft = prompt(counts[1], counts[1], frames=frames[1])
    scores = torch.rand(
        target.visual.shape, generator=torch.Generator().manual_seed(1)
    ) + torch.tensor([[0], [9]])
    for row, tokens in enumerate(shown(draft, target, scores)):
        assert tokens.scores is not None
        source = target.cells[row][target.visual[row]].tolist()
        where = [middle(cell, (frames[0], *theirs)) for cell in source]
        values = scores[row, target.visual[row]].tolist()
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, place in enumerate(where):
            box = tuple(int(at * size) for at, size in zip(place, (frames[1], *ours), strict=True))
            groups.setdefault(box, []).append(number)
        for cell, score in zip(tokens.cells.tolist(), tokens.scores.tolist(), strict=True):
            group = groups.get(tuple(cell))
            allowed = (
                [group]
                if group
                else nearest(middle(cell, (frames[1], *ours)), list(groups.values()), where)
            )
            assert any(
                score == pytest.approx(sum(values[n] for n in one) / len(one), abs=1e-5)
                for one in allowed
            )


def middle(cell: Sequence[int], sizes: Sequence[int]) -> list[Fraction]:
    """Where its middle is, 0 to 1 on each axis."""
    return [Fraction(2 * at + 1, 2 * size) for at, size in zip(cell, sizes, strict=True)]


def nearest(
    place: list[Fraction], groups: list[list[int]], where: list[list[Fraction]]
) -> list[list[int]]:
    """The groups of places whose means are nearest to a place: several, if equally far."""
    means = [
        [sum(where[n][axis] for n in group) / len(group) for axis in range(3)] for group in groups
    ]
    far = [sum((a - b) ** 2 for a, b in zip(place, mean, strict=True)) for mean in means]
    return [group for group, distance in zip(groups, far, strict=True) if distance == min(far)]


def test_a_coarser_draft_misses_nothing() -> None:
    """A single bright cell in sixteen, wherever it is, brightens the quarter that it lies in."""
    target, draft = prompt(16), prompt(4)
    for number in range(16):
        scores = torch.zeros(target.visual.shape)
        scores[0, FIRST + number] = 8
        (tokens,) = shown(draft, target, scores)
        assert tokens.scores is not None
        quarter = 2 * (number // 8) + number % 4 // 2
        assert tokens.scores.tolist() == [2.0 if cell == quarter else 0.0 for cell in range(4)]


def test_grids_that_do_not_divide_each_other_keep_a_flat_picture_flat() -> None:
    """Sums would not: some cells cover more of them than others."""
    for theirs, ours in ((25, 9), (9, 25), (49, 16)):
        target, draft = prompt(theirs), prompt(ours)
        (tokens,) = shown(draft, target, torch.ones(target.visual.shape))
        assert tokens.scores is not None
        assert tokens.scores.tolist() == [1.0] * ours


def test_newlines_say_nothing_about_the_cells_before_them() -> None:
    """Models look at them a lot; the draft's own newline takes what its cell has."""
    target, draft = prompt(4 * 16 + 1, frames=4), prompt(4 * 4 + 1, frames=4)
    scores = torch.ones(target.visual.shape)
    scores[0, FIRST + 64] = 1000
    (tokens,) = shown(draft, target, scores)
    assert tokens.scores is not None
    assert tokens.scores.tolist() == [1.0] * 17


def test_every_picture_is_stretched_by_itself() -> None:
    """A picture of four by four and its details of six by two, read by a draft that sees it twice
    in two by two."""
    source = torch.tensor(
        [(0, h, w) for h in range(4) for w in range(4)]
        + [(1, h, w) for h in range(6) for w in (0, 1)]
    )
    scores = torch.tensor(
        [10.0 * (h // 2) + w // 2 for _, h, w in source[:16]] + [0, 1] * 3 + [10, 11] * 3
    )
    target = torch.tensor([(t, h, w) for t in range(2) for h in range(2) for w in range(2)])
    assert pruned._carry_over(scores, source, target).tolist() == [0, 1, 10, 11] * 2
    assert (
        pruned._carry_over(torch.tensor([0.0, 1, 10, 11] * 2), target, source).tolist()
        == scores.tolist()
    )


def test_cells_look_for_their_nearest_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part makes a difference."""
    target, draft = prompt(32, frames=2), prompt(50, frames=2)
    (whole,) = shown(draft, target, numbered(target))
    monkeypatch.setattr(pruned, "CELLS_PER_SEARCH", 7)
    (parts,) = shown(draft, target, numbered(target))
    assert whole.scores is not None
    assert parts.scores is not None
    assert torch.equal(whole.scores, parts.scores)


def test_a_bright_spot_stays_where_it_is() -> None:
    """Four by four to two by two and back: the quarter that is looked at."""
    target, draft = prompt(32, frames=2), prompt(8, frames=2)
    for time, high, wide in ((0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1)):
        cells = target.cells[0]
        bright = (cells[:, 0] == time) & (cells[:, 1] // 2 == high) & (cells[:, 2] // 2 == wide)
        (tokens,) = shown(draft, target, bright[None].float())
        assert tokens.scores is not None
        assert tokens.cells[tokens.scores > 0].tolist() == [[time, high, wide]]


@pytest.mark.parametrize("grids", [((4, 4), (4, 4)), ((4, 4), (2, 2)), ((2, 2), (5, 5))])
def test_similarities_reach_the_pruner_that_reads_them(grids: tuple[Sides, Sides]) -> None:
    """Not the attention that somebody else has read; carried over to other grids as attention
    is."""
    counts = [2 * high * wide for high, wide in grids]
    target = prompt(counts[0], counts[0], frames=2)
    draft = prompt(counts[1], counts[1], frames=2)
    generator = torch.Generator().manual_seed(3)
    first, last, attention = torch.randn(3, *target.visual.shape, generator=generator)
    pruner = UVPruner(layer=3)
    low, high = pruner.readings.similarities
    choices: list[Choice] = []
    context = replace(
        seen(target, None),
        readings=PrefillFeatures(attention=attention, similarities={low: first, high: last}),
        observer=Observer(on_choice=choices.append),
    )
    kept = Pruning(pruner, 0.5).keep(draft, context)
    for row, tokens in enumerate(shown(draft, target, last - first)):
        assert tokens.scores is not None
        assert choices[row].visual.scores is not None
        assert torch.equal(choices[row].visual.scores, tokens.scores)
        best = top(tokens.scores, len(tokens) // 2)
        assert choices[row].kept.tolist() == best.tolist()
        assert torch.equal(kept[row][draft.visual[row, kept[row]]], FIRST + best)
        assert choices[row].score_name == "similarity to the text gained"


@pytest.mark.parametrize("runs", [(0, 4), (4, 0)])
def test_only_one_of_the_two_has_eyes(runs: tuple[int, int]) -> None:
    target, draft = prompt(4, runs[0]), prompt(4, runs[1])
    with pytest.raises(
        UnsupportedModelError, match="only one of target and draft has visual tokens: prune without"
    ):
        shown(draft, target, numbered(target))
    assert len(shown(draft, target, None)) == 2


@pytest.mark.parametrize("ratio", [0, 0.3, 0.5, 0.9, 1])
@pytest.mark.parametrize("pruner", ["specvlm", "uniform", "frames"])
def test_text_is_always_kept(ratio: float, pruner: str) -> None:
    """Rising indices below each row's length: all words, no padding, and as many visual tokens as
    counted."""
    both = prompt(10, 0, 28)
    rows = Pruning(make_pruner(pruner), ratio).keep(both, seen(both, numbered(both) + 1))
    for row, (kept, count) in enumerate(zip(rows, (10, 0, 28), strict=True)):
        visual = both.visual[row]
        words = [index for index in range(both.lengths[row]) if not visual[index]]
        assert [index for index in kept.tolist() if not visual[index]] == words
        assert kept.tolist() == sorted(set(kept.tolist()))
        assert int(visual[kept].sum()) == int(count * (1000 - round(1000 * ratio)) / 1000)


def test_the_chosen_ones_are_kept() -> None:
    """The pruner counts visual tokens alone; the prompt has words before them."""
    both = prompt(6, 6)
    scores = torch.zeros(both.visual.shape)
    scores[0, [FIRST + 1, FIRST + 4]] = 1
    scores[1, [FIRST, FIRST + 5]] = 1
    first, second = Pruning(make_pruner("attention"), 2 / 3).keep(both, seen(both, scores))
    assert first.tolist() == [0, 2, 5, 7, 8]
    assert second.tolist() == [0, 1, 6, 7, 8]


def test_the_smaller_prompt_and_what_is_counted() -> None:
    both, notes = prompt(6, 3), Notes()
    pruner: Pruner = make_pruner({"name": "window", "window": "end"})
    after = Pruning(pruner, 0.5).apply(both, seen(both, None, notes))
    smaller, kept = after.prompt, after.kept_tokens
    assert [row.tolist() for row in kept] == [[0, 4, 5, 6, 7, 8], [0, 3, 4, 5]]
    assert smaller.lengths == [6, 4]
    for row, places in enumerate(kept):
        assert torch.equal(smaller.embeds[row, : len(places)], both.embeds[row, places])
        assert torch.equal(smaller.visual[row, : len(places)], both.visual[row, places])
    assert smaller.position_ids[0].tolist() == kept[0].tolist()
    assert smaller.next_position.tolist() == [[9], [6]]
    assert notes.phases == ["prune"]
    assert notes.counts == [(9, 4)]


def test_scores_that_were_not_read() -> None:
    both = prompt(6)
    with pytest.raises(ConfigError, match="needs the target's attention, and none was read"):
        Pruning(make_pruner("specvlm"), 0.5).apply(both, seen(both, None))
