"""Chooses by measurement what computes a model's passes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil
import torch

from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import Passes

MODULES = "modules"

WIDTHS = (1, 6)
"""Tokens of the passes that are timed: plain decoding and drafting, and a verification."""

CONTEXT = 16
"""Cached tokens of a timed pass."""

ROUNDS = 5
"""Most timings of each pass, after one to warm up."""

SECONDS = 2.0
"""Time for one model's timings; each candidate is timed twice at least."""

GAIN = 0.95
"""Largest share of the modules' time that is worth another engine."""

MEMORY = 1.2
"""Free memory that OpenVINO's copy of the weights needs, in sizes of the weights."""


@dataclass(frozen=True)
class Choice:
    """What runs the passes of a model, and why.

    Args:
        name: of the chosen candidate.
        seconds: of passes of `WIDTHS` tokens, by candidate.
        skipped: why others were not timed.
    """

    name: str
    seconds: Mapping[str, tuple[float, ...]]
    skipped: Mapping[str, str]

    def __str__(self) -> str:
        widths = " and ".join(map(str, WIDTHS))
        times = [
            f"{name} {' and '.join(f'{1e3 * value:.3g}' for value in values)} ms"
            for name, values in self.seconds.items()
        ]
        others = [f"{name} not timed: {reason}" for name, reason in self.skipped.items()]
        return f"{self.name} (for {widths} tokens: {'; '.join([*times, *others])})"


def measured_choice(
    backbone: Backbone, candidates: Mapping[str, Passes], skipped: Mapping[str, str]
) -> Choice:
    """Time passes by each candidate in turns; the least sum of both widths wins."""
    before = backbone.passes
    prompt = backbone.text_prompt(torch.ones(1, CONTEXT, dtype=torch.long, device=backbone.device))
    cache = backbone.new_cache(prompt, room=max(WIDTHS))
    backbone.prefill(prompt, cache)
    seconds = {name: [float("inf")] * len(WIDTHS) for name in candidates}
    end = time.perf_counter() + SECONDS
    try:
        for number in range(1 + ROUNDS):
            for name, passes in candidates.items():
                backbone.passes = passes
                for index, width in enumerate(WIDTHS):
                    began = time.perf_counter()
                    ids = torch.ones(1, width, dtype=torch.long, device=backbone.device)
                    steps = torch.arange(width, device=backbone.device)[None]
                    logits = backbone.forward(ids, prompt.positions(steps), cache, None)
                    logits[0, 0, 0].item()  # waits for a GPU
                    if number:
                        passed = time.perf_counter() - began
                        seconds[name][index] = min(seconds[name][index], passed)
                    cache.truncate([CONTEXT])
            if number and time.perf_counter() > end:
                break
    finally:
        backbone.passes = before
    return Choice(
        _fastest({name: sum(values) for name, values in seconds.items()}),
        {name: tuple(values) for name, values in seconds.items()},
        skipped,
    )


def _fastest(seconds: Mapping[str, float]) -> str:
    name = min(seconds, key=seconds.__getitem__)
    return name if seconds[name] <= GAIN * seconds[MODULES] else MODULES


def memory_refusal(backbone: Backbone) -> str:
    """Why a copy of a model's weights does not fit; empty if it does."""
    size = sum(parameter.nbytes for parameter in backbone.model.parameters())
    free = psutil.virtual_memory().available
    if free < MEMORY * size:
        return f"its copy of the weights takes {size / 2**30:.1f} GiB, {free / 2**30:.1f} are free"
    return ""
