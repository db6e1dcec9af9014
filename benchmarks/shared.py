"""What the benchmarks share: clips, peers, interleaving, and what a reader needs to judge their
figures."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers

import draftlens
from draftlens.api import Engine, Inputs
from draftlens.core import tree as trees
from draftlens.evaluate.asking import conversation
from draftlens.measure.stock import run_stock
from draftlens.models.backbone import Backbone
from draftlens.world import HELD_OUT, Turn, marked_caption, sample_scene
from draftlens.world.samples import Sample

T = TypeVar("T")
Run = dict[str, Any]  # tokens, seconds e2e and decode, and whatever else is known
Answerer = Callable[[Inputs, dict[str, Any]], Run]

SIDE = 64
PROMPT = "Describe the video."


def quiet(threads: int) -> None:
    """Nothing but the report on the screen, and so many threads."""
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def clip(seed: int) -> Sample:
    """A held-out clip whose caption is asked for."""
    shown = sample_scene(HELD_OUT + seed)
    return Sample("clip", (shown,), (Turn(PROMPT, marked_caption(shown), "caption"),))


def given(engine: Engine, sample: Sample, frames: int) -> Inputs:
    """A sample as the processors would hand it over."""
    return engine.process([conversation(sample, frames, SIDE)])


def stock(target: Backbone, **extra: Any) -> Answerer:
    """Stock `generate`."""

    def call(inputs: Inputs, options: dict[str, Any]) -> Run:
        run = run_stock(target, inputs.target, **options, **extra)
        return {"tokens": run.tokens, "e2e": run.e2e, "decode": run.decode}

    return call


def assisted(target: Backbone, draft: Any, settings: dict[str, Any]) -> Answerer:
    """Stock assisted generation; its knobs live in the draft's generation config."""

    def call(inputs: Inputs, options: dict[str, Any]) -> Run:
        before = {name: getattr(draft.generation_config, name) for name in settings}
        draft.generation_config.update(**settings)
        try:
            return stock(target, assistant=draft)(inputs, options)
        finally:
            draft.generation_config.update(**before)

    return call


def ours(engine: Engine, method: Any) -> Answerer:
    """The engine by one of its methods."""

    def call(inputs: Inputs, options: dict[str, Any]) -> Run:
        result = engine.answer(inputs, method=method, **options).run()
        return {"tokens": result.tokens, **result.stats.to_dict()}

    return call


def rotate(items: Sequence[T], by: int) -> list[T]:
    """Another order in each repeat, so that no configuration always follows the same one."""
    by %= len(items)
    return [*items[by:], *items[:by]]


def timed(cases: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each case, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 2):
        for name, case in rotate(list(cases.items()), number):
            start = time.perf_counter()
            case()
            if number > 1:  # the first two warm caches up
                times[name].append(time.perf_counter() - start)
    return times


def forward_case(backbone: Backbone, prompt: Any, cache: Any, size: int) -> Callable[[], None]:
    """One forward of `size` tokens behind what a cache holds, rolled back afterwards."""
    tokens = torch.arange(size)[None] + 5
    positions = prompt.positions(torch.arange(size)[None])
    lengths = list(cache.lengths)
    mask = trees.attention_mask(lengths, torch.ones(size, size, dtype=torch.bool).tril())

    def call() -> None:
        backbone.forward(tokens, positions, cache, mask)
        cache.truncate(lengths)

    return call


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {"median": middle, "q1": low, "q3": high}


def told(value: dict[str, float]) -> str:
    """A median with its quartiles."""
    return f"{value['median']:.2f} ({value['q1']:.2f} to {value['q3']:.2f})"


def environment(args: argparse.Namespace) -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": args.threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "draftlens": draftlens.__version__,
        "commit": commit.stdout.strip(),
        "repeats": args.repeats,
        "max_new_tokens": args.max_new_tokens,
        "dtype": "float32",
    }


def processor() -> str:
    """The processor's model name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
