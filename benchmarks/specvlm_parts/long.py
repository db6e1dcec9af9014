"""End to end and decode-only at 16,000 visual tokens, beside stock `generate` and stock assisted
generation."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

from shared import Answerer, assisted, clip, forward_case, given, ours, rotate, stock, timed

from draftlens.api import Engine, Inputs
from draftlens.models.gather import gather
from draftlens.prune import keep_count
from draftlens.prune.base import spread

FRAMES, GAMMA, RATIO = 1000, 5, 0.97
CLIP = 8
"""Of clips 0 to 11 the one whose answer is long and readable: the target learned from 4,097 visual
tokens at most, and at 16,001 it mostly says a few words or one word for ever."""
CHAINS = {"chain, unpruned": 0.0, "specvlm, chain": RATIO}


def measure(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Every method on the same clip, interleaved; and what eq. 3 makes of raw forwards measured in
    the same run."""
    inputs = given(engine, clip(CLIP), FRAMES)
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    table = methods(engine)
    found: dict[str, Any] = {name: [] for name in table}

    def answer(name: str, inputs: Inputs) -> None:
        try:
            found[name].append(table[name](inputs, options))
        except Exception as error:  # stock assisted generation, on some versions
            found[name] = f"{type(error).__name__}: {error}"
            del table[name]

    for name in list(table):  # first calls import, make plans and choose kernels
        answer(name, given(engine, clip(CLIP), 16))
    answer("plain", inputs)
    found.update({name: [] for name in table})
    costs: list[dict[str, float]] = []
    for repeat in range(args.repeats):
        for name in rotate(list(table), repeat):
            answer(name, inputs)
        costs.append(forwards(engine, inputs))
    return {
        "runs": found,
        "costs": {name: statistics.median(c[name] for c in costs) for name in costs[0]},
    }


def methods(engine: Engine) -> dict[str, Answerer]:
    """Name to a function that answers."""
    target, draft = engine.target.backbone, engine.draft.backbone.model  # type: ignore[union-attr]
    specvlm = {"method": "specvlm", "prune_ratio": RATIO}
    return {
        "hf-generate": stock(target),
        "hf-assisted": assisted(target, draft, {}),
        "plain": ours(engine, "plain"),
        "chain, unpruned": ours(engine, {"num_speculative_tokens": GAMMA}),
        "specvlm": ours(engine, specvlm),
        "specvlm, auto tree": ours(engine, {**specvlm, "tree": "auto"}),
        "specvlm, chain": ours(engine, {**specvlm, "tree": None, "num_speculative_tokens": GAMMA}),
    }


def forwards(engine: Engine, inputs: Inputs) -> dict[str, float]:
    """Seconds of raw forwards behind the prompt: one token and γ + 1 of the target, one of the
    draft."""
    cases: dict[str, Callable[[], None]] = {}
    for role, loaded in (("target", engine.target), ("draft", engine.draft)):
        backbone = loaded.backbone  # type: ignore[union-attr]
        whole = backbone.encode(backbone.prepare(inputs.target, max_new_tokens=1))
        visual = whole.visual[0].nonzero()[:, 0]
        stays = ~whole.visual[0]
        stays[visual[spread(len(visual), keep_count(len(visual), RATIO), visual.device)]] = True
        prompts = {
            "target": {role: whole},
            "draft": {"draft": whole, "pruned": gather(whole, [stays.nonzero()[:, 0]])},
        }
        for name, prompt in prompts[role].items():
            cache = backbone.new_cache(prompt, 40)
            backbone.prefill(prompt, cache)
            for size in (1, GAMMA + 1) if role == "target" else (1,):
                cases[f"{name}({size})"] = forward_case(backbone, prompt, cache, size)
    return {name: statistics.median(times) for name, times in timed(cases, 20).items()}


def predicted(tau: float, costs: dict[str, float], draft: str) -> float:
    """Equation 3: the speedup of decoding over one token a forward."""
    one = costs["target(1)"]
    return tau / (GAMMA * costs[f"{draft}(1)"] / one + costs[f"target({GAMMA + 1})"] / one)


def tell(found: dict[str, Any]) -> list[str]:
    """A table, and theory beside it."""
    runs = found["runs"]
    lines = [
        "## 16,000 visual tokens",
        "",
        "| | end to end, s | speedup e2e | decode, s | speedup decode | τ | same |",
    ]
    lines.append("|---|---:|---:|---:|---:|---:|---|")
    for name, rows in runs.items():
        lines.append(
            f"| {name} | "
            + (f"failed: {rows} | | | | | |" if isinstance(rows, str) else line(rows, runs))
        )
    lines += [
        "",
        f"Medians of {len(runs['plain'])} interleaved runs of one clip after a warm-up, and "
        f"from the least to the "
        "greatest ratio. Decode against our plain decoding:",
    ]
    for name, ratio in CHAINS.items():
        tau = runs[name][0]["mean_acceptance_length"]
        theory = predicted(tau, found["costs"], "pruned" if ratio else "draft")
        measured = statistics.median(gains(runs["plain"], runs[name], "decode"))
        inside = [
            run["decode"] - run["phases"]["prune"] - run["phases"]["draft_prefill"]
            for run in runs[name]
        ]
        rounds = statistics.median(
            p["decode"] / t for p, t in zip(runs["plain"], inside, strict=True)
        )
        lines.append(
            f"{name}: eq. 3 predicts {theory:.2f}, measured {measured:.2f} "
            f"({measured / theory - 1:+.0%}), "
            f"{rounds:.2f} ({rounds / theory - 1:+.0%}) without the draft's reading of the prompt."
        )
    told = ", ".join(f"{name} {1e3 * value:.2f}" for name, value in found["costs"].items())
    return [*lines, "", f"Raw forwards, ms: {told}."]


def shown(ratios: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def gains(slow: list[dict[str, Any]], fast: list[dict[str, Any]], key: str) -> list[float]:
    """Ratios of the runs of one repeat."""
    return [a[key] / b[key] for a, b in zip(slow, fast, strict=True)]


def line(rows: list[dict[str, Any]], runs: dict[str, Any]) -> str:
    """One method's cells."""
    reference = runs["hf-generate"]
    spent = {key: statistics.median(run[key] for run in rows) for key in ("e2e", "decode")}
    faster = {key: shown(gains(reference, rows, key)) for key in spent}
    tau = f"{rows[0]['mean_acceptance_length']:.2f}" if "mean_acceptance_length" in rows[0] else ""
    same = (
        "yes"
        if all(r["tokens"] == s["tokens"] for s, r in zip(reference, rows, strict=True))
        else "NO"
    )
    times = f"{spent['e2e']:.2f} | {faster['e2e']} | {spent['decode']:.2f} | {faster['decode']}"
    return f"{times} | {tau} | {same} |"
