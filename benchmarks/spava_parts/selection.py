"""Whether the tokens that hold an answer are passed on more often than others (SPAVA, figure 8)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from draftlens_lab.evaluate.answers import conversation, render_side
from draftlens_lab.measure.statistics import central_interval, resamples
from draftlens_lab.plugins.spava_ablation import random_keys
from draftlens_lab.world import FocusTurn, evidence
from draftlens_lab.world.samples import Sample
from shared import PAIR, Benchmark, Report, encoded_prompt, pair_of, table
from torch import Tensor

from draftlens.engine import Engine
from draftlens.models.prompt import Prompt
from draftlens.prefill.spava.blocks import Blocks
from draftlens.prefill.spava.config import SpavaPrefill
from draftlens.prefill.spava.one_process_attention import BlockAttention
from draftlens.prefill.spava.passing_keys import Choose, keys_by_query
from spava_parts.asked import FRAMES, samples_of

SEED = 16
"""Of the bootstrap."""

CHOICES: Mapping[str, Choose] = {
    "query": keys_by_query,
    "query, no pool": partial(keys_by_query, neighbours=1),
    "random": random_keys,
}
"""What chooses passing keys."""


@dataclass
class Recorded:
    """A rule that counts how often each token is chosen.

    Args:
        choose: the rule.
        blocks: of the row.

    Attributes:
        counts: by layer and token of the row, over the heads of the keys.
        heads: of the keys.
    """

    choose: Choose
    blocks: Blocks
    counts: dict[int, Tensor] = field(default_factory=dict)
    heads: int = 0

    def __call__(self, query: Tensor, key: Tensor, count: int, layer: int, block: int) -> Tensor:
        """See `keys_by_query`."""
        places = self.choose(query, key, count, layer, block)
        counts = self.counts.setdefault(layer, torch.zeros(self.blocks.length, dtype=torch.int64))
        counts += torch.bincount(
            places.flatten() + self.blocks.edges[block], minlength=self.blocks.length
        )
        self.heads = len(places)
        return places


def shares(
    engine: Engine, prompt: Prompt, sample: Sample, choice: Choose, frames: int
) -> list[float]:
    """By layer how often a token with the answer is passed on, in relation to all tokens that can
    be; empty if no token with the answer can be, because all are in the anchor or the last block.
    """
    backbone = engine.target.backbone
    (row,) = SpavaPrefill().rows(prompt)
    assert row.blocks is not None
    blocks = row.blocks
    holds = holding(prompt, sample, frames)
    can_pass = torch.zeros(blocks.length, dtype=torch.bool)
    can_pass[blocks.anchor : blocks.edges[-2]] = True
    if not (holds & can_pass).any():
        return []
    recorded = Recorded(choice, blocks)
    attention = BlockAttention([blocks], prompt.lengths, recorded)
    with backbone.alone():
        backbone.prefill(prompt, backbone.new_cache(prompt, 1), attention)
    found = []
    for counts in recorded.counts.values():
        rate = counts[holds & can_pass].double().mean()
        found.append(float(rate / counts[can_pass].double().mean()))
    return found


def holding(prompt: Prompt, sample: Sample, frames: int) -> Tensor:
    """Which tokens show the answer of the sample's question, bool ``[L]``."""
    turn = sample.turns[-1]
    assert isinstance(turn, FocusTurn)
    seen = evidence(turn.regions, frames)
    per_frame = 16
    holds = torch.zeros(prompt.lengths[0], dtype=torch.bool)
    places = prompt.visual[0].nonzero()[:, 0]
    for frame, cells in zip(seen.frames, seen.cells, strict=True):
        holds[places[frame * per_frame + torch.tensor(cells)]] = True
    return holds


def summary(rows: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Means over prompts and layers with the bootstrap's interval over prompts, and by layer."""
    table = np.array(rows)
    per_prompt = table.mean(1)
    return {
        "prompts": len(rows),
        "ratio": float(per_prompt.mean()),
        "interval": central_interval(per_prompt[resamples(len(rows), SEED)].mean(1)),
        "layers": table.mean(0).tolist(),
    }


def measure(args: argparse.Namespace) -> Report:
    """How often tokens with the answer are passed on, by choice."""
    engine = pair_of(args, method="plain", calibrate=False)
    side = render_side(engine.target.processor)
    found: dict[str, list[list[float]]] = {name: [] for name in CHOICES}
    for sample in samples_of("needle", args.prompts, FRAMES[args.length]):
        inputs = engine.process([conversation(sample, FRAMES[args.length], side)])
        prompt = encoded_prompt(engine.target.backbone, inputs.target)
        for name, choice in CHOICES.items():
            if rates := shares(engine, prompt, sample, choice, FRAMES[args.length]):
                found[name].append(rates)
    return {"length": args.length, "choices": {n: summary(rows) for n, rows in found.items()}}


def page(report: Report) -> list[str]:
    """Means and largest layers by choice."""

    def largest(row: Mapping[str, Any]) -> str:
        layers = row["layers"]
        best = max(range(len(layers)), key=layers.__getitem__)
        return f"{layers[best]:.2f} (layer {best})"

    columns: dict[str, Any] = {
        "chosen by": "{name}",
        "prompts": "{prompts}",
        "times as often": "{ratio:.2f} ({interval[0]:.2f} to {interval[1]:.2f})",
        "largest": largest,
    }
    return [
        f"Needles in one frame, {report['length']:,} visual tokens, 16 blocks, l_p = n/128. How "
        "often a token with the answer is passed on, in relation to any token: the mean over "
        "layers and prompts with the bootstrap's 95% interval, and the layer where it is largest.",
        table([{"name": name, **row} for name, row in report["choices"].items()], columns),
    ]


BENCHMARK = Benchmark(
    "spava_selection",
    __doc__,
    "Which tokens are passed on",
    measure,
    page,
    {**PAIR, "--prompts": 40, "--length": {"type": int, "default": 1025, "choices": [*FRAMES]}},
)
