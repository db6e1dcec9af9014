"""The world: equal scenes from equal seeds, disjoint splits, and captions that state the facts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from draftlens_lab.world import (
    HELD_OUT,
    caption,
    facts,
    marked_caption,
    marked_still_caption,
    novelties,
    read_facts,
    render,
    render_still,
    right_facts,
    sample_pair,
    sample_scene,
    sample_sparse,
    sample_still,
    seen_spans,
    still_caption,
    still_facts,
)
from draftlens_lab.world import scene as s

from tests.unit.lab.world.reference import (
    expected_facts,
    expected_still_facts,
    is_novel,
    make_scene,
    make_shot,
    make_thing,
)

BOTH_SPLITS = [*range(150), *range(HELD_OUT, HELD_OUT + 150)]
VALUES: tuple[tuple[str, ...], ...] = (
    s.COLOURS,
    s.SHAPES,
    s.TEXTURES,
    s.SIZES,
    s.PLACES,
    s.TIMES,
    s.BACKGROUNDS,
    s.PATTERNS,
    s.TEXT_COLOURS,
    tuple(word.upper() for word in s.WORDS),
    s.NUMBERS,
    ("none", "one", "two", "three", "four", "five", "six"),
    ("left", "right"),
    ("strip", "card"),
    ("word", "number", "secret word"),
    ("All", "At"),
    ("A", "There", "At"),
    ("stays", "moves"),
    ("grows", "shrinks"),
    ("enters", "leaves"),
    ("upwards", "downwards"),
    ("still", "moving"),
)


def test_the_same_seed_gives_the_same_scene_pixels_and_words() -> None:
    for seed in (0, 7, HELD_OUT + 3):
        first, second = sample_scene(seed), sample_scene(seed)
        assert first == second
        assert caption(first) == caption(second)
        assert np.array_equal(render(first, 4, 64), render(second, 4, 64))
        assert np.array_equal(
            render_still(sample_still(seed), 64), render_still(sample_still(seed), 64)
        )
        assert sample_pair(seed) == sample_pair(seed)
    assert len({caption(sample_scene(seed)) for seed in range(200)}) == 200


def test_training_scenes_never_show_a_held_out_combination() -> None:
    for seed in range(3000):
        assert not any(
            map(
                is_novel,
                (sample_scene(seed), sample_sparse(seed), sample_still(seed), *sample_pair(seed)),
            )
        )


def test_every_held_out_scene_shows_a_held_out_combination() -> None:
    for seed in range(HELD_OUT, HELD_OUT + 1500):
        assert all(
            map(
                is_novel,
                (sample_scene(seed), sample_sparse(seed), sample_still(seed), *sample_pair(seed)),
            )
        )


def test_novelties_count_every_combination_once() -> None:
    assert novelties(make_scene(make_shot(make_thing()))) == 0
    both = make_thing("up", shape="ring")
    word = s.Text("word", "plum", "white", "strip", "sans", 0.1, 0.3)
    assert novelties(make_scene(make_shot(both, make_thing(place="top right")), texts=(word,))) == 3
    assert (
        novelties(
            make_scene(
                make_shot(make_thing()), texts=(replace(word, kind="secret", colour="black"),)
            )
        )
        == 0
    )


def test_scenes_are_drawn_as_wide_as_they_say() -> None:
    scenes = [sample_scene(seed) for seed in range(1500)]
    shots = [shot for scene in scenes for shot in scene.shots]
    things = [thing for shot in shots for thing in shot.things]
    texts = [text for scene in scenes for text in scene.texts]
    for name, values in (
        ("motion", s.MOTIONS),
        ("place", s.PLACES),
        ("colour", s.COLOURS),
        ("shape", s.SHAPES),
    ):
        assert {getattr(thing, name) for thing in things} == set(values)
    for name, values in (
        ("background", s.BACKGROUNDS),
        ("pattern", s.PATTERNS),
        ("camera", s.CAMERAS),
    ):
        assert {getattr(shot, name) for shot in shots} == set(values)
    assert {text.value for text in texts} == {*s.WORDS, *s.NUMBERS}
    assert {
        (len(scene.texts), *(len(shot.things) for shot in scene.shots)) for scene in scenes
    } == {
        (4, 4),
        *((texts, first, second) for texts in (2, 3, 4) for first in (3, 4) for second in (3, 4)),
    }
    assert {len(sample_sparse(seed).texts) for seed in range(100)} == {0, 1, 2, 3, 4}


def test_scenes_keep_their_own_rules() -> None:
    for seed in BOTH_SPLITS:
        scene = sample_scene(seed) if seed % 2 else sample_sparse(seed)
        for shot in scene.shots:
            assert [t.place for t in shot.things] == [
                p for p in s.PLACES if p in {t.place for t in shot.things}
            ]
            assert len({t.colour for t in shot.things}) == len(shot.things)
            assert {t.motion for t in shot.things} not in ({"left"}, {"right"})
            assert shot.camera == "still" or {t.motion for t in shot.things} == {"stay"}
            bumping = [t.place.split()[0] for t in shot.things if t.motion == "bump"]
            assert bumping in ([], ["top"] * 2, ["bottom"] * 2)
        assert [
            (a.end, a.background != b.background)
            for a, b in zip(scene.shots, scene.shots[1:], strict=False)
        ] in (*([], [(scene.shots[-1].start, True)]),)
        assert all(a.end <= b.start for a, b in zip(scene.texts, scene.texts[1:], strict=False))
        assert len({text.value for text in scene.texts}) == len(scene.texts)
        assert sum(text.kind == "secret" for text in scene.texts) <= 1
        assert not any(text.carrier == "card" for text in scene.texts) or len(scene.shots) == 1


@pytest.mark.parametrize("base", [0, HELD_OUT])
def test_captions_state_exactly_the_facts_of_their_scene(base: int) -> None:
    for seed in range(base, base + 400):
        moving, still = sample_scene(seed), sample_still(seed)
        assert read_facts(caption(moving)) == facts(moving) == expected_facts(moving)
        assert facts(sample_sparse(seed)) == expected_facts(sample_sparse(seed))
        assert read_facts(still_caption(still)) == still_facts(still) == expected_still_facts(still)
        assert (
            right_facts(caption(moving), expected_facts(moving))
            == (len(expected_facts(moving)),) * 2
        )


def wrong_words(word: str) -> Iterator[str]:
    """A word without meaning, and other words that are possible at the same position."""
    yield "xyz"
    for values in VALUES:
        if word in values:
            yield values[(values.index(word) + 1) % len(values)]
            yield values[values.index(word) - 1]


@pytest.mark.parametrize("seed", [*range(24), *range(HELD_OUT, HELD_OUT + 8)])
def test_a_wrong_word_makes_a_fact_wrong(seed: int) -> None:
    moving, still = sample_scene(seed) if seed % 4 else sample_sparse(seed), sample_still(seed)
    for marked_text, truth in (
        (marked_caption(moving), expected_facts(moving)),
        (marked_still_caption(still), expected_still_facts(still)),
    ):
        plain_text = marked_text.replace("[", "").replace("]", "")
        for start, end in seen_spans(marked_text):
            for wrong in wrong_words(plain_text[start:end]):
                right, total = right_facts(plain_text[:start] + wrong + plain_text[end:], truth)
                assert right < total, (
                    f"{wrong} for {plain_text[start:end]} at {start}: {plain_text}"
                )


def test_invented_and_missing_facts_are_counted() -> None:
    scene = make_scene(
        make_shot(
            make_thing(), make_thing(place="bottom right", colour="blue", centre=(0.75, 0.62))
        )
    )
    truth = expected_facts(scene)
    more = "There is a small plain green ring at the top right, and it stays where it is."
    invented = caption(scene).replace(" All ", f" {more} All ")
    assert right_facts(invented, truth) == (len(truth), len(truth) + 5)
    assert right_facts("", truth) == (0, len(truth))
    assert right_facts("It is a video of a dog.", truth) == (0, len(truth))


def words_of(marked_text: str) -> list[tuple[str, bool]]:
    """The words of the unmarked text, each with whether it is marked."""
    words = []
    for match in re.finditer(r"\[([^\]]*)\](\S*)|(\S+)", marked_text):
        marked, tail, plain = match.groups()
        words += [(plain, False)] if marked is None else [(f"{marked}{tail}", True)]
    return words


# These words also depend on the scene, but are not marked: the first and last words of texts, and
# words before a mark ("stands [still]", "moves to the [left]" as opposed to "moves [upwards]").
NOT_MARKED = {"stands", "to", "There", "First", "Then", "The", "end"}


def fewer_texts(scene: s.Scene) -> list[s.Scene]:
    return [replace(scene, texts=scene.texts[:count]) for count in range(len(scene.texts) + 1)]


def test_marks_stand_where_scenes_part() -> None:
    """Captions that agree up to a word part there because the scene decides it: then it is
    marked."""
    marked_texts = [
        marked_caption(draw(seed)) for seed in range(400) for draw in (sample_scene, sample_sparse)
    ]
    marked_texts += [marked_still_caption(sample_still(seed)) for seed in range(400)]
    marked_texts += [
        marked_caption(scene) for seed in range(20) for scene in fewer_texts(sample_scene(seed))
    ]
    marked_texts += [
        marked_still_caption(scene)
        for seed in range(20)
        for scene in fewer_texts(sample_still(seed))
    ]
    follows: dict[str, set[tuple[str, bool]]] = defaultdict(set)
    for text in marked_texts:
        plain_text = ""
        for word, marked in [*words_of(text), ("end", False)]:
            follows[plain_text].add((word, marked))
            plain_text = f"{plain_text} {word}"
    parting = [
        words for plain_text, words in follows.items() if len(words) > 1 and plain_text != " The"
    ]  # video or picture
    assert {word for words in parting for word, marked in words if not marked} == NOT_MARKED


def test_marked_words_are_those_that_the_scene_decides() -> None:
    """Change one thing about a scene: only marked words change, and each kind of change is seen in
    one."""
    left = make_thing("enter", when="early", size="small")
    right = make_thing("stay", place="top right", colour="blue", centre=(0.75, 0.25))
    text = s.Text("word", "moon", "white", "strip", "sans", 0.1, 0.3)
    shot = make_shot(left, right)
    changes = [
        make_scene(make_shot(replace(left, **{name: value}), right), texts=(text,))
        for name, value in (
            ("colour", "green"),
            ("shape", "cross"),
            ("texture", "spotted"),
            ("when", "late"),
        )
    ]
    changes += [make_scene(replace(shot, background="grey"), texts=(text,))]
    changes += [make_scene(replace(shot, pattern="lined"), texts=(text,))]
    changes += [
        make_scene(shot, texts=(replace(text, **{k: v}),))
        for k, v in (("value", "rain"), ("colour", "pink"))
    ]
    before = words_of(marked_caption(make_scene(shot, texts=(text,))))
    for changed in changes:
        after = words_of(marked_caption(changed))
        differ = [
            marked
            for (word, marked), (other, _) in zip(before, after, strict=True)
            if word != other
        ]
        assert differ == [True]


def test_spans_are_the_marked_words() -> None:
    for seed in range(100):
        marked_text = marked_caption(sample_scene(seed))
        plain_text = caption(sample_scene(seed))
        assert [plain_text[start:end] for start, end in seen_spans(marked_text)] == re.findall(
            r"\[(.*?)\]", marked_text
        )
