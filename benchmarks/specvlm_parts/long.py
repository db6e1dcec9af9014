"""End-to-end and decode-only times at 16,000 visual tokens, compared with stock `generate` and
stock assisted generation."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from draftlens_lab.measure.pruning import kept_indices
from shared import (
    Answerer,
    Case,
    PrefilledPrompt,
    Run,
    assisted_answerer,
    backbones,
    caption_sample,
    encoded_prompt,
    engine_answerer,
    median_seconds,
    milliseconds_line,
    predicted_speedup,
    range_line,
    ratios,
    rotated,
    sample_inputs,
    stock_answerer,
    table,
)

from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_subset import gather
from draftlens.pruning import keep_count
from draftlens.pruning.base import spread
from specvlm_parts.scenes import PAPER

FRAMES = 1000
WARM_UP_FRAMES = 16
GAMMA = 5
RATIO = 0.97
FORWARD_REPEATS = 20

CLIP = 8
"""The only one of clips 0 to 11 with a long and readable answer: the target was trained on at most
4,097 visual tokens, and at 16,001 most of its answers are a few words or one word without end."""

CHAINS = {"chain, unpruned": "draft", "specvlm, chain": "pruned"}
"""Methods with a chain of draft tokens to the name of their draft's forwards."""


def measure(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Measure every method on the same clip, interleaved, with raw forwards in the same run.

    Returns:
        JSON values: `runs` by method, or an error message, and `costs`, seconds of raw forwards.
    """
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    answerers = methods(engine)
    runs: dict[str, Any] = {name: [] for name in answerers}

    def answer(name: str, inputs: Inputs) -> None:
        try:
            runs[name].append(answerers[name](inputs, options))
        except Exception as error:  # stock assisted generation, with some versions of transformers
            runs[name] = f"{type(error).__name__}: {error}"
            del answerers[name]

    short_inputs = sample_inputs(engine, caption_sample(CLIP), WARM_UP_FRAMES)
    inputs = sample_inputs(engine, caption_sample(CLIP), args.long_frames or FRAMES)
    for name in list(answerers):  # first calls import modules and choose kernels
        answer(name, short_inputs)
    answer("plain", inputs)
    for name in answerers:
        runs[name] = []
    costs: list[dict[str, float]] = []
    for repeat in range(args.repeats):
        for name in rotated(list(answerers), repeat):
            answer(name, inputs)
        costs.append(forward_seconds(engine, inputs))
    medians = {name: statistics.median(row[name] for row in costs) for name in costs[0]}
    return {"runs": runs, "costs": medians}


def methods(engine: Engine) -> dict[str, Answerer]:
    """Name of each method to a function that answers a prompt."""
    target, draft = backbones(engine)
    specvlm = {**PAPER, "prune_ratio": RATIO, "tree": "eagle"}
    chain = {"tree": None, "num_speculative_tokens": GAMMA}
    return {
        "hf-generate": stock_answerer(target),
        "hf-assisted": assisted_answerer(target, draft, {}),
        "plain": engine_answerer(engine, "plain"),
        "chain, unpruned": engine_answerer(engine, {"num_speculative_tokens": GAMMA}),
        "specvlm": engine_answerer(engine, specvlm),
        "specvlm, auto tree": engine_answerer(engine, {**specvlm, "tree": "auto"}),
        "specvlm, chain": engine_answerer(engine, {**specvlm, **chain}),
    }


def forward_seconds(engine: Engine, inputs: Inputs) -> dict[str, float]:
    """Median seconds of raw forwards after the prompt: of one token and of γ + 1 tokens by the
    target, and of one token by the draft with and without pruning."""
    target, draft = backbones(engine)
    target_prompt = PrefilledPrompt.of(target, encoded_prompt(target, inputs.target))
    whole = encoded_prompt(draft, inputs.target)
    cases: dict[str, Case] = {
        "target(1)": target_prompt.chain_case(1),
        f"target({GAMMA + 1})": target_prompt.chain_case(GAMMA + 1),
        "draft(1)": PrefilledPrompt.of(draft, whole).chain_case(1),
        "pruned(1)": PrefilledPrompt.of(draft, pruned(whole)).chain_case(1),
    }
    return median_seconds(cases, FORWARD_REPEATS)


def pruned(prompt: Prompt) -> Prompt:
    """A prompt of one row without the share RATIO of its visual tokens."""
    visual = prompt.visual[0]
    count = int(visual.sum())
    choice = spread(count, keep_count(count, RATIO), visual.device)
    return gather(prompt, [kept_indices(visual, choice)])


def report(figures: Mapping[str, Any]) -> list[str]:
    """A row for each method, and a comparison with theory."""
    runs = figures["runs"]
    stock = runs["hf-generate"]

    def row(name: str, own: Sequence[Run] | str) -> Run:
        if isinstance(own, str):
            return {"name": name, "e2e": f"failed: {own}"}
        return {
            "name": name,
            "e2e": f"{statistics.median(run['e2e'] for run in own):.2f}",
            "decode": statistics.median(run["decode"] for run in own),
            "gain": range_line(speedups(stock, own, "e2e")),
            "decode gain": range_line(speedups(stock, own, "decode")),
            "tau": own[0].get("mean_acceptance_length"),
            "same": all(a["tokens"] == b["tokens"] for a, b in zip(stock, own, strict=True)),
        }

    columns = {
        "": "{name}",
        "end to end, s": "{e2e}",
        "speedup e2e": "{gain}",
        "decode, s": "{decode:.2f}",
        "speedup decode": "{decode gain}",
        "τ": "{tau:.2f}",
        "same": "{same}",
    }
    lines = [
        theory_line(name, runs[name], runs["plain"], figures["costs"], draft)
        for name, draft in CHAINS.items()
    ]
    return [
        "## 16,000 visual tokens",
        table([row(*item) for item in runs.items()], columns),
        f"Medians of {len(runs['plain'])} interleaved runs of one clip after a warm-up, and from "
        "the least to the greatest ratio. Decode against our plain decoding: " + " ".join(lines),
        f"Raw forwards, ms: {milliseconds_line(figures['costs'])}.",
    ]


def theory_line(
    name: str, runs: Sequence[Run], plain: Sequence[Run], costs: Mapping[str, float], draft: str
) -> str:
    """The measured speedup of decoding with a chain, compared with the predicted one."""
    predicted = predicted_speedup(runs[0]["mean_acceptance_length"], GAMMA, costs, draft)
    measured = statistics.median(speedups(plain, runs, "decode"))
    without_reading = statistics.median(
        plain_run["decode"] / (run["decode"] - prompt_seconds(run))
        for plain_run, run in zip(plain, runs, strict=True)
    )
    return (
        f"{name}: eq. 3 predicts {predicted:.2f}, measured {measured:.2f} "
        f"({measured / predicted - 1:+.0%}), {without_reading:.2f} "
        f"({without_reading / predicted - 1:+.0%}) without the draft's reading of the prompt."
    )


def prompt_seconds(run: Run) -> float:
    """Decode seconds in which the draft's prompt is pruned and read."""
    return float(run["phases"]["prune"] + run["phases"]["draft_prefill"])


def speedups(slow: Sequence[Run], fast: Sequence[Run], figure: str) -> list[float]:
    """Ratios of the runs of one repeat."""
    return ratios([run[figure] for run in slow], [run[figure] for run in fast])
