"""Which tokens of its own prompt a draft reads, by the target's scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from draftlens.draft import pruned
from draftlens.draft.base import Seen
from draftlens.draft.pruned import Pruning
from draftlens.errors import ConfigError, UnsupportedModelError
from draftlens.models import KVCache, Prompt
from draftlens.prune import Pruner, Visual, make_pruner

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
    return Prompt(embeds, torch.arange(longest).expand(rows, -1), lengths, following, visual, {}, frames, tile)


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


def seen(target: Prompt, scores: Tensor | None, notes: Notes | None = None) -> Seen:
    notes = notes or Notes()
    return Seen(target, KVCache(1, len(target.lengths), 1), scores, notes.phase, notes.pruned)


def numbered(target: Prompt) -> Tensor:
    """Scores that name the row and the visual token that they belong to."""
    scores = torch.full(target.visual.shape, -1.0)
    for row in range(len(target.lengths)):
        count = int(target.visual[row].sum())
        scores[row, target.visual[row]] = 1000.0 * row + torch.arange(count)
    return scores


class Listener:
    """Keeps the first tokens and remembers what it was shown."""

    needs_scores: ClassVar[bool] = True

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


@pytest.mark.parametrize(
    ("theirs", "ours", "frames"),
    [((4, 4), (2, 2), (2, 2)), ((2, 2), (4, 4), (2, 2)), ((3, 3), (5, 5), (4, 4)), ((4, 4), (2, 2), (8, 3))],
)
def test_scores_are_carried_over_to_other_rasters(
    theirs: tuple[int, int], ours: tuple[int, int], frames: tuple[int, int]
) -> None:
    """Each token takes the score of one that is nearest, all pictures stretched to the same size; rows do not mix."""
    counts = [side * other * many for (side, other), many in zip((theirs, ours), frames, strict=True)]
    target = prompt(counts[0], counts[0], frames=frames[0])
    draft = prompt(counts[1], counts[1], frames=frames[1])
    for row, tokens in enumerate(shown(draft, target, numbered(target))):
        assert tokens.scores is not None
        source = target.cells[row][target.visual[row]].tolist()
        size, other = ((frames[0], *theirs), (frames[1], *ours))
        for (time, high, wide), score in zip(tokens.cells.tolist(), tokens.scores.tolist(), strict=True):
            mine = [(place + 0.5) / side for place, side in zip((time, high, wide), other, strict=True)]
            distances = [
                sum(((place + 0.5) / side - own) ** 2 for place, side, own in zip(cell, size, mine, strict=True))
                for cell in source
            ]
            taken, carried_from = divmod(int(score), 1000)
            assert taken == row
            assert distances[carried_from] == pytest.approx(min(distances), abs=1e-6)


def test_cells_look_for_their_nearest_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part makes a difference."""
    target, draft = prompt(32, frames=2), prompt(50, frames=2)
    (whole,) = shown(draft, target, numbered(target))
    monkeypatch.setattr(pruned, "AT_ONCE", 7)
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


@pytest.mark.parametrize("runs", [(0, 4), (4, 0)])
def test_only_one_of_the_two_has_eyes(runs: tuple[int, int]) -> None:
    target, draft = prompt(4, runs[0]), prompt(4, runs[1])
    with pytest.raises(UnsupportedModelError, match="only one of target and draft has visual tokens: prune without"):
        shown(draft, target, numbered(target))
    assert len(shown(draft, target, None)) == 2


@pytest.mark.parametrize("ratio", [0, 0.3, 0.5, 0.9, 1])
@pytest.mark.parametrize("pruner", ["specvlm", "uniform", "frames"])
def test_text_is_always_kept(ratio: float, pruner: str) -> None:
    """Rising indices below each row's length: all words, no padding, and as many visual tokens as counted."""
    both = prompt(10, 0, 28)
    rows = Pruning(make_pruner(pruner, {}), ratio).keep(both, seen(both, numbered(both) + 1))
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
    first, second = Pruning(make_pruner("attention", {}), 2 / 3).keep(both, seen(both, scores))
    assert first.tolist() == [0, 2, 5, 7, 8]
    assert second.tolist() == [0, 1, 6, 7, 8]


@pytest.mark.parametrize("positions", ["original", "compact"])
def test_the_smaller_prompt_and_what_is_counted(positions: str) -> None:
    both, notes = prompt(6, 3), Notes()
    pruner: Pruner = make_pruner("window", {"window": "end"})
    smaller, kept = Pruning(pruner, 0.5, positions).apply(both, seen(both, None, notes))
    assert [row.tolist() for row in kept] == [[0, 4, 5, 6, 7, 8], [0, 3, 4, 5]]
    assert smaller.lengths == [6, 4]
    for row, places in enumerate(kept):
        assert torch.equal(smaller.embeds[row, : len(places)], both.embeds[row, places])
        assert torch.equal(smaller.visual[row, : len(places)], both.visual[row, places])
    expected = kept[0].tolist() if positions == "original" else list(range(6))
    assert smaller.position_ids[0].tolist() == expected
    assert smaller.next_position.tolist() == ([[9], [6]] if positions == "original" else [[6], [4]])
    assert notes.phases == ["prune"]
    assert notes.counts == [(9, 4)]


def test_scores_that_were_not_read() -> None:
    both = prompt(6)
    with pytest.raises(ConfigError, match="needs the target's attention, and none was read"):
        Pruning(make_pruner("specvlm", {}), 0.5).apply(both, seen(both, None))
