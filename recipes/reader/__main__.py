"""``python -m recipes.reader``: trains the reader.

Checkpoints are in ``runs/reader``; the same command resumes from the newest. On a machine without
them it goes on from ``runs/reader/kept``, to which ``--keep`` writes the newest checkpoint without
the optimizer, small enough to copy. ``--export`` writes the model as ``from_pretrained`` loads it,
in the depth of the last stage, or with ``--shallow`` in the depth in which it was trained.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch
from transformers.utils import logging

from recipes.pair.loop import OutOfTime
from recipes.reader.export import export
from recipes.reader.recipe import EMBEDDED, KEPT, RUNS, STAGES, Stage
from recipes.reader.training import ReaderTraining

EXIT_OUT_OF_TIME = 3


def main() -> None:
    options = _parse_options()
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    stages: tuple[Stage, ...] = STAGES
    if options.steps is not None:
        stages = tuple(
            replace(stage, phase=replace(stage.phase, steps=options.steps)) for stage in STAGES
        )
    training = ReaderTraining(stages, options.runs, options.kept)
    if options.keep:
        print(training.keep())
        return
    if not options.export:
        try:
            training.run(options.minutes)
        except OutOfTime as error:
            print(f"{error}; the same command resumes from it")
            sys.exit(EXIT_OUT_OF_TIME)
    trained, state = training.newest() if options.shallow else training.deepest()
    export(trained.model, training.tokenizer, options.out)
    print(f"{options.out}: {state}")


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.reader", description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="number of PyTorch threads")
    parser.add_argument(
        "--minutes", type=float, help="save and stop after this time; the same command resumes"
    )
    parser.add_argument("--steps", type=int, help="steps per phase, to test that everything runs")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder for checkpoints")
    parser.add_argument("--kept", type=Path, default=KEPT, help="folder of kept weights")
    parser.add_argument("--keep", action="store_true", help="write weights to commit, and stop")
    parser.add_argument("--export", action="store_true", help="write the newest model, and stop")
    parser.add_argument("--shallow", action="store_true", help="do not make the export deeper")
    parser.add_argument("--out", type=Path, default=EMBEDDED, help="folder for the trained model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
