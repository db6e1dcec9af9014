"""Training of the first layers of a language model to recognise events in a video.

The vision encoder processes one frame at a time, so the motion of a thing only appears in a
comparison of frames. Captions alone teach it slowly: a model that names all things correctly still
guesses their motions. While the model learns to answer, a head on its first layers therefore
classifies events. From the tokens of a shot's last frames it classifies the look and the action of
the thing in each quarter and the movement of the camera; from the tokens of every frame, the number
of texts so far and the shot. In reels it classifies, from every token of a frame, the number of the
shot, its text and the text of the shot before: what a question can name; and from the cells of a
thing, in how many shots before there was one of the same colour and shape, and the text of the
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
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from draftlens_lab.world.reel import MAX_SHOTS
from torch import nn

from recipes.pair.asked import (
    ASKED_LOSS_WEIGHT,
    POINTER_LOSS_WEIGHT,
    Pointer,
    asked_labels,
    asked_loss,
    pointed_labels,
    pointer_loss,
)
from recipes.pair.data import (
    IGNORED,
    Batch,
    BatchPlan,
    Mix,
    collate,
    plans,
    with_colour_noise,
)
from recipes.pair.events import (
    CLASSES,
    LOOK_CLASSES,
    NAME_CLASSES,
    NO_ACTION,
    SOUGHT_NAMES,
    Film,
    film_labels,
    linked_labels,
    sought_labels,
)
from recipes.pair.jobs import language_job
from recipes.pair.loop import Job, StepResult
from recipes.pair.models import FRAME_TOKENS
from recipes.pair.recipe import LanguageStage
from recipes.pair.tokenizer import VIDEO
from recipes.pair.vision import BOTTOM_CELLS, by_quarter, cell_loss

FILM_LOSS_WEIGHT = 0.3
NAMES_LOSS_WEIGHT = 0.1  # of what questions about reels name
SOUGHT_LOSS_WEIGHT = 0.3

Result = TypeVar("Result")


@dataclass(frozen=True)
class FilmLabels:
    """The labels of a batch of dialogues about clips.

    Args:
        film: the events.
        asked: int64 ``[B, L]``, see `asked.asked_labels`.
        pointed: int64 ``[B, L, 3]``, see `asked.pointed_labels`.
        sought: int64 ``[B, L, 13]``, see `events.sought_labels`.
        linked: int64 ``[B, T * 16, 3]``, see `events.linked_labels`.
    """

    film: Film
    asked: torch.Tensor
    pointed: torch.Tensor
    sought: torch.Tensor
    linked: torch.Tensor


@dataclass(frozen=True)
class FilmBatch:
    """A batch of dialogues.

    Args:
        batch: the dialogues.
        labels: what else is trained if they are about clips.
    """

    batch: Batch
    labels: FilmLabels | None


@dataclass(frozen=True)
class Observation:
    """What a stage trains in a pass over clips beside the answers.

    Args:
        film: scores ``[B, T, 16, C]`` of the visual tokens by name.
        sought: scores ``[B, L', 1, C]`` of the L' tokens behind the video by name.
        asked: scores ``[B, L, C]`` of the number of the shot asked about.
        pointed: for each pointing layer the attention ``[N, T, 16]`` of the N tokens behind the
            video that have a label in `FilmLabels.pointed`.
        linked: the same for each linking layer and `FilmLabels.linked`.
        first: position of the first visual token.
        end: position behind the last one of a frame.
    """

    film: dict[str, torch.Tensor]
    sought: dict[str, torch.Tensor]
    asked: torch.Tensor
    pointed: list[torch.Tensor]
    linked: list[torch.Tensor]
    first: int
    end: int


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


def film_batches(
    tokenizer: Any, mix: Mix, seed: int, since: float, start: int
) -> Iterator[FilmBatch]:
    """The batches of `batches`, with the events of clips; ``since`` as in `film_labels`."""
    for number, plan in enumerate(plans(mix, seed, start), start):
        item = film_batch(tokenizer, plan, since)
        if mix.colour_noise:
            rng = np.random.default_rng([seed, number, 6])
            batch = with_colour_noise(tokenizer, item.batch, mix.colour_noise, rng)
            item = replace(item, batch=batch)
        yield item


def film_batch(tokenizer: Any, plan: BatchPlan, since: float) -> FilmBatch:
    """One batch of `film_batches`."""
    samples, num_frames = plan.samples, plan.num_frames
    batch = collate(tokenizer, samples, num_frames, plan.gaps)
    if samples[0].media != "video":
        return FilmBatch(batch, None)
    rows = [film_labels(sample.scenes[0], num_frames, since) for sample in samples]
    events = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
    labels = FilmLabels(
        film=Film(batch["pixel_values_videos"], **events),
        asked=asked_labels(tokenizer, samples, num_frames),
        pointed=pointed_labels(tokenizer, samples, num_frames),
        sought=sought_labels(tokenizer, samples, num_frames),
        linked=linked_labels(samples, num_frames),
    )
    return FilmBatch(batch, labels)


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
    actions = quarters(scores["actions"])
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
            _look_loss(name, quarters(scores[name]), film.looks[..., index])
            for index, name in enumerate(LOOK_CLASSES)
        ),
    ]
    has_action = (film.actions != IGNORED) & (film.actions != NO_ACTION)
    right_actions = actions.argmax(-1) == film.actions[..., None]
    right_texts = texts.argmax(-1) == film.texts[..., None]
    accuracy = right_actions[has_action].float().mean() + right_texts.float().mean()
    return StepResult(reduce(torch.add, losses), float(accuracy / 2))


def _look_loss(name: str, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of one name of `LOOK_CLASSES`.

    Most things have not been seen before. Where one has, the text of its shot before counts as much
    as all that have none.
    """
    if not name.startswith("prior"):
        return cell_loss(scores, labels)
    has_prior = labels < LOOK_CLASSES[name] - 1
    with_prior = labels.masked_fill(~has_prior, IGNORED)
    without = labels.masked_fill(has_prior, IGNORED)
    return cell_loss(scores, with_prior) + cell_loss(scores, without)


def quarters(scores: torch.Tensor) -> torch.Tensor:
    """Scores ``[B, T, 16, C]`` of cells as ``[B, T, 4, 4, C]``, the cells of each quarter."""
    batch_size, count = scores.shape[:2]
    return by_quarter(scores.flatten(0, 1)).reshape(batch_size, count, 4, 4, -1)


def observe(
    module: FilmModel,
    stage: LanguageStage,
    item: FilmBatch,
    run: Callable[[], Result],
    video_id: int,
) -> tuple[Result, Observation]:
    """Run a pass over clips, and read from it what a stage trains.

    Args:
        module: the model and its heads.
        stage: the layers that are read.
        item: a batch about clips.
        run: the pass.
        video_id: the id of visual tokens.

    Returns:
        What ``run`` returns, and what was read.
    """
    assert item.labels is not None
    count = item.labels.film.frames.shape[1]
    # The video begins at the same position in every row.
    is_video = item.batch["input_ids"][0] == video_id
    first = int(is_video.to(torch.uint8).argmax())
    end = first + count * FRAME_TOKENS
    pointers = _pointers(module.model, stage.pointers, first, count)
    links = _pointers(module.model, stage.linking, first, count)
    with ExitStack() as watched:
        shallow = watched.enter_context(_layer_output(module.model, stage.film_depth))
        deep = watched.enter_context(_layer_output(module.model, stage.deeper))
        for pointer in (*pointers, *links):
            watched.enter_context(pointer.watching())
        result = run()
    has_pointed = item.labels.pointed[:, end:, 0] != IGNORED
    has_linked = item.labels.linked[..., 0] != IGNORED
    visual = shallow[0][:, first:end]
    observation = Observation(
        film=module(visual.reshape(len(visual), count, FRAME_TOKENS, -1)),
        # To the head, a text of one token is like a frame of one cell.
        sought=module(shallow[0][:, end:, None]),
        asked=module.asked(F.rms_norm(deep[0].float(), (module.width,))),
        pointed=[pointer.shares(has_pointed, end) for pointer in pointers],
        linked=[pointer.shares(has_linked, first) for pointer in links],
        first=first,
        end=end,
    )
    return result, observation


def _pointers(model: Any, depths: Sequence[int], first: int, count: int) -> list[Pointer]:
    """The pointers of some layers, counted from 1, for a video of ``count`` frames."""
    layers = model.model.language_model.layers
    return [Pointer(layers[depth - 1].self_attn, first, count, FRAME_TOKENS) for depth in depths]


def _film_step(
    module: FilmModel, job: Job[Batch], stage: LanguageStage, video_id: int
) -> Callable[[FilmBatch], StepResult]:
    """The loss of a film job: that of the dialogues, plus that of what else can be read."""

    def loss(item: FilmBatch) -> StepResult:
        if item.labels is None:
            return job.loss(item.batch)
        result, observation = observe(module, stage, item, lambda: job.loss(item.batch), video_id)
        total = result.loss + FILM_LOSS_WEIGHT * film_loss(observation.film, item.labels.film).loss
        if stage.asked_depth:
            total = total + _questions_loss(observation, item.labels)
        return StepResult(total, result.accuracy)

    return loss


def _questions_loss(observation: Observation, labels: FilmLabels) -> torch.Tensor:
    """The sum of the losses of where questions are answered and what they look for."""
    pointed, sought = labels.pointed[:, observation.end :], labels.sought[:, observation.end :]
    return (
        ASKED_LOSS_WEIGHT * asked_loss(observation.asked, labels.asked)
        + POINTER_LOSS_WEIGHT * _pointers_loss(observation.pointed, pointed)
        + POINTER_LOSS_WEIGHT * _pointers_loss(observation.linked, labels.linked)
        + SOUGHT_LOSS_WEIGHT * sought_loss(observation.sought, sought)
    )


def _pointers_loss(shares: Sequence[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """The sum of the pointers' losses.

    Args:
        shares: see `Observation.pointed`.
        labels: int64 ``[B, L', 3]``, those of the same tokens and of others, which have none.
    """
    chosen = labels[labels[..., 0] != IGNORED]
    return reduce(torch.add, [pointer_loss(each, chosen) for each in shares], torch.zeros(()))


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
