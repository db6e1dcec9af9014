"""Acceptance of a draft that was trained with pruned prompts, and of the embedded draft, on clips
that neither has seen."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from draftlens_lab.evaluate.ranks import draft_ranks
from draftlens_lab.measure.statistics import central_interval, resampled_ratios, resamples
from numpy.typing import NDArray
from shared import backbones, encoded_prompt, table

import draftlens
from draftlens.engine import Engine
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from specvlm_parts.scenes import (
    KINDS,
    TREES,
    Scene,
    Settings,
    check,
    passes,
    pruning_of,
    read_scene,
    samples_of,
)

RATIOS = (0.5, 0.9, 0.97)
PRUNERS = ("specvlm", "uniform")
CASES: dict[str, Settings] = {
    "all": {"prune_ratio": 0.0},
    **{
        f"{pruner} {ratio}": {"prune_ratio": ratio, "pruner": pruner}
        for pruner in PRUNERS
        for ratio in RATIOS
    },
    "none": {"prune_ratio": 1.0},
}
CHECKED_CASE = CASES["specvlm 0.97"]
TITLES = {"tree": "EAGLE's tree, 25 nodes", "chain": "Chain, γ = 5"}
NAMES = ("embedded", "trained")

Counts = dict[str, list[list[int]]]
"""By case and clip: tokens after the first, passes of a chain, passes of a tree."""


def measure(engine: Engine, args: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Counts of both drafts by case, for each number of frames.

    Args:
        engine: the target with the trained draft.
        args: options of the benchmark.
        kind: one of `KINDS`.
    """
    baseline = draftlens.load(args.target, draft="auto", device="cpu")
    return {
        str(frames): measure_length(engine, baseline, kind, frames, args) for frames in args.frames
    }


def measure_length(
    engine: Engine, baseline: Engine, kind: str, frames: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Counts of every case over the same samples of this number of frames."""
    drafts = dict(zip(NAMES, (backbones(baseline)[1], backbones(engine)[1]), strict=True))
    counts: dict[str, Counts] = {name: {case: [] for case in CASES} for name in NAMES}
    visual = 0
    for index, sample in enumerate(samples_of(kind, args.clips, frames)):
        name = f"{kind}-{frames}-{index}.pt"
        scene = kept_scene(
            args.keep and args.keep / name,
            partial(read_scene, engine, sample, frames, args.max_new_tokens),
        )
        visual = int(scene.prompt.visual.sum())
        for name, draft in drafts.items():
            for case, row in count(engine, draft, scene).items():
                counts[name][case].append(row)
        if index < args.checked:
            own = replace(scene, prompt=draft_prompt(drafts[NAMES[1]], scene))
            check(engine, own, CHECKED_CASE, args.max_new_tokens)
    return {"visual": visual, "counts": counts, "checked": args.checked}


def kept_scene(file: Path | None, read: Callable[[], Scene]) -> Scene:
    """A scene from a file, or read and written to it; without the target's keys and values."""
    if file is not None and file.exists():
        scene: Scene = torch.load(file, weights_only=False)
        return scene
    scene = read()
    context = replace(scene.context, cache=KVCache(0, 1, 0))
    scene = replace(scene, context=context)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        torch.save(scene, part)
        part.replace(file)
    return scene


def draft_prompt(draft: Backbone, scene: Scene) -> Prompt:
    """The prompt of a scene as this draft reads it, unpruned; a kept one has another draft's."""
    return encoded_prompt(draft, scene.inputs.draft or scene.inputs.target)


def count(engine: Engine, draft: Backbone, scene: Scene) -> dict[str, list[int]]:
    """Tokens, and passes of each of TREES, of every case."""
    prompt = draft_prompt(draft, scene)
    vocab_size = backbones(engine)[0].vocab_size
    rows = {}
    for case, settings in CASES.items():
        pruned = pruning_of(settings).apply(prompt, scene.context).prompt
        ranks = draft_ranks(draft, pruned, [scene.answer], scene.prepared, vocab_size)[0]
        rows[case] = [len(ranks), *(passes(ranks, tree) for tree in TREES.values())]
    return rows


class Compared:
    """Mean acceptance lengths of both drafts, and of resampled clips.

    Args:
        counts: by draft and case.
        tree: one of TREES.
    """

    def __init__(self, counts: Mapping[str, Counts], tree: str) -> None:
        self.counts = counts
        self.column = 1 + list(TREES).index(tree)
        self.indices = resamples(len(counts[NAMES[0]]["all"]), 0)

    def mean(self, draft: str, case: str) -> float:
        """Tokens emitted by passes / passes, over all clips."""
        totals = np.sum(self.counts[draft][case], 0)
        return float(totals[0] / totals[self.column])

    def mean_line(self, draft: str, case: str) -> str:
        """The mean as text."""
        return f"{self.mean(draft, case):.2f}"

    def share(self, draft: str, case: str, whole_draft: str | None = None) -> str:
        """Length of a case / unpruned length of a draft (by default the same), with its 95%
        interval over clips."""
        return self._ratio((draft, case), (whole_draft or draft, "all"))

    def gain(self, case: str) -> str:
        """Length of the trained draft / that of the embedded one."""
        return self._ratio((NAMES[1], case), (NAMES[0], case))

    def _ratio(self, above: tuple[str, str], below: tuple[str, str]) -> str:
        low, high = central_interval(self._resampled(*above) / self._resampled(*below))
        return f"{self.mean(*above) / self.mean(*below):.1%} ({low:.1%} to {high:.1%})"

    def _resampled(self, draft: str, case: str) -> NDArray[np.float64]:
        table = np.asarray(self.counts[draft][case])
        return resampled_ratios(table[:, 0].tolist(), table[:, self.column].tolist(), self.indices)


def report(figures: Mapping[str, Any], kind: str) -> list[str]:
    """A row for each case, by number of frames and tree."""
    blocks = [f"## A draft trained with pruned prompts: {KINDS[kind]}"]
    for frames, part in figures.items():
        number = len(part["counts"][NAMES[0]]["all"])
        title = f"{number} {KINDS[kind]} of {frames} frames, {part['visual']} visual tokens"
        blocks.append(f"### {title}; the engine confirmed {part['checked']} of them")
        for tree, tree_title in TITLES.items():
            found = Compared(part["counts"], tree)
            columns: dict[str, str | Callable[[str], object]] = {"pruner, r": str}
            for name in NAMES:
                columns[name] = partial(found.mean_line, name)
            columns["trained / embedded"] = found.gain
            for name in NAMES:
                columns[f"{name}, of its unpruned length"] = partial(found.share, name)
            whole = partial(found.share, NAMES[1], whole_draft=NAMES[0])
            columns["trained, of the embedded one's unpruned length"] = whole
            blocks += [f"{tree_title}.", table(CASES, columns)]
    return blocks
