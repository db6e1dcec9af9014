"""``python -m recipes.pair``: trains and exports the embedded pair.

Checkpoints lie under ``runs/pair``; run again after an interruption and it goes on from the last
one. Parts can be asked for by name, so that target and draft can train beside each other on two
cores: ``python -m recipes.pair target --threads 1``, ``... draft --threads 1``. With an NVIDIA GPU,
``--recipe gpu --device cuda --minutes 9`` trains a larger target in pieces of nine minutes.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers.utils import logging

from recipes.pair.data import check_fast_path
from recipes.pair.export import export, size
from recipes.pair.grow import deepen
from recipes.pair.jobs import sight_job, telling_job
from recipes.pair.loop import Job, OutOfTime, train
from recipes.pair.models import build_model, build_processor
from recipes.pair.recipe import EMBEDDED, RECIPES, RUNS, SEED, Recipe, shortened
from recipes.pair.tokenizer import build_tokenizer
from recipes.pair.watch import watching_job


@dataclass
class Making:
    """One model in the making: every phase resumes from its own checkpoint."""

    recipe: Recipe
    processor: Any
    runs: Path
    device: str
    minutes: float | None  # for this run, all phases together
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0  # of training, earlier runs counted in

    def make(self) -> Any:
        """Trains all phases and returns the model, on the CPU."""
        recipe, tokenizer, seed = self.recipe, self.processor.tokenizer, self.recipe.seed
        model = build_model(recipe.shape, tokenizer, SEED).to(self.device)
        self._train(sight_job(model, recipe.sight, seed))
        self._train(telling_job(model, tokenizer, recipe.tell, recipe.tell_mix, seed))
        if recipe.watch_depth:
            depth, since = recipe.watch_depth, recipe.review_since
            self._train(
                watching_job(model, tokenizer, recipe.watch, recipe.watch_mix, seed + 25, depth)
            )
            self._train(
                watching_job(model, tokenizer, recipe.long, recipe.long_mix, seed + 50, depth)
            )
            self._train(
                watching_job(
                    model, tokenizer, recipe.review, recipe.review_mix, seed + 75, depth, since
                )
            )
            self._train(
                watching_job(
                    model, tokenizer, recipe.read, recipe.read_mix, seed + 100, depth, since
                )
            )
            self._train(
                watching_job(model, tokenizer, recipe.far, recipe.far_mix, seed + 125, depth, since)
            )
        else:
            self._train(telling_job(model, tokenizer, recipe.long, recipe.long_mix, seed + 50))
        if recipe.deep:
            model = deepen(model, build_model(recipe.deep, tokenizer, SEED).to(self.device))
            self._train(
                telling_job(model, tokenizer, recipe.deepened, recipe.deepened_mix, seed + 150)
            )
        return model.cpu()

    def _train(self, job: Job[Any]) -> None:
        left = None if self.minutes is None else self.minutes - (time.monotonic() - self.began) / 60
        self.seconds += train(job, self.runs, minutes=left)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.pair", description=__doc__)
    parser.add_argument("parts", nargs="*", default=["target", "draft"], help="target, draft")
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="cpu")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="PyTorch threads")
    parser.add_argument(
        "--minutes", type=float, help="stop after a checkpoint once this many have passed"
    )
    parser.add_argument(
        "--steps", type=int, help="at most this many a phase: to see that everything runs"
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="where checkpoints lie")
    parser.add_argument("--out", type=Path, default=EMBEDDED, help="where the finished models go")
    options = parser.parse_args()
    console = Console(width=120)
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    processor = build_processor(build_tokenizer())
    check_fast_path(processor)
    for recipe in RECIPES[options.recipe]:
        if recipe.name not in options.parts:
            continue
        recipe = recipe if options.steps is None else shortened(recipe, options.steps)
        try:
            making = Making(recipe, processor, options.runs, options.device, options.minutes)
            model = making.make()
        except OutOfTime as stopped:
            console.print(f"{stopped}; the same command goes on from there")
            sys.exit(3)
        export(model, processor, options.out / recipe.name)
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        stored = size(options.out / recipe.name) / 1e6
        minutes = making.seconds / 60
        console.print(
            f"{recipe.name}: {millions:.2f} M parameters, {stored:.1f} MB, trained for "
            f"{minutes:.0f} minutes"
        )


if __name__ == "__main__":
    main()
