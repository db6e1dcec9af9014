"""The limits of guidance by attention: the gain of a draft from visual tokens that are selected
with knowledge of the answer.

The prompt's attention is compared with that of the answer itself, of target and draft. The latter
is known only after decoding, hence "oracle". Each selection is also compared with its opposite, the
tokens with the least attention. If the oracle's selection is no better than chance, no guidance by
attention can be; if only the oracle's is better, the prompt attends to other places than its
answer. A caption needs all of the picture and a question only one thing in it, so both are
measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from draftlens_lab.evaluate.samples import question_samples
from draftlens_lab.world.samples import Sample
from shared import backbones, grid
from torch import Tensor

from draftlens.core.prefill_readings import NO_FEATURES, FeatureSpec
from draftlens.drafting.pruning import Pruning
from draftlens.engine import Engine
from draftlens.pruning import Visual, keep_count, make_pruner
from draftlens.pruning.base import top
from specvlm_parts.scenes import (
    KINDS,
    SEED,
    TREES,
    Scene,
    attention_from,
    attention_of_answer,
    passes,
    ranks,
    read_scene,
    samples_of,
)

RATIOS = (0.9, 0.97)
DRAWS = 4
FAMILIES = ("retrieval", "attribute", "ordering", "counting")
"""Families of questions with short answers."""

PROMPT = "the prompt, target"
ORACLE = "the answer, target"
DRAFT_ORACLE = "the answer, draft"
TURN = "the new question, target"
"""What a chat with a prompt cache reads the attention of: the rest of its text was read before."""
SOURCES = (PROMPT, TURN, ORACLE, DRAFT_ORACLE)

Counts = dict[str, list[list[int]]]
"""By case and sample: tokens that the draft proposes, tokens after the first, passes of each of
TREES."""


class ScorePruner:
    """Keeps the tokens with the highest of fixed scores.

    Args:
        scores: float ``[n]``.
    """

    readings: ClassVar[FeatureSpec] = NO_FEATURES

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def select(self, visual: Visual, keep: int) -> Tensor:
        """Indices of the `keep` highest scores, rising."""
        return top(self.scores, keep)


def measure(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """All of `KINDS`, and questions of every family, about clips of the first length in
    `args.frames`."""
    frames = args.frames[0]
    samples = {kind: samples_of(kind, args.clips, frames) for kind in KINDS}
    for family in FAMILIES:
        samples[family] = question_samples(family, args.clips, SEED)
    kinds = {
        kind: measure_samples(engine, of_kind, frames, args.max_new_tokens)
        for kind, of_kind in samples.items()
    }
    return {"frames": frames, **kinds}


def measure_turns(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Second questions alone, for each number of frames."""
    return {
        str(frames): measure_samples(
            engine, samples_of("chat", args.clips, frames), frames, args.max_new_tokens
        )
        for frames in args.frames
    }


def measure_samples(
    engine: Engine, samples: Iterable[Sample], frames: int, max_new_tokens: int
) -> dict[str, Any]:
    """Counts by case and sample, and the mean share of attention to the highest tenth of the visual
    tokens."""
    counts: Counts = {}
    shares: dict[str, list[float]] = {}
    for sample in samples:
        scene = read_scene(engine, sample, frames, max_new_tokens)
        scores = attentions(engine, scene)
        for name, values in scores.items():
            shares.setdefault(name, []).append(share_of_top_tenth(values))
        for ratio in RATIOS:
            for name, prunings in selections(scores, ratio).items():
                row = count(engine, scene, prunings)
                counts.setdefault(f"{name} {ratio}", []).append(row)
    return {
        "counts": counts,
        "top_tenth": {name: sum(values) / len(values) for name, values in shares.items()},
        "tenths": shares,
    }


def count(engine: Engine, scene: Scene, prunings: Sequence[Pruning]) -> list[int]:
    """One row of `Counts`, over all prunings of a case."""
    rows = [ranks(engine, scene, pruning) for pruning in prunings]
    all_ranks = [rank for row in rows for rank in row]
    all_passes = [sum(passes(row, tree) for row in rows) for tree in TREES.values()]
    return [all_ranks.count(1), len(all_ranks), *all_passes]


def share_of_top_tenth(scores: Tensor) -> float:
    """Share of the sum of scores that the highest tenth of them holds."""
    values = scores.sort(descending=True).values
    return float(values[: keep_count(len(values), 0.9)].sum() / values.sum())


def attentions(engine: Engine, scene: Scene) -> dict[str, Tensor]:
    """Attention to each visual token, float32 ``[n]``, by its source."""
    target, draft = backbones(engine)
    visual = scene.prompt.visual[0]
    inputs = scene.inputs
    read = scene.context.readings.attention
    assert read is not None
    of_turn = read[0, scene.context.prompt.visual[0]]
    guides = {PROMPT: of_turn}
    if scene.earlier:
        guides = {PROMPT: attention_from(target, inputs.target, 0)[visual], TURN: of_turn}
    oracle = attention_of_answer(target, inputs.target, scene.answer)
    draft_oracle = attention_of_answer(draft, inputs.draft or inputs.target, scene.answer)
    return {
        **guides,
        ORACLE: oracle[visual],
        DRAFT_ORACLE: draft_oracle[visual],
    }


def selections(scores: Mapping[str, Tensor], ratio: float) -> dict[str, list[Pruning]]:
    """Name of each case to the prunings of its draws."""
    cases = {"all of it": [Pruning(make_pruner("none"), 0)]}
    for name, values in scores.items():
        cases[f"most by {name}"] = [Pruning(ScorePruner(values), ratio)]
    for name, values in scores.items():
        cases[f"least by {name}"] = [Pruning(ScorePruner(-values), ratio)]
    cases["random"] = [
        Pruning(make_pruner({"name": "random", "seed": seed}), ratio) for seed in range(DRAWS)
    ]
    cases["uniform"] = [Pruning(make_pruner("uniform"), ratio)]
    cases["nothing"] = [Pruning(make_pruner("all"), 1)]
    return cases


def report(figures: Mapping[str, Any]) -> list[str]:
    """The distribution of attention, acceptance lengths, and shares of short answers."""
    kinds = [kind for kind in KINDS if kind in figures]
    number = len(next(iter(figures["caption"]["counts"].values())))
    blocks = [
        f"## What attention could guide to (clips of {figures['frames']} frames)",
        "The tenth of the visual tokens that is looked at most holds, of all attention to them:",
        grid("by", SOURCES, [*kinds, *FAMILIES], lambda name, kind: tenth(figures[kind], name)),
    ]
    for kind in kinds:
        blocks += [
            f"{number} {KINDS[kind]}, mean acceptance length:",
            length_table(figures[kind]["counts"]),
        ]
    columns = {f"{family}, r = {ratio}": (family, ratio) for family in FAMILIES for ratio in RATIOS}

    def proposed(name: str, column: str) -> str:
        family, ratio = columns[column]
        right, tokens, *_ = np.sum(figures[family]["counts"][f"{name} {ratio}"], 0)
        return f"{right / tokens:.1%}"

    return [
        *blocks,
        f"Answers to {number} questions of each family, share of their tokens that the draft "
        "proposes:",
        grid("the draft sees", case_names(figures[FAMILIES[0]]["counts"]), columns, proposed),
    ]


def report_turns(figures: Mapping[str, Any]) -> list[str]:
    """Guidance of second questions by all text and by the new question."""
    blocks = ["## Second questions: guidance by all text and by the new question"]
    for frames, part in figures.items():
        number = len(part["counts"][f"all of it {RATIOS[0]}"])
        shares = ", ".join(f"{name} {share:.0%}" for name, share in part["top_tenth"].items())
        blocks += [
            f"{number} {KINDS['chat']} of {frames} frames, mean acceptance length. Attention to "
            f"the highest tenth of the visual tokens: {shares}.",
            length_table(part["counts"]),
        ]
    return blocks


def tenth(part: Mapping[str, Any], name: str) -> str:
    """Share of attention to the highest tenth of the visual tokens."""
    share = part["top_tenth"].get(name)
    return "" if share is None else f"{share:.0%}"


def length_table(counts: Counts) -> str:
    """Mean acceptance lengths by case."""
    columns = {f"{tree}, r = {ratio}": (tree, ratio) for ratio in RATIOS for tree in TREES}

    def length(name: str, column: str) -> str:
        tree, ratio = columns[column]
        totals = np.sum(counts[f"{name} {ratio}"], 0)
        return f"{totals[1] / totals[2 + list(TREES).index(tree)]:.2f}"

    return grid("the draft sees", case_names(counts), columns, length)


def case_names(counts: Counts) -> list[str]:
    """Names of cases without their ratios."""
    return list(dict.fromkeys(case.rsplit(" ", 1)[0] for case in counts))
