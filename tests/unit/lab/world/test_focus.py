"""Focus questions: the answers follow from what is rendered, and from their regions alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from draftlens_lab.world import (
    HELD_OUT,
    Evidence,
    FocusTurn,
    Reel,
    Region,
    Scene,
    Shot,
    chats,
    evidence,
    focus_turns,
    needle_turns,
    read_facts,
    render,
    right_facts,
    sample_pair,
    sample_reel,
    seen_spans,
    spot_turns,
)
from draftlens_lab.world.regions import PLACE_CELLS, STRIP_CELLS

from tests.unit.lab.world.reference import NUMERALS, expected_action

SEEDS = [*range(12), *range(HELD_OUT, HELD_OUT + 12)]
FRAMES = 64


def reels() -> Iterator[Reel]:
    for seed in SEEDS:
        yield sample_reel(seed, FRAMES, ("strip", "card", "picture", None)[seed % 4])


def all_turns(reel: Reel) -> list[FocusTurn]:
    turns = [turn for turns in focus_turns(reel).values() for turn in turns]
    turns += needle_turns(reel)
    return turns + [turn for pair in chats(reel) for turn in pair]


def expected_part(reel: Reel, index: int) -> dict[str, str]:
    """The facts of a shot and its text, thing by thing."""
    shot, text = reel.scene.shots[index], reel.texts[index]
    remaining = sum(thing.motion != "leave" for thing in shot.things)
    facts = {
        "shot count": NUMERALS[len(shot.things)],
        "shot background": shot.background,
        "shot pattern": shot.pattern,
        "shot camera": "stands still" if shot.camera == "still" else f"pans to the {shot.camera}",
        "shot left": NUMERALS[remaining],
        "first text kind": text.kind,
        f"first text {text.kind}": text.value.upper(),
        "first text ink": text.colour,
    }
    for thing in shot.things:
        facts[f"shot {thing.place} texture"] = thing.texture
        facts[f"shot {thing.place} colour"] = thing.colour
        facts[f"shot {thing.place} shape"] = thing.shape
        facts[f"shot {thing.place} does"] = expected_action(thing)
        if thing.motion not in ("grow", "shrink"):
            facts[f"shot {thing.place} size"] = thing.size
    return facts


def shot_of_text(reel: Reel, question: str) -> int:
    """The shot whose text a question names."""
    (name,) = re.findall(r"\b([A-Z]{2,}|[0-9]+)\b", question)
    return [text.value.upper() for text in reel.texts].index(name)


def test_a_shot_is_described_by_its_text_and_by_its_number() -> None:
    for reel in reels():
        last = len(reel.scene.shots) - 1
        forms = focus_turns(reel)
        assert len(forms["word"]) == last + 1
        for turn in forms["word"]:
            expected = expected_part(reel, shot_of_text(reel, turn.question))
            assert read_facts(turn.answer) == expected
        for turn in forms["after"]:
            expected = expected_part(reel, shot_of_text(reel, turn.question) + 1)
            assert read_facts(turn.answer) == expected
        indices = {"first": 0, "second": 1, "last": last}
        for turn in forms["ordinal"]:
            ordinal = turn.question.split()[2]
            assert read_facts(turn.answer) == expected_part(reel, indices[ordinal])


def test_the_hero_is_told_from_entering_to_leaving() -> None:
    for reel in reels():
        (turn,) = focus_turns(reel)["hero"]
        _, first = reel.hero[0]
        assert turn.question == (
            f"Tell what the {first.colour} {first.shape} does, from entering to leaving."
        )
        expected = {}
        ordinals = ("first", "second", "third", "fourth", "fifth", "sixth")
        for ordinal, (index, hero) in zip(ordinals, reel.hero, strict=False):
            shot = reel.scene.shots[index]
            assert hero in shot.things
            expected[f"{ordinal} appearance does"] = expected_action(hero)
            expected[f"{ordinal} appearance place"] = hero.place
            expected[f"{ordinal} appearance pattern"] = shot.pattern
            expected[f"{ordinal} appearance background"] = shot.background
        assert read_facts(turn.answer) == expected


def expected_changes(first: Shot, second: Shot) -> dict[str, str]:
    facts = {}
    for when, shot in (("before", first), ("after", second)):
        for place in {thing.place for thing in (*first.things, *second.things)}:
            facts[f"{place} {when} look"] = "nothing"
        for thing in shot.things:
            del facts[f"{thing.place} {when} look"]
            facts[f"{thing.place} {when} texture"] = thing.texture
            facts[f"{thing.place} {when} colour"] = thing.colour
            facts[f"{thing.place} {when} shape"] = thing.shape
    return facts


def test_comparisons_name_both_shots() -> None:
    for reel in reels():
        shots = {"first": reel.scene.shots[0], "second": reel.scene.shots[1]}
        shots["last"] = reel.scene.shots[-1]
        for turn in focus_turns(reel)["compare"]:
            names = re.findall("first|second|last", turn.question)
            expected = expected_changes(*(shots[name] for name in names))
            for name in names:
                shot = shots[name]
                expected[f"{name} shot count"] = NUMERALS[len(shot.things)]
                expected[f"{name} shot background"] = shot.background
                expected[f"{name} shot pattern"] = shot.pattern
            assert read_facts(turn.answer) == expected


def test_needles_are_asked_for_where_there_are_any() -> None:
    for reel in reels():
        turns = needle_turns(reel)
        secret = reel.scene.secret
        if secret is not None:
            assert [turn.answer for turn in turns] == [
                f"The secret word is {secret.value.upper()}.",
                f"It is on a {secret.carrier}.",
            ]
        elif reel.scene.inserts:
            (turn,) = turns
            facts = read_facts(turn.answer)
            (insert,) = reel.scene.inserts
            assert facts["picture background"] == insert.background
            colours = {value for name, value in facts.items() if name.endswith("colour")}
            assert colours == {thing.colour for thing in insert.things}
        else:
            assert turns == []


def test_the_second_turn_of_a_chat_is_about_the_first_answer() -> None:
    for reel in reels():
        forms = set()
        values = [text.value.upper() for text in reel.texts]
        for first, second in chats(reel):
            forms.add(second.form)
            assert second.family == "chat"
            assert not set(values) & set(second.question.upper().replace("?", "").split())
            if second.form == "after this":
                index = shot_of_text(reel, first.question) + 1
                assert read_facts(second.answer) == expected_part(reel, index)
            elif second.form == "of them":
                assert first.answer == ", ".join(values) + "."
                index = 1 if "second" in second.question else len(values) - 1
                assert read_facts(second.answer) == expected_part(reel, index)
            else:
                _, hero = reel.hero[0]
                assert first.answer == f"A {hero.texture} {hero.colour} {hero.shape}."
                assert second.answer == focus_turns(reel)["hero"][0].answer
        assert forms == {"after this", "of them", "hero"}


def test_two_pictures_are_compared_place_by_place() -> None:
    for seed in SEEDS:
        first, second = sample_pair(seed)
        turns = {turn.question: turn for turn in spot_turns(first, second)}
        compared = turns["Compare the first image with the second."]
        assert read_facts(compared.answer) == expected_changes(first.shots[0], second.shots[0])
        described = turns["Describe the second image."]
        assert described.regions == (Region(0.5, 1.0),)
        found = turns["What is different in the second image?"]
        before = {thing.place: thing for thing in first.shots[0].things}
        after = {thing.place: thing for thing in second.shots[0].things}
        (place,) = [place for place in before if before[place] != after.get(place)]
        assert found.regions == (Region(0.0, 1.0, PLACE_CELLS[place]),)


def without_region(reel: Reel, turn: FocusTurn) -> Scene:
    """The reel with other things outside the regions of a turn: every other shot is emptied, and so
    is every other quarter of its shots."""
    shots = []
    for shot in reel.scene.shots:
        seen = evidence(turn.regions, reel.frames)
        middle = int((shot.start + shot.end) / 2 * reel.frames)
        cells = dict(zip(seen.frames, seen.cells, strict=True)).get(middle, ())
        things = [thing for thing in shot.things if set(PLACE_CELLS[thing.place]) <= set(cells)]
        shots.append(replace(shot, things=tuple(things)))
    return replace(reel.scene, shots=tuple(shots))


def test_answers_are_visible_in_their_regions() -> None:
    """What is outside the regions can change without a change of the pixels inside."""
    for reel in reels():
        for form in ("word", "hero", "ordinal", "compare", "after"):
            turn = focus_turns(reel)[form][0]
            shown = render(reel.scene, FRAMES, 64)
            other = render(without_region(reel, turn), FRAMES, 64)
            seen = evidence(turn.regions, FRAMES)
            if form == "word":
                assert not np.array_equal(shown, other)
                assert all(np.array_equal(shown[frame], other[frame]) for frame in seen.frames)
            if form == "hero":
                # Each cell of the evidence shows the hero's place; a neighbour may reach into it.
                assert seen.num_cells == 4 * len(seen.frames)
                assert len(seen.frames) == sum(
                    len(range(*(round(FRAMES * end) for end in (shot.start, shot.end))))
                    for shot in (reel.scene.shots[index] for index, _ in reel.hero)
                )


def test_a_change_in_the_evidence_changes_the_answer_and_one_elsewhere_does_not() -> None:
    for seed in SEEDS:
        reel = sample_reel(seed, FRAMES)
        for index, turn in enumerate(focus_turns(reel)["word"]):
            for changed, shot in enumerate(reel.scene.shots):
                other = "white" if shot.background != "white" else "black"
                shots = list(reel.scene.shots)
                shots[changed] = replace(shot, background=other)
                edited = replace(reel, scene=replace(reel.scene, shots=tuple(shots)))
                answer = focus_turns(edited)["word"][index].answer
                assert (answer == turn.answer) == (changed != index)


def test_regions_name_every_frame_of_what_is_asked() -> None:
    for reel in reels():
        for turn in all_turns(reel):
            seen = evidence(turn.regions, reel.frames)
            assert seen.frames
            assert all(cells == tuple(sorted(set(cells))) for cells in seen.cells)
        for turn in needle_turns(reel):
            seen = evidence(turn.regions, reel.frames)
            assert len(seen.frames) == 1
            if reel.scene.secret is not None and reel.scene.secret.carrier == "strip":
                assert seen.cells == (STRIP_CELLS,)


def test_evidence_joins_regions() -> None:
    assert evidence([Region(0.0, 0.25, (3,)), Region(0.125, 0.5, (1, 3))], 8) == Evidence(
        (0, 1, 2, 3), ((3,), (1, 3), (1, 3), (1, 3))
    )
    assert evidence([], 8) == Evidence((), ())
    assert PLACE_CELLS["top right"] == (2, 3, 6, 7)
    assert PLACE_CELLS["bottom left"] == (8, 9, 12, 13)


def test_wrong_answers_lose_facts() -> None:
    turn = focus_turns(sample_reel(3, FRAMES))["hero"][0]
    truth = read_facts(turn.answer)
    assert right_facts(turn.answer, truth) == (len(truth), len(truth))
    wrong = turn.answer.replace("early", "late")
    assert right_facts(wrong, truth).right < len(truth)


@pytest.mark.parametrize("frames", [16, 64])
def test_brackets_enclose_what_must_be_seen(frames: int) -> None:
    """Without the words in brackets, the answers of a form to different reels are few."""
    rests: dict[str, set[str]] = {}
    for seed in SEEDS:
        for turns in focus_turns(sample_reel(seed, frames)).values():
            for turn in turns:
                rest = turn.answer
                for start, end in reversed(seen_spans(turn.marked_answer)):
                    rest = rest[:start] + "…" + rest[end:]
                words = set(re.findall(r"\w+", rest))
                rests.setdefault(turn.form, set()).update(words)
    for words in rests.values():
        assert not words & {"red", "green", "blue", "circle", "ring", "plain", "navy", "early"}
