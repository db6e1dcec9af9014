"""The engine on the embedded pair: what speculation buys, what overhead costs, and whether theory
explains it.

    python benchmarks/engine.py --out benchmarks/results/engine

Every configuration answers every clip once per repeat, interleaved, so that machine noise hits all
alike. Times are end to end (vision and prefill included) unless they say decode. Writes OUT.json
and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from shared import (
    Answerer,
    Run,
    assisted,
    environment,
    forward_case,
    ours,
    quiet,
    rotate,
    spread,
    stock,
    timed,
    told,
)

import draftlens
from draftlens.api import Engine, Inputs
from draftlens.models.backbone import Backbone

PREDICTION = """Written before the first run: plain decoding beats stock generate by about 10%, since the outer model's
forward and stock's per-token bookkeeping are skipped; chain speculation at γ = 5 reaches 1.7 to 2.1 times; stock
assisted generation stays below 1.2 times; time outside forwards is 6 to 10% of decode."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/engine"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gamma", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=320)
    args = parser.parse_args()
    quiet(args.threads)
    engine = draftlens.load("embedded", device="cpu")
    folder = Path(str(files("draftlens") / "embedded" / "clips"))
    clips = [record.with_suffix("") for record in sorted(folder.glob("*.mp4.json"))]
    prompts = {
        clip.name: engine.read("Describe the video.", video=clip, num_frames=8) for clip in clips
    }
    runs = measure(engine, prompts, args)
    costs = forward_costs(engine, next(iter(prompts.values())), args.gamma)
    report = {
        "environment": environment(args),
        "prediction": PREDICTION,
        "runs": runs,
        "costs": costs,
    }
    report["summary"] = summarize(runs, costs, args.gamma)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(report) + "\n")
    args.out.with_suffix(".md").write_text(markdown(report))
    print(markdown(report))


def configurations(engine: Engine, gamma: int) -> dict[str, Answerer]:
    """Name to a function that answers one prompt and returns tokens and times."""
    target, draft = engine.target.backbone, engine.draft.backbone.model  # type: ignore[union-attr]
    fixed = {"num_assistant_tokens": gamma, "num_assistant_tokens_schedule": "constant"}
    return {
        "hf-generate": stock(target),
        "hf-assisted (defaults)": assisted(target, draft, {}),
        f"hf-assisted (γ = {gamma})": assisted(
            target, draft, {**fixed, "assistant_confidence_threshold": 0.0}
        ),
        "plain": watched(engine, "plain"),
        f"chain (γ = {gamma})": watched(engine, {"num_speculative_tokens": gamma}),
        "tree (eagle)": watched(engine, {"tree": "eagle"}),
    }


def watched(engine: Engine, method: Any) -> Answerer:
    """The engine, and the share of its decode time that lies outside forwards."""
    answer = ours(engine, method)

    def call(inputs: Inputs, options: dict[str, Any]) -> Run:
        with timed_forwards(engine) as spent:
            run = answer(inputs, options)
        inside = (
            spent() + run["phases"]["draft_prefill"]
        )  # the draft reads the prompt behind the first token
        return {**run, "tau": run["mean_acceptance_length"], "outside": 1 - inside / run["decode"]}

    return call


class timed_forwards:  # noqa: N801 - used as a context manager
    """Adds up the time inside decode forwards of both models."""

    def __init__(self, engine: Engine) -> None:
        self.backbones = [m.backbone for m in (engine.target, engine.draft) if m is not None]
        self.seconds = 0.0

    def __enter__(self) -> Callable[[], float]:
        for backbone in self.backbones:
            backbone.forward = self._timed(Backbone.forward.__get__(backbone))  # type: ignore[method-assign]
        return lambda: self.seconds

    def __exit__(self, *_: object) -> None:
        for backbone in self.backbones:
            del backbone.forward

    def _timed(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            output = forward(*args)
            self.seconds += time.perf_counter() - start
            return output

        return call


def measure(engine: Engine, prompts: dict[str, Inputs], args: argparse.Namespace) -> dict[str, Any]:
    """Times of every configuration on every clip, interleaved; tokens are compared with stock's."""
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    table = configurations(engine, args.gamma)
    runs: dict[str, Any] = {
        name: {"e2e": {}, "decode": {}, "tau": {}, "outside": {}, "identical": True}
        for name in table
    }
    for name, call in list(table.items()):
        try:
            call(
                next(iter(prompts.values())), options
            )  # warm-up, and whether stock can run it at all
        except Exception as error:
            runs[name] = {"failed": f"{type(error).__name__}: {error}"}
            del table[name]
    for repeat in range(args.repeats):
        for clip, inputs in prompts.items():
            reference = None
            for name, call in rotate(list(table.items()), repeat):
                found = call(inputs, options)
                run = runs[name]
                for key in ("e2e", "decode", "tau", "outside"):
                    if key in found:
                        run[key].setdefault(clip, []).append(round(found[key], 6))
                reference = reference or found["tokens"]
                run["identical"] &= found["tokens"] == reference
                run["emitted"] = run.get("emitted", 0) + sum(map(len, found["tokens"]))
    return runs


def forward_costs(engine: Engine, inputs: Inputs, gamma: int) -> dict[str, float]:
    """Seconds of raw forwards behind a real prompt: median of 60, the sizes interleaved."""
    cases: dict[str, Callable[[], None]] = {}
    for role, loaded, sizes in (
        ("target", engine.target, (1, gamma + 1, 26)),
        ("draft", engine.draft, (1, 2)),
    ):
        backbone = loaded.backbone  # type: ignore[union-attr]
        prompt = backbone.encode(backbone.prepare(inputs.target, max_new_tokens=1))
        cache = backbone.new_cache(prompt, 40)
        backbone.prefill(prompt, cache)
        for size in sizes:
            cases[f"{role}({size})"] = forward_case(backbone, prompt, cache, size)
    return {name: statistics.median(values) for name, values in timed(cases, 60).items()}


def summarize(runs: dict[str, Any], costs: dict[str, float], gamma: int) -> dict[str, Any]:
    """Medians over clips and repeats, ratios to stock generate, and the speedup that the costs
    predict."""
    summary: dict[str, Any] = {}
    for name, run in runs.items():
        if "failed" in run:
            summary[name] = run
            continue
        ratios = {key: paired(runs["hf-generate"][key], run[key]) for key in ("e2e", "decode")}
        summary[name] = {
            "e2e_seconds": statistics.median(values(run["e2e"])),
            "speedup_e2e": spread(ratios["e2e"]),
            "speedup_decode": spread(ratios["decode"]),
            "identical": run["identical"],
            **{key: statistics.mean(values(run[key])) for key in ("tau", "outside") if run[key]},
        }
    chain = next(name for name in runs if name.startswith("chain"))
    tau, one = summary[chain]["tau"], costs["target(1)"]
    predicted = tau / (gamma * costs["draft(1)"] / one + costs[f"target({gamma + 1})"] / one)
    measured = spread(paired(runs["plain"]["decode"], runs[chain]["decode"]))
    assisted_best = [
        spread(paired(run["e2e"], runs[chain]["e2e"]))
        for n, run in runs.items()
        if "assisted" in n and "e2e" in run
    ]
    summary["chain against plain, decode"] = {"predicted": predicted, "measured": measured}
    summary["chain against best stock assisted, e2e"] = min(
        assisted_best, key=lambda s: s["median"], default=None
    )
    return summary


def values(by_clip: dict[str, list[float]]) -> list[float]:
    """All clips' values in one list."""
    return [value for column in by_clip.values() for value in column]


def paired(slow: dict[str, list[float]], fast: dict[str, list[float]]) -> list[float]:
    """Ratios of runs of the same clip in the same repeat."""
    return [a / b for clip in slow for a, b in zip(slow[clip], fast[clip], strict=True)]


def markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    summary, costs = report["summary"], report["costs"]
    lines = [
        "# Engine benchmark",
        "",
        "| | end to end, s | speedup e2e | speedup decode | τ | outside forwards | identical |",
    ]
    lines.append("|---|---:|---:|---:|---:|---:|---|")
    for name in report["runs"]:
        row = summary[name]
        if "failed" in row:
            lines.append(f"| {name} | failed: {row['failed']} | | | | | |")
            continue
        tau = f"{row['tau']:.2f}" if "tau" in row else ""
        outside = f"{row['outside']:.1%}" if "outside" in row else ""
        ratios = " | ".join(told(row[key]) for key in ("speedup_e2e", "speedup_decode"))
        same = "yes" if row["identical"] else "NO"
        lines.append(
            f"| {name} | {row['e2e_seconds']:.3f} | {ratios} | {tau} | {outside} | {same} |"
        )
    theory = summary["chain against plain, decode"]
    best = summary["chain against best stock assisted, e2e"]
    lines += [
        "",
        "Speedups are against hf-generate, paired by clip and repeat: median (quartiles). "
        "Outside forwards: share",
    ]
    lines[-1] += (
        " of decode time in neither model's forward (the draft's reading of the prompt is one), "
        "mean."
    )
    lines += [
        "",
        f"Chain against our plain decoding, decode only: measured {told(theory['measured'])}, ",
    ]
    lines[-1] += f"predicted by τ / (γ·Td/Tt + Tt(γ)/Tt): {theory['predicted']:.2f}."
    if best is not None:
        lines += [
            "",
            f"Chain against the better stock assisted generation, end to end: {told(best)}.",
        ]
    lines += [
        "",
        "Raw forwards, ms: "
        + ", ".join(f"{name} {1e3 * value:.2f}" for name, value in costs.items())
        + ".",
    ]
    lines += [
        "",
        "Environment: " + ", ".join(f"{k} {v}" for k, v in report["environment"].items()) + ".",
    ]
    lines += ["", "Prediction. " + " ".join(report["prediction"].split()), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
