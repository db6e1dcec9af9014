"""Why attention guides as well or badly as it does: what a draft gains from tokens chosen with
knowledge of the answer.

The prompt's attention is compared with that of the answer itself (known only afterwards, hence
"oracle"), of target and draft, and each with its opposite: the tokens least looked at. If the
oracle's choice is no better than chance, no guidance by attention could be; if it is and the
prompt's is not, the prompt looks elsewhere than its answer will. A caption needs all of the picture
and a question one thing in it, so both are asked.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import numpy as np
from shared import clip
from torch import Tensor

from draftlens.api import Engine
from draftlens.draft.pruned import Pruning
from draftlens.evaluate.samples import asked
from draftlens.evaluate.shares import middle, ratio, resamples
from draftlens.prune import Visual, keep_count, make_pruner
from draftlens.world.samples import Sample
from specvlm_parts.seeing import TREES, Scene, attention_to, passes, ranks, scene

RATIOS = (0.9, 0.97)
DRAWS = 4
FAMILIES = ("retrieval", "attribute", "ordering", "counting")
SEED = 7  # of the questions: other scenes than those of `draftlens evaluate`
PROMPT, ORACLE, OTHER = "the prompt, target", "the answer, target", "the answer, draft"
COLUMNS = (
    "right",
    "tokens",
    *TREES,
)  # of the counts: guesses right, tokens behind the first, passes of each tree


class Chosen:
    """A pruner with scores of its own."""

    needs_scores = False

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def select(self, visual: Visual, keep: int) -> Tensor:
        """The `keep` highest."""
        return self.scores.argsort(descending=True, stable=True)[:keep].sort().values


def measure(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Captions and questions of every family, by clips of the first length that was asked for."""
    frames, number = args.frames[0], args.clips
    asks: dict[str, Iterable[Sample]] = {"caption": map(clip, range(number))}
    asks |= {family: asked(family, number, SEED) for family in FAMILIES}
    return {
        "frames": frames,
        **{name: one(engine, samples, frames, args) for name, samples in asks.items()},
    }


def one(
    engine: Engine, samples: Iterable[Sample], frames: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Counts by choice and sample; and how uneven the attention is."""
    counts: dict[str, list[list[int]]] = {}
    heads: dict[str, list[float]] = {}
    for sample in samples:
        shown = scene(engine, sample, frames, args.max_new_tokens)
        known = attentions(engine, shown)
        for name, scores in known.items():
            best = scores.sort(descending=True).values
            heads.setdefault(name, []).append(
                float(best[: keep_count(len(best), 0.9)].sum() / best.sum())
            )
        for r in RATIOS:
            for name, prunings in choices(known, r).items():
                ranked = [ranks(engine, shown, pruning) for pruning in prunings]
                flat = [rank for row in ranked for rank in row]
                spent = [sum(passes(row, tree) for row in ranked) for tree in TREES.values()]
                counts.setdefault(f"{name} {r}", []).append([flat.count(1), len(flat), *spent])
    return {
        "counts": counts,
        "top_tenth": {name: sum(shares) / len(shares) for name, shares in heads.items()},
    }


def attentions(engine: Engine, shown: Scene) -> dict[str, Tensor]:
    """Who looks how much at each visual token, float32 ``[n]``."""
    target, draft = engine.target.backbone, engine.draft.backbone  # type: ignore[union-attr]
    at = shown.prompt.visual[0]
    assert shown.seen.scores is not None
    return {
        PROMPT: shown.seen.scores[0, shown.seen.prompt.visual[0]],
        ORACLE: attention_to(target, dict(shown.inputs.target), shown.answer)[at],
        OTHER: attention_to(draft, dict(shown.inputs.draft or shown.inputs.target), shown.answer)[
            at
        ],
    }


def choices(known: dict[str, Tensor], r: float) -> dict[str, list[Pruning]]:
    """Name to the prunings of its draws."""
    some: dict[str, list[Pruning]] = {"all of it": [Pruning(make_pruner("none", {}), 0)]}
    some |= {f"most by {name}": [Pruning(Chosen(scores), r)] for name, scores in known.items()}
    some |= {f"least by {name}": [Pruning(Chosen(-scores), r)] for name, scores in known.items()}
    some["random"] = [Pruning(make_pruner("random", {"seed": seed}), r) for seed in range(DRAWS)]
    some["uniform"] = [Pruning(make_pruner("uniform", {}), r)]
    return some | {"nothing": [Pruning(make_pruner("all", {}), 1)]}


def tell(found: dict[str, Any]) -> list[str]:
    """How even attention is, then a table for captions and one for questions."""
    lines = [f"## What attention could guide to (clips of {found['frames']} frames)", ""]
    lines += [
        "The tenth of the visual tokens that is looked at most holds, of all attention to them:",
        "",
    ]
    kinds = ("caption", *FAMILIES)
    lines += ["| by | " + " | ".join(kinds) + " |", "|---|" + "---:|" * len(kinds)]
    for name in (PROMPT, ORACLE, OTHER):
        lines.append(
            f"| {name} | "
            + " | ".join(f"{found[kind]['top_tenth'][name]:.0%}" for kind in kinds)
            + " |"
        )
    number = len(next(iter(found["caption"]["counts"].values())))
    lines += [
        "",
        f"Captions of {number} clips, mean acceptance length:",
        "",
        *captions(found["caption"]["counts"]),
    ]
    lines += [
        "",
        f"Answers to {number} questions of each family, share of their tokens that the draft "
        f"guesses:",
        "",
    ]
    return [*lines, *questions({family: found[family]["counts"] for family in FAMILIES})]


def captions(counts: dict[str, list[list[int]]]) -> list[str]:
    """Mean acceptance lengths by choice."""
    lines = [
        "| the draft sees | "
        + " | ".join(f"{tree}, r = {r}" for r in RATIOS for tree in TREES)
        + " |"
    ]
    lines.append("|---|" + "---:|" * len(RATIOS) * len(TREES))
    for name in dict.fromkeys(case.rsplit(" ", 1)[0] for case in counts):
        totals = [np.sum(counts[f"{name} {r}"], 0) for r in RATIOS]
        cells = [f"{row[1] / row[column]:.2f}" for row in totals for column in (2, 3)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def questions(counts: dict[str, dict[str, list[list[int]]]]) -> list[str]:
    """Shares of tokens guessed by choice and family, and the gain of the prompt's and the oracle's
    over chance."""
    names = dict.fromkeys(case.rsplit(" ", 1)[0] for case in counts[FAMILIES[0]])
    lines = [
        "| the draft sees | "
        + " | ".join(f"{family}, r = {r}" for family in counts for r in RATIOS)
        + " |"
    ]
    lines.append("|---|" + "---:|" * len(RATIOS) * len(counts))
    for name in names:
        cells = [np.sum(table[f"{name} {r}"], 0) for table in counts.values() for r in RATIOS]
        lines.append(
            f"| {name} | "
            + " | ".join(f"{right / tokens:.1%}" for right, tokens, *_ in cells)
            + " |"
        )
    for name in (f"most by {PROMPT}", f"most by {ORACLE}"):
        pooled = {
            r: gain(
                [table[f"{case} {r}"] for table in counts.values() for case in (name, "random")]
            )
            for r in RATIOS
        }
        told = ", ".join(
            f"r = {r}: {v:+.1%} ({low:+.1%} to {high:+.1%})" for r, (v, low, high) in pooled.items()
        )
        lines += ["", f"All families, {name} against random: {told}."]
    return lines


def gain(tables: list[list[list[int]]]) -> tuple[float, float, float]:
    """Share guessed, chosen less random, over all families, and its 95% interval; tables alternate
    between the two."""
    chosen, drawn = (
        np.concatenate([np.asarray(table) for table in tables[start::2]]) for start in (0, 1)
    )
    picks = resamples(len(chosen), 0)
    first, second = (
        ratio(rows[:, 0].tolist(), rows[:, 1].tolist(), picks) for rows in (chosen, drawn)
    )
    value = chosen[:, 0].sum() / chosen[:, 1].sum() - drawn[:, 0].sum() / drawn[:, 1].sum()
    return float(value), *middle(first - second)
