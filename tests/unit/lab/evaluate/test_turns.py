"""Samples of single turns: what precedes them, and that no two parts share scenes."""

from __future__ import annotations

from itertools import product

import pytest
from draftlens_lab.evaluate.parts import PART_FAMILIES, part_samples
from draftlens_lab.evaluate.turns import SECOND_KINDS, second_turns, stories, talks
from draftlens_lab.world import HELD_OUT, novelties, questions
from draftlens_lab.world.samples import Sample

from draftlens.core.errors import ConfigError

FAMILIES = {"second": "caption", "aside": "text only"}


@pytest.mark.parametrize(("kind", "about"), list(product(SECOND_KINDS, ("picture", "clip"))))
def test_a_second_turn_follows_another(kind: str, about: str) -> None:
    samples = second_turns(kind, about, 12, 0)
    assert samples[:3] == second_turns(kind, about, 3, 0)
    assert samples[:3] != second_turns(kind, about, 3, 1)
    for sample in samples:
        assert sample.kind == about
        assert novelties(sample.scenes[0])
        before, last = sample.turns
        assert last.family == FAMILIES.get(kind, last.family)
        assert (before.family == "caption") == (kind != "second")
        if kind == "recall":
            assert last in questions(sample.scenes[0], still=about == "picture")


def seeds(samples: list[Sample]) -> list[int]:
    return [scene.seed for sample in samples for scene in sample.scenes]


def test_no_two_kinds_show_the_same_scene() -> None:
    found = [told.scenes[0].seed for told in stories(5, 0)]
    for kind, about in product(SECOND_KINDS, ("picture", "clip")):
        found += seeds(second_turns(kind, about, 5, 0))
    for family in PART_FAMILIES:
        found += sorted(set(seeds(part_samples(family, 5, 0, 16))))
    assert len(set(found)) == len(found)
    assert min(found) > HELD_OUT + 1_000_000
    assert max(found) < HELD_OUT + 2_000_000


def test_talks_differ_and_have_three_different_questions() -> None:
    samples = talks(60, 0)
    assert samples[:5] == talks(5, 0)
    assert len({sample.turns for sample in samples}) == 60
    assert all(len(set(sample.turns)) == 3 for sample in samples)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="no second turn 'third'; there are second, recall"):
        second_turns("third", "clip", 1, 0)
    with pytest.raises(ConfigError, match="about a picture or a clip, not 'talk'"):
        second_turns("aside", "talk", 1, 0)
