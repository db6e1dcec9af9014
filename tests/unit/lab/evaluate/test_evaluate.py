"""What `draftlens evaluate` counts: shares, questions, chance, accuracy, rounds, against figures
known beforehand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from draftlens_lab.evaluate import chance
from draftlens_lab.evaluate.accuracy import captions_right, fact_kind, family_right, questions_right
from draftlens_lab.evaluate.answers import Answer, OnAnswers
from draftlens_lab.evaluate.chance import Guesses
from draftlens_lab.evaluate.samples import (
    FAMILIES,
    caption_samples,
    possible_samples,
    question_samples,
    scenes_of,
    wording,
)
from draftlens_lab.world import (
    HELD_OUT,
    Turn,
    facts,
    novelties,
    right_facts,
    sample_scene,
    still_facts,
)
from draftlens_lab.world.samples import Sample

from recipes.pair.goals import goals

BUNDLED = range(HELD_OUT + 10_000, HELD_OUT + 11_001)


def test_samples_are_held_out_and_no_part_shares_a_scene() -> None:
    parts = [
        caption_samples("clip", 30, 0),
        caption_samples("picture", 30, 0),
        caption_samples("clip", 30, 1),
    ]
    parts += [question_samples(family, 30, 0) for family in FAMILIES if family != "text only"]
    seeds = [{scene.seed for sample in part for scene in sample.scenes} for part in parts]
    assert all(len(of) == 30 for of in seeds)
    assert len(set.union(*seeds)) == 30 * len(seeds)
    assert all(seed > BUNDLED[-1] for of in seeds for seed in of)
    assert all(novelties(scene) for part in parts for sample in part for scene in sample.scenes)


def test_samples_are_the_same_every_time() -> None:
    for family in FAMILIES:
        assert question_samples(family, 5, 0) == question_samples(family, 8, 0)[:5]
        assert question_samples(family, 5, 0) != question_samples(family, 5, 1)
    assert caption_samples("clip", 3, 0) == caption_samples("clip", 4, 0)[:3]


@pytest.mark.parametrize("family", FAMILIES)
def test_questions_are_of_their_family_and_drawn_from_all_of_it(family: str) -> None:
    samples = question_samples(family, 60, 0)
    assert {sample.kind for sample in samples} == {FAMILIES[family]}
    if family != "picture":
        assert {sample.turns[-1].family for sample in samples} == {family}
    assert {len(sample.turns) for sample in samples} == {2 if family == "follow-up" else 1}
    few = {"difference": 1, "edit": 1, "follow-up": 1}
    assert len({wording(sample.turns[-1].question) for sample in samples}) >= few.get(family, 4)
    if family != "text only":
        assert all(
            sample in possible_samples(family, sample.scenes, np.random.default_rng(0))
            for sample in samples[:10]
        )


def test_wordings_leave_out_what_is_the_scenes_own() -> None:
    assert (
        wording("Which text comes after RAIN?")
        == wording("Which text comes after 42?")
        == "Which text comes after …?"
    )
    assert wording("How many shapes are there?") == "How many shapes are there?"


def test_guesses_are_the_commonest_answers_of_training_scenes() -> None:
    guesses, counts = Guesses(40), defaultdict(Counter)
    for seed in range(40):
        for sample in possible_samples(
            "counting", scenes_of("clip", seed), np.random.default_rng(0)
        ):
            counts[sample.turns[0].question][sample.turns[0].answer] += 1
            assert not novelties(sample.scenes[0])
    for sample in question_samples("counting", 30, 0):
        of = counts[sample.turns[0].question]
        assert of[guesses.guess("counting", sample)] == max(of.values())


def test_an_unknown_question_is_guessed_by_its_family() -> None:
    guesses = Guesses(30)
    (sample,) = question_samples("counting", 1, 0)
    unknown = replace(
        sample, turns=(replace(sample.turns[0], question="How many clouds are there?"),)
    )
    everything = Counter(
        s.turns[0].answer
        for seed in range(30)
        for s in possible_samples("counting", scenes_of("clip", seed), np.random.default_rng(0))
    )
    assert everything[guesses.guess("counting", unknown)] == max(everything.values())
    assert guesses.guess("counting", unknown) != guesses.guess("retrieval", unknown)


def test_a_follow_up_is_guessed_with_the_question_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this small world the first question decides the second one's answer."""
    firsts = {
        side: Turn(f"What is at the {side}?", "A ring.", "attribute") for side in ("left", "right")
    }
    chats = [
        Sample(
            "clip",
            (),
            (first, Turn("And what does it do?", f"It leaves to the {side}.", "follow-up")),
        )
        for side, first in firsts.items()
    ]
    monkeypatch.setattr(
        chance,
        "possible_samples",
        lambda family, shown, rng: chats if family == "follow-up" else [],
    )
    guesses = Guesses(3)
    assert [guesses.guess("follow-up", chat) for chat in chats] == [
        chat.turns[1].answer for chat in chats
    ]
    assert guesses.guess("counting", chats[0]) == ""


def test_talk_needs_no_picture_so_chance_is_all() -> None:
    guesses = Guesses(150)
    samples = question_samples("text only", 50, 0)
    figures = family_right("text only", samples, [Answer("")] * 50, guesses)
    assert figures["chance"]["right"] > 35
    assert figures["above"] == -figures["chance"]["share"]


class Teller:
    """Knows the truth and errs where told: `wrong` of the samples, in their order, get another
    answer."""

    def __init__(self, wrong: set[int]) -> None:
        self.wrong = wrong

    def answer(self, samples: Sequence[Sample], frames: int, on_answers: OnAnswers) -> list[Answer]:
        on_answers(len(samples))
        return [
            Answer("Nothing." if index in self.wrong else sample.turns[-1].answer)
            for index, sample in enumerate(samples)
        ]


def test_questions_get_their_known_share() -> None:
    families = {family: question_samples(family, 20, 0) for family in FAMILIES}
    counted: list[int] = []
    guesses = Guesses(30)
    figures = questions_right(Teller({1, 4, 5}), families, 8, guesses, counted.append)
    assert sum(counted) == 20 * len(FAMILIES)
    for family, of in figures.items():
        assert (of["right"]["right"], of["right"]["total"]) == (17, 20)
        lucky = [guesses.guess(family, s) == s.turns[-1].answer for s in families[family]]
        assert of["chance"]["right"] == sum(lucky)
        assert of["above"] == pytest.approx(0.85 - of["chance"]["share"])
        assert ("wordings" in of) == (family in ("ordering", "counting"))
    for family in ("ordering", "counting"):
        for part, total in product(("right", "chance"), ("right", "total")):
            parts = [of[part][total] for of in figures[family]["wordings"].values()]
            assert sum(parts) == figures[family][part][total]
    assert "Which text comes after …?" in figures["ordering"]["wordings"]


def test_right_captions_are_all_right() -> None:
    for kind, truth in (("clip", facts), ("picture", still_facts)):
        samples = caption_samples(kind, 12, 0)
        figures = captions_right(samples, [Answer(s.turns[0].answer) for s in samples])
        assert figures["exact"]["share"] == figures["facts"]["share"] == 1
        assert figures["facts"]["total"] == sum(len(truth(s.scenes[0])) for s in samples)
        assert all(share["share"] == 1 for share in figures["kinds"].values())
        assert figures["texts"]["all"]["share"] == figures["texts"]["named"]["share"] == 1
        assert figures["texts"]["all"]["total"] == sum(len(s.scenes[0].texts) for s in samples)


def test_facts_by_kind_add_up_to_the_worlds_own_count() -> None:
    samples = caption_samples("clip", 20, 0)
    shuffled = [Answer(sample.turns[0].answer) for sample in [*samples[1:], samples[0]]]
    figures = captions_right(samples, shuffled)
    counts = [
        right_facts(a.text, facts(s.scenes[0])) for s, a in zip(samples, shuffled, strict=True)
    ]
    right, total = (sum(column) for column in zip(*counts, strict=True))
    assert (figures["facts"]["right"], figures["facts"]["total"]) == (right, total)
    for name, expected in (("right", right), ("total", total)):
        assert sum(share[name] for share in figures["kinds"].values()) == expected
    assert figures["exact"]["right"] == 0


def test_one_wrong_colour_is_one_wrong_colour() -> None:
    samples = caption_samples("clip", 6, 0)
    texts = [sample.turns[0].answer for sample in samples]
    thing = samples[2].scenes[0].shots[0].things[0]
    other = "red" if thing.colour != "red" else "blue"
    texts[2] = texts[2].replace(
        f"{thing.texture} {thing.colour} {thing.shape}", f"{thing.texture} {other} {thing.shape}", 1
    )
    figures = captions_right(samples, [Answer(text) for text in texts])
    wrong = {kind: share["total"] - share["right"] for kind, share in figures["kinds"].items()}
    assert {kind: count for kind, count in wrong.items() if count} == {"colour": 1}
    assert figures["exact"]["right"] == 5


def test_text_counts_wherever_it_is_named_and_inventions_against() -> None:
    samples = [
        s
        for s in caption_samples("clip", 40, 0)
        if s.scenes[0].secret and len(s.scenes[0].texts) > 2
    ][:2]
    first, second = (sample.scenes[0] for sample in samples)
    shown = [text.value.upper() for text in first.texts]
    all_texts = len(first.texts) + len(second.texts)
    strange = next(w for w in ("PLUM", "KING", "RAIN", "SHIP") if w not in shown)
    answers = [
        Answer(f"I read {shown[0]}{shown[0]}, {shown[1]}; and {strange}."),
        Answer("It says plum, maybe."),
    ]
    figures = captions_right(samples, answers)["texts"]
    assert (figures["all"]["right"], figures["all"]["total"]) == (1, all_texts)
    assert (figures["named"]["right"], figures["named"]["total"]) == (1, 2)
    assert figures["secret"]["total"] == 2
    assert figures[first.texts[1].kind]["right"] == 1
    assert sum(figures[kind]["total"] for kind in ("word", "number", "secret")) == all_texts


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("first shot background", "background"),
        ("first shot top left colour", "colour"),
        ("second shot bottom right does", "does"),
        ("second shot left", "left"),
        ("second text word", "text word"),
        ("third text ink", "text ink"),
        ("picture pattern", "pattern"),
        ("text", "no text"),
        ("shots", "shots"),
        ("all texts", "totals"),
    ],
)
def test_kinds_of_facts(name: str, kind: str) -> None:
    assert fact_kind(name) == kind


def test_every_fact_of_the_world_has_a_kind() -> None:
    kinds = {fact_kind(name) for seed in range(200) for name in facts(sample_scene(seed))}
    thing = {"size", "texture", "colour", "shape", "does"}
    texts = {"text kind", "text word", "text number", "text ink", "text carrier", "no text"}
    shot = {"background", "pattern", "count", "camera", "left", "shots"}
    assert kinds <= thing | texts | shot | {"totals"}
    assert kinds >= thing | shot | texts - {"no text"}


def test_the_goals_say_what_was_not_measured() -> None:
    share = {"share": 0.95, "right": 19, "total": 20}
    report = {
        "arguments": {"frames": [8]},
        "accuracy": {
            "target": {
                "captions": {"8": {"facts": share}},
                "questions": {"retrieval": {"right": share}},
            }
        },
    }
    found = goals(report)
    assert [(goal["figure"], goal["met"]) for goal in found] == [
        (0.95, True),
        (0.95, True),
        (None, None),
        (None, None),
    ]
    pair = {
        "agreement": {"acceptance_length": {"5": 5.2}},
        "visual": {"kept": [{"fall": 0.0}, {"fall": 0.2}]},
    }
    assert [goal["met"] for goal in goals({**report, **pair})] == [True, True, False, True]
