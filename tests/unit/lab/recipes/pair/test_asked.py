"""What the middle layers of the pair's target are trained to find, and the drills that ask it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from draftlens_lab.world import focus_turns, frame_times, render, sample_reel
from draftlens_lab.world.captions import shown_value
from draftlens_lab.world.dialogue import questions
from draftlens_lab.world.focus import FocusTurn, chats
from draftlens_lab.world.reel import Reel
from draftlens_lab.world.regions import ALL_CELLS, PLACE_CELLS, STRIP_CELLS, Region
from draftlens_lab.world.samples import Sample, draw
from draftlens_lab.world.scene import COLOURS, SHAPES, WORDS, Scene, Text

from recipes.pair import events, video
from recipes.pair.asked import (
    FIRST_TOKENS,
    LAST_TOKENS,
    Pointer,
    answer_parts,
    asked_labels,
    asked_loss,
    pointed_labels,
    pointer_loss,
    told_cells,
)
from recipes.pair.data import IGNORED, POOL, Mix, collate, encode, plans
from recipes.pair.drill import (
    does_turn,
    draw_drill,
    draw_quiz,
    next_turns,
    other_appearances,
    picture_turns,
    place_turns,
    texts_turn,
)
from recipes.pair.models import DRAFT, FRAME_TOKENS, build_model
from recipes.pair.tokenizer import VIDEO

FRAMES = 32


def texts_of(sample: Sample) -> list[str]:
    """What is shown in each shot of a reel."""
    return [shown_value(text) for text in sample.scenes[0].texts if text.kind != "secret"]


def spans_of(sample: Sample, num_frames: int) -> list[tuple[int, int]]:
    """The first frame of each shot and the one after its last."""
    spans = []
    for shot in sample.scenes[0].shots:
        inside = [i for i, t in enumerate(frame_times(num_frames)) if shot.start <= t < shot.end]
        spans.append((inside[0], inside[-1] + 1))
    return spans


def text_label(text: Text) -> list[int]:
    """The word of a text, or the tens and ones of a number."""
    if text.kind == "word":
        return [WORDS.index(text.value), IGNORED, IGNORED]
    return [IGNORED, int(text.value[0]), int(text.value[1])]


def bits(cells: tuple[int, ...]) -> int:
    """The label of some cells of a frame."""
    return sum(2**cell for cell in cells)


def test_the_shot_asked_about_is_labelled_where_its_answer_is_predicted(
    fresh_processor: Any,
) -> None:
    tokenizer = fresh_processor.tokenizer
    samples = [draw("focus", seed, 16) for seed in range(6)]
    labels = asked_labels(tokenizer, samples, 16)
    forms = set()
    for row, sample in enumerate(samples):
        owners = encode(tokenizer, sample, 16).turns
        texts = texts_of(sample)
        for index, turn in enumerate(sample.turns):
            places = [at - 1 for at, owner in enumerate(owners) if owner == index]
            form = getattr(turn, "form", "")
            forms.add(form)
            if form not in ("word", "after", "ordinal"):
                continue
            (label,) = set(labels[row, places[:FIRST_TOKENS]].tolist())
            assert set(labels[row, places[FIRST_TOKENS:]].tolist()) <= {IGNORED}
            if form == "ordinal":
                assert label == {"first": 0, "second": 1, "last": 3}[turn.question.split()[2]]
            else:
                named = [i for i, text in enumerate(texts) if text in turn.question]
                assert label in (named if form == "word" else [i + 1 for i in named])
        answered = sum(owner != IGNORED for owner in owners)
        assert sum(label != IGNORED for label in labels[row].tolist()) <= answered
    assert forms >= {"word", "after", "ordinal", "hero"}
    scores = torch.zeros(*labels.shape, 16)
    assert float(asked_loss(scores, labels)) == pytest.approx(np.log(16), rel=1e-4)
    assert float(asked_loss(scores, torch.full_like(labels, IGNORED))) == 0


@pytest.mark.parametrize("form", ["hero", "hero texts", "compare"])
def test_an_answer_about_several_shots_has_the_label_of_each_where_its_part_begins(
    fresh_processor: Any, form: str
) -> None:
    tokenizer = fresh_processor.tokenizer
    for seed in range(6):
        reel = sample_reel(seed, FRAMES)
        turn = texts_turn(reel, reel.hero) if form == "hero texts" else focus_turns(reel)[form][0]
        sample = Sample("focus", (reel.scene,), (turn,), FRAMES)
        labels = asked_labels(tokenizer, [sample], FRAMES)[0]
        pointed = pointed_labels(tokenizer, [sample], FRAMES)[0]
        encoded = encode(tokenizer, sample, FRAMES)
        expected = [0, 1] if form == "compare" else [index for index, _ in reel.hero]
        parts = answer_parts(turn)
        assert len(parts) == len(expected)
        first = encoded.turns.index(0)
        for part, shot in zip(parts, expected, strict=True):
            # The position that predicts the first token of the part.
            before = tokenizer(turn.answer[: part.start].rstrip()).input_ids
            place = first + len(before) - 1
            assert int(labels[place]) == shot
            cells = ALL_CELLS
            if form != "compare":
                (hero,) = [hero for index, hero in reel.hero if index == shot]
                cells = PLACE_CELLS[hero.place]
            expected_label = [*spans_of(sample, FRAMES)[shot], bits(cells)]
            assert pointed[place].tolist() == expected_label


def test_the_frame_of_a_needle_is_labelled(fresh_processor: Any) -> None:
    tokenizer = fresh_processor.tokenizer
    found = set()
    for seed in range(12):
        sample = draw("needle", seed, FRAMES)
        pointed = pointed_labels(tokenizer, [sample], FRAMES)[0]
        asked = asked_labels(tokenizer, [sample], FRAMES)[0]
        owners = encode(tokenizer, sample, FRAMES).turns
        without = Sample("needle", (_without_needle(sample),), sample.turns, FRAMES)
        clips = [render(each.scenes[0], FRAMES, 64) for each in (sample, without)]
        (frame,) = np.flatnonzero((clips[0] != clips[1]).any((1, 2, 3)))
        for index, turn in enumerate(sample.turns):
            if turn.family != "needle":
                continue
            assert isinstance(turn, FocusTurn)
            found.add(turn.form)
            start = owners.index(index) - 1
            for place in (start - LAST_TOKENS, start, start + 2):
                cells = STRIP_CELLS if turn.form == "secret strip" else ALL_CELLS
                assert pointed[place].tolist() == [frame, frame + 1, bits(cells)]
                assert int(asked[place]) == IGNORED
    assert found >= {"picture", "secret strip", "secret card"}


def _without_needle(sample: Sample) -> Scene:
    (scene,) = sample.scenes
    texts = tuple(text for text in scene.texts if text.kind != "secret")
    return replace(scene, texts=texts, inserts=())


def test_positions_before_an_answer_are_pointed_from(fresh_processor: Any) -> None:
    tokenizer = fresh_processor.tokenizer
    sample = draw("focus", 0, 16)
    pointed = pointed_labels(tokenizer, [sample], 16)[0]
    owners = encode(tokenizer, sample, 16).turns
    spans = spans_of(sample, 16)
    (index,) = [i for i, turn in enumerate(sample.turns) if getattr(turn, "form", "") == "word"][:1]
    turn = sample.turns[index]
    (shot,) = [i for i, text in enumerate(texts_of(sample)) if text in turn.question]
    start = owners.index(index) - 1
    end = start + len(tokenizer(turn.answer).input_ids) - 1
    labels = pointed[start - LAST_TOKENS : end].tolist()
    assert [label[:2] for label in labels] == [[*spans[shot]]] * (LAST_TOKENS + end - start)
    assert [label[2] for label in labels[: LAST_TOKENS + 1]] == [bits(ALL_CELLS)] * (
        LAST_TOKENS + 1
    )
    told = {place: bits(cells) for place, cells in PLACE_CELLS.items() if place in turn.answer}
    assert {label[2] for label in labels} == {bits(ALL_CELLS), bits(STRIP_CELLS), *told.values()}
    assert pointed[start - LAST_TOKENS - 1].tolist() == [IGNORED, IGNORED, IGNORED]


def test_a_sentence_tells_of_its_quarter_or_of_the_strip() -> None:
    shot = Region(0.25, 0.5)
    answer = (
        "It shows two shapes on a grey background. At the top left, a ring stays where it is. "
        "There is a cross at the bottom right. All stay in view. "
        "The word MILK is shown in red letters."
    )
    expected = {
        "It shows": ALL_CELLS,
        "background": ALL_CELLS,
        "At the": ALL_CELLS,
        "the top": PLACE_CELLS["top left"],
        "it is": PLACE_CELLS["top left"],
        "There": ALL_CELLS,
        "is a cross": PLACE_CELLS["bottom right"],
        "stay in view": ALL_CELLS,
        "MILK": STRIP_CELLS,
    }
    for words, cells in expected.items():
        assert told_cells(answer, answer.index(words), shot) == cells
    hero = Region(0.25, 0.5, PLACE_CELLS["top right"])
    assert told_cells(answer, answer.index("it is"), hero) == hero.cells


def test_the_end_of_a_question_has_labels_of_what_it_looks_for(fresh_processor: Any) -> None:
    tokenizer = fresh_processor.tokenizer
    names = events.SOUGHT_NAMES
    found = set()
    for seed in range(8):
        sample = draw_drill(seed, FRAMES)
        sought = events.sought_labels(tokenizer, [sample], FRAMES)[0]
        owners = encode(tokenizer, sample, FRAMES).turns
        for index, turn in enumerate(sample.turns):
            form = getattr(turn, "form", "")
            start = owners.index(index) - 1
            row = sought[start].tolist()
            labels = {name: label for name, label in zip(names, row, strict=True) if label >= 0}
            assert sought[start - LAST_TOKENS].tolist() == row
            found.add(form)
            if form in ("hero", "hero texts"):
                assert COLOURS[labels.pop("colour")] in turn.question
                assert SHAPES[labels.pop("shape")] in turn.question
                assert labels.pop("turn") == 0
                for name, count in events.TEXT_CLASSES.items():
                    assert labels.pop(f"prior {name}") == count
            if form not in events.SOUGHT:
                assert not labels
                continue
            if form == "ordinal":
                last = len(sample.scenes[0].shots) - 1
                ordinals = {"first": 0, "second": 1, "last": last}
                assert labels == {"number": ordinals[turn.question.split()[2]]}
                continue
            suffix = "" if form in ("word", "place") else " before"
            if f"word{suffix}" in labels:
                assert WORDS[labels.pop(f"word{suffix}")].upper() in turn.question
            else:
                tens, ones = labels.pop(f"tens{suffix}"), labels.pop(f"ones{suffix}")
                assert f"{tens}{ones}" in turn.question
            assert not labels
    assert found >= {"word", "after", "next", "ordinal", "hero", "place", "picture"}


def test_a_thing_that_a_chat_calls_it_is_looked_for_in_each_part(fresh_processor: Any) -> None:
    tokenizer = fresh_processor.tokenizer
    reel = sample_reel(3, FRAMES)
    (turns,) = [pair for pair in chats(reel) if pair[1].form == "hero"]
    sample = Sample("chat", (reel.scene,), turns, FRAMES)
    sought = events.sought_labels(tokenizer, [sample], FRAMES)[0]
    first = encode(tokenizer, sample, FRAMES).turns.index(1)
    (_, hero), *_ = reel.hero
    look = [COLOURS.index(hero.colour), SHAPES.index(hero.shape)]
    assert turns[1].question.startswith("What does it do")
    priors = [list(events.TEXT_CLASSES.values())]
    priors += [text_label(reel.texts[index]) for index, _ in reel.hero]
    for turn, part in enumerate(answer_parts(turns[1])):
        before = tokenizer(turns[1].answer[: part.start].rstrip()).input_ids
        assert sought[first + len(before) - 1].tolist() == [
            *[IGNORED] * 7,
            *look,
            turn,
            *priors[turn],
        ]


def test_what_is_looked_for_has_a_loss() -> None:
    counts = {
        name: (events.NAME_CLASSES | events.LOOK_CLASSES)[name] for name in events.SOUGHT_NAMES
    }
    scores = {name: torch.zeros(1, 2, 1, count) for name, count in counts.items()}
    nothing = torch.full((1, 2, len(counts)), IGNORED)
    assert float(video.sought_loss(scores, nothing)) == 0
    sought = nothing.clone()
    sought[0, 1, 0] = 5
    assert float(video.sought_loss(scores, sought)) == pytest.approx(np.log(counts["word"]))


def test_the_pointer_computes_the_attention_of_the_layer(fresh_processor: Any) -> None:
    tokenizer = fresh_processor.tokenizer
    model = build_model(DRAFT, tokenizer, 0).eval()
    model.set_attn_implementation("eager")
    batch = collate(tokenizer, [draw("focus", 0, 16)], 16)
    batch.pop("labels")
    first = batch["input_ids"][0].tolist().index(tokenizer.convert_tokens_to_ids(VIDEO))
    pointer = Pointer(model.model.language_model.layers[1].self_attn, first, 16, FRAME_TOKENS)
    end = first + 16 * FRAME_TOKENS
    chosen = torch.arange(batch["input_ids"].shape[1] - end) % 3 == 1
    with pointer.watching(), torch.no_grad():
        output = model.model(**batch, use_cache=False, output_attentions=True)
        shares = pointer.shares(chosen[None], end)
        early = torch.arange(16 * FRAME_TOKENS) % 5 == 1
        early_shares = pointer.shares(early[None], first)
    video = slice(first, end)
    attention = output.attentions[1][:, :2, :, video]
    expected = (attention / attention.sum(-1, keepdim=True)).mean(1).unflatten(-1, (16, -1))
    torch.testing.assert_close(shares, expected[0, end:][chosen], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(early_shares, expected[0, video][early], rtol=1e-4, atol=1e-5)


def test_the_loss_of_the_pointer_is_that_of_the_labelled_cells() -> None:
    frames = torch.tensor([[0.2, 0.3, 0.5]])
    shares = frames[..., None] * torch.tensor([0.4, 0.5, 0.1])
    labels = torch.tensor([[0, 2, 0b111]])
    assert float(pointer_loss(shares, labels)) == pytest.approx(-np.log(0.5))
    labels = torch.tensor([[0, 2, 0b101]])
    assert float(pointer_loss(shares, labels)) == pytest.approx(-np.log(0.25))
    assert float(pointer_loss(shares[:0], labels[:0])) == 0


def test_drills_ask_for_two_looks_more_often_than_for_one() -> None:
    counts: dict[str, int] = {}
    for seed in range(40):
        for turn in draw_drill(seed, FRAMES).turns:
            form = getattr(turn, "form", "")
            counts[form] = counts.get(form, 0) + 1
    one_look = counts["word"] + counts["ordinal"] + counts["compare"]
    assert one_look == 40
    assert counts["hero"] == counts["hero texts"] == 80
    assert counts["after"] == 80
    assert counts["next"] == 120
    assert 10 < counts["picture"] < 30
    assert draw_drill(3, FRAMES) == draw_drill(3, FRAMES)


def test_the_short_questions_of_drills_have_right_answers() -> None:
    for seed in range(20):
        reel = sample_reel(seed, FRAMES)
        values = [shown_value(text) for text in reel.texts]
        turns = next_turns(reel)
        assert len(turns) == len(values) - 1
        for index, turn in enumerate(turns):
            assert turn.question == f"Which text is shown after {values[index]}?"
            assert turn.answer == f"It is {values[index + 1]}."
        assert texts_turn(reel, reel.hero).answer == f"{', '.join(_seen_with_hero(reel, values))}."


def test_drills_ask_for_every_look() -> None:
    found = set()
    for seed in range(12):
        reel = sample_reel(seed, 64)
        _, hero = reel.hero[0]
        for appearances in other_appearances(reel):
            things = [thing for _, thing in appearances]
            assert {(thing.colour, thing.shape) for thing in things} == {
                (things[0].colour, things[0].shape)
            }
            assert things[0].colour != hero.colour or things[0].shape != hero.shape
            assert all(thing in reel.scene.shots[index].things for index, thing in appearances)
            does, texts = does_turn(reel, appearances), texts_turn(reel, appearances)
            assert len(does.regions) == len(texts.regions) == len(appearances)
            assert does.answer.count("Then it") == texts.answer.count(",") == len(things) - 1
            found.add(things[0].colour)
    assert found == set(COLOURS)


def test_long_reels_are_asked_more_and_things_are_asked_for_by_their_place() -> None:
    for frames, places, most_next in ((FRAMES, 2, 3), (64, 8, 8)):
        sample = draw_drill(5, frames)
        forms = [getattr(turn, "form", "") for turn in sample.turns]
        assert forms.count("place") == places
        (scene,) = sample.scenes
        assert forms.count("next") == min(most_next, len(scene.shots) - 1)
    reel = sample_reel(5, FRAMES)
    turns = place_turns(reel)
    assert len(turns) == sum(len(shot.things) for shot in reel.scene.shots)
    for turn in turns:
        (region,) = turn.regions
        (index,) = [i for i, shot in enumerate(reel.scene.shots) if shot.start == region.start]
        assert shown_value(reel.texts[index]) in turn.question
        (thing,) = [
            thing
            for thing in reel.scene.shots[index].things
            if f"at the {thing.place}" in turn.question
        ]
        assert turn.answer == f"A {thing.texture} {thing.colour} {thing.shape}."
        assert region.cells == PLACE_CELLS[thing.place]


def test_drills_ask_for_things_in_an_inserted_picture() -> None:
    asked = 0
    for seed in range(40):
        sample = draw_drill(seed, FRAMES)
        for turn in sample.turns:
            if getattr(turn, "form", "") != "picture place":
                continue
            asked += 1
            ((insert,),) = [scene.inserts for scene in sample.scenes]
            (thing,) = [
                thing for thing in insert.things if f"at the {thing.place}" in turn.question
            ]
            assert turn.answer == f"A {thing.texture} {thing.colour} {thing.shape}."
    assert asked > 20
    assert picture_turns(sample_reel(3, FRAMES)) == []


@pytest.mark.parametrize("still", [False, True])
def test_a_quiz_asks_different_short_questions_about_one_scene(still: bool) -> None:
    families: dict[str, int] = {}
    for seed in range(20):
        sample = draw_quiz(seed, still)
        (scene,) = sample.scenes
        assert sample.kind == ("picture" if still else "clip")
        assert sample == draw_quiz(seed, still)
        assert len({turn.question for turn in sample.turns}) == len(sample.turns)
        assert set(sample.turns) <= set(questions(scene, still))
        order = [turn.question.startswith("In which order") for turn in sample.turns]
        assert not any(order[:-1])
        for turn in sample.turns:
            families[turn.family] = families.get(turn.family, 0) + 1
    assert families["attribute"] > 10 * 20
    assert ("ordering" in families) is not still


def test_batches_of_quizzes() -> None:
    mix = Mix(
        (8, 64),
        (0.5, 0.5),
        batch=4,
        tokens=2 * 64 * FRAME_TOKENS,
        others=(0, 0, 0),
        seconds=(0, 0, 0, 0, 0, POOL),
        rows=4,
    )
    sizes = {
        (plan.samples[0].kind, plan.num_frames, len(plan.samples))
        for plan in islice(plans(mix, 1, 0), 2 * POOL)
    }
    assert sizes == {("clip", 8, 4), ("clip", 64, 2), ("picture", 0, 4)}


def _seen_with_hero(reel: Reel, values: list[str]) -> list[str]:
    """The texts of the shots that show a thing in the hero's colour and shape."""
    _, hero = reel.hero[0]
    looks = [[(thing.colour, thing.shape) for thing in shot.things] for shot in reel.scene.shots]
    return [v for v, shown in zip(values, looks, strict=True) if (hero.colour, hero.shape) in shown]


def test_batches_of_drills() -> None:
    mix = Mix(
        (8,),
        (1.0,),
        batch=2,
        tokens=2 * FRAMES * FRAME_TOKENS,
        others=(0, 0, 0),
        seconds=(0, 0, 0, 0, POOL, 0),
        reel_frames=(FRAMES,),
        rows=3,
    )
    for plan in islice(plans(mix, 1, 0), 3):
        assert plan.num_frames == FRAMES
        assert len(plan.samples) == 2
        assert {sample.frames for sample in plan.samples} == {FRAMES}


def test_a_pass_without_labels_has_no_shares(fresh_processor: Any) -> None:
    tokenizer = fresh_processor.tokenizer
    model = build_model(DRAFT, tokenizer, 0).eval()
    batch = collate(tokenizer, [draw("focus", 0, 16)], 16)
    batch.pop("labels")
    pointer = Pointer(model.model.language_model.layers[1].self_attn, 5, 16, FRAME_TOKENS)
    with pointer.watching(), torch.no_grad():
        model.model(**batch, use_cache=False)
        shares = pointer.shares(torch.zeros(1, 9, dtype=torch.bool), 5)
    assert shares.shape == (0, 16, FRAME_TOKENS)
    assert float(pointer_loss(shares, torch.zeros(0, 3, dtype=torch.int64))) == 0
