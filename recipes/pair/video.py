"""Training of the first layers of a language model to recognise events in a video.

The vision encoder processes one frame at a time, so the motion of a thing only appears in a
comparison of frames. Captions alone teach it slowly: a model that names all things correctly still
guesses their motions. While the model learns to answer, a head on its first layers therefore
classifies events. From the tokens of a shot's last frames it classifies the look and the action of
the thing in each quarter and the movement of the camera; from the tokens of every frame, the number
of texts so far and the shot. In reels it classifies, from every token of a frame, the number of the
shot, its text and the text of the shot before: what a question can name; and from the cells of a
thing, in how many shots before there was one of the same colour and shape, and the number of the
last of them: what a thing does through a reel is told shot by shot, and a look alone does not tell
the next of its shots from the others. Counting takes a step for each shot and was not learned in
1,000 steps. The shot before takes one, so two heads of some layers are trained to attend from the
cells of a thing to those of its shot before, or of its own shot if it is the first. From the tokens
of an inserted picture it classifies the thing in each quarter: without these labels its shapes are
forgotten before the depth where answers read. The head is discarded afterwards.

The same training before the dialogues, instead of together with them, did not work: the later
layers never learned to use what the first layers had recognised.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from draftlens.world import evidence, frame_times
from draftlens.world.reel import MAX_SHOTS
from draftlens.world.regions import PLACE_CELLS, Region
from draftlens.world.samples import Sample
from draftlens.world.scene import (
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
from draftlens.world.wording import ACTIONS as ACTION_PHRASES
from recipes.pair.asked import (
    ASKED_LOSS_WEIGHT,
    FIRST_TOKENS,
    NO_CELLS,
    POINTER_LOSS_WEIGHT,
    Place,
    Pointer,
    asked_labels,
    asked_loss,
    padded_rows,
    places,
    pointed_labels,
    pointer_loss,
)
from recipes.pair.data import IGNORED, Batch, Mix, collate, encode, plans
from recipes.pair.jobs import language_job
from recipes.pair.loop import Job, StepResult
from recipes.pair.models import FRAME_TOKENS
from recipes.pair.recipe import LanguageStage
from recipes.pair.tokenizer import VIDEO
from recipes.pair.vision import BOTTOM_CELLS, by_quarter, cell_loss

ACTIONS = tuple(ACTION_PHRASES)
NO_ACTION = len(ACTIONS)  # the class of an empty quarter
MAX_TURNS = 6
FILM_LOSS_WEIGHT = 0.3
NAMES_LOSS_WEIGHT = 0.1  # of what questions about reels name
SOUGHT_LOSS_WEIGHT = 0.3
NO_PRIOR = MAX_SHOTS  # the class of a thing in its first shot
CLASSES = {"actions": len(ACTIONS) + 1, "camera": len(CAMERAS), "texts": 5, "shot": 2}
# The look of the thing in a quarter, how many shots before had one of its colour and shape, and the
# number of the last of them, if any; the last class is that of no thing.
LOOK_CLASSES = {
    "colour": len(COLOURS) + 1,
    "shape": len(SHAPES) + 1,
    "texture": len(TEXTURES) + 1,
    "turn": MAX_TURNS + 1,
    "prior": MAX_SHOTS + 2,
}
TEXT_CLASSES = {"word": len(WORDS), "tens": 10, "ones": 10}
# What a question about a reel can name: the text of a shot or of the one before, or its number.
NAME_CLASSES = {
    **TEXT_CLASSES,
    **{f"{name} before": count for name, count in TEXT_CLASSES.items()},
    "number": MAX_SHOTS,
}
# What a question can look for: a shot by its names, or a thing by its look and its turn.
SOUGHT_NAMES = (*NAME_CLASSES, "colour", "shape", "turn", "prior")
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
        looks: int64 ``[B, T, 4, 5]``, the look of the thing in each quarter, late in each shot and
            in an inserted picture, in the order of `LOOK_CLASSES`.
    """

    frames: torch.Tensor
    actions: torch.Tensor
    camera: torch.Tensor
    texts: torch.Tensor
    shot: torch.Tensor
    names: torch.Tensor
    looks: torch.Tensor


@dataclass(frozen=True)
class FilmBatch:
    """A batch of dialogues; if they are about clips, also the events and the shots asked about.

    Args:
        batch: the dialogues.
        film: the events.
        asked: int64 ``[B, L]``, see `asked.asked_labels`.
        pointed: int64 ``[B, L, 3]``, see `asked.pointed_labels`.
        sought: int64 ``[B, L, 11]``, see `sought_labels`.
        linked: int64 ``[B, T * 16, 3]``, see `linked_labels`.
    """

    batch: Batch
    film: Film | None
    asked: torch.Tensor | None = None
    pointed: torch.Tensor | None = None
    sought: torch.Tensor | None = None
    linked: torch.Tensor | None = None


class FilmModel(nn.Module):
    """The module of a film job: the model, and a head to discard."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        # The names of the attributes are part of the checkpoints.
        self.model = model
        self.width = model.config.text_config.hidden_size
        self.counts = {**CLASSES, **NAME_CLASSES, **LOOK_CLASSES}
        self.head = nn.Linear(self.width, sum(self.counts.values()))
        self.asked = nn.Linear(self.width, MAX_SHOTS)

    def heads(self) -> dict[str, torch.Tensor]:
        """The parameters of the heads by name."""
        parameters = self.state_dict().items()
        return {name: value for name, value in parameters if not name.startswith("model.")}

    def take_heads(self, heads: dict[str, torch.Tensor]) -> None:
        """Begin with the heads of another job for models of the same width.

        Fresh heads disturb a trained model: they cost captions and answers what hundreds of steps
        had taught it. Classes that the other job did not have are the last ones and begin with
        zeros, which disturb nothing.
        """
        with torch.no_grad():
            for name, value in heads.items():
                parameter = self.get_parameter(name)
                parameter.zero_()
                parameter[: len(value)] = value

    def forward(self, states: torch.Tensor) -> dict[str, torch.Tensor]:
        """Scores by name, for states ``[B, T, 16, D]`` of the visual tokens."""
        scores = self.head(F.rms_norm(states.float(), (self.width,)))
        parts = torch.split(scores, list(self.counts.values()), dim=-1)
        return dict(zip(self.counts, parts, strict=True))


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
    for index, shot in enumerate(scene.shots):
        frames = [frame for frame, frame_shot in enumerate(shots) if frame_shot == index]
        first_time = shot.start + since * (shot.end - shot.start)
        for frame in frames:
            if frame == frames[-1] or times[frame] >= first_time:
                actions[frame] = _shot_actions(shot)
                looks[frame] = _looks(shot, scene.shots[:index])
                camera[frame] = CAMERAS.index(shot.camera)
    texts = [sum(text.start <= time for text in scene.texts) for time in times]
    names = [[IGNORED] * len(NAME_CLASSES)] * count
    if len(scene.shots) > CLASSES["shot"]:
        befores = [-1, *shots[:-1]]
        names = [_shot_names(scene, *pair) for pair in zip(shots, befores, strict=True)]
        # A reel has more shots and texts than there are classes.
        texts = shots = [IGNORED] * count
    for insert in scene.inserts:
        for frame in evidence([Region(insert.start, insert.end)], count).frames:
            actions[frame] = [IGNORED] * len(PLACES)
            camera[frame] = IGNORED
            looks[frame] = _looks(insert, None)
    events = {"actions": actions, "camera": camera, "texts": texts, "shot": shots}
    return {**events, "names": names, "looks": looks}


def film_batches(
    tokenizer: Any, mix: Mix, seed: int, since: float, start: int
) -> Iterator[FilmBatch]:
    """The batches of `batches`, with the events of clips; ``since`` as in `film_labels`."""
    for plan in plans(mix, seed, start):
        batch = collate(tokenizer, plan.samples, plan.num_frames, plan.gaps)
        if plan.samples[0].media != "video":
            yield FilmBatch(batch, None)
            continue
        rows = [film_labels(sample.scenes[0], plan.num_frames, since) for sample in plan.samples]
        labels = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
        asked = asked_labels(tokenizer, plan.samples, plan.num_frames)
        pointed = pointed_labels(tokenizer, plan.samples, plan.num_frames)
        sought = sought_labels(tokenizer, plan.samples, plan.num_frames)
        film = Film(batch["pixel_values_videos"], **labels)
        linked = linked_labels(plan.samples, plan.num_frames)
        yield FilmBatch(batch, film, asked, pointed, sought, linked)


def sought_labels(tokenizer: Any, samples: Sequence[Sample], num_frames: int) -> torch.Tensor:
    """What the end of each question looks for, int64 ``[B, L, 11]`` in the order of `SOUGHT_NAMES`;
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


def sought_loss(scores: dict[str, torch.Tensor], sought: torch.Tensor) -> torch.Tensor:
    """The sum of the mean cross entropies of what questions look for.

    Args:
        scores: float ``[B, L, 1, C]`` by name.
        sought: see `sought_labels`.
    """
    losses = [
        cell_loss(scores[name], sought[..., index]) for index, name in enumerate(SOUGHT_NAMES)
    ]
    return reduce(torch.add, losses)


def stage_job(model: Any, tokenizer: Any, stage: LanguageStage, seed: int) -> Job[Any]:
    """The job of a stage, which trains the model in place.

    Args:
        model: the model.
        tokenizer: the pair's tokenizer.
        stage: the length and speed of the training, the data, and which layers are trained on
            events.
        seed: seed of the data and of the heads.
    """
    if stage.film_depth:
        return film_job(model, tokenizer, stage, seed)
    return language_job(model, tokenizer, stage.phase, stage.mix, seed)


def film_job(model: Any, tokenizer: Any, stage: LanguageStage, seed: int) -> Job[FilmBatch]:
    """A job that trains the model on dialogues, and its first layers on events, in place.

    Args:
        model: the model.
        tokenizer: the pair's tokenizer.
        stage: see `stage_job`; it has a ``film_depth``.
        seed: seed of the data and of the heads.
    """
    job = language_job(model, tokenizer, stage.phase, stage.mix, seed)
    torch.manual_seed(seed)
    module = FilmModel(model).to(model.device)
    video_id = tokenizer.convert_tokens_to_ids(VIDEO)
    return Job(
        stage.phase,
        module,
        lambda start: film_batches(tokenizer, stage.mix, seed, stage.since, start),
        _film_step(module, job, stage, video_id),
        lambda item: item.batch["input_ids"].numel(),
    )


def film_loss(scores: dict[str, torch.Tensor], film: Film) -> StepResult:
    """Summed losses, and the mean accuracy of actions and of numbers of texts."""
    actions = _quarters(scores["actions"])
    texts = scores["texts"][:, :, BOTTOM_CELLS]
    losses = [
        cell_loss(actions, film.actions),
        cell_loss(scores["camera"], film.camera),
        cell_loss(texts, film.texts),
        cell_loss(scores["shot"], film.shot),
        *(
            NAMES_LOSS_WEIGHT / FILM_LOSS_WEIGHT * cell_loss(scores[name], film.names[..., index])
            for index, name in enumerate(NAME_CLASSES)
        ),
        *(
            cell_loss(_quarters(scores[name]), film.looks[..., index])
            for index, name in enumerate(LOOK_CLASSES)
        ),
    ]
    has_action = (film.actions != IGNORED) & (film.actions != NO_ACTION)
    right_actions = actions.argmax(-1) == film.actions[..., None]
    right_texts = texts.argmax(-1) == film.texts[..., None]
    accuracy = right_actions[has_action].float().mean() + right_texts.float().mean()
    return StepResult(reduce(torch.add, losses), float(accuracy / 2))


def _quarters(scores: torch.Tensor) -> torch.Tensor:
    """Scores ``[B, T, 16, C]`` of cells as ``[B, T, 4, 4, C]``, the cells of each quarter."""
    batch_size, count = scores.shape[:2]
    return by_quarter(scores.flatten(0, 1)).reshape(batch_size, count, 4, 4, -1)


def _looks(picture: Shot, earlier: Sequence[Shot] | None) -> list[list[int]]:
    """The classes of the look of the thing in each quarter, in the order of `LOOK_CLASSES`.

    Args:
        picture: a shot or an inserted picture.
        earlier: the shots before; None for an inserted picture, which is no turn of a thing.
    """
    looks = [[count - 1 for count in LOOK_CLASSES.values()] for _ in PLACES]
    for thing in picture.things:
        colour, shape = COLOURS.index(thing.colour), SHAPES.index(thing.shape)
        turn = prior = IGNORED
        if earlier is not None:
            shots = [index for index, _ in _same_look(thing, earlier)]
            turn = min(len(set(shots)), MAX_TURNS - 1)
            prior = shots[-1] if shots else NO_PRIOR
        texture = TEXTURES.index(thing.texture)
        looks[PLACES.index(thing.place)] = [colour, shape, texture, turn, prior]
    return looks


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
    if len(scene.shots) <= CLASSES["shot"]:
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
    texts = [text for text in reel.texts if text.kind != "secret"]
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
    elif form == "hero":
        look = _sought_look(scene, place)
    return [*names, *look]


def _sought_look(scene: Scene, place: Place) -> list[int]:
    """The colour, shape, turn and shot before of the thing that the next sentence tells of."""
    regions = place.turn.regions
    turn = regions.index(place.part.region)
    shot = scene.shots[_shot_of(scene, regions[turn])]
    (thing,) = [each for each in shot.things if PLACE_CELLS[each.place] == regions[turn].cells]
    prior = _shot_of(scene, regions[turn - 1]) if turn else NO_PRIOR
    look = [COLOURS.index(thing.colour), SHAPES.index(thing.shape)]
    return [*look, min(turn, MAX_TURNS - 1), prior]


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


def _film_step(
    module: FilmModel, job: Job[Batch], stage: LanguageStage, video_id: int
) -> Callable[[FilmBatch], StepResult]:
    """The loss of a film job: that of the dialogues, plus that of the events in clips and of the
    shots asked about."""

    def loss(item: FilmBatch) -> StepResult:
        if item.film is None:
            return job.loss(item.batch)
        count = item.film.frames.shape[1]
        # The video begins at the same position in every row.
        is_video = item.batch["input_ids"][0] == video_id
        first = int(is_video.to(torch.uint8).argmax())
        texts = slice(first + count * FRAME_TOKENS, None)  # positions behind the video
        deeper = stage.asked_depth or stage.film_depth
        layers = module.model.model.language_model.layers
        pointers, links = (
            [Pointer(layers[index - 1].self_attn, first, count, FRAME_TOKENS) for index in indices]
            for indices in (stage.pointing or (deeper,), stage.linking)
        )
        with ExitStack() as watched:
            outputs = watched.enter_context(_layer_output(module.model, stage.film_depth))
            deeper_outputs = watched.enter_context(_layer_output(module.model, deeper))
            for pointer in (*pointers, *links):
                watched.enter_context(pointer.watching())
            result = job.loss(item.batch)
        states = outputs[0][:, first : first + count * FRAME_TOKENS]
        scores = module(states.reshape(len(states), count, FRAME_TOKENS, -1))
        total = result.loss + FILM_LOSS_WEIGHT * film_loss(scores, item.film).loss
        if stage.asked_depth and item.asked is not None and item.pointed is not None:
            asked = module.asked(F.rms_norm(deeper_outputs[0].float(), (module.width,)))
            total = total + ASKED_LOSS_WEIGHT * asked_loss(asked, item.asked)
            pointed = item.pointed[:, texts]
            total = total + POINTER_LOSS_WEIGHT * _pointers_loss(pointers, pointed, texts.start)
        if links and item.linked is not None:
            total = total + POINTER_LOSS_WEIGHT * _pointers_loss(links, item.linked, first)
        if stage.asked_depth and item.sought is not None:
            # To the head, a text of one token is like a frame of one cell.
            scores = module(outputs[0][:, texts, None])
            total = total + SOUGHT_LOSS_WEIGHT * sought_loss(scores, item.sought[:, texts])
        return StepResult(total, result.accuracy)

    return loss


def _pointers_loss(pointers: Sequence[Pointer], pointed: torch.Tensor, start: int) -> torch.Tensor:
    """The sum of the pointers' losses.

    Args:
        pointers: the pointers of a pass.
        pointed: int64 ``[B, L', 3]``, the labels of the tokens from position ``start`` on.
        start: that of the video or the one behind it.
    """
    has_label = pointed[..., 0] != IGNORED
    labels = pointed[has_label]
    losses = [pointer_loss(pointer.shares(has_label, start), labels) for pointer in pointers]
    return reduce(torch.add, losses)


@contextmanager
def _layer_output(model: Any, depth: int) -> Iterator[list[torch.Tensor]]:
    """Collect the hidden states ``[B, L, D]`` after layer ``depth`` of each forward pass."""
    states: list[torch.Tensor] = []

    def collect(module: Any, args: Any, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    layer = model.model.language_model.layers[depth - 1]
    handle = layer.register_forward_hook(collect)
    try:
        yield states
    finally:
        handle.remove()
