"""``python -m draftlens.train.pair``: trains, exports and measures the embedded pair.

Checkpoints lie under ``runs/pair``; run again after an interruption and it goes on from the last one. Parts can be
asked for by name, so that target and draft can train beside each other on two cores:
``python -m draftlens.train.pair target``, ``... draft``, ``... report``.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from transformers.utils import logging

from draftlens.train.pair import recipe
from draftlens.train.pair.data import Mix, check_fast_path
from draftlens.train.pair.evaluate import captions_right, report
from draftlens.train.pair.export import export, load, size
from draftlens.train.pair.grow import deepen
from draftlens.train.pair.jobs import sight_job, telling_job
from draftlens.train.pair.loop import Phase, train
from draftlens.train.pair.models import DRAFT, TARGET, TARGET_SHALLOW, build_model, build_processor
from draftlens.train.pair.tokenizer import build_tokenizer
from draftlens.train.pair.watch import watch_job

EXPORT_EVERY = 200  # steps: an early pair for those who integrate it
console = Console(width=120)


def _tell(model: Any, processor: Any, phase: Phase, mix: Mix, seed: int) -> float:
    """One phase of learning to tell, exporting now and then and at its end; returns its seconds."""
    folder = recipe.EMBEDDED / phase.name.split("-")[0]

    def on_save(step: int) -> None:
        if step % EXPORT_EVERY == 0 or step == phase.steps:
            export(model, processor, folder)
            exported, loaded = load(folder)
            exact, right = captions_right(exported, loaded, 40)
            console.print(f"{phase.name} step {step}: held-out captions exact {exact:.3f}, facts right {right:.4f}")

    return train(telling_job(model, processor.tokenizer, phase, mix, seed), recipe.RUNS, on_save)


def train_target(processor: Any) -> None:
    """Sight, telling, watching, telling again, and the same deep (see sight.py, watch.py and grow.py)."""
    tokenizer, seed = processor.tokenizer, recipe.TARGET_SEED
    shallow = build_model(TARGET_SHALLOW, tokenizer, recipe.SEED)
    spent = train(sight_job(shallow, recipe.TARGET_SIGHT, seed), recipe.RUNS)
    spent += _tell(shallow, processor, recipe.TARGET_TELL, recipe.TARGET_TELL_MIX, seed)
    watch = (recipe.TARGET_WATCH, recipe.TARGET_WATCH_MIX, seed, recipe.TARGET_WATCH_DEPTH)
    spent += train(watch_job(shallow, tokenizer, *watch), recipe.RUNS)
    spent += _tell(shallow, processor, recipe.TARGET_RETELL, recipe.TARGET_RETELL_MIX, seed + 50)
    deep = deepen(shallow, build_model(TARGET, tokenizer, recipe.SEED))
    spent += _tell(deep, processor, recipe.TARGET_DEEP, recipe.TARGET_DEEP_MIX, seed + 100)
    _note_time("target", spent)


def train_draft(processor: Any) -> None:
    """Sight, then telling."""
    draft = build_model(DRAFT, processor.tokenizer, recipe.SEED)
    spent = train(sight_job(draft, recipe.DRAFT_SIGHT, recipe.DRAFT_SEED), recipe.RUNS)
    spent += _tell(draft, processor, recipe.DRAFT_TELL, recipe.DRAFT_MIX, recipe.DRAFT_SEED)
    _note_time("draft", spent)


def _note_time(name: str, seconds: float) -> None:
    (recipe.RUNS / f"{name}-time.json").write_text(json.dumps({"seconds": round(seconds)}))


def print_report(count: int) -> None:
    """Measures what was exported, not what is in memory."""
    (target, processor), (draft, _) = (load(recipe.EMBEDDED / name) for name in ("target", "draft"))
    for name, model in (("target", target), ("draft", draft)):
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        console.print(f"{name}: {millions:.2f} M parameters, {size(recipe.EMBEDDED / name) / 1e6:.1f} MB on disk")
        spent = recipe.RUNS / f"{name}-time.json"
        if spent.exists():
            console.print(f"{name}: trained for {json.loads(spent.read_text())['seconds'] / 60:.0f} minutes")
    for line in report(target, draft, processor, count):
        console.print(line)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m draftlens.train.pair", description=__doc__)
    parser.add_argument("parts", nargs="*", default=["target", "draft", "report"], help="target, draft, report")
    parser.add_argument("--scenes", type=int, default=100, help="held-out scenes to measure on")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch threads")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    processor = build_processor(build_tokenizer())
    check_fast_path(processor)
    parts: dict[str, Callable[[], None]] = {
        "target": lambda: train_target(processor),
        "draft": lambda: train_draft(processor),
        "report": lambda: print_report(options.scenes),
    }
    for name in options.parts:
        parts[name]()


if __name__ == "__main__":
    main()
