"""How far approximate prefills move the answers of the embedded target, and what that costs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from shared import argument_parser, configure, environment, environment_line, save
from torch import Tensor

from draftlens import load
from draftlens.api import Engine, Inputs
from draftlens.evaluate.answers import conversation, render_side
from draftlens.evaluate.parts import part_samples
from draftlens.evaluate.samples import caption_samples, question_samples
from draftlens.measure.tables import markdown_table
from draftlens.models.prompt import Prompt
from draftlens.prefill import Prefill, Reading, make_prefill
from draftlens.world import read_facts
from draftlens.world.samples import Sample

PREDICTION = """\
Written before the first run, knowing the trials of the issue (1,025 visual tokens, 40 questions:
passing matters, anchor and choice do not show). At 1,025 visual tokens spava keeps 90% of the
answers of ordering and 97% of those of needles; without passing a third of ordering. KL per token
along the full prefill's answer: spava 0.05, rounded to 128 under 0.005 because all keys are passed,
no anchor 0.07, random and uniform 0.06, nothing passed 0.5, star 0.4. At 4,097 spava is nearer to
full than at 1,025 in relation to nothing passed, since eight times as many keys are passed on from
blocks four times as long. Equal tokens follow KL: spava 95%, nothing passed 75%."""

PREFILLS: Mapping[str, Any] = {
    "spava": "spava",
    "spava, rounded to 128": {"name": "spava", "rounding": 128},
    "spava, no pool": {"name": "spava", "pool": 1},
    "spava, 4 blocks": {"name": "spava", "blocks": 4},
    "spava, 64 blocks": {"name": "spava", "blocks": 64},
    "no anchor": {"name": "spava", "anchor": 0},
    "random": {"name": "spava", "select": "random"},
    "uniform": {"name": "spava", "select": "uniform"},
    "nothing passed": {"name": "spava", "select": "none"},
    "star": "star",
}
"""Prefills that are compared with the full one. 4, 16 and 64 blocks are 2, 8 and 32 hosts."""

FRAMES = {1025: 64, 4097: 256}
"""Frames by number of visual tokens."""


def main() -> None:
    """Compare the prefills, and write the report."""
    args = parse()
    configure(args.threads)
    engine = load(device="cpu", method="plain", calibrate=False)
    cells: list[dict[str, Any]] = []
    report = {
        "environment": environment(args),
        "prompts": args.prompts,
        "prediction": PREDICTION,
        "cells": cells,
    }
    for length in args.lengths:
        for family in args.families:
            cells += measure(engine, family, FRAMES[length], args)
            save(args.out, report, page(report))
    print(page(report))


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argument_parser(__doc__, "benchmarks/results/spava_fidelity", repeats=1)
    parser.add_argument("--prompts", type=int, default=100, help="of each family and length")
    parser.add_argument("--lengths", type=int, nargs="+", default=[*FRAMES], choices=[*FRAMES])
    families = ["caption", "needle", "ordering", "retrieval", "counting"]
    parser.add_argument("--families", nargs="+", default=families, choices=families)
    parser.set_defaults(max_new_tokens=64)
    return parser.parse_args()


def samples_of(family: str, number: int, frames: int) -> Sequence[Sample]:
    """Held-out samples of a family."""
    if family == "caption":
        return caption_samples("clip", number, 0)
    if family == "needle":
        return part_samples("needle", number, 0, frames)
    return question_samples(family, number, 0)


def measure(
    engine: Engine, family: str, frames: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Figures of every prefill on the same prompts."""
    side = render_side(engine.target.processor)
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in ("full", *PREFILLS)}
    visual = 0
    for sample in samples_of(family, args.prompts, frames):
        inputs = engine.process([conversation(sample, frames, side)])
        options = {"max_new_tokens": args.max_new_tokens}
        full = engine.answer(inputs, **options).run()
        rows["full"].append({"right": right(sample, full.text), "kl": 0.0, "same": 1.0})
        prompt, answer = dictated(engine, inputs, full.tokens[0])
        visual = int(prompt.visual.sum())
        expected = logits_along(engine, prompt, len(answer), make_prefill("full"))
        for name, choice in PREFILLS.items():
            found = logits_along(engine, prompt, len(answer), make_prefill(choice))
            moved = {"kl": divergence(expected, found), "same": agreement(expected, found)}
            text = full.text
            if moved["same"] < 1:
                text = engine.answer(inputs, prefill=choice, **options).run().text
            rows[name].append({"right": right(sample, text), **moved})
    return [summary(name, family, visual, figures) for name, figures in rows.items()]


def dictated(engine: Engine, inputs: Inputs, answer: list[int]) -> tuple[Prompt, Tensor]:
    """The prompt followed by all tokens of an answer but the last, and the answer ``[1, T]``."""
    backbone = engine.target.backbone
    prompt = backbone.encode(backbone.prepare(inputs.target, max_new_tokens=1))
    tokens = torch.tensor([answer])
    return backbone.followed_by(prompt, tokens[:, :-1]), tokens[0]


def logits_along(engine: Engine, prompt: Prompt, count: int, prefill: Prefill) -> Tensor:
    """Logits for each token of the dictated answer, ``[T, V]``. Dictated tokens are guesses to the
    prefill, so the prompt in front of them is read as without them."""
    backbone = engine.target.backbone
    cache = backbone.new_cache(prompt, 1)
    return prefill.run(backbone, Reading(prompt, cache, num_logits=count)).logits[0]


def divergence(expected: Tensor, found: Tensor) -> float:
    """Mean KL divergence of the full prefill's distributions from the others, in nats a token."""
    true = expected.double().log_softmax(-1)
    other = found.double().log_softmax(-1)
    return float((true.exp() * (true - other)).sum(-1).mean())


def agreement(expected: Tensor, found: Tensor) -> float:
    """Share of tokens that are the likeliest under both."""
    return float((expected.argmax(-1) == found.argmax(-1)).double().mean())


def right(sample: Sample, text: str) -> float:
    """Whether an answer is right word for word; of a caption the share of its facts."""
    truth = sample.turns[-1].answer
    facts = read_facts(truth)
    if sample.turns[-1].family != "caption" or not facts:
        return float(" ".join(text.split()) == " ".join(truth.split()))
    said = read_facts(text)
    return sum(said.get(name) == value for name, value in facts.items()) / len(facts)


def summary(
    name: str, family: str, visual: int, figures: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """Means over prompts, with standard errors of the share that is right."""
    count = len(figures)
    means = {key: sum(row[key] for row in figures) / count for key in ("right", "kl", "same")}
    spread = sum((row["right"] - means["right"]) ** 2 for row in figures) / max(count - 1, 1)
    error = (spread / count) ** 0.5
    return {"prefill": name, "family": family, "visual": visual, "error": error, **means}


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# Approximate prefills: fidelity", "", environment_line(report["environment"]), ""]
    lines += ["## Prediction", "", report["prediction"], ""]
    lines += [
        f"{report['prompts']} prompts a cell. `right`: answers that are right word for word, of "
        "captions facts, with the standard error; `KL`: nats a token along the full prefill's own "
        "answer; `same`: tokens of it that stay the likeliest.",
        "",
    ]
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for cell in report["cells"]:
        groups.setdefault((cell["family"], cell["visual"]), []).append(cell)
    for (family, visual), cells in groups.items():
        rows = []
        for cell in cells:
            correct = f"{100 * cell['right']:.0f}% ± {100 * cell['error']:.0f}"
            same = f"{100 * cell['same']:.1f}%"
            rows.append([cell["prefill"], correct, f"{cell['kl']:.4f}", same])
        lines += [f"## {family}, {visual:,} visual tokens", ""]
        lines += [*markdown_table(["prefill", "right", "KL", "same"], rows), ""]
    return "\n".join(lines)
