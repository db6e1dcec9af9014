"""Stories: pictures that follow each other, with captions."""

from __future__ import annotations

import pytest
from draftlens_lab.world import HELD_OUT, novelties, sample_story, still_caption, still_facts, story

from draftlens.core.errors import ConfigError


@pytest.mark.parametrize("seed", [*range(20), *range(HELD_OUT, HELD_OUT + 20)])
def test_each_picture_differs_from_the_one_before_in_one_thing(seed: int) -> None:
    told = story(seed)
    assert told == story(seed)
    assert len(told.scenes) == 5
    for before, after in zip(told.scenes, told.scenes[1:], strict=False):
        first = {thing.place: thing for thing in before.shots[0].things}
        second = {thing.place: thing for thing in after.shots[0].things}
        changed = [place for place in first if first[place] != second.get(place)]
        assert len(changed) == 1
        assert set(second) <= set(first)
        assert len(second) >= 2
        assert before.texts == after.texts
    for scene in told.scenes:
        assert (novelties(scene) > 0) == (seed >= HELD_OUT)


def test_the_answer_is_what_the_last_picture_shows() -> None:
    told = story(3)
    assert told.turn.answer == still_caption(told.scenes[-1])
    assert told.captions == tuple(still_caption(scene) for scene in told.scenes[:4])
    assert still_facts(told.scenes[-1]) != still_facts(told.scenes[0])
    assert len(story(3, pictures=2).captions) == 1


def test_a_story_has_pictures() -> None:
    with pytest.raises(ConfigError, match="1 picture or more, not 0"):
        sample_story(0, 0)
