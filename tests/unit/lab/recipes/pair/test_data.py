"""What the pair is trained on: batches equal to the processor's, labels equal to what the scenes
show."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from draftlens_lab.world import (
    HELD_OUT,
    caption,
    evidence,
    focus_turns,
    frame_times,
    render,
    render_still,
    sample_reel,
    sample_scene,
)
from draftlens_lab.world.regions import PLACE_CELLS, Region
from draftlens_lab.world.samples import KINDS, MEDIA, Sample, draw
from draftlens_lab.world.scene import (
    BACKGROUNDS,
    CAMERAS,
    COLOURS,
    PATTERNS,
    PLACES,
    SHAPES,
    TEXT_COLOURS,
    TEXTURES,
    WORDS,
    Scene,
    Shot,
    Thing,
)

from recipes.pair import events, video, vision
from recipes.pair.data import (
    IGNORED,
    POOL,
    REACHING,
    BatchPlan,
    Mix,
    batches,
    check_fast_path,
    collate,
    encode,
    pixels,
    plans,
)
from recipes.pair.models import DRAFT, FRAME_TOKENS, SIDE, build_model
from recipes.pair.tokenizer import IMAGE, VIDEO, build_tokenizer
from tests.unit.lab.world.reference import expected_pose, shot_at, text_at

SMALL = Mix((1, 3), (0.5, 0.5), batch=2)
SEEDS = [*range(30), *range(HELD_OUT, HELD_OUT + 15)]


def test_tokenizer_round_trip_and_determinism(fresh_processor: Any) -> None:
    tokenizer = fresh_processor.tokenizer
    for text in (caption(sample_scene(5)), "naïve café, 漢字\n", "  two  spaces"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert build_tokenizer().get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("base", [0, HELD_OUT])
def test_captions_have_120_to_300_tokens(fresh_processor: Any, base: int) -> None:
    tokenizer = fresh_processor.tokenizer
    lengths = [
        len(tokenizer(caption(sample_scene(seed))).input_ids) for seed in range(base, base + 500)
    ]
    assert min(lengths) >= 120
    assert max(lengths) <= 300


def test_fast_path_equals_the_processor(fresh_processor: Any) -> None:
    check_fast_path(fresh_processor)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_the_answers(fresh_processor: Any, kind: str) -> None:
    tokenizer = fresh_processor.tokenizer
    for seed in range(6):
        sample = draw(kind, seed, frames=16)
        encoded = encode(tokenizer, sample, num_frames=4)
        ids, labels = encoded.ids, encoded.labels
        for index, turn in enumerate(sample.turns):
            owners = zip(ids, encoded.turns, strict=True)
            answer = [token for token, owner in owners if owner == index]
            assert tokenizer.decode(answer) == turn.answer + tokenizer.eos_token
        assert len(ids) == len(labels)
        assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
        told = tokenizer.decode([token for token in labels if token != IGNORED])
        assert told == "".join(turn.answer + tokenizer.eos_token for turn in sample.turns)
        shown = {
            "video": {VIDEO: 4 * FRAME_TOKENS + 1},
            "image": {IMAGE: 136},
            "images": {IMAGE: 130},
            "none": {},
        }[MEDIA[kind]]
        for holder in (IMAGE, VIDEO):
            assert ids.count(tokenizer.convert_tokens_to_ids(holder)) == shown.get(holder, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_padded_rows_and_their_pixels(fresh_processor: Any, kind: str) -> None:
    tokenizer = fresh_processor.tokenizer
    samples = [draw(kind, seed) for seed in range(3)]
    batch = collate(tokenizer, samples, 2)
    for row, (sample, ids) in enumerate(zip(samples, batch["input_ids"].tolist(), strict=True)):
        alone = encode(tokenizer, sample, 2)
        rest = len(ids) - len(alone.ids)
        assert ids == alone.ids + [tokenizer.pad_token_id] * rest
        assert batch["labels"][row].tolist() == alone.labels + [IGNORED] * rest
        if MEDIA[kind] == "video":
            assert torch.equal(
                batch["pixel_values_videos"][row], pixels(render(sample.scenes[0], 2, SIDE))
            )
        if MEDIA[kind] == "images":
            shown = pixels(np.stack([render_still(scene, SIDE) for scene in sample.scenes]))
            assert torch.equal(batch["pixel_values"][2 * row : 2 * row + 2, 0], shown)
    assert (
        set(batch)
        == {"input_ids", "labels"}
        | {
            "video": {"pixel_values_videos"},
            "image": {"pixel_values", "image_sizes", "batch_num_images"},
            "images": {"pixel_values", "image_sizes", "batch_num_images"},
            "none": set(),
        }[MEDIA[kind]]
    )


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def test_batches_go_on_where_they_stopped(fresh_processor: Any) -> None:
    tokenizer = fresh_processor.tokenizer
    whole = list(islice(batches(tokenizer, SMALL, 5, 0), POOL + 3))
    for start in (0, 3, POOL - 1, POOL, POOL + 1):
        resumed = list(islice(batches(tokenizer, SMALL, 5, start), min(3, POOL + 3 - start)))
        assert all(
            equal(ours, theirs) for ours, theirs in zip(resumed, whole[start:], strict=False)
        )
    assert not all(map(equal, whole[:4], islice(batches(tokenizer, SMALL, 6, 0), 4)))


def test_batches_mix_the_kinds_and_keep_to_their_tokens(fresh_processor: Any) -> None:
    mix = Mix((4,), (1.0,), batch=4, tokens=2 * 4 * FRAME_TOKENS, others=(3, 2, 1))
    pool = list(islice(batches(fresh_processor.tokenizer, mix, 1, 0), POOL))
    clips = [batch for batch in pool if "pixel_values_videos" in batch]
    assert {len(batch["input_ids"]) for batch in clips} == {2}
    assert len(clips) == POOL - 6
    counts = [int(batch["batch_num_images"][0]) for batch in pool if "pixel_values" in batch]
    assert sorted(counts) == [1, 1, 1, 2, 2]


def expected_label(scene: Scene, time: float) -> dict[str, Any]:
    """What a frame shows, thing by thing and part by part."""
    at, within = shot_at(scene, time)
    shot, text = scene.shots[at], text_at(scene, time)
    card = text is not None and text.carrier == "card"
    label: dict[str, Any] = {
        "background": -100 if card else BACKGROUNDS.index(shot.background),
        "pattern": -100 if card else PATTERNS.index(shot.pattern),
        "colour": [6] * 4,
        "shape": [5] * 4,
        "texture": [3] * 4,
        "where": [(0, 0, 0)] * 4,
        **dict.fromkeys(("word", "tens", "ones", "ink"), -100),
        "carrier": 0,
    }
    for thing in () if card else shot.things:
        x, y, radius = expected_pose(thing, shot, within)
        if max(-x, x - 1) < 0.3 * radius:
            quarter = PLACES.index(thing.place)
            label["colour"][quarter] = COLOURS.index(thing.colour)
            label["shape"][quarter] = SHAPES.index(thing.shape)
            label["texture"][quarter] = TEXTURES.index(thing.texture)
            label["where"][quarter] = (6 * x - 3, 6 * y - 3, 6 * radius)
    if text is not None:
        label["carrier"] = ["", "word", "number", "strip", "card"].index(
            text.carrier if text.kind == "secret" else text.kind
        )
        if text.kind == "number":
            label["tens"], label["ones"] = divmod(int(text.value), 10)
        else:
            label["word"] = WORDS.index(text.value)
        label["ink"] = -100 if text.kind == "secret" else TEXT_COLOURS.index(text.colour)
    return label


def test_sight_labels_say_what_a_frame_shows() -> None:
    for seed in SEEDS:
        scene = sample_scene(seed)
        for time in frame_times(16):
            label, expected = vision.frame_labels(scene, time), expected_label(scene, time)
            where = expected.pop("where")
            assert np.allclose(label.pop("where"), where)
            assert label == expected


@pytest.mark.parametrize("since", [1.0, 0.6])
@pytest.mark.parametrize("count", [8, 12, 32])
def test_stories_say_what_happens_in_a_film(count: int, since: float) -> None:
    for seed in SEEDS:
        scene, story = sample_scene(seed), events.film_labels(sample_scene(seed), count, since)
        times = frame_times(count)
        shots = [shot_at(scene, time)[0] for time in times]
        assert story["shot"] == shots
        assert story["texts"] == [
            len([text for text in scene.texts if text.start <= time]) for time in times
        ]
        for at, (shot, deeds, camera) in enumerate(
            zip(shots, story["actions"], story["camera"], strict=True)
        ):
            own = scene.shots[shot]
            late = (times[at] - own.start) / (own.end - own.start) >= since
            if at + 1 < count and shots[at + 1] == shot and not late:
                assert (deeds, camera) == ([-100] * 4, -100)
                continue
            things = {thing.place: thing for thing in scene.shots[shot].things}
            said = ["" if deed == len(events.ACTIONS) else events.ACTIONS[deed] for deed in deeds]
            expected = [
                f"{things[p].motion} {things[p].when}".strip() if p in things else ""
                for p in PLACES
            ]
            assert (said, CAMERAS[camera]) == (expected, scene.shots[shot].camera)


def test_sights_go_on_where_they_stopped() -> None:
    seen = list(islice(vision.frame_batches(3, 2, 0), 3))
    resumed = next(vision.frame_batches(3, 2, 2))
    assert torch.equal(seen[2].frames, resumed.frames)
    assert all(torch.equal(seen[2].labels[name], resumed.labels[name]) for name in resumed.labels)


def test_colour_noise_changes_what_is_read_of_colours_in_answers(fresh_processor: Any) -> None:
    """Half of the colours of an answer are replaced, five of six of them by another one."""
    tokenizer, mix = fresh_processor.tokenizer, Mix((8,), (1.0,), batch=8, others=(4, 2, 2))
    noisy = replace(mix, colour_noise=0.5)
    changed = total = 0
    pairs = zip(
        video.film_batches(tokenizer, mix, 4, 0.6, 0),
        video.film_batches(tokenizer, noisy, 4, 0.6, 0),
        strict=False,
    )
    for plain, item in islice(pairs, 8):
        assert torch.equal(plain.batch["labels"], item.batch["labels"])
        read, noise = plain.batch["input_ids"], item.batch["input_ids"]
        is_answer = plain.batch["labels"] != IGNORED
        is_colour = torch.tensor(
            [[tokenizer.decode([token]).strip() in COLOURS for token in row] for row in read]
        )
        is_changed = read != noise
        assert not bool((is_changed & ~(is_colour & is_answer)).any())
        assert {tokenizer.decode([token]).strip() for token in noise[is_changed]} <= set(COLOURS)
        changed += int(is_changed.sum())
        total += int((is_colour & is_answer).sum())
    assert total > 200
    assert abs(changed / total - 0.5 * 5 / 6) < 0.1


def test_colour_noise_goes_on_where_it_stopped(fresh_processor: Any) -> None:
    tokenizer = fresh_processor.tokenizer
    mix = Mix((8,), (1.0,), batch=2, others=(3, 2, 1), colour_noise=0.5)
    seen = list(islice(video.film_batches(tokenizer, mix, 4, 0.6, 0), 4))
    resumed = next(video.film_batches(tokenizer, mix, 4, 0.6, 3))
    assert equal(seen[3].batch, resumed.batch)


def test_what_is_watched_are_the_batches_and_their_stories(fresh_processor: Any) -> None:
    mix = Mix((8,), (1.0,), batch=2, others=(3, 2, 1))
    tokenizer, start, kinds = fresh_processor.tokenizer, 2, set()
    observed = zip(
        batches(tokenizer, mix, 4, start),
        video.film_batches(tokenizer, mix, 4, 0.6, start),
        strict=False,
    )
    for (plain, item), plan in islice(zip(observed, plans(mix, 4, start), strict=False), 12):
        batch, samples = item.batch, plan.samples
        film = item.labels.film if item.labels else None
        assert equal(plain, batch)
        assert (film is not None) == (samples[0].kind == "clip")
        kinds.add(samples[0].kind)
        for row, sample in enumerate(samples if film else ()):
            assert torch.equal(
                film.frames[row], pixels(render(sample.scenes[0], plan.num_frames, SIDE))
            )
            for name, expected in events.film_labels(
                sample.scenes[0], plan.num_frames, 0.6
            ).items():
                assert getattr(film, name)[row].tolist() == expected
    assert len(kinds) > 1


def test_the_frames_of_some_reels_are_spread_over_many_positions(fresh_processor: Any) -> None:
    reach = 1024 * FRAME_TOKENS
    mix = Mix((8,), (1.0,), batch=2, others=(0, 0, 0), seconds=(0, 0, 0, 0, 16, 0), reach=reach)
    tokenizer = fresh_processor.tokenizer
    spread = 0
    furthest = 0
    for plan in islice(plans(mix, 1, 0), 2 * POOL):
        batch = collate(tokenizer, plan.samples[:1], plan.num_frames, plan.gaps)
        if not plan.gaps:
            assert "position_ids" not in batch
            continue
        spread += 1
        (positions,) = batch["position_ids"]
        (ids,) = batch["input_ids"]
        assert batch["attention_mask"].tolist() == [[1] * len(ids)]
        first = ids.tolist().index(tokenizer.convert_tokens_to_ids(VIDEO))
        assert positions[:first].tolist() == list(range(first))
        video = positions[first : first + plan.num_frames * FRAME_TOKENS].unflatten(0, (-1, 16))
        assert (video.diff(dim=1) == 1).all()
        assert (video[1:, 0] - video[:-1, -1] - 1).tolist() == list(plan.gaps[1:])
        assert (positions[first + plan.num_frames * FRAME_TOKENS - 1 :].diff() == 1).all()
        furthest = max(furthest, int(video[-1, -1]))
    assert abs(spread / (2 * POOL) - REACHING) < 0.2
    assert 4096 < furthest <= reach + first


def test_spread_frames_are_one_sequence(fresh_processor: Any) -> None:
    """Later tokens attend to every frame; without gaps the positions change nothing."""
    tokenizer = fresh_processor.tokenizer
    model = build_model(DRAFT, tokenizer, 0).eval()
    model.set_attn_implementation("sdpa")
    sample = draw("focus", 0, 16)

    def last_state(gaps: tuple[int, ...], shift: float = 0.0) -> torch.Tensor:
        batch = collate(tokenizer, [sample], 16, gaps)
        del batch["labels"]
        batch["pixel_values_videos"][:, 0] += shift
        with torch.no_grad():
            state: torch.Tensor = model.model(**batch, use_cache=False).last_hidden_state[0, -1]
        return state

    torch.testing.assert_close(last_state((0,) * 16), last_state(()))
    spread = last_state((7,) * 16)
    assert not torch.allclose(spread, last_state(()), atol=1e-5)
    assert not torch.allclose(spread, last_state((7,) * 16, shift=1.0), atol=1e-5)


@pytest.mark.parametrize("frames", [16, 64])
def test_focus_answers_have_60_to_150_tokens(fresh_processor: Any, frames: int) -> None:
    tokenizer = fresh_processor.tokenizer
    lengths = []
    for seed in [*range(40), *range(HELD_OUT, HELD_OUT + 40)]:
        for turns in focus_turns(sample_reel(seed, frames)).values():
            lengths += [len(tokenizer(turn.answer).input_ids) for turn in turns]
    assert min(lengths) >= 55
    assert max(lengths) <= 150
    assert sum(length >= 60 for length in lengths) > 0.95 * len(lengths)


def test_reels_have_batches_of_their_own(fresh_processor: Any) -> None:
    mix = Mix(
        (4,),
        (1.0,),
        batch=4,
        tokens=2 * 16 * FRAME_TOKENS,
        others=(1, 0, 0),
        seconds=(3, 2, 1, 2, 0, 0),
        reel_frames=(16, 32),
        reel_share=(0.5, 0.5),
        rows=3,
    )
    pool = list(islice(plans(mix, 1, 0), POOL))
    kinds = [plan.samples[0].kind for plan in pool]
    assert {kind: kinds.count(kind) for kind in KINDS} == {
        "clip": POOL - 9,
        "picture": 1,
        "pair": 0,
        "talk": 0,
        "focus": 3,
        "needle": 2,
        "chat": 1,
        "spot": 2,
    }
    for plan in pool:
        if plan.samples[0].frames:
            assert {sample.frames for sample in plan.samples} == {plan.num_frames}
            assert len(plan.samples) == {16: 2, 32: 1}[plan.num_frames]
    seeds = [scene.seed for plan in pool for sample in plan.samples for scene in sample.scenes]
    assert all(seed < HELD_OUT for seed in seeds)


def test_films_of_reels_have_actions_and_no_counts(fresh_processor: Any) -> None:
    scene = sample_reel(5, 16).scene
    labels = events.film_labels(scene, 16, 0.6)
    assert labels["texts"] == labels["shot"] == [IGNORED] * 16
    for frame, names in enumerate(labels["names"]):
        named = dict(zip(events.NAME_CLASSES, names, strict=True))
        assert named["number"] == frame // 4
        for suffix, index in (("", frame // 4), (" before", frame // 4 - 1)):
            word, tens, ones = (named[f"{name}{suffix}"] for name in events.TEXT_CLASSES)
            if index < 0 or (frame % 4 == 0 and not suffix):
                assert word == tens == ones == IGNORED
            elif scene.texts[index].kind == "word":
                assert (WORDS[word], tens, ones) == (scene.texts[index].value, IGNORED, IGNORED)
            else:
                assert (word, f"{tens}{ones}") == (IGNORED, scene.texts[index].value)
    for frame in (3, 7, 11, 15):
        shot = scene.shots[frame // 4]
        assert labels["camera"][frame] == CAMERAS.index(shot.camera)
        for place, action in zip(PLACES, labels["actions"][frame], strict=True):
            motions = [f"{t.motion} {t.when}".strip() for t in shot.things if t.place == place]
            assert motions == ([] if action == events.NO_ACTION else [events.ACTIONS[action]])
    assert events.film_labels(scene, 16, 0.6)["actions"][0] == [IGNORED] * 4


def test_looks_are_labelled_late_in_each_shot() -> None:
    scene = sample_reel(5, 16).scene
    looks = events.film_labels(scene, 16, 0.6)["looks"]
    for frame in (3, 7, 11, 15):
        check_looks(looks[frame], scene.shots[frame // 4])
    assert looks[4] == [[IGNORED] * 7] * 4


def test_the_turns_of_a_thing_are_counted() -> None:
    turn = list(events.LOOK_CLASSES).index("turn")
    most = 0
    for seed in range(10):
        reel = sample_reel(seed, 64)
        looks = events.film_labels(reel.scene, 64, 0.6)["looks"]
        shots = [[s.start for s in reel.scene.shots if s.start <= t][-1] for t in frame_times(64)]
        for number, (index, hero) in enumerate(reel.hero):
            start = reel.scene.shots[index].start
            last = max(frame for frame, shot in enumerate(shots) if shot == start)
            label = looks[last][PLACES.index(hero.place)][turn]
            assert label in (number, IGNORED)  # a picture may be inserted there
            most = max(most, label)
    assert most == events.MAX_TURNS - 1


def test_the_last_shot_of_a_look_is_labelled_and_linked() -> None:
    first = list(events.LOOK_CLASSES).index("prior word")
    num_links = 0
    for seed in range(6):
        sample = Sample("focus", (sample_reel(seed, 64).scene,), (), 64)
        shots, texts = sample.scenes[0].shots, sample.scenes[0].texts
        looks = torch.tensor(events.film_labels(sample.scenes[0], 64, 1.0)["looks"])
        links = events.linked_labels([sample], 64)[0].view(64, FRAME_TOKENS, 3)
        frames = [evidence([Region(shot.start, shot.end)], 64).frames for shot in shots]
        last_shot: dict[tuple[str, str], tuple[int, Thing]] = {}
        for number, shot in enumerate(shots):
            for thing in shot.things:
                look = thing.colour, thing.shape
                quarter = looks[frames[number][-1], PLACES.index(thing.place)]
                prior, before = last_shot.get(look, (number, thing))
                if sum((other.colour, other.shape) == look for other in shot.things) > 1:
                    continue
                word, tens, ones = quarter[first:].tolist()
                if look not in last_shot:
                    assert [word, tens, ones] == list(events.TEXT_CLASSES.values())
                elif word != IGNORED:
                    assert WORDS[word] == texts[prior].value
                else:
                    assert f"{tens}{ones}" == texts[prior].value
                start, end, bits = links[frames[number][-1], PLACE_CELLS[thing.place][0]].tolist()
                assert (start, end - 1) == (frames[prior][0], frames[prior][-1])
                assert bits == sum(1 << cell for cell in PLACE_CELLS[before.place])
                num_links += look in last_shot
            last_shot |= {(t.colour, t.shape): (number, t) for t in shot.things}
    assert num_links > 20


def test_clips_have_no_links() -> None:
    links = events.linked_labels([draw("clip", 3, 8)], 8)
    assert bool((links == IGNORED).all())


def check_looks(labels: list[list[int]], shot: Shot) -> None:
    """Each quarter has the label of the thing in it, or that of none."""
    things = {thing.place: thing for thing in shot.things}
    for place, label in zip(PLACES, labels, strict=True):
        thing = things.get(place)
        if thing is None:
            assert label == [count - 1 for count in events.LOOK_CLASSES.values()]
            continue
        assert COLOURS[label[0]] == thing.colour
        assert SHAPES[label[1]] == thing.shape
        assert TEXTURES[label[2]] == thing.texture


def test_the_looks_in_an_inserted_picture_are_labelled() -> None:
    frames = 32
    labelled = 0
    for seed in range(12):
        scene = sample_reel(seed, frames, "picture").scene
        labels = events.film_labels(scene, frames, 0.6)
        inserted = [
            i
            for i, t in enumerate(frame_times(frames))
            for x in scene.inserts
            if x.start <= t < x.end
        ]
        for frame, insert in zip(inserted, scene.inserts, strict=True):
            labelled += 1
            assert labels["actions"][frame] == [IGNORED] * 4
            check_looks(labels["looks"][frame], insert)
            places = [PLACES.index(thing.place) for thing in insert.things]
            assert all(labels["looks"][frame][place][-1] == IGNORED for place in places)
    assert labelled > 6


def test_things_seen_before_count_as_much_as_all_others(fresh_processor: Any) -> None:
    plan = BatchPlan([Sample("focus", (sample_reel(3, 64).scene,), (), 64)], 64)
    item = video.film_batch(fresh_processor.tokenizer, plan, 0.6)
    assert item.labels is not None
    counts = events.CLASSES | events.NAME_CLASSES | events.LOOK_CLASSES
    scores = {name: torch.zeros(1, 64, FRAME_TOKENS, count) for name, count in counts.items()}
    # A reel has no labels of `texts` and `shot`.
    expected = np.log(counts["actions"]) + np.log(counts["camera"])
    names_share = video.NAMES_LOSS_WEIGHT / video.FILM_LOSS_WEIGHT
    expected += names_share * sum(np.log(list(events.NAME_CLASSES.values())))
    expected += sum(np.log(list(events.LOOK_CLASSES.values())))
    expected += sum(np.log(counts[f"prior {name}"]) for name in events.TEXT_CLASSES)
    loss = float(video.film_loss(scores, item.labels.film).loss)
    assert loss == pytest.approx(expected, rel=1e-5)
