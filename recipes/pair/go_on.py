"""``python -m recipes.pair.go_on``: the second edition of the pair, from the first one's weights.

Checkpoints are in ``runs/pair``; the same command resumes from the newest. On a machine without
them it goes on from ``runs/pair/kept``, to which ``--keep`` writes the newest checkpoint without
the optimizer, small enough to copy. ``--export`` writes the model as ``from_pretrained`` loads it.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from torch import nn

from recipes.pair.average import average
from recipes.pair.export import export, load
from recipes.pair.grow import deepen, shallow_copy
from recipes.pair.kept import (
    KEPT,
    State,
    Weights,
    continued,
    keep,
    last_line,
    load_heads,
    load_weights,
    read_state,
)
from recipes.pair.loop import Job, OutOfTime, Phase, newest_checkpoint, train
from recipes.pair.models import TARGET, Shape, build_model, slow_down
from recipes.pair.probe import Probe
from recipes.pair.recipe import EMBEDDED, RUNS, WEIGHT_SEED, LanguageStage
from recipes.pair.second import SECOND, SecondRecipe
from recipes.pair.video import FilmModel, film_job, stage_job

HEADS_RATE = 1e-2  # of heads on a frozen model
HEADS_SECONDS = (4, 2, 2, 0, 6, 0)  # the rest are clips: pictures have no events


class FurtherTraining:
    """The further training of one model.

    Args:
        recipe: its stages.
        runs: folder of checkpoints.
        kept: folder of the weights from another machine, which need not exist.
    """

    def __init__(self, recipe: SecondRecipe, runs: Path, kept: Path) -> None:
        self.recipe = recipe
        self.runs = runs
        self.kept = kept
        self.state = read_state(kept)
        self.first_model, self.processor = load(EMBEDDED / recipe.name)

    def run(self, minutes: float | None) -> Any:
        """Train all stages and return the model.

        Raises:
            OutOfTime: the time limit of a stage was reached.
        """
        model: Any = None
        heads = load_heads(self.kept)
        for shape, stage in self.recipe.stages:
            if self._is_over(stage):
                continue
            model = self.model_of(shape, model)
            slow_down(model, stage.slow_turn)
            if heads is None and stage.heads_first:
                heads = self._first_heads(model, stage)
            job, phase = self.job(model, stage)
            if job.phase.steps <= 0:  # the kept weights are those of its end
                continue
            if isinstance(job.module, FilmModel) and heads is not None:
                job.module.take_heads(heads)
            probe = Probe(model, self.processor.tokenizer, self.runs / f"{phase}-probe.jsonl")
            train(job, self.runs, on_save=probe, minutes=minutes)
            heads = _heads(job) or heads
        return model

    def newest(self) -> tuple[Any, State, Weights | None]:
        """The newest model of all stages, its state and its heads: of a checkpoint, or the kept
        ones.

        Raises:
            FileNotFoundError: no stage has a checkpoint, and no weights are kept.
        """
        found: tuple[Any, State, Weights | None] | None = None
        model: Any = None
        for shape, stage in self.recipe.stages:
            if self._is_over(stage):
                continue
            model = self.model_of(shape, model)
            job, phase = self.job(model, stage)
            checkpoint, step = newest_checkpoint(self.runs / phase)
            if checkpoint is None:
                continue
            slow_down(model, stage.slow_turn)
            load_model(nn.ModuleDict({"trained": job.module}), checkpoint / "model.safetensors")
            figures = last_line(self.runs / f"{phase}-probe.jsonl")
            state = State(stage.phase.name, job.phase.first + step, shape.layers, figures)
            found = model, state, _heads(job)
        if found is not None:
            return found
        if self.state is None:
            raise FileNotFoundError(f"there is no checkpoint of {self.recipe.name} in {self.runs}")
        model = self.model_of(self._kept_shape(), None)
        stages = {stage.phase.name: stage for _, stage in self.recipe.stages}
        slow_down(model, stages[self.state.phase].slow_turn)
        return model, self.state, load_heads(self.kept)

    def mix_with_kept(self, model: Any, share: float) -> None:
        """Change a model to the mean of its weights and the kept ones, see `average`.

        Args:
            model: a model of the same sizes as the kept weights.
            share: weight of the model, from 0 to 1.
        """
        newest = model.state_dict()
        kept = build_model(self._kept_shape(), self.processor.tokenizer, WEIGHT_SEED)
        load_weights(self.kept, kept)
        model.load_state_dict(average(kept.state_dict(), newest, share))

    def model_of(self, shape: Shape, previous: Any) -> Any:
        """The model with which a stage begins.

        Args:
            shape: its sizes.
            previous: the model of the stage before, which is made deeper if necessary; None for the
                first stage of this run, which begins with the kept weights or with the first
                edition's.
        """
        if previous is not None and len(previous.model.language_model.layers) == shape.layers:
            return previous
        model = build_model(shape, self.processor.tokenizer, WEIGHT_SEED)
        if previous is not None:
            return deepen(previous, model, spread=shape.layers == TARGET.layers)
        if self.state is None:
            return shallow_copy(self.first_model, model)
        if self.state.layers == shape.layers:
            load_weights(self.kept, model)
            return model
        kept_shape = replace(shape, layers=self.state.layers)
        previous = build_model(kept_shape, self.processor.tokenizer, WEIGHT_SEED)
        load_weights(self.kept, previous)
        return self.model_of(shape, previous)

    def job(self, model: Any, stage: LanguageStage) -> tuple[Job[Any], str]:
        """The job of a stage and the name of its phase in ``runs``."""
        phase = continued(stage.phase, self.runs, self.state)
        seed = self.recipe.seed + stage.seed_offset
        job = stage_job(model, self.processor.tokenizer, replace(stage, phase=phase), seed)
        source = job.source
        return replace(job, source=lambda start: source(phase.first + start)), phase.name

    def _kept_shape(self) -> Shape:
        """The sizes of the kept model.

        Raises:
            FileNotFoundError: no weights are kept.
        """
        if self.state is None:
            raise FileNotFoundError(f"no weights of {self.recipe.name} are kept in {self.kept}")
        return replace(self.recipe.stages[-1][0], layers=self.state.layers)

    def _first_heads(self, model: Any, stage: LanguageStage) -> Weights:
        """The heads of a stage, trained on a frozen model."""
        name, steps = f"{stage.phase.name}-heads", stage.heads_first
        phase = Phase(name, steps, HEADS_RATE, warmup=10, decay=0.0, save_every=steps)
        seed = self.recipe.seed + stage.seed_offset
        mix = replace(stage.mix, others=(0, 0, 0), seconds=HEADS_SECONDS)
        heads_stage = replace(stage, phase=phase, mix=mix)
        job = film_job(model, self.processor.tokenizer, heads_stage, seed)
        model.requires_grad_(False)  # the next job trains it again
        train(job, self.runs)
        heads: Weights = job.module.heads()
        return heads

    def _is_over(self, stage: LanguageStage) -> bool:
        """Whether the kept weights are from a later stage."""
        if self.state is None:
            return False
        names = [other.phase.name for _, other in self.recipe.stages]
        return names.index(stage.phase.name) < names.index(self.state.phase)


def main() -> None:
    options = _parse_options()
    torch.set_num_threads(options.threads)
    training = FurtherTraining(SECOND[options.part], options.runs, options.kept / options.part)
    if options.keep:
        model, state, heads = training.newest()
        if options.share < 1:
            training.mix_with_kept(model, options.share)
        keep(options.kept / options.part, model, state, heads)
        print(state)
    elif options.export is not None:
        model, _, _ = training.newest()
        export(model, training.processor, options.export)
    else:
        try:
            training.run(options.minutes)
        except OutOfTime as error:
            print(f"{error}; the same command resumes from it")


def _heads(job: Job[Any]) -> Weights | None:
    """The heads that a job trains beside its model, if it does."""
    return job.module.heads() if isinstance(job.module, FilmModel) else None


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.pair.go_on", description=__doc__)
    parser.add_argument("part", choices=sorted(SECOND), help="the model")
    parser.add_argument("--threads", type=int, default=1, help="number of PyTorch threads")
    parser.add_argument("--minutes", type=float, help="save and stop a stage after this time")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder for checkpoints")
    parser.add_argument("--kept", type=Path, default=KEPT, help="folder of kept weights")
    parser.add_argument("--keep", action="store_true", help="write weights to commit, and stop")
    parser.add_argument(
        "--share",
        type=float,
        default=1.0,
        help="with --keep, weight of the newest weights in their mean with the kept ones",
    )
    parser.add_argument("--export", type=Path, help="write the newest model here, and stop")
    return parser.parse_args()


if __name__ == "__main__":
    main()
