"""Does the draft's entropy tell more about acceptance than its probability of the first choice?

A tree grows below a level while the product of the draft's probabilities says that it pays
(`draftlens/drafting/adaptive/controller.py`); SAGE's rule is the entropy instead. Both are read off
the same forwards of the embedded draft, which reads the target's answers token by token. Predictors
are tables of the acceptance in bins, made of all other clips, so that any monotone rule is covered:
the lower the loss, the better the best rule that knows this much.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from draftlens_lab.measure.statistics import central_interval, resamples
from draftlens_lab.measure.tables import markdown_table
from shared import (
    argument_parser,
    backbones,
    caption_sample,
    configure,
    environment,
    environment_line,
    sample_inputs,
    save,
)

import draftlens
from draftlens.engine import Engine

PREDICTION = """Written before the first run. The two say nearly the same: the loss by entropy is
0 to 5% higher than by the first choice's probability, and both together gain less than 2%, so a
rule by entropy cannot beat today's."""

BINS = 20


@dataclass(frozen=True)
class Position:
    """One token of an answer, as the draft sees it."""

    probability: float  # of the draft's first choice
    entropy: float  # of the draft's distribution, in nats
    is_accepted: bool  # whether the first choice is the target's token


def positions(engine: Engine, seed: int, args: argparse.Namespace) -> list[Position]:
    """The tokens of one caption after the first."""
    _, draft = backbones(engine)
    inputs = sample_inputs(engine, caption_sample(seed), args.frames)
    result = engine.answer(
        inputs, method="plain", max_new_tokens=args.max_new_tokens, do_sample=False
    ).run()
    answer = torch.tensor(result.tokens)
    prompt = draft.encode(draft.prepare_prompt(inputs.target))
    whole = draft.followed_by(prompt, answer[:, :-1])
    cache = draft.new_cache(whole, room=1)
    with torch.inference_mode():
        logits = draft.prefill(whole, cache, None, answer.shape[1] - 1)[0]
    log_probs = logits.log_softmax(-1)
    best = log_probs.max(-1)
    entropies = -(log_probs.exp() * log_probs).sum(-1)
    accepted = best.indices == answer[0, 1:]
    rows = zip(best.values.exp().tolist(), entropies.tolist(), accepted.tolist(), strict=True)
    return [Position(*row) for row in rows]


Key = Callable[[Position], Any]


def losses(clips: Sequence[Sequence[Position]], key: Key) -> list[float]:
    """Mean log loss in nats for each clip, by tables of the others."""
    found = []
    for left_out, clip in enumerate(clips):
        counts: dict[Any, list[float]] = {}
        for number, other in enumerate(clips):
            for position in other if number != left_out else ():
                count = counts.setdefault(key(position), [0.5, 1.0])
                count[0] += position.is_accepted
                count[1] += 1
        total = 0.0
        for position in clip:
            accepted, seen = counts.get(key(position), (0.5, 1.0))
            rate = accepted / seen
            total -= math.log(rate if position.is_accepted else 1 - rate)
        found.append(total / len(clip))
    return found


def edges(values: Sequence[float], bins: int) -> list[float]:
    """Edges between bins of equally many values."""
    ranked = sorted(values)
    return [ranked[len(ranked) * n // bins] for n in range(1, bins)]


def bin_of(value: float, bounds: Sequence[float]) -> int:
    return sum(value >= bound for bound in bounds)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    engine = draftlens.load("embedded", device="cpu", calibrate=False)
    clips = [positions(engine, seed, args) for seed in range(args.clips)]
    together = [position for clip in clips for position in clip]
    by_probability = edges([p.probability for p in together], BINS)
    by_entropy = edges([p.entropy for p in together], BINS)
    rough = by_entropy[3::4]
    keys: dict[str, Key] = {
        "nothing": lambda p: 0,
        "probability of the first choice": lambda p: bin_of(p.probability, by_probability),
        "entropy": lambda p: bin_of(p.entropy, by_entropy),
        "both": lambda p: (bin_of(p.probability, by_probability), bin_of(p.entropy, rough)),
    }
    by_key = {name: losses(clips, key) for name, key in keys.items()}
    base = by_key["probability of the first choice"]
    rows = []
    for name, of_key in by_key.items():
        changes = np.subtract(of_key, base)
        low, high = central_interval(changes[resamples(len(clips), 0)].mean(1))
        rows.append({"known": name, "loss": sum(of_key) / len(of_key), "low": low, "high": high})
    accepted = sum(p.is_accepted for p in together) / len(together)
    return {"rows": rows, "accepted": accepted, "positions": len(together)}


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/entropy", repeats=1)
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--frames", type=int, default=16)
    args = parser.parse_args()
    configure(args.threads)
    found = measure(args)
    facts = environment(args)
    cells = [
        [row["known"], *(f"{row[column]:.4f}" for column in ("loss", "low", "high"))]
        for row in found["rows"]
    ]
    columns = ("known", "log loss", "difference, low", "difference, high")
    lines = ["# Entropy of the draft and acceptance", "", *markdown_table(columns, cells), ""]
    lines += [
        f"{found['positions']} tokens of {args.clips} captions, {found['accepted']:.1%} accepted. "
        "Differences from the probability of the first choice, 95% intervals over clips.",
        "",
        f"Prediction. {' '.join(PREDICTION.split())}",
        "",
        environment_line(facts),
    ]
    page = "\n".join(lines) + "\n"
    save(args.out, {"environment": facts, "prediction": PREDICTION, **found}, page)
    print(page)


if __name__ == "__main__":
    main()
