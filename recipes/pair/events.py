"""What can be seen in a clip, and what questions about it look for, as labels of tokens.

See video.py for what is trained on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from draftlens_lab.world import evidence, frame_times
from draftlens_lab.world.reel import MAX_SHOTS
from draftlens_lab.world.regions import PLACE_CELLS, Region
from draftlens_lab.world.samples import Sample
from draftlens_lab.world.scene import (
    CAMERAS,
    COLOURS,
    PLACES,
    SHAPES,
    TEXTURES,
    WORDS,
    Scene,
    Shot,
    Text,
    Thing,
)
from draftlens_lab.world.wording import ACTIONS as ACTION_PHRASES

from recipes.pair.asked import FIRST_TOKENS, NO_CELLS, Place, padded_rows, places
from recipes.pair.data import IGNORED, encode
from recipes.pair.models import FRAME_TOKENS

ACTIONS = tuple(ACTION_PHRASES)
NO_ACTION = len(ACTIONS)  # the class of an empty quarter
MAX_TURNS = 6
CLASSES = {"actions": len(ACTIONS) + 1, "camera": len(CAMERAS), "texts": 5, "shot": 2}
TEXT_CLASSES = {"word": len(WORDS), "tens": 10, "ones": 10}
# The look of the thing in a quarter, how many shots before had one of its colour and shape, and the
# text of the last of them; the last class is that of no thing or no such shot.
LOOK_CLASSES = {
    "colour": len(COLOURS) + 1,
    "shape": len(SHAPES) + 1,
    "texture": len(TEXTURES) + 1,
    "turn": MAX_TURNS + 1,
    **{f"prior {name}": count + 1 for name, count in TEXT_CLASSES.items()},
}
# What a question about a reel can name: the text of a shot or of the one before, or its number.
NAME_CLASSES = {
    **TEXT_CLASSES,
    **{f"{name} before": count for name, count in TEXT_CLASSES.items()},
    "number": MAX_SHOTS,
}
# What a question can look for: a shot by its names, or a thing by its look, its turn, and the text
# of its shot before.
SOUGHT_LOOKS = ("colour", "shape", "turn", *(name for name in LOOK_CLASSES if "prior" in name))
SOUGHT_NAMES = (*NAME_CLASSES, *SOUGHT_LOOKS)
# Which part of the names of a shot a question looks for, by its form.
SOUGHT = {
    "word": "text",
    "place": "text",
    "after": "before",
    "next": "before",
    "after this": "before",
    "ordinal": "number",
    "of them": "number",
}


@dataclass(frozen=True)
class Film:
    """A batch of videos and their events; `IGNORED` where a label does not apply.

    Args:
        frames: float32 ``[B, T, 3, S, S]``.
        actions: int64 ``[B, T, 4]``, the action in each quarter, late in each shot.
        camera: int64 ``[B, T]``, the movement of the camera, late in each shot.
        texts: int64 ``[B, T]``, the number of texts that have begun.
        shot: int64 ``[B, T]``, the index of the shot.
        names: int64 ``[B, T, 7]``, what names the shot in a reel, in the order of `NAME_CLASSES`.
        looks: int64 ``[B, T, 4, 7]``, the look of the thing in each quarter, late in each shot and
            in an inserted picture, in the order of `LOOK_CLASSES`.
    """

    frames: torch.Tensor
    actions: torch.Tensor
    camera: torch.Tensor
    texts: torch.Tensor
    shot: torch.Tensor
    names: torch.Tensor
    looks: torch.Tensor


def film_labels(scene: Scene, count: int, since: float = 1.0) -> dict[str, Any]:
    """The events of a clip, frame by frame.

    Args:
        scene: the scene of the clip.
        count: number of frames.
        since: time in each shot, from 0 to 1, from which its frames have labels of looks, actions
            and camera; the last frame of a shot always has them.
    """
    times = frame_times(count)
    shots = [_shot_index(scene, time) for time in times]
    actions = [[IGNORED] * 4 for _ in times]
    camera = [IGNORED] * count
    looks = [[[IGNORED] * len(LOOK_CLASSES)] * len(PLACES)] * count
    for frame in _late_frames(scene, times, shots, since):
        index = shots[frame]
        shot = scene.shots[index]
        actions[frame] = _shot_actions(shot)
        looks[frame] = _looks(shot, scene, index)
        camera[frame] = CAMERAS.index(shot.camera)
    texts = [sum(text.start <= time for text in scene.texts) for time in times]
    names = [[IGNORED] * len(NAME_CLASSES)] * count
    if _is_reel(scene):
        befores = [-1, *shots[:-1]]
        names = [_shot_names(scene, *pair) for pair in zip(shots, befores, strict=True)]
        # A reel has more shots and texts than there are classes.
        texts = shots = [IGNORED] * count
    for insert in scene.inserts:
        for frame in evidence([Region(insert.start, insert.end)], count).frames:
            actions[frame] = [IGNORED] * len(PLACES)
            camera[frame] = IGNORED
            looks[frame] = _looks(insert)
    events = {"actions": actions, "camera": camera, "texts": texts, "shot": shots}
    return {**events, "names": names, "looks": looks}


def sought_labels(tokenizer: Any, samples: Sequence[Sample], num_frames: int) -> torch.Tensor:
    """What the end of each question looks for, int64 ``[B, L, 13]`` in the order of `SOUGHT_NAMES`;
    `IGNORED` where nothing of a kind is looked for, and elsewhere.

    Args:
        tokenizer: the pair's tokenizer.
        samples: samples about clips.
        num_frames: frames of each clip.
    """
    nothing = [IGNORED] * len(SOUGHT_NAMES)
    rows = []
    for sample in samples:
        (scene,) = sample.scenes
        row = [nothing] * len(encode(tokenizer, sample, num_frames).ids)
        for place in places(tokenizer, sample, num_frames):
            sought = _sought(scene, place)
            end = min(place.first + FIRST_TOKENS, place.end)
            for position in range(place.first - place.lead, end):
                row[position] = sought
        rows.append(row)
    return padded_rows(rows, nothing)


def linked_labels(samples: Sequence[Sample], num_frames: int) -> torch.Tensor:
    """What the cells of things should attend to, int64 ``[B, T * 16, 3]`` as in
    `asked.pointed_labels`.

    Labelled are the quarters of things in the last frame of each shot of a reel: with the quarter
    and the shot in which a thing of the same colour and shape was last, or with their own quarter
    in their own shot if there was none.

    Args:
        samples: samples about clips.
        num_frames: frames of each clip.
    """
    rows = [_links(sample.scenes[0], num_frames) for sample in samples]
    return torch.tensor(rows)


def _late_frames(
    scene: Scene, times: Sequence[float], shots: Sequence[int], since: float
) -> list[int]:
    """The frames late in their shots, see `film_labels`.

    Args:
        scene: the scene of the clip.
        times: the time of each frame.
        shots: the index of the shot of each frame.
        since: time in each shot, from 0 to 1.
    """
    late = []
    for frame, index in enumerate(shots):
        shot = scene.shots[index]
        is_last = frame + 1 == len(shots) or shots[frame + 1] != index
        if is_last or times[frame] >= shot.start + since * (shot.end - shot.start):
            late.append(frame)
    return late


def _looks(picture: Shot, clip: Scene | None = None, index: int = 0) -> list[list[int]]:
    """The classes of the look of the thing in each quarter, in the order of `LOOK_CLASSES`.

    Args:
        picture: a shot or an inserted picture.
        clip: the clip of the shot; None for an inserted picture, which is no turn of a thing.
        index: index of the shot.
    """
    looks = [[count - 1 for count in LOOK_CLASSES.values()] for _ in PLACES]
    for thing in picture.things:
        look = [COLOURS.index(thing.colour), SHAPES.index(thing.shape)]
        turn, prior = IGNORED, [IGNORED] * len(TEXT_CLASSES)
        if clip is not None:
            shots = sorted({number for number, _ in _same_look(thing, clip.shots[:index])})
            turn = min(len(shots), MAX_TURNS - 1)
            prior = _prior_text(clip, shots)
        texture = TEXTURES.index(thing.texture)
        looks[PLACES.index(thing.place)] = [*look, texture, turn, *prior]
    return looks


def _prior_text(clip: Scene, shots: Sequence[int]) -> list[int]:
    """The classes of the text of the last of some shots, or those of no shot.

    Only shots of reels have one text each.
    """
    if not _is_reel(clip):
        return [IGNORED] * len(TEXT_CLASSES)
    if not shots:
        return list(TEXT_CLASSES.values())
    return _text_classes(_shot_texts(clip)[shots[-1]])


def _same_look(thing: Thing, shots: Sequence[Shot]) -> list[tuple[int, Thing]]:
    """The things of the same colour and shape in some shots, each with the shot's index."""
    look = thing.colour, thing.shape
    return [
        (index, other)
        for index, shot in enumerate(shots)
        for other in shot.things
        if (other.colour, other.shape) == look
    ]


def _links(scene: Scene, count: int) -> list[tuple[int, int, int]]:
    """The labels of `linked_labels` for one clip of ``count`` frames."""
    links = [NO_CELLS] * count * FRAME_TOKENS
    if not _is_reel(scene):
        return links
    frames = [evidence([Region(shot.start, shot.end)], count).frames for shot in scene.shots]
    inserted = [Region(insert.start, insert.end) for insert in scene.inserts]
    hidden = evidence(inserted, count).frames if inserted else ()
    for index, shot in enumerate(scene.shots):
        last = max(frame for frame in frames[index] if frame not in hidden)
        for thing in shot.things:
            earlier = _same_look(thing, scene.shots[:index])
            number, other = earlier[-1] if earlier else (index, thing)
            bits = sum(1 << cell for cell in PLACE_CELLS[other.place])
            for cell in PLACE_CELLS[thing.place]:
                link = frames[number][0], frames[number][-1] + 1, bits
                links[last * FRAME_TOKENS + cell] = link
    return links


def _shot_index(scene: Scene, time: float) -> int:
    """The index of the shot at a time."""
    return next(i for i, shot in enumerate(scene.shots) if time < shot.end or shot.end >= 1)


def _shot_names(reel: Scene, index: int, frame_before: int) -> list[int]:
    """The classes of what names a shot of a reel, in the order of `NAME_CLASSES`.

    The text is at the bottom of a frame, and tokens attend to tokens before them only. Most tokens
    of the first frame of a shot cannot know its text, so it has no label.

    Args:
        reel: the reel.
        index: the shot of a frame.
        frame_before: the shot of the frame before.
    """
    texts = _shot_texts(reel)
    unknown = [IGNORED] * len(TEXT_CLASSES)
    text = _text_classes(texts[index]) if index == frame_before else unknown
    before = _text_classes(texts[index - 1]) if index else unknown
    return [*text, *before, index]


def _sought(scene: Scene, place: Place) -> list[int]:
    """What the next part of an answer looks for, in the order of `SOUGHT_NAMES`."""
    form = place.turn.form
    names = [IGNORED] * len(NAME_CLASSES)
    look = [IGNORED] * (len(SOUGHT_NAMES) - len(NAME_CLASSES))
    if form in SOUGHT:
        index = _shot_of(scene, place.part.region)
        names = _named_part(_shot_names(scene, index, index), SOUGHT[form])
    elif form in ("hero", "hero texts"):
        look = _sought_look(scene, place)
    return [*names, *look]


def _sought_look(scene: Scene, place: Place) -> list[int]:
    """The look of the thing that the next sentence tells of, in the order of `SOUGHT_LOOKS`."""
    regions = place.turn.regions
    turn = regions.index(place.part.region)
    shot = scene.shots[_shot_of(scene, regions[turn])]
    (thing,) = [each for each in shot.things if PLACE_CELLS[each.place] == regions[turn].cells]
    shots_before = [_shot_of(scene, region) for region in regions[:turn]]
    look = [COLOURS.index(thing.colour), SHAPES.index(thing.shape)]
    return [*look, min(turn, MAX_TURNS - 1), *_prior_text(scene, shots_before)]


def _is_reel(scene: Scene) -> bool:
    """Whether a clip has more shots than other clips."""
    return len(scene.shots) > CLASSES["shot"]


def _shot_texts(reel: Scene) -> list[Text]:
    """The text of each shot."""
    return [text for text in reel.texts if text.kind != "secret"]


def _shot_of(scene: Scene, region: Region) -> int:
    """The index of the shot of a region."""
    return [shot.start for shot in scene.shots].index(region.start)


def _named_part(names: list[int], part: str) -> list[int]:
    """The names of a shot without all but one part of them.

    Args:
        names: in the order of `NAME_CLASSES`.
        part: ``text``, ``before`` or ``number``.
    """
    count = len(TEXT_CLASSES)
    parts = {"text": range(count), "before": range(count, 2 * count), "number": [2 * count]}
    return [name if index in parts[part] else IGNORED for index, name in enumerate(names)]


def _text_classes(text: Text) -> list[int]:
    """The classes of a text, in the order of `TEXT_CLASSES`."""
    if text.kind == "word":
        return [WORDS.index(text.value), IGNORED, IGNORED]
    tens, ones = divmod(int(text.value), 10)
    return [IGNORED, tens, ones]


def _shot_actions(shot: Shot) -> list[int]:
    """The class of the action in each quarter of a shot."""
    actions = [NO_ACTION] * len(PLACES)
    for thing in shot.things:
        action = f"{thing.motion} {thing.when}".strip()
        actions[PLACES.index(thing.place)] = ACTIONS.index(action)
    return actions
