"""The world's questions: each has one right answer, and the library gives it."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from draftlens_lab.world import (
    HELD_OUT,
    IMAGE_PROMPTS,
    VIDEO_PROMPTS,
    Scene,
    Turn,
    caption,
    describe,
    differences,
    follow_ups,
    questions,
    sample_pair,
    sample_scene,
    sample_still,
    small_talk,
    still_caption,
)
from draftlens_lab.world.samples import FAMILIES, KINDS, MEDIA, draw
from draftlens_lab.world.scene import PLACES, WORDS, Shot, Text, Thing

from tests.unit.lab.world.reference import NUMERALS, expected_action, is_novel

SEEDS = [*range(120), *range(HELD_OUT, HELD_OUT + 60)]


def looks(thing: Thing) -> str:
    return f"a {thing.texture} {thing.colour} {thing.shape}"


def shown_value(text: Text) -> str:
    return text.value.upper()


def shot_of_question(scene: Scene, question: str) -> Shot:
    """The shot that a question is about."""
    suffix = re.search(r" in the (first|second) shot\?$", question)
    assert (suffix is not None) == (len(scene.shots) == 2)
    return scene.shots[["first", "second"].index(suffix[1]) if suffix else 0]


def coloured(scene: Scene, question: str) -> Text:
    kind = re.findall("word|number", question)[0]
    (text,) = [text for text in scene.texts if text.kind == kind]
    return text


def background(scene: Scene, question: str) -> str:
    shot = shot_of_question(scene, question)
    return f"It is a {shot.pattern} {shot.background} background."


def at_place(scene: Scene, question: str) -> str:
    (place,) = [place for place in PLACES if f" {place}" in question]
    things = [thing for thing in shot_of_question(scene, question).things if thing.place == place]
    assert len(things) < 2
    return f"{looks(things[0]).capitalize()}." if things else "There is nothing."


def of_colour(scene: Scene, question: str) -> Thing:
    (thing,) = [
        thing
        for thing in shot_of_question(scene, question).things
        if f" {thing.colour}" in question
    ]
    return thing


def of_shape(scene: Scene, question: str) -> Thing:
    (thing,) = [
        thing for thing in shot_of_question(scene, question).things if f" {thing.shape}" in question
    ]
    return thing


def next_text(scene: Scene, question: str) -> str:
    values = [shown_value(text) for text in sorted(scene.texts, key=lambda text: text.start)]
    before = re.findall(r"[A-Z0-9]{2,}", question)[0]
    assert values.count(before) == 1
    return f"{values[values.index(before) + 1]} comes after {before}."


def moving(motion: str) -> Callable[[Scene, str], str]:
    def count(scene: Scene, _: str) -> str:
        things = [thing for shot in scene.shots for thing in shot.things]
        return (
            f"The answer is {NUMERALS[len([thing for thing in things if thing.motion == motion])]}."
        )

    return count


def secret(scene: Scene, _: str) -> str:
    (text,) = [text for text in scene.texts if text.kind == "secret"]
    return f"The secret word is {shown_value(text)}."


def in_order(scene: Scene, _: str) -> list[str]:
    return [shown_value(text) for text in sorted(scene.texts, key=lambda text: text.start)]


# Each form of question with its family and the answer, computed from the scene.
ANSWERS: dict[str, tuple[str, Callable[[Scene, str], str]]] = {
    r"What is the secret word\?": ("retrieval", secret),
    r"Which (word|number) is shown in colour\?": (
        "retrieval",
        lambda scene, question: (
            f"It is the {coloured(scene, question).kind} {shown_value(coloured(scene, question))}."
        ),
    ),
    r"In which colour is the (word|number) shown\?": (
        "retrieval",
        lambda scene, question: f"In {coloured(scene, question).colour} letters.",
    ),
    r"In which order are the texts shown\?": (
        "ordering",
        lambda *arguments: f"{', '.join(in_order(*arguments))}.",
    ),
    r"Which text is shown first\?": (
        "ordering",
        lambda *arguments: f"{in_order(*arguments)[0]} is shown first.",
    ),
    r"Which text is shown last\?": (
        "ordering",
        lambda *arguments: f"{in_order(*arguments)[-1]} is shown last.",
    ),
    r"Which text comes after \w+\?": ("ordering", next_text),
    r"Which background comes first and which second\?": (
        "ordering",
        lambda scene, _: (
            f"First it is {scene.shots[0].background}, then it is {scene.shots[1].background}."
        ),
    ),
    r"How many shapes are there( in the \w+ shot)?\?": (
        "counting",
        lambda scene, question: (
            f"There are {NUMERALS[len(shot_of_question(scene, question).things)]} shapes."
        ),
    ),
    r"How many texts are shown\?": (
        "counting",
        lambda scene, _: f"The answer is {NUMERALS[len(scene.texts)]}.",
    ),
    r"How many shots has the video\?": (
        "counting",
        lambda scene, _: f"The answer is {NUMERALS[len(scene.shots)]}.",
    ),
    r"How many shapes enter the picture\?": ("counting", moving("enter")),
    r"How many shapes leave the picture\?": ("counting", moving("leave")),
    r"Which background is there( in the \w+ shot)?\?": ("attribute", background),
    r"What is at the \w+ \w+?( in the \w+ shot)?\?": ("attribute", at_place),
    r"Where is the \w+ shape( in the \w+ shot)?\?": (
        "attribute",
        lambda scene, question: f"It is at the {of_colour(scene, question).place}.",
    ),
    r"What shape is \w+?( in the \w+ shot)?\?": (
        "attribute",
        lambda scene, question: (
            f"The {of_colour(scene, question).shape} is {of_colour(scene, question).colour}."
        ),
    ),
    r"What colour is the \w+?( in the \w+ shot)?\?": (
        "attribute",
        lambda scene, question: (
            f"The {of_shape(scene, question).shape} is {of_shape(scene, question).colour}."
        ),
    ),
    r"What does the \w+ shape do( in the \w+ shot)?\?": (
        "attribute",
        lambda scene, question: f"It {expected_action(of_colour(scene, question))}.",
    ),
}


def check(scene: Scene, turns: list[Turn]) -> set[str]:
    """Compare every answer with the one computed here; returns the forms of the questions."""
    forms = set()
    assert len({turn.question for turn in turns}) == len(turns)
    for turn in turns:
        ((form, (family, answer)),) = [
            item for item in ANSWERS.items() if re.fullmatch(item[0], turn.question)
        ]
        assert (turn.family, turn.answer) == (family, answer(scene, turn.question)), turn.question
        forms.add(form)
    return forms


def test_every_question_has_its_one_right_answer() -> None:
    forms = set()
    for seed in SEEDS:
        forms |= check(sample_scene(seed), questions(sample_scene(seed), still=False))
        in_stills = check(sample_still(seed), questions(sample_still(seed), still=True))
        assert not {form for form in in_stills if ANSWERS[form][0] == "ordering"}
    assert forms == set(ANSWERS)


def test_all_that_can_be_asked_is_asked() -> None:
    for seed in SEEDS:
        scene = sample_scene(seed)
        asked_questions = {turn.question for turn in questions(scene, still=False)}
        assert ("What is the secret word?" in asked_questions) == (scene.secret is not None)
        assert ("Which text is shown first?" in asked_questions) == (len(scene.texts) > 1)
        assert sum(
            question.startswith("What is at the") for question in asked_questions
        ) == 4 * len(scene.shots)
        assert sum(question.startswith("Where is the") for question in asked_questions) == sum(
            len(x.things) for x in scene.shots
        )


@pytest.mark.parametrize("still", [False, True])
def test_follow_ups_are_about_the_thing_before(still: bool) -> None:
    second_questions = set()
    for seed in SEEDS:
        scene = sample_still(seed) if still else sample_scene(seed)
        for first, second in follow_ups(scene, still):
            assert first.answer == at_place(scene, first.question)
            place = re.findall(r"at the (\w+ \w+?)(?: in|\?)", first.question)[0]
            (thing,) = [
                thing
                for thing in shot_of_question(scene, first.question).things
                if thing.place == place
            ]
            right = {
                "Is it small or large?": f"It is {thing.size}.",
                "And what does it do?": f"It {expected_action(thing)}.",
            }
            assert second.answer == right[second.question]
            assert (first.family, second.family) == ("attribute", "follow-up")
            second_questions.add(second.question)
    assert second_questions == {"Is it small or large?" if still else "And what does it do?"}


def test_pairs_differ_in_exactly_one_thing_and_it_is_said() -> None:
    kinds = set()
    for seed in SEEDS:
        first, second = sample_pair(seed)
        (a,), (b,) = first.shots, second.shots
        assert (a.background, a.pattern, a.camera, first.texts) == (
            b.background,
            b.pattern,
            b.camera,
            second.texts,
        )
        before, after = ({thing.place: thing for thing in shot.things} for shot in (a, b))
        (place,) = [place for place in PLACES if before.get(place) != after.get(place)]
        old, new = before[place], after.get(place)
        which = f"the {looks(old)[2:]} at the {place}"
        change, edit = differences(first, second)
        if new is None:
            kinds.add("gone")
            expected = f"The{which[3:]} is gone.", f"Remove {which}."
        else:
            names = [name for name in vars(old) if getattr(old, name) != getattr(new, name)]
            kinds.update(names)
            assert len(names) == 1
            expected = f"The{which[3:]} is now {looks(new)}.", f"Turn {which} into {looks(new)}."
        assert (change.answer, edit.answer) == expected
        assert (change.question, edit.question) == (
            *("What is different in the second image?", "How was the first image edited?"),
        )
    assert kinds == {"gone", "colour", "shape", "texture"}


def right_small_talk(question: str) -> str:
    """The answer, found by arithmetic and common knowledge."""
    amounts = re.findall(r"How much is (\w+) and (\w+)\?", question)
    if amounts:
        return f"It is {NUMERALS[sum(NUMERALS.index(amount) for amount in amounts[0])]}."
    word = question.split()[-1].rstrip("?")
    corners = {"triangle": "three", "square": "four", "circle": "no"}
    opposites = (
        "left right",
        "right left",
        "top bottom",
        "small large",
        "early late",
        "first last",
    )
    if "corners" in question:
        return f"A {word} has {corners[word]} corners."
    if "opposite" in question:
        return f"It is {dict(pair.split() for pair in opposites)[word]}."
    (word,) = re.findall(r"Write (\w+) in capital letters\.", question)
    assert word in WORDS
    return f"{word.upper()}."


def test_small_talk_is_right() -> None:
    turns = [small_talk(np.random.default_rng(seed)) for seed in range(400)]
    assert len({turn.question for turn in turns}) > 40
    for turn in turns:
        assert (turn.family, turn.answer) == ("text only", right_small_talk(turn.question))


def test_captions_are_asked_for_in_every_wording() -> None:
    scene, picture = sample_scene(0), sample_still(0)
    rng = np.random.default_rng(0)
    moving_turns = [describe(scene, rng, still=False) for _ in range(60)]
    still_turns = [describe(picture, rng, still=True) for _ in range(60)]
    assert {turn.question for turn in moving_turns} == set(VIDEO_PROMPTS)
    assert {turn.question for turn in still_turns} == set(IMAGE_PROMPTS)
    assert {turn.answer for turn in moving_turns} == {caption(scene)}
    assert {turn.answer for turn in still_turns} == {still_caption(picture)}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_the_same_every_time_and_of_their_split(kind: str) -> None:
    families = set()
    for seed in (*range(60), *range(HELD_OUT, HELD_OUT + 20)):
        sample = draw(kind, seed)
        assert sample == draw(kind, seed)
        num_scenes = {"video": 1, "image": 1, "images": 2, "none": 0}[MEDIA[kind]]
        assert len(sample.scenes) == num_scenes
        assert all(is_novel(scene) == (seed >= HELD_OUT) for scene in sample.scenes)
        families |= {turn.family for turn in sample.turns}
    assert (
        families
        == {
            "clip": {*FAMILIES, "caption", "follow-up"},
            "picture": {"retrieval", "counting", "attribute", "caption", "follow-up"},
            "pair": {"difference", "edit"},
            "talk": {"text only"},
            "focus": {"focus", "needle"},
            "needle": {"focus", "needle"},
            "chat": {"focus", "chat"},
            "spot": {"difference", "edit", "pairs"},
        }[kind]
    )


@pytest.mark.parametrize("still", [False, True])
def test_dialogues_ask_nothing_twice(still: bool) -> None:
    captions = 0
    for seed in range(200):
        sample = draw("picture" if still else "clip", seed)
        requests = [turn for turn in sample.turns if turn.family == "caption"]
        plain = [turn for turn in sample.turns if turn.family in FAMILIES]
        assert (
            len({turn.question for turn in plain}) >= len(plain) - 1
        )  # a follow-up's first turn may have come before
        assert len(requests) < 2
        captions += len(requests)
    assert 120 < captions < 180
