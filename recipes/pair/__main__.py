"""``python -m recipes.pair``: trains and exports the embedded pair.

Checkpoints are in ``runs/pair``; the same command resumes from the newest ones after an
interruption. To train target and draft at the same time on two cores, run
``python -m recipes.pair target --threads 1`` and ``python -m recipes.pair draft --threads 1``. With
an NVIDIA GPU, ``--recipe gpu --device cuda --minutes 9`` trains a larger target in pieces of nine
minutes.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers.utils import logging

from recipes.pair.data import check_fast_path
from recipes.pair.export import export, size
from recipes.pair.grow import deepen
from recipes.pair.jobs import vision_job
from recipes.pair.loop import Job, OutOfTime, train
from recipes.pair.models import build_model, build_processor
from recipes.pair.recipe import (
    EMBEDDED,
    RECIPES,
    RUNS,
    WEIGHT_SEED,
    LanguageStage,
    Recipe,
    shortened,
)
from recipes.pair.tokenizer import build_tokenizer
from recipes.pair.video import stage_job

EXIT_OUT_OF_TIME = 3


class ModelTraining:
    """The training of one model; every phase resumes from its own checkpoint.

    Args:
        recipe: the model and its phases.
        tokenizer: the pair's tokenizer.
        runs: folder for checkpoints.
        device: as PyTorch names it.
        minutes: time limit of this run, all phases together; None for none.
    """

    def __init__(
        self, recipe: Recipe, tokenizer: Any, runs: Path, device: str, minutes: float | None
    ) -> None:
        self.recipe = recipe
        self.tokenizer = tokenizer
        self.runs = runs
        self.device = device
        self.minutes = minutes
        self.start = time.monotonic()
        self.seconds = 0.0  # training time, including earlier runs

    def run(self) -> Any:
        """Train all phases and return the model, on the CPU.

        Raises:
            OutOfTime: the time limit was reached.
        """
        recipe = self.recipe
        model = build_model(recipe.shape, self.tokenizer, WEIGHT_SEED).to(self.device)
        self._train(vision_job(model, recipe.vision, recipe.seed))
        for stage in recipe.stages:
            self._train(self._stage_job(model, stage))
        if recipe.deep is not None and recipe.deepened is not None:
            deep = build_model(recipe.deep, self.tokenizer, WEIGHT_SEED).to(self.device)
            model = deepen(model, deep)
            self._train(self._stage_job(model, recipe.deepened))
        return model.cpu()

    def _stage_job(self, model: Any, stage: LanguageStage) -> Job[Any]:
        seed = self.recipe.seed + stage.seed_offset
        return stage_job(model, self.tokenizer, stage, seed)

    def _train(self, job: Job[Any]) -> None:
        remaining = None
        if self.minutes is not None:
            remaining = self.minutes - (time.monotonic() - self.start) / 60
        self.seconds += train(job, self.runs, minutes=remaining)


def main() -> None:
    options = _parse_options()
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    processor = build_processor(build_tokenizer())
    check_fast_path(processor)
    console = Console(width=120)
    for recipe in RECIPES[options.recipe]:
        if recipe.name not in options.parts:
            continue
        try:
            summary = _train_and_export(recipe, processor, options)
        except OutOfTime as error:
            console.print(f"{error}; the same command resumes from it")
            sys.exit(EXIT_OUT_OF_TIME)
        console.print(summary)


def _train_and_export(recipe: Recipe, processor: Any, options: argparse.Namespace) -> str:
    """Train and export one model; return a summary of one line."""
    if options.steps is not None:
        recipe = shortened(recipe, options.steps)
    training = ModelTraining(
        recipe, processor.tokenizer, options.runs, options.device, options.minutes
    )
    model = training.run()
    folder = options.out / recipe.name
    export(model, processor, folder)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    return (
        f"{recipe.name}: {millions:.2f} M parameters, {size(folder) / 1e6:.1f} MB, "
        f"trained for {training.seconds / 60:.0f} minutes"
    )


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.pair", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        default=["target", "draft"],
        help="models to train: target, draft (default: both)",
    )
    parser.add_argument(
        "--recipe", choices=sorted(RECIPES), default="cpu", help="sizes and phases of the models"
    )
    parser.add_argument("--device", default="cpu", help="PyTorch device")
    parser.add_argument("--threads", type=int, default=2, help="number of PyTorch threads")
    parser.add_argument(
        "--minutes", type=float, help="save and stop after this time; the same command resumes"
    )
    parser.add_argument(
        "--steps", type=int, help="maximum steps per phase, to test that everything runs"
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder for checkpoints")
    parser.add_argument("--out", type=Path, default=EMBEDDED, help="folder for the trained models")
    return parser.parse_args()


if __name__ == "__main__":
    main()
