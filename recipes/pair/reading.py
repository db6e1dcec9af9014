"""``python -m recipes.pair.reading``: the steps between a question about a reel and its answer.

A question names what to look for; the frames tell what they show; some heads match the two, and
from there the answer is read. The heads of a `video.FilmModel` measure each step on held-out reels,
so that a wrong answer has a cause: what is sought is not understood, what is seen is not told, or
the two are not matched.
"""

import argparse
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from draftlens_lab.world.samples import Sample

from recipes.pair.asked import labelled_shares, places
from recipes.pair.data import IGNORED, BatchPlan
from recipes.pair.drill import draw_drill
from recipes.pair.events import LOOK_CLASSES, NAME_CLASSES, SOUGHT_NAMES
from recipes.pair.go_on import FurtherTraining
from recipes.pair.kept import KEPT
from recipes.pair.probe import SEED
from recipes.pair.recipe import RUNS, LanguageStage
from recipes.pair.second import SECOND
from recipes.pair.tokenizer import VIDEO
from recipes.pair.video import (
    FilmBatch,
    FilmLabels,
    FilmModel,
    Observation,
    film_batch,
    observe,
    quarters,
)


@dataclass
class Mean:
    """The mean of some numbers.

    Args:
        total: their sum.
        count: how many there are.
    """

    total: float = 0.0
    count: int = 0

    def add(self, values: torch.Tensor) -> None:
        """Add the numbers of a tensor."""
        self.total += float(values.float().sum())
        self.count += values.numel()

    @property
    def value(self) -> float:
        """The mean; NaN of nothing."""
        return self.total / self.count if self.count else float("nan")


Figures = dict[str, Mean]


@torch.no_grad()
def readings(
    model: Any, heads: Any, stage: LanguageStage, tokenizer: Any, frames: int, count: int
) -> Figures:
    """The figures of each step on held-out drills.

    - ``seen NAME``: share of the visual tokens that tell the name of their shot, or the look of the
      thing in their quarter; ``seen NAME of a picture`` for pictures that are inserted.
    - ``sought NAME``: share of the ends of questions, and of beginnings of later parts of answers,
      that tell what they look for.
    - ``pointed FORM LAYER``: share of the attention to the video that two heads of a layer have on
      what the next part of an answer tells of, at its first token.
    - ``linked LAYER``: the same from things to the shot before in which they were.

    Args:
        model: the model.
        heads: those that were trained with it, see `FilmModel.heads`.
        stage: the stage in which they were trained.
        tokenizer: the pair's tokenizer.
        frames: number of frames of the reels.
        count: number of reels.
    """
    module = FilmModel(model)
    module.take_heads(heads)
    module.eval()
    video_id = tokenizer.convert_tokens_to_ids(VIDEO)
    figures: Figures = defaultdict(Mean)
    for seed in range(SEED, SEED + count):
        sample = draw_drill(seed, frames)
        item = film_batch(tokenizer, BatchPlan([sample], frames), stage.since)
        assert item.labels is not None
        run = partial(_run, model, item)
        _, observation = observe(module, stage, item, run, video_id)
        _add_seen_names(figures, observation, item.labels)
        _add_seen_looks(figures, observation, item.labels)
        _add_sought(figures, observation, item.labels)
        _add_pointed(figures, observation, item.labels, stage, _forms(tokenizer, sample, frames))
        _add_linked(figures, observation, item.labels, stage)
    return dict(sorted(figures.items()))


def _run(model: Any, item: FilmBatch) -> Any:
    inputs = {name: value for name, value in item.batch.items() if name != "labels"}
    return model.model(**inputs, use_cache=False)


def _add_seen_names(figures: Figures, observation: Observation, labels: FilmLabels) -> None:
    """The names of their shots that visual tokens tell."""
    for index, name in enumerate(NAME_CLASSES):
        label = labels.film.names[..., index, None]  # [1, T, 1]
        is_right = observation.film[name].argmax(-1) == label
        figures[f"seen {name}"].add(is_right[(label != IGNORED).expand_as(is_right)])


def _add_seen_looks(figures: Figures, observation: Observation, labels: FilmLabels) -> None:
    """The looks of the things in their quarters that visual tokens tell."""
    looks = labels.film.looks  # [1, T, 4, names]
    is_thing = (looks[..., 0] != IGNORED) & (looks[..., 0] < LOOK_CLASSES["colour"] - 1)
    turn = list(LOOK_CLASSES).index("turn")
    is_inserted = looks[..., turn] == IGNORED  # a picture is no turn of a thing
    for index, (name, count) in enumerate(LOOK_CLASSES.items()):
        label = looks[..., index]  # [1, T, 4]
        is_right = quarters(observation.film[name]).argmax(-1) == label[..., None]
        is_labelled = is_thing & (label != IGNORED)
        if name.startswith("prior"):
            has_prior = is_labelled & (label < count - 1)
            figures[f"seen no {name}"].add(is_right[is_labelled & ~has_prior])
            is_labelled = has_prior
        figures[f"seen {name}"].add(is_right[is_labelled & ~is_inserted])
        if (is_labelled & is_inserted).any():
            figures[f"seen {name} of a picture"].add(is_right[is_labelled & is_inserted])


def _add_sought(figures: Figures, observation: Observation, labels: FilmLabels) -> None:
    """What the text tells that it looks for."""
    sought = labels.sought[:, observation.end :]
    for index, name in enumerate(SOUGHT_NAMES):
        label = sought[..., index]
        is_right = observation.sought[name][:, :, 0].argmax(-1) == label
        figures[f"sought {name}"].add(is_right[label != IGNORED])


def _add_pointed(
    figures: Figures,
    observation: Observation,
    labels: FilmLabels,
    stage: LanguageStage,
    forms: dict[int, str],
) -> None:
    """Where heads attend to at the first token of each part of an answer."""
    pointed = labels.pointed[0, observation.end :]
    has_label = pointed[:, 0] != IGNORED
    positions = has_label.nonzero()[:, 0] + observation.end
    for layer, shares in zip(stage.pointers, observation.pointed, strict=True):
        received = labelled_shares(shares, pointed[has_label])
        for position, share in zip(positions.tolist(), received, strict=True):
            if position in forms:
                figures[f"pointed {forms[position]} {layer}"].add(share)


def _add_linked(
    figures: Figures, observation: Observation, labels: FilmLabels, stage: LanguageStage
) -> None:
    """Where heads attend to from the things that were in a shot before."""
    linked = labels.linked[0]
    has_label = linked[:, 0] != IGNORED
    chosen = linked[has_label]
    frames = has_label.nonzero()[:, 0] // (len(linked) // labels.film.names.shape[1])
    is_before = chosen[:, 1] <= frames
    for layer, shares in zip(stage.linking, observation.linked, strict=True):
        received = labelled_shares(shares, chosen)
        figures[f"linked {layer}"].add(received[is_before])
        figures[f"linked to itself {layer}"].add(received[~is_before])


def _forms(tokenizer: Any, sample: Sample, frames: int) -> dict[int, str]:
    """The form of the question by the position that predicts the first token of each part."""
    return {place.first: place.turn.form for place in places(tokenizer, sample, frames)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.pair.reading", description="Figures of each step of an answer."
    )
    parser.add_argument("part", choices=sorted(SECOND), help="the model")
    parser.add_argument("--frames", type=int, default=64, help="frames of the reels")
    parser.add_argument("--samples", type=int, default=16, help="number of reels")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder with checkpoints")
    parser.add_argument("--kept", type=Path, default=KEPT, help="folder of kept weights")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    training = FurtherTraining(SECOND[options.part], options.runs, options.kept / options.part)
    model, state, heads = training.newest()
    stages = {stage.phase.name: stage for _, stage in training.recipe.stages}
    stage = stages[state.phase]
    if heads is None:
        parser.error(f"there are no heads beside the weights of {state.phase}")
    print(state.phase, state.step)
    figures = readings(
        model, heads, stage, training.processor.tokenizer, options.frames, options.samples
    )
    for name, mean in figures.items():
        print(f"{name:28} {mean.value:.3f} of {mean.count}")


if __name__ == "__main__":
    main()
